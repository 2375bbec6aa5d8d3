"""Certificates against dense exact inference: not one violation beyond rounding."""

import math

import golden_g1 as g1
import golden_g2 as g2
import pytest
import torch
from draws import double
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.diagnostics.certificate import certify, certify_exact
from gpx.diagnostics.event_probability import (
    exceedance_interval,
    exceedance_probability,
    probability_interval,
)
from gpx.diagnostics.moment_bounds import credible_intervals
from gpx.diagnostics.nystrom_moments import davies_variance_bounds, nystrom_moment_bounds
from gpx.errors import ConfigError, DataError, DTypeError
from gpx.inducing import GreedyConditionalVariance
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels import RBF, Matern12, Matern32, Matern52, Periodic
from gpx.likelihoods import Gaussian, StudentT
from gpx.means import Constant, Zero
from gpx.models import SGPR
from gpx.objectives import CollapsedELBO
from gpx.training.lbfgsb import LBFGSB


def golden_kernel():
    kernel = RBF(lengthscale=0.7).double()
    kernel.lengthscale, kernel.outputscale = double(0.7), double(g1.VARIANCE)
    return kernel


class Truth:
    """Exact posterior at points, by dense algebra."""

    def __init__(self, kernel, mean, noise, x, y, points):
        self.noise = noise
        k = kernel.evaluate(x) + noise * torch.eye(len(y), dtype=x.dtype)
        cross, target = kernel.evaluate(x, points), y - mean(x)
        solved = torch.linalg.solve(k, torch.cat([target[:, None], cross], 1))
        self.mean = mean(points) + cross.mT @ solved[:, 0]
        self.variance = kernel.diagonal(points) - (cross * solved[:, 1:]).sum(0)
        logdet = torch.linalg.slogdet(k)[1]
        constant = len(y) * math.log(2 * math.pi)
        self.evidence = float(-0.5 * (target @ solved[:, 0] + logdet + constant))
        kxx = k - noise * torch.eye(len(y), dtype=x.dtype)
        self.dimension = float(torch.linalg.solve(k, kxx).trace())
        self.condition = float(torch.linalg.cond(k))


KERNELS = (RBF, Matern12, Matern32, Matern52, Periodic)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 60),
    log_noise=st.floats(-5, 1.5),
    log_scale=st.floats(-1, 1),
    log_size=st.floats(-1, 1),
    share=st.floats(0, 1),
    products=st.booleans(),
)
@torch.no_grad()
def test_not_one_violation(seed, n, log_noise, log_scale, log_size, share, products):
    draws = torch.Generator().manual_seed(seed)
    d = 1 + seed % 3
    x = torch.randn(n, d, generator=draws, dtype=torch.float64)
    points = torch.cat([1.5 * torch.randn(12, d, generator=draws).double(), x[:2]])
    y = 1.0 + 10**log_size * (x.sum(1).sin() + 0.3 * torch.randn(n, generator=draws).double())
    m = 1 + int(share * (n - 1))
    kernel = KERNELS[seed % 5](lengthscale=10**log_scale).double()
    mean, likelihood = Constant().double(), Gaussian(10**log_noise).double()
    mean.constant.fill_(0.7)
    z = x[torch.randperm(n, generator=draws)[:m]] + 0.05 * (seed % 2)
    truth = Truth(kernel, mean, likelihood.noise_variance, x, y, points)
    exact = certify_exact(kernel, mean, likelihood, x, y, points)
    sparse = certify(kernel, mean, likelihood, z, x, y, points, products=products)
    noise, threshold = likelihood.noise_variance, double(1.0)
    event = exceedance_probability(truth.mean, truth.variance, noise, threshold)
    half = 1.959963984540054 * (truth.variance + noise).sqrt()
    for found in (sparse, exact):
        assert found.lower <= truth.evidence <= found.upper  # rounding is allowed for within
        assert found.dimension_lower <= truth.dimension + 1e-6
        assert truth.dimension <= found.dimension_upper + 1e-6
        moments = found.moments
        assert bool((moments.mean_lower <= truth.mean).all())
        assert bool((truth.mean <= moments.mean_upper).all())
        assert bool((moments.variance_lower <= truth.variance).all())
        assert bool((truth.variance <= moments.variance_upper * (1 + 1e-12)).all())
        assert bool(((found.predicted.mean - truth.mean).abs() <= found.mean_error).all())
        outer = credible_intervals(moments, noise)
        assert bool((outer.inflated_lower <= truth.mean - half).all())
        assert bool((truth.mean + half <= outer.inflated_upper).all())
        there = ~outer.empty
        assert bool((truth.mean - half <= outer.deflated_lower)[there].all())
        assert bool((outer.deflated_upper <= truth.mean + half)[there].all())
        low, up = found.probability_bounds(float(threshold))
        assert bool(((low <= event) & (event <= up)).all())
        wider = exceedance_interval(moments, noise, threshold)
        assert bool(((wider[0] <= low + 1e-12) & (up <= wider[1] + 1e-12)).all())
    divergence = truth.evidence - sparse.lower_bounds["collapsed bound"]
    assert divergence <= sparse.kl + sparse.rounding
    said = exceedance_probability(
        sparse.predicted.mean, sparse.predicted.variance, noise, threshold
    )
    wide = probability_interval(said, double(sparse.kl), pinsker=True)
    low, up = probability_interval(said, double(sparse.kl))
    rounding = sparse.event_rounding
    assert bool(((low <= event + rounding) & (event <= up + rounding)).all())
    assert bool(((wide[0] <= low) & (up <= wide[1])).all())


