"""Blocks of whitened covariances of all data with the inducing points."""

from __future__ import annotations

import gc
import weakref

import torch

from gpx.inducing.features import POINTS
from gpx.inference.nystrom import BlockStore, nystrom_sums
from gpx.inference.variational.strategy import InducingVariables
from gpx.kernels import RBF


def test_blocks_are_given_back_without_the_collector() -> None:
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    variables = InducingVariables(RBF(2).double().requires_grad_(False), x[:4], 1e-6, POINTS)
    gc.collect()
    gc.disable()
    try:
        store = BlockStore(variables.whitener(), x, dtype=torch.float64)
        nystrom_sums(store, x[:, 0])
        gone = weakref.ref(store)
        del store
        assert gone() is None  # a stream makes a store for every chunk of its rows
    finally:
        gc.enable()
