"""Triton's cosines and sines against float64, under its interpreter."""

import numpy as np
import pytest
import torch
from triton_cases import skip_without_interpreter

skip_without_interpreter()
pytestmark = pytest.mark.triton

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from gpx.backends.triton.waves import cosine_sine  # noqa: E402


@triton.jit
def _waves_kernel(angles, out, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    cosine, sine = cosine_sine(tl.load(angles + at))
    tl.store(out + at, cosine)
    tl.store(out + COUNT + at, sine)


@pytest.mark.parametrize(("dtype", "farthest"), [(torch.float32, 1e3), (torch.float64, 1e6)])
def test_waves_are_cosines_and_sines(dtype, farthest):
    angles = torch.linspace(-1.0, 1.0, 512, dtype=torch.float64) * farthest
    angles[:4] = torch.tensor([0.0, torch.pi / 4, -torch.pi / 2, torch.pi])
    angles = angles.to(dtype)
    out = torch.empty(2, 512, dtype=dtype)
    _waves_kernel[(1,)](angles, out, COUNT=512)
    exact = torch.stack((angles.double().cos(), angles.double().sin()))
    eps = torch.finfo(dtype).eps
    # the interpreter rounds a fused multiply-add twice, which costs a rounding of the angle
    allowed = 2.0 * eps + 0.5 * eps * angles.double().abs()
    assert ((out.double() - exact).abs() <= allowed).all()
    assert torch.equal(out[:, 0], torch.tensor([1.0, 0.0], dtype=dtype))


def test_waves_of_nan_and_infinity_are_nan_and_huge_ones_never_exceed_one():
    for dtype in (torch.float32, torch.float64):
        angles = torch.tensor([torch.nan, torch.inf, 1e9, -1e12], dtype=dtype)
        out = torch.empty(2, 4, dtype=dtype)
        with np.errstate(invalid="ignore"):
            _waves_kernel[(1,)](angles, out, COUNT=4)
        assert out[:, :2].isnan().all()
        assert not (out[:, 2:].abs() > 1.0 + 1e-6).any()