@torch.no_grad()
def test_two_hundred_questions_about_co2():
    """Fixture G2: probabilities and intervals hold for every number of greedy points."""
    trend = RBF(lengthscale=67.0, outputscale=66.0**2)
    season = Periodic(lengthscale=1.3, outputscale=None)
    kernel = (trend + RBF(lengthscale=20.0, outputscale=2.4**2) * season).double()
    x, y, likelihood = g2.x[:, None], g2.y, Gaussian(g2.NOISE).double()
    draws = torch.Generator().manual_seed(0)
    points = 1955.0 + 60.0 * torch.rand(200, 1, generator=draws, dtype=torch.float64)
    exact = certify_exact(kernel, Zero(), likelihood, x, y, points)
    noise = likelihood.noise_variance
    spread = (exact.predicted.variance + noise).sqrt()
    thresholds = exact.predicted.mean + spread * torch.randn(200, generator=draws).double()
    truth = exceedance_probability(*exact.predicted, noise, thresholds)
    left, right = (exact.predicted.mean + sign * 1.959963984540054 * spread for sign in (-1, 1))
    chosen = GreedyConditionalVariance().select(x, kernel, 100).points
    widths, empty = [], []
    for m in (10, 30, 50, 75, 90, 100):
        found = certify(kernel, Zero(), likelihood, chosen[:m], x, y, points, products=False)
        said = exceedance_probability(*found.predicted, noise, thresholds)
        pinsker = probability_interval(said, double(found.kl), pinsker=True)
        for low, up in (pinsker, exceedance_interval(found.moments, noise, thresholds)):
            assert bool(((low <= truth) & (truth <= up)).all())
        outer = credible_intervals(found.moments, noise)
        assert bool(((outer.inflated_lower <= left) & (right <= outer.inflated_upper)).all())
        inside = (left <= outer.deflated_lower) & (outer.deflated_upper <= right)
        assert bool((inside | outer.empty).all())
        widths.append(float((pinsker[1] - pinsker[0]).mean()))
        empty.append(int(outer.empty.sum()))
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 1.0
    assert widths[-1] < 0.1
    assert empty[0] > 100
    assert empty[-1] == 0


def golden_certificate(points, **options):
    mean, likelihood = Constant().double(), Gaussian().double()
    likelihood.noise_variance = double(g1.NOISE)
    return certify(
        golden_kernel(),
        mean,
        likelihood,
        g1.z[:, None],
        g1.x[:, None],
        g1.y,
        points,
        **options,
    )


@torch.no_grad()
def test_golden_moments():
    points = double([[5.03], [10.4]])
    kernel = golden_kernel()
    q = NystromMatrix.of(kernel, g1.x[:, None], g1.z[:, None], g1.y, double(g1.NOISE))
    found = nystrom_moment_bounds(kernel, q, g1.y, points)
    assert found.variance_lower.tolist() == pytest.approx([0.004173886302, 0.152877092], rel=1e-6)
    assert found.variance_upper.tolist() == pytest.approx([0.01102779561, 0.2787046097], rel=1e-6)
    centre, published = double([-0.5937060182, 1.965235844]), double([5.455116268, 31.09918608])
    # the derived half-width is a fraction of the published one, about the same centre
    assert bool((found.mean_lower >= centre - 0.4 * published).all())
    assert bool((found.mean_upper <= centre + 0.4 * published).all())
    subset = torch.arange(5, 200, 10)
    low, up = davies_variance_bounds(kernel, g1.x[:, None], subset, double(g1.NOISE), points)
    assert low.tolist() == [0.0, 0.0]
    assert up.tolist() == pytest.approx([0.03346092234, 0.5318271019], rel=1e-6)


