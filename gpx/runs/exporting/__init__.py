"""Export of trained models to files that predict without gpx."""
