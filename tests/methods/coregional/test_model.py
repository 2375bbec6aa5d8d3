"""Several outputs regressed on together, against the dense covariance B (x) K + noise."""

import copy
import warnings
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest
import torch
from array_counts import Arrays
from claimed_cuda import claimed_cuda
from draws import draws
from targets_posteriors import (
    require_moments_of_functions,
    require_posterior,
    require_value_and_gradient,
)

from gpx.errors import ConfigError, DataError, NotPositiveDefinite, ShapeError
from gpx.inference.several_targets import target_cholesky
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian, GaussianOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant
from gpx.methods.coregional import mll, system
from gpx.methods.coregional.model import target_correlations
from gpx.models import CoregionalGP, ExactGP
from gpx.objectives import CoregionalMLL, ExactMLL

N, D, P = 12, 2, 3
NOISE = torch.tensor([0.1, 0.3, 0.05], dtype=torch.float64)


def problem(missing=0.0, rank=P):
    generator = draws(1)
    x = torch.randn(N, D, generator=generator).double()
    y = torch.randn(N, P, generator=generator).double()
    y[torch.rand(N, P, generator=generator) < missing] = torch.nan
    kernel = RBF(D, lengthscale=1.3, outputscale=1.5)
    model = CoregionalGP(kernel=kernel, mean=Constant(0.3), likelihood=GaussianOutputs(P)).double()
    model.likelihood.noise_variance = NOISE
    root = torch.randn(P, P, generator=generator).double().tril()
    root[:, rank:] = 0.0
    model.between.root.data = root
    return model, x, y


def dense(model, x, y):
    """Covariance (N, N) and residual (N,) of the targets that are there, and which they are."""
    gram, noise = model.kernel.evaluate(x), model.likelihood.noise_variance
    matrix = torch.kron(model.between.matrix(), gram) + torch.kron(
        noise.diag(), torch.eye(len(x), dtype=x.dtype)
    )
    residual = (y - model.mean(x)[:, None]).mT.reshape(-1)
    seen = ~residual.isnan()
    return matrix[seen][:, seen], residual[seen], seen


CASES = {
    "complete": {},
    "a third missing": {"missing": 0.3},
    "one function shared by all": {"rank": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_evidence_and_gradient_are_those_of_the_dense_covariance(case):
    model, x, y = problem(**CASES[case])
    x.requires_grad_()
    found = CoregionalMLL().evidence(model, x, y)
    matrix, residual, _ = dense(model, x, y)
    zeros = torch.zeros_like(residual).detach()
    want = torch.distributions.MultivariateNormal(zeros, matrix).log_prob(residual)
    require_value_and_gradient(found, want, [*model.parameters(), x])
    assert found.facts["missing_targets"] == int(y.isnan().sum())


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_posterior_is_that_of_the_dense_covariance(case):
    model, x, y = problem(**CASES[case])
    new = torch.randn(5, D, generator=draws(2)).double()
    matrix, residual, seen = dense(model, x, y)
    between = model.between.matrix()
    cross = torch.kron(between, model.kernel.evaluate(new, x))[:, seen]
    mean = (cross @ torch.linalg.solve(matrix, residual)).view(P, 5).mT + model.mean(new)[:, None]
    prior = torch.kron(between, model.kernel.evaluate(new))
    covariance = prior - cross @ torch.linalg.solve(matrix, cross.mT)
    require_posterior(model, model.condition(x, y), new, mean, covariance, NOISE)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@torch.no_grad()
def test_sampled_functions_have_mean_and_covariance_of_the_posterior(missing):
    model, x, y = problem(missing)
    new = torch.randn(4, D, generator=draws(2)).double()
    require_moments_of_functions(model.condition(x, y), new, within=0.05)


def test_outputs_that_share_nothing_are_exact_gps_of_their_own():
    model, x, y = problem()
    model.between.root.data = torch.eye(P, dtype=torch.float64)
    alone = [
        ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood.output(j))
        for j in range(P)
    ]
    want = sum(ExactMLL().evidence(each, x, y[:, j]).value for j, each in enumerate(alone))
    torch.testing.assert_close(CoregionalMLL().evidence(model, x, y).value, want)
    new = x[:3] + 0.1
    found = model.condition(x, y).predict(new)
    for j, each in enumerate(alone):
        right = each.condition(x, y[:, j]).predict(new)
        torch.testing.assert_close(found.mean[:, j], right.mean)
        torch.testing.assert_close(found.variance[:, j], right.variance)


def test_a_missing_target_equals_one_of_infinite_noise():
    model, x, y = problem()
    gone = y.clone()
    gone[1:, 1] = torch.nan
    model.likelihood.noise_variance = torch.where(torch.arange(P) == 1, 1e12, NOISE)
    found = model.condition(x, gone).predict(x[:3])
    want = model.condition(x, y).predict(x[:3])
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)


