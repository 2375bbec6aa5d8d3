"""Cosines and sines of the compiled pass: accuracy, and angles that have none."""

import pytest
import torch

from gpx.bases.fourier.native import fourier_pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_features_are_as_accurate_as_torch(dtype):
    native = fourier_pass(torch.zeros(1, dtype=dtype))
    if native is None:
        pytest.skip("no C compiler")
    largest = 1e4 if dtype == torch.float32 else 1e6
    inputs = torch.linspace(-largest, largest, 100_003, dtype=dtype)
    inputs = torch.cat((inputs, torch.linspace(-20, 20, 5001, dtype=dtype)))[None, :]
    waves = torch.empty(2, 1, inputs.shape[1], dtype=dtype)
    native(torch.ones(1, 1, dtype=dtype), inputs, cosines=waves[0], sines=waves[1])
    exact = torch.stack((inputs.double().cos(), inputs.double().sin()))
    assert (waves - exact).abs().max() < 2 * torch.finfo(dtype).eps


def test_compiled_features_of_angles_out_of_range_stay_bounded_and_nan_stays_nan():
    native = fourier_pass(torch.zeros(1))
    if native is None:
        pytest.skip("no C compiler")
    inputs = torch.tensor([[1e9, -3e20, float("inf"), float("nan")]])
    waves = torch.empty(2, 1, 4)
    native(torch.ones(1, 1), inputs, cosines=waves[0], sines=waves[1])
    assert (waves[..., :2].abs() <= 1.0).all()
    assert waves[..., 2:].isnan().all()
