"""Choice of method and kernel by the data: ``approx=auto`` and ``kernel=auto``."""
