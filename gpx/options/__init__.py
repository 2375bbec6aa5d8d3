"""What a user writes: options composed into a config, checked, and built into objects."""
