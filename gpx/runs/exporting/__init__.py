"""Trained models as programs that predict without gpx."""
