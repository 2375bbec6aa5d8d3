"""Eigenfunctions of one input as Chebyshev series: as many terms as the error asks for."""

import math

import pytest
import torch
from draws import uniform
from eigenfunction_series import placed, series_of

from gpx.bases.grid_eigenfunctions.polynomials import number_of_terms
from gpx.kernels import RBF, Constant, Matern52, Periodic

DOUBLE = torch.float64


@pytest.mark.parametrize("ratio", [0.0, 0.1, 1.0, 4.0, 15.0])
@pytest.mark.parametrize("error", [1e-4, 1e-11])
def test_the_number_of_terms_keeps_to_the_error(ratio, error):
    terms = int(number_of_terms(torch.tensor(ratio), error))
    t = torch.linspace(-1.0, 1.0, 401, dtype=DOUBLE)

    def worst(terms):
        place = torch.arange(terms, dtype=DOUBLE)
        angle = (place + 0.5) * (math.pi / terms)
        basis = (t.arccos().unsqueeze(1) * place).cos()
        cosines = (angle.unsqueeze(1) * place).cos() * 2.0 / terms
        cosines[:, 0] *= 0.5
        found = 0.0
        for u in (-3.0, -1.0, 0.0, 0.3, 1.0):
            of = lambda z, u=u: (-0.5 * (ratio * (z - u)).square()).exp()  # noqa: E731
            found = max(found, float((basis @ (of(angle.cos()) @ cosines) - of(t)).abs().max()))
        return found

    assert worst(terms) < error + 1e-14
    if ratio >= 1.0:  # not many more than it takes
        assert worst(terms // 2) > error


@torch.no_grad()
def test_series_are_the_one_dimensional_functions():
    x = uniform(80, 4, seed=1)
    x[:, 2] = 3.0  # no part in the model
    kernel = RBF(active_dims=[0, 2, 3], ard_num_dims=3, lengthscale=[0.1, 1.0, 0.7]) * RBF(
        active_dims=[1, 0], ard_num_dims=2, lengthscale=[0.4, 0.3]
    )
    basis = placed(kernel * Constant(2.0), x, 60, points_per_dim=9, kind="quantile")
    want = basis.one_dimensional(x, basis.modes().transforms)
    series = series_of(basis, x)
    # rounding of the kernel's values is divided by the root of the eigenvalue, on either way
    root = basis._floored(basis.eigenpairs()[0])[:, : want.shape[1], None].sqrt()
    torch.testing.assert_close(root * series.evaluate(x), root * want, rtol=0.0, atol=1e-13)
    assert series.degrees[0] > series.degrees[3]  # as many terms as the lengthscale asks for
    many = placed(kernel, x, 60, points_per_dim=60)
    assert series_of(many, x).series.shape[2] == series.series.shape[2]
    for other in (Matern52(active_dims=[0]) * RBF(active_dims=[1]), Periodic()):
        assert series_of(placed(other, x, 10), x) is None
    # a range of a thousand lengthscales
    assert series_of(placed(RBF(lengthscale=1e-3), x, 10), x) is None
