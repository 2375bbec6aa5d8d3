"""Triton kernels: kernel-matrix products, random Fourier features, each beside its twin in torch.

Optional (``pip install 'gpx-torch[triton]'``; CUDA builds of torch on Linux bring it). The modules
that hold kernels import Triton and are imported when they are first used.
"""

from gpx.backends.triton.availability import (
    triton_fourier,
    triton_installed,
    triton_normals,
    triton_refusal,
    triton_tree,
)
from gpx.backends.triton.engine import Triton

__all__ = [
    "Triton",
    "triton_fourier",
    "triton_installed",
    "triton_normals",
    "triton_refusal",
    "triton_tree",
]
