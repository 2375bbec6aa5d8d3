"""Matern kernels of any smoothness: closed forms, the integral of the spectrum, slopes."""

import mpmath
import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern12, Matern32, Matern52, MaternNu

pytestmark = pytest.mark.usefixtures("float64_by_default")


def inputs(n=6, seed=0):
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))


CLOSED = [(0.5, Matern12), (1.5, Matern32), (2.5, Matern52)]


@pytest.mark.parametrize(("nu", "kind"), CLOSED)
def test_it_is_the_closed_form_and_so_are_its_gradients(nu, kind):
    own, other = (make(2, [0.7, 1.3], 1.3) for make in (lambda *a: MaternNu(*a, nu=nu), kind))
    x, z = inputs(), torch.cat([inputs(4, 1), inputs()[:1]])
    found, want = own.evaluate(x, z), other.evaluate(x, z)
    # distances that vanish are the same in both
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-14)
    weights = torch.randn(6, 5, generator=torch.Generator().manual_seed(2))
    for made in (own, other):
        (made.evaluate(x, z) * weights).sum().backward()
    for ours, theirs in zip(own.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)
    normals = torch.randn(5, 2 + round(2 * nu), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        own.spectral_frequencies(normals), other.spectral_frequencies(normals)
    )


@pytest.mark.parametrize("nu", [0.1, 0.7, 1.0, 1.2, 3.7, 20.0, 50.0])
def test_values_are_those_of_many_digits(nu):
    kernel = MaternNu(None, 1.0, 1.0, nu=nu)
    r = torch.tensor([0.0, 1e-12, 1e-3, 0.3, 1.0, 4.0, 9.0])
    found = kernel.of_squared_distance(r.square()).tolist()
    assert found[0] == 1.0
    for at, value in zip(r.tolist()[1:], found[1:], strict=True):
        z = mpmath.sqrt(2 * mpmath.mpf(nu)) * mpmath.mpf(at)
        want = mpmath.power(2, 1 - nu) / mpmath.gamma(nu) * z**nu * mpmath.besselk(nu, z)
        assert value == pytest.approx(float(want), rel=1e-11)


@pytest.mark.parametrize("nu", [0.3, 0.7, 1.0, 1.2, 3.7, 20.0])
def test_slopes(nu):
    kernel = MaternNu(None, 1.0, 1.0, nu=nu)
    r2 = torch.tensor([1e-2, 0.3, 2.0, 9.0], requires_grad=True)
    assert torch.autograd.gradcheck(kernel.of_squared_distance, (r2,))
    zero = torch.zeros(1, requires_grad=True)
    kernel.of_squared_distance(zero).backward()
    assert zero.grad.item() == pytest.approx(-nu / (2 * (nu - 1)) if nu > 1 else 0.0)


def test_inputs_that_are_no_numbers_stay_none():
    x = torch.tensor([[float("nan")], [0.0]], requires_grad=True)
    found = MaternNu(1, nu=0.7).evaluate(x, torch.ones(1, 1))
    found.sum().backward()
    assert found.isnan().flatten().tolist() == [True, False]
    assert bool(x.grad.isnan()[0])


def test_large_smoothness_is_close_to_a_squared_exponential():
    gap = MaternNu(2, 0.8, nu=50.0).evaluate(inputs()) - RBF(2, 0.8).evaluate(inputs())
    assert float(gap.detach().abs().max()) < 0.01


def test_what_does_not_fit():
    for nu in (0.0, -1.0, 51.0, float("nan")):
        with pytest.raises(ConfigError, match=r"the smoothness of a Matern kernel is above 0"):
            MaternNu(nu=nu)
    for ask in (
        lambda: MaternNu(2, nu=0.7).num_spectral_normals(2),
        lambda: MaternNu(2, nu=0.7).spectral_frequencies(torch.zeros(1, 3)),
    ):
        with pytest.raises(ConfigError, match=r"where 2 nu is a whole number, got nu=0\.7; .*0\.5"):
            ask()
