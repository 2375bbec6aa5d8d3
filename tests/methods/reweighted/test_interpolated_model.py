"""``Reweighted`` on an interpolation grid: dense structured interpolation, streams, any kernel."""

from functools import partial

import pytest
import torch
from draws import draws
from linear_features import log_density

from gpx.bases import InterpolatedGrid
from gpx.errors import ConfigError, DataError
from gpx.kernels import RBF, Matern32, Polynomial
from gpx.likelihoods import Gaussian
from gpx.means import Constant, Zero
from gpx.models import QSGP, Reweighted, WeightPriors
from gpx.objectives import ReweightedEvidence

pytestmark = pytest.mark.usefixtures("float64_by_default")


def data(n=70, seed=0):
    x = torch.rand(n, 2, generator=draws(seed))
    return x, (5.0 * x).sin().sum(1) + 0.3 * torch.rand(n, generator=draws(seed + 1))


def model(x, y, kernel=None, **options):
    made = Reweighted(
        kernel=kernel or RBF(2, [0.4, 0.7], 1.3),
        mean=Constant(0.3),
        likelihood=Gaussian(0.1),
        basis=partial(InterpolatedGrid, num_inputs=2, **options),
        num_basis=90,
        inference="type2",
    )
    made.initialise(x, y, generator=draws())
    return made


def dense(made, x, y):
    """Covariance of the targets, and the log density, with gradients."""
    w = made.basis.sparse_rows(x).to_dense()
    prior = made.kernel.evaluate(made.basis.points())
    noisy = w @ prior @ w.mT + made.likelihood.noise_variance * torch.eye(len(x))
    return w, prior, noisy, log_density(y - 0.3, noisy)


KERNELS = {
    "RBF": lambda: RBF(2, [0.4, 0.7], 1.3),
    "Matern32": lambda: Matern32(2, 0.5),
    "neither stationary nor of full rank": lambda: RBF(2, 2.0) + Polynomial(2),
}


@pytest.mark.parametrize("name", KERNELS)
def test_evidence_and_gradient_are_those_of_dense_interpolation(name):
    x, y = data()
    made = model(x, y, KERNELS[name]())
    assert made.basis.num_basis == 81
    parameters = [*made.kernel.parameters(), *made.likelihood.parameters()]
    want = dense(made, x, y)[3]
    wanted = torch.autograd.grad(want, parameters)
    # the data are not read any more
    found = ReweightedEvidence().evidence(made, torch.full_like(x, 9e9), torch.zeros_like(y))
    torch.testing.assert_close(found.value, want, rtol=1e-9, atol=0)
    torch.testing.assert_close(sum(found.parts.values()), found.value.detach())
    got = torch.autograd.grad(found.value, parameters)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
    assert found.facts["evidence_path"] == "interpolated"


def test_posterior_is_that_of_dense_interpolation():
    x, y = data()
    made, new = model(x, y), data(9, 5)[0]
    with torch.no_grad():
        w, prior, noisy, _ = dense(made, x, y)
        star = made.basis(new)
        gain = torch.linalg.solve(noisy, w @ prior @ star.mT)
        mean = 0.3 + gain.mT @ (y - 0.3)
        covariance = star @ prior @ star.mT - star @ prior @ w.mT @ gain
        weights = made.form.weights(made.position[:-1], made.position[-1])
    posterior = made.condition(x, y)
    found = posterior.predict(new)
    torch.testing.assert_close(found.mean, mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.variance, covariance.diagonal(), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(star @ weights.mean(), mean - 0.3, rtol=1e-8, atol=1e-9)
    paths = posterior.sample_paths(20_000, generator=draws(3))(new)
    # five standard errors of means and of 45 covariances
    error = 5.0 * (found.variance / 20_000).sqrt()
    assert bool(((paths.mean(0) - mean).abs() < error).all())
    scale = found.variance.sqrt()
    gap = (paths.mT.cov() - covariance) / torch.outer(scale, scale)
    assert float(gap.abs().max()) < 5.0 * (2.0 / 20_000) ** 0.5


def test_rows_are_added_and_removed():
    x, y = data()
    whole, stream = model(x, y), model(x, y)
    more_x, more_y = x[:7] * 0.9 + 0.05, y[:7] - 0.2
    stream.add_rows(more_x, more_y)
    both = dense(whole, torch.cat([x, more_x]), torch.cat([y, more_y]))[3]
    value = ReweightedEvidence().evidence(stream, x, y).value
    torch.testing.assert_close(value, both, rtol=1e-9, atol=0)
    stream.remove_rows(more_x, more_y)
    value = ReweightedEvidence().evidence(stream, x, y).value
    torch.testing.assert_close(value, dense(whole, x, y)[3], rtol=1e-9, atol=0)
    with pytest.raises(DataError, match="1 of 2 inputs lie outside the interpolation grid"):
        stream.add_rows(torch.tensor([[0.5, 0.5], [9.0, 0.5]]), torch.zeros(2))


def test_the_noise_gradient_and_information():
    x, y = data()
    made = model(x, y)
    with torch.no_grad():
        position = made.position
        at = made.form.weights(position[:-1], position[-1])
        up, down = (
            made.form.weights(position[:-1], position[-1] + h).log_marginal_likelihood()
            for h in (1e-5, -1e-5)
        )
        torch.testing.assert_close(at.noise_gradient(), (up - down) / 2e-5, rtol=1e-6, atol=0)
        noise = position[-1].exp()
        inverse = torch.linalg.inv(dense(made, x, y)[2])
        want = 0.5 * (noise * inverse).square().sum()
        torch.testing.assert_close(at.fisher(), want[None], rtol=1e-8, atol=0)


def test_predictions_beyond_the_grid():
    x, y = data()
    far = torch.tensor([[0.5, 0.5], [7.0, 0.5]])
    posterior = model(x, y).condition(x, y)
    with pytest.warns(UserWarning, match="1 of 2 inputs lie outside the interpolation grid and"):
        found = posterior.predict(far)
    edge = posterior.basis.axes[0].start + 8 * posterior.basis.axes[0].spacing
    want = posterior.predict(torch.tensor([[edge, 0.5]]))
    torch.testing.assert_close(found.mean[1:], want.mean)
    with pytest.raises(DataError, match="1 of 2 inputs lie outside"):
        model(x, y, outside="error").condition(x, y).predict(far)


def test_invalid_arguments_are_refused():
    x, y = data()
    parts = {"kernel": RBF(2), "mean": Zero(), "likelihood": Gaussian(), "num_basis": 81}
    grid = partial(InterpolatedGrid, num_inputs=2)
    with pytest.raises(ConfigError, match=r"learns the kernel, .* inference=type2"):
        Reweighted(**parts, basis=grid, inference="type1", priors=WeightPriors())
    with pytest.raises(ConfigError, match="their precision is not diagonal"):
        QSGP(**parts, basis=grid, warm_start_size=81).initialise(x, y, generator=draws())
