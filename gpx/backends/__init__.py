"""How a kernel matrix meets a block of vectors."""

from gpx.backends.chunks import DEFAULT_BUDGET, row_chunks, rows_per_chunk

__all__ = ["DEFAULT_BUDGET", "row_chunks", "rows_per_chunk"]
