"""Pictures of a finished run."""