@torch.no_grad()
def test_golden_certificate_with_and_without_products():
    points = double([[5.03], [10.4]])
    loose, tight = golden_certificate(points, products=False), golden_certificate(points)
    assert loose.kl == pytest.approx(56.68250808, rel=1e-7)
    assert tight.kl == pytest.approx(3.42053947, rel=1e-6)
    assert tight.lower == pytest.approx(-12.90910478, rel=1e-6)
    assert tight.upper == pytest.approx(-11.97036245, rel=1e-6)
    assert tight.dimension_lower < 18.0454881 < tight.dimension_upper < 20.0
    assert tight.predicted.mean.tolist() == pytest.approx([-0.5943785215, 1.408125971], rel=1e-8)
    assert tight.predicted.variance.tolist() == pytest.approx(
        [0.004180522695, 0.3537315899], rel=1e-6
    )
    assert tight.report.converged
    assert loose.report is None
    # conjugate gradients know that the sparse mean beyond the data is wrong, and by how much
    assert float(tight.certain_mean_error[1]) == pytest.approx(0.2757825, rel=1e-2)
    assert float(tight.mean_error[1]) == pytest.approx(0.2757825, rel=1e-2)
    assert not tight.collapse


@torch.no_grad()
def test_davies_holds_and_closes_with_all_data():
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(40, 2, generator=draws, dtype=torch.float64)
    points = torch.randn(20, 2, generator=draws, dtype=torch.float64)
    kernel, noise = Matern32().double(), double(0.2)
    zero = lambda inputs: inputs.new_zeros(len(inputs))  # noqa: E731
    truth = Truth(kernel, zero, noise, x, x[:, 0], points).variance
    for m in (1, 10, 39, 40):
        low, up = davies_variance_bounds(kernel, x, torch.arange(m), noise, points)
        assert bool(((low <= truth + 1e-12) & (truth <= up + 1e-12)).all())
    assert float((up - low).max()) < 1e-12


def test_what_cannot_be_certified():
    x, y = g1.x[:, None], g1.y
    parts = golden_kernel(), Constant().double()
    with pytest.raises(ConfigError, match="Gaussian likelihood"):
        certify(*parts, StudentT().double(), x[:3], x, y, x[:2])
    with pytest.raises(DTypeError, match="float64"):
        certify(*parts, Gaussian(), x[:3].float(), x.float(), y.float(), x[:2].float())
    bad = y.clone()
    bad[3] = float("nan")
    with pytest.raises(DataError, match="not finite"):
        certify(*parts, Gaussian(0.1).double(), x[:3], x, bad, x[:2])


def toy():
    """The problem of E3: a signal, and noise that no kernel can tell from noise."""
    n = torch.arange(200, dtype=torch.float64)
    return g1.x[:, None], g1.y + 0.2 * math.sqrt(2) * (1.7 * n**2).sin()


def test_collapse_is_seen_where_the_divergence_is_tiny():
    x, y = toy()
    kernel = RBF(lengthscale=0.01).double()
    z = double([[1.0], [9.0]])
    kernel.lengthscale, kernel.outputscale = double(1.0), double(1e-5)
    found = certify(kernel, Constant().double(), Gaussian(0.6032).double(), z, x, y, x[:5])
    assert found.kl < 0.05
    assert "more than 80 %" in found.collapse


@pytest.mark.parametrize(("m", "collapsed"), [(2, True), (32, False)])
def test_training_with_too_few_inducing_points_is_seen_to_collapse(m, collapsed):
    x, y = toy()
    model = SGPR(
        kernel=RBF(),
        mean=Zero(),
        likelihood=Gaussian(1.0),
        num_inputs=1,
        num_inducing=m,
        fit_noise=False,
    ).double()
    with torch.no_grad():
        model.inducing_points.copy_(torch.linspace(1, 9, m, dtype=torch.float64)[:, None])
    objective = CollapsedELBO()
    LBFGSB().minimise(
        list(model.parameters()),
        lambda: -objective.evidence(model, x, y).value / len(y),
        60,
        lambda *_: None,
    )
    parts = model.kernel, model.mean, model.likelihood, model.inducing_points.detach()
    found = certify(*parts, x, y, x[:5])
    assert bool(found.collapse) is collapsed
