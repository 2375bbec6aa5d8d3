"""How a kernel matrix meets a block of vectors."""

from gpx.backends.choice import BackendName, Choice, choose_backend
from gpx.backends.chunked import Chunked
from gpx.backends.chunks import DEFAULT_BUDGET, row_chunks, row_slices, rows_per_chunk
from gpx.backends.dense import Dense
from gpx.backends.entries import CovarianceFunction, Entries, Scratch, TileSource
from gpx.backends.keops import KeOps, keops_installed
from gpx.backends.radial_parts import RadialPart, RadialProfile
from gpx.backends.sharded import Engine, Sharded, is_shared, own_rows
from gpx.backends.triton import Triton, triton_installed

__all__ = [
    "DEFAULT_BUDGET",
    "BackendName",
    "Choice",
    "Chunked",
    "CovarianceFunction",
    "Dense",
    "Engine",
    "Entries",
    "KeOps",
    "RadialPart",
    "RadialProfile",
    "Scratch",
    "Sharded",
    "TileSource",
    "Triton",
    "choose_backend",
    "is_shared",
    "keops_installed",
    "own_rows",
    "row_chunks",
    "row_slices",
    "rows_per_chunk",
    "triton_installed",
]
