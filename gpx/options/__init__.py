"""Options of the user: composed into a config, checked, and built into objects."""
