"""Normals of a given sign: their distribution function, near and far."""

import pytest
import scipy.stats
import torch

from gpx.sampling.truncated_normal import signed_normals


@pytest.mark.parametrize("mean", [-60.0, -8.0, -5.01, -4.99, -1.0, 0.0, 2.0, 9.0, 40.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_draws_are_the_quantiles_of_their_uniform_numbers(mean, sign):
    """log P(T > excess) = log v + log P(T > -a), by scipy, to rounding of the tail."""
    where = torch.full((2000,), mean, dtype=torch.float64)
    found = signed_normals(where, torch.tensor(sign), generator=torch.Generator().manual_seed(0))
    assert bool((sign * found >= 0.0).all())
    uniform = torch.rand(
        2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).log()
    a = sign * mean
    want = uniform.numpy() + scipy.stats.norm.logcdf(a)
    excess = (sign * found - a).numpy()
    seen = scipy.stats.norm.logsf(excess)
    # the sum a + excess is rounded, and moves the logarithm by that times the hazard
    slack = 1e-12 * (1.0 + abs(a)) ** 2 + 1e-9
    assert abs(seen - want).max() < slack


def test_their_moments_where_both_branches_meet():
    """Mean of 40,000 draws within five standard errors: false alarm below 1e-6 a mean."""
    generator = torch.Generator().manual_seed(1)
    for a in (-6.0, -4.0, 1.0):
        law = scipy.stats.truncnorm(-a, float("inf"), loc=a)
        drawn = signed_normals(
            torch.full((40_000,), -a).double(), torch.tensor(-1.0), generator=generator
        )
        assert abs(float(-drawn.mean()) - law.mean()) < 5.0 * law.std() / 200.0
        assert float(drawn.std()) == pytest.approx(law.std(), rel=0.03)
