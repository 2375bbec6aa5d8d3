"""What tests of Fourier features share."""

import pytest
import torch

from gpx.bases.fourier import products, sweep
from gpx.bases.fourier.native import fourier_pass


@pytest.fixture(params=["torch", "compiled"])
def road(request, monkeypatch):
    """Both ways of evaluating features; small tiles, so that there are several."""
    if request.param == "torch":
        for module in (products, sweep):
            monkeypatch.setattr(module, "fourier_pass", lambda like: None)
    elif fourier_pass(torch.zeros(1)) is None:
        pytest.skip("no C compiler")
    monkeypatch.setattr(sweep, "TILE_ANGLES", 40)
    return request.param