def test_rows_may_be_added_and_one_may_hold_no_target():
    model, x, y = problem(missing=0.3)
    y[0] = torch.nan
    first = model.condition(x[:8], y[:8])
    grown = first.with_observations(x[8:], y[8:], model.likelihood)
    whole = model.condition(x, y)
    for got, want in zip(grown.predict(x), whole.predict(x), strict=True):
        torch.testing.assert_close(got, want)
    without = model.condition(x[1:], y[1:])
    torch.testing.assert_close(without.predict(x).mean, whole.predict(x).mean)
    assert len(first.inputs) == 8
    known = RowNoise(torch.full((4,), 1e9).double(), torch.ones(4).double())
    hardly = first.with_observations(x[8:], y[8:], model.likelihood, known)
    torch.testing.assert_close(hardly.predict(x).mean, first.predict(x).mean, rtol=1e-6, atol=1e-6)


def test_an_output_with_few_targets_borrows_from_a_correlated_one():
    generator = draws(4)
    x = torch.linspace(-2.0, 2.0, 60).double()[:, None]
    f = (3.0 * x[:, 0]).sin()
    y = torch.stack([f, -f], 1) + 0.05 * torch.randn(60, 2, generator=generator).double()
    truth = -f
    y[6:, 1] = torch.nan
    model = CoregionalGP(
        kernel=Matern32(lengthscale=0.7), mean=Constant(), likelihood=GaussianOutputs(2, 0.05)
    ).double()
    model.initialise(x, y, generator=draws())
    assert model.between.matrix()[0, 1] < -0.4
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        (-CoregionalMLL().evidence(model, x, y).value / 60).backward()
        optimizer.step()
    error = model.condition(x, y).predict(x).mean[:, 1] - truth
    assert error.square().mean().sqrt() < 0.1  # alone it would be some 0.7 away from its six rows


def test_a_covariance_between_outputs_that_is_not_trained_stays():
    x, y = torch.rand(20, 1, generator=draws()), torch.randn(20, 2, generator=draws())
    model = CoregionalGP(kernel=RBF(), mean=Constant(), likelihood=GaussianOutputs(2))
    model.between.root.requires_grad_(False)
    before = model.between.root.clone()
    model.initialise(x, y, generator=torch.Generator())
    assert torch.equal(model.between.root, before)


def test_correlations_are_those_of_the_rows_that_have_both():
    y = torch.randn(50, 3, generator=draws()).double()
    y[:, 2] += y[:, 0]
    want = torch.corrcoef(y.mT) * 50 / 55
    want.fill_diagonal_(1.0)
    torch.testing.assert_close(target_correlations(y), want)
    y[:20, 0] = torch.nan
    y[20:, 1] = torch.nan  # no row has both
    found = target_correlations(y)
    torch.testing.assert_close(found[0, 1], torch.zeros(()).double())
    assert found[0, 2] > 0.4
    assert torch.linalg.eigvalsh(found).min() > -1e-12
    torch.testing.assert_close(target_correlations(y + 1e9), found, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.diagonal(), torch.ones(3).double())


def test_invalid_setups_are_refused():
    model, x, y = problem()
    with pytest.raises(ConfigError, match="several outputs with Gaussian noise"):
        CoregionalGP(kernel=RBF(), mean=Constant(), likelihood=Gaussian())
    for wrong in (1.0, -0.1):
        with pytest.raises(ConfigError, match=f"^correlation={wrong} must be at least 0 and below"):
            CoregionalGP(
                kernel=RBF(), mean=Constant(), likelihood=GaussianOutputs(2), correlation=wrong
            )
    with pytest.raises(ShapeError):
        model.condition(x, y[:, 0])
    infinite = y.clone()
    infinite[3, 1] = torch.inf
    for call in (model.condition, lambda a, b: CoregionalMLL().evidence(model, a, b)):
        with pytest.raises(DataError, match="1 targets are infinite, the first in row 3 of output"):
            call(x, infinite)
        with pytest.raises(DataError, match="every target is missing"):
            call(x, torch.full_like(y, torch.nan))
        lacking = y.clone()
        lacking[:, 1] = torch.nan
        with pytest.raises(DataError, match="output 1 of 3 has no target in any row"):
            call(x, lacking)
    assert copy.deepcopy(model.condition(x, y)).facts()["solver"] == "eigendecomposition"


