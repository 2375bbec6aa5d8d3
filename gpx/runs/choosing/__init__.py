"""What the data decide: ``approx=auto`` and ``kernel=auto``."""
