"""Triton's stationary profiles and slopes against the kernels' own, under its interpreter."""

import pytest
import torch
from triton_cases import skip_without_interpreter

skip_without_interpreter()
pytestmark = pytest.mark.triton

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from gpx.backends.radial_parts import RadialPart  # noqa: E402
from gpx.backends.triton.profiles import (  # noqa: E402
    factor,
    plain_profile,
    radial,
    radial_slopes,
)
from gpx.kernels import RBF, Matern12, Matern32, Matern52, RationalQuadratic  # noqa: E402

KERNELS = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational_quadratic": RationalQuadratic,
}


@triton.jit
def _profile_kernel(t, shape, out, COUNT: tl.constexpr, PROFILE: tl.constexpr):
    at = tl.arange(0, COUNT)
    tile = tl.load(t + at)
    alpha = tl.load(shape)
    value, slope, by_shape = radial_slopes(tile, alpha, PROFILE)
    tl.store(out + at, radial(tile, alpha, PROFILE))
    tl.store(out + COUNT + at, value)
    tl.store(out + 2 * COUNT + at, slope)
    tl.store(out + 3 * COUNT + at, by_shape)


def part(profile, alpha):
    z, one = torch.zeros(1, 1).to(alpha), torch.ones(()).to(alpha)
    return RadialPart(profile, z, z, one, alpha if profile == "rational_quadratic" else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("profile", KERNELS)
def test_profiles_and_slopes_are_those_of_the_kernels(profile, dtype):
    alpha = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    r2 = torch.logspace(-4, 1.3, 64).to(dtype).double().requires_grad_()
    known = plain_profile(part(profile, alpha), r2)
    options = {"alpha": 1.3} if profile == "rational_quadratic" else {}
    kernel = KERNELS[profile](**options).double()
    torch.testing.assert_close(known, kernel.of_squared_distance(r2), rtol=1e-14, atol=0)
    slope, by_shape = torch.autograd.grad(known.sum(), (r2, alpha), allow_unused=True)
    t = (r2.detach() * factor(part(profile, alpha.detach()))).to(dtype)
    out = torch.empty(4, 64, dtype=dtype)
    _profile_kernel[(1,)](t, alpha.detach().to(dtype), out, COUNT=64, PROFILE=profile)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for found in out[:2].double():
        torch.testing.assert_close(found, known.detach(), rtol=tolerance, atol=0)
    torch.testing.assert_close(out[2].double(), slope, rtol=tolerance, atol=0)
    if by_shape is not None:  # of all points together
        rtol = 1e-10 if dtype == torch.float64 else 1e-4
        torch.testing.assert_close(out[3].double().sum(), by_shape, rtol=rtol, atol=0)


@pytest.mark.parametrize("profile", KERNELS)
def test_no_distance_at_all_and_an_enormous_one(profile):
    alpha = torch.tensor(1.3, dtype=torch.float64)
    side = -1.0 if profile == "rbf" else 1.0  # of the sign that its factor gives
    t = side * torch.tensor([0.0, -1e-9, 1e12, torch.nan], dtype=torch.float64)
    out = torch.empty(4, 4, dtype=torch.float64)
    _profile_kernel[(1,)](t, alpha, out, COUNT=4, PROFILE=profile)
    assert out[:2, :2].tolist() == [[1.0, 1.0]] * 2  # rounding below zero is clamped away
    assert bool((out[0, 2] < 1e-12) & (out[0, 2] > 0.0) & torch.isfinite(out[1:, 2]).all())
    assert bool(out[:3, 3].isnan().all())


@pytest.mark.parametrize("power", [0, 1, 2, 4, 6])
def test_a_rational_quadratic_keeps_the_digits_of_float32_however_large_its_shape(power):
    alpha = torch.tensor(10.0**power, dtype=torch.float64)
    rational = part("rational_quadratic", alpha)
    t = (torch.logspace(-4, 1.3, 256, dtype=torch.float64) * factor(rational)).float()
    u = t.double()
    known = plain_profile(rational, u / factor(rational))
    # log(1 + u) - u / (1 + u) by its series, without cancellation, or as it is
    terms = [(-1) ** k * (k - 1) / k * u**k for k in range(2, 12)]
    by_shape = -known * torch.where(u < 0.01, sum(terms), u.log1p() - u / (1.0 + u))
    out = torch.empty(4, 256)
    _profile_kernel[(1,)](t, alpha.float(), out, COUNT=256, PROFILE="rational_quadratic")
    torch.testing.assert_close(out[0].double(), known, rtol=0, atol=4e-7)
    torch.testing.assert_close(out[3].double(), by_shape, rtol=1e-5, atol=0)