def test_an_evaluation_holds_three_arrays_of_rows_by_rows(monkeypatch):
    model, x, y = problem()
    gram = model.kernel.evaluate(x).detach()
    rows = [slice(i, i + 1) for i in range(N)]  # no block of the gradient is of that size
    monkeypatch.setattr(mll, "row_blocks", lambda *_: rows)
    monkeypatch.setattr(mll, "kernel_matrix", lambda *_: gram)
    noise, between = model.likelihood.noise_variance.detach(), model.between.matrix().detach()
    with Arrays(N * N) as counted:
        counted.places.add(gram.data_ptr())
        mll.complete_log_density(model.kernel, x, y, between, noise, gradient=True)
    assert counted.made == Counter(new_empty=1, zeros_like=1)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_device_waits_do_not_grow_with_the_number_of_outputs(missing):
    found = []
    for outputs in (2, 5):
        x, y = torch.randn(8, 1, generator=draws()), torch.randn(8, outputs, generator=draws())
        y[torch.rand(8, outputs, generator=draws(1)) < missing] = torch.nan
        with claimed_cuda() as waits:
            model = CoregionalGP(
                kernel=RBF(), mean=Constant(), likelihood=GaussianOutputs(outputs)
            ).to("cuda")
            x, y = x.cuda(), y.cuda()
            waits.clear()
            CoregionalMLL().evidence(model, x, y)
            found.append(waits.total())
    assert found[0] == found[1] <= 6


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_float32_check_adds_no_device_wait(missing):
    found = []
    for dtype in (torch.float32, torch.float64):
        x, y = torch.randn(8, 1, generator=draws()), torch.randn(8, 2, generator=draws())
        y[torch.rand(8, 2, generator=draws(1)) < missing] = torch.nan
        with claimed_cuda() as waits:
            model = CoregionalGP(kernel=RBF(), mean=Constant(), likelihood=GaussianOutputs(2))
            model, x, y = model.to(dtype).cuda(), x.to(dtype).cuda(), y.to(dtype).cuda()
            waits.clear()
            CoregionalMLL().evidence(model, x, y)
            found.append(waits.total())
    assert found[0] == found[1]


@pytest.mark.parametrize("devices", [(), ("cpu",)])
def test_a_factor_that_fails_by_rounding_is_reported(devices, monkeypatch):
    monkeypatch.setattr(mll, "DEFERRED_CHECK_DEVICES", devices)
    x = torch.linspace(0.0, 1.0, 40)[:, None]
    y = torch.randn(40, 2, generator=draws())
    model = CoregionalGP(
        kernel=RBF(lengthscale=3.0), mean=Constant(), likelihood=GaussianOutputs(2, 1e-6, 1e-9)
    )
    matrix = r"independent output \d plus unit noise \(40 x 40, float32\) is not positive definite"
    told = pytest.warns(UserWarning, match="too few digits")
    with torch.no_grad(), told, pytest.raises(NotPositiveDefinite, match=matrix):
        CoregionalMLL().evidence(model, x, y)


def test_an_eigendecomposition_beyond_memory_is_refused(monkeypatch):
    model, x, y = problem()
    monkeypatch.setattr(system, "EIGEN_ARRAYS", 2**60)
    with pytest.raises(ConfigError, match=r"eigendecomposition .* of 12 training points needs"):
        model.condition(x, y)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize(
    ("noise", "dtype", "warned"),
    [(0.1, torch.float32, False), (1e-5, torch.float32, True), (1e-5, torch.float64, False)],
)
def test_insufficient_float32_precision_is_a_warning(missing, noise, dtype, warned):
    model, x, y = problem(missing)
    model.likelihood.noise_variance = torch.full((P,), noise, dtype=torch.float64)
    model.kernel.outputscale = 30.0
    model, x, y = model.to(dtype), x.to(dtype), y.to(dtype)
    for compute in (partial(CoregionalMLL().evidence, model), model.condition):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            with suppress(NotPositiveDefinite):  # of what is warned of
                compute(x, y)
        assert any("float32 has too few digits" in str(w.message) for w in found) == warned


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_rows_the_posterior_is_the_prior(dtype):
    model, x, y = problem()
    model, x, y = model.to(dtype), x.to(dtype), y.to(dtype)
    assert float(CoregionalMLL().evidence(model, x[:0], y[:0]).value.detach()) == 0.0
    mean, variance = model.condition(x[:0], y[:0]).predict(x[:2])
    torch.testing.assert_close(mean, torch.full((2, P), 0.3, dtype=dtype))
    prior = model.kernel.diagonal(x[:2])[:, None] * model.between.matrix().diagonal()
    torch.testing.assert_close(variance, prior.detach())


def test_covariances_below_zero_by_rounding_count_as_zero():
    """Of float32 with noise at its floor: a law with the noise, not an error of the library."""
    below = torch.tensor(
        [[[1.0, 1.001], [1.001, 1.0]], [[2.0, 0.5], [0.5, 1.0]]], dtype=torch.float64
    )
    noise = torch.tensor([1e-6, 2e-6]).double()
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.cholesky(below + noise.diag())
    factor = target_cholesky(below, noise)
    found = factor @ factor.mT - noise.diag()
    assert torch.linalg.eigvalsh(found[0])[0].abs() < 1e-9
    torch.testing.assert_close(found[0], torch.full_like(below[0], 1.0005))
    torch.testing.assert_close(found[1], below[1])


@pytest.mark.filterwarnings("ignore:float32 has too few digits")
def test_float32_predicts_with_noise_at_its_floor():
    x = torch.rand(40, 2, generator=draws())
    y = torch.stack([(5 * x[:, 0]).sin(), (4 * x[:, 1]).cos()], 1)
    kernel = RBF(2, lengthscale=[1.9, 5.8], outputscale=17.8)
    model = CoregionalGP(kernel=kernel, mean=Constant(0.0), likelihood=GaussianOutputs(2, 1.1e-6))
    law = model.condition(x, y).predictive(x, model.likelihood)
    assert law.mean.dtype == torch.float32
    assert bool(law.variance.isfinite().all())
    assert bool((law.variance > 1e-6).all())
