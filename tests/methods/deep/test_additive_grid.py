"""Functions of one feature on a grid: interpolation, limits, shared outputs."""

import pytest
import torch
from draws import draws
from torch.distributions import MultivariateNormal, kl_divergence

from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, Linear, Matern32, Periodic
from gpx.likelihoods import Gaussian, GaussianOutputs, MixedOutputs, Softmax
from gpx.linalg.interpolation import cubic_weights
from gpx.means import Zero
from gpx.methods.deep import AdditiveGridLayer, draws_of
from gpx.methods.deep.draws import held
from gpx.models import SVDKL, SVGP
from gpx.objectives import SampledELBO

pytestmark = pytest.mark.usefixtures("float64_by_default")


def inputs(n=6, j=3):
    return torch.randn(n, j, generator=draws(1))


def layer(outputs=2, j=3, grid=12, kernel=None, anywhere=True):
    made = AdditiveGridLayer(
        RBF(j, [0.5 + 0.1 * k for k in range(j)], 1.3) if kernel is None else kernel,
        j,
        outputs,
        grid,
        jitter=1e-10,
    )
    made.draw_start(draws(5))
    if anywhere:
        with torch.no_grad():
            for number, parameter in enumerate(made.q.parameters()):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=draws(number)))
    return made


def dense_weights(made, x):
    """Interpolation matrices (J, n, G)."""
    found = torch.zeros(made.num_inputs, len(x), made.axis.size)
    for j in range(made.num_inputs):
        index, weights = cubic_weights(torch.tanh(0.5 * x[:, j]), made.axis)
        found[j].scatter_(1, index, weights)
    return found


def test_outputs_interpolate_the_values_on_the_grid():
    """Mean w m, variance w S w^T, prior w K w^T; rows of weights sum to one."""
    made, x = layer(), inputs()
    w, k = dense_weights(made, x), made.grid_covariance().detach()
    torch.testing.assert_close(w.sum(2), torch.ones(3, 6))
    with torch.no_grad():
        root = torch.linalg.cholesky(k)
        mean = (w @ root @ made.q.mean.unsqueeze(2)).squeeze(2).mT
        s = root @ made.q.factor()
        variance = (w @ s @ s.mT @ w.mT).diagonal(dim1=1, dim2=2).mT
        found = made.functions(x)
        torch.testing.assert_close(found.mean, mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.variance, variance, rtol=1e-5, atol=1e-6)
        outputs = made.marginals(x)
        torch.testing.assert_close(outputs.mean, found.mean @ made.mixing)
        torch.testing.assert_close(outputs.variance, found.variance @ made.mixing.square())
        prior = layer(anywhere=False).functions(x).variance
        torch.testing.assert_close(prior, (w @ k @ w.mT).diagonal(dim1=1, dim2=2).mT)


@pytest.mark.parametrize(
    "kernel",
    [RBF(2, [0.5, 0.8], 1.3), Matern32(None, 0.5, 1.3), Periodic(2, [0.5, 0.8], period=[0.7, 1.1])],
    ids=["RBF", "Matern32", "Periodic"],
)
def test_functions_on_the_grid_have_the_kernel_of_each_feature(kernel):
    made = layer(j=2, kernel=kernel)
    points = made.axis.points(torch.zeros(1))
    for number, found in enumerate(made.grid_covariance()):
        # two points that differ in one input alone
        x = torch.zeros(len(points), 2)
        x[:, number] = points
        torch.testing.assert_close(found, kernel.evaluate(x), rtol=1e-10, atol=1e-12)


def test_a_fine_grid_is_the_additive_process():
    """Errors of the prior covariance fall as the cube of the spacing: 8 times and more for half."""
    x, errors = inputs(20), []
    squashed = torch.tanh(0.5 * x)
    for grid in (13, 21, 37):
        made = layer(outputs=1, grid=grid, anywhere=False, kernel=RBF(3, 0.4))
        projections = made.projections(x).detach()
        found = torch.einsum("njg,mjg->jnm", projections, projections)
        want = torch.stack([RBF(None, 0.4).evaluate(s.unsqueeze(1)) for s in squashed.mT])
        errors.append(float((found - want.detach()).abs().max()))
    assert errors[0] > 6.0 * errors[1] > 36.0 * errors[2]
    assert errors[2] < 1e-3


def test_with_one_feature_it_equals_svgp_with_inducing_points_on_the_grid():
    """Marginals within what lies between grid points, 1e-3; divergence exactly."""
    x = inputs(15, 1)
    made = layer(outputs=1, j=1, grid=24, kernel=RBF(1, 0.6))
    with torch.no_grad():
        made.mixing.fill_(1.0)
        other = SVGP(
            kernel=RBF(1, 0.6),
            mean=Zero(),
            likelihood=Gaussian(),
            num_inputs=1,
            num_inducing=24,
            jitter=1e-10,
        )
        other.place(made.axis.points(x).unsqueeze(1))
        other.strategy.from_whitened(other.q, made.q.mean, made.q.factor(), torch.empty(0))
        found, want = made.marginals(x), other.marginals(torch.tanh(0.5 * x))
        torch.testing.assert_close(found.mean.squeeze(1), want.mean, rtol=0.0, atol=2e-3)
        torch.testing.assert_close(found.variance.squeeze(1), want.variance, rtol=0.0, atol=2e-3)
        torch.testing.assert_close(made.kl(), other.kl())


def test_the_divergence_is_that_of_the_dense_gaussians():
    made = layer(kernel=Matern32(3, 0.5))
    with torch.no_grad():
        k = made.grid_covariance()
        root = torch.linalg.cholesky(k)
        want = 0.0
        for j in range(3):
            s = root[j] @ made.q.factor()[j]
            q = MultivariateNormal(root[j] @ made.q.mean[j], s @ s.mT)
            want += kl_divergence(q, MultivariateNormal(torch.zeros(12), k[j]))
    torch.testing.assert_close(made.kl(), want, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("way", ["rows", "shared", "sample"])
def test_draws_have_the_marginals_and_outputs_are_mixed(way):
    """Mean and covariance of the outputs, 3,000 draws within 4.5 standard errors."""
    made, x, num = layer(), inputs(2), 3000
    with torch.no_grad(), held(made), draws_of(made, draws(), shared=way == "shared"):
        f = made.sample(x, num) if way == "sample" else torch.stack([made(x) for _ in range(num)])
        mean, variance = made.functions(x)
        want = torch.einsum("jc,nj,jd->ncd", made.mixing, variance, made.mixing)
        center = mean @ made.mixing
    diagonal = want.diagonal(dim1=1, dim2=2)
    assert bool(((f.mean(0) - center).abs() < 4.5 * (diagonal / num).sqrt()).all())
    gap = f - center
    found = torch.einsum("snc,snd->ncd", gap, gap) / num
    error = ((diagonal.unsqueeze(2) * diagonal.unsqueeze(1) + want.square()) / num).sqrt()
    assert bool(((found - want).abs() < 4.5 * error).all())


def test_only_a_single_output_has_analytic_marginals():
    assert layer(1).analytic
    assert not layer(2).analytic


def small(likelihood, **options):
    given = {"hidden": [8], "num_features": 3, "grid_size": 10, "pretrain_steps": 20, **options}
    return SVDKL(
        kernel=RBF(2, 0.5), likelihood=likelihood, num_inputs=2, predict_samples=4, **given
    )


@pytest.mark.parametrize("likelihood", [lambda: Gaussian(0.1), lambda: Softmax(3)])
def test_the_model_trains(likelihood):
    x = torch.randn(40, 2, generator=draws())
    made = small(likelihood())
    y = x.sin().sum(1) if made.likelihood.num_latents == 1 else (x[:, 0] > 0).double()
    made.initialise(x, y, generator=draws(2))
    features = made.body(x).detach()
    torch.testing.assert_close(features.std(0, correction=0), torch.ones(3))
    objective, optimiser = SampledELBO(40, 8), torch.optim.Adam(made.parameters(), lr=0.02)
    before = float(objective.evidence(made, x, y, generator=draws(9)).value.detach())
    for step in range(60):
        optimiser.zero_grad()
        (-objective.evidence(made, x, y, generator=draws(step)).value).backward()
        assert all(p.grad.isfinite().all() for p in made.parameters())
        optimiser.step()
    assert float(objective.evidence(made, x, y, generator=draws(9)).value.detach()) > before + 5.0
    posterior = made.condition(x, y)
    assert posterior.facts()["draws"] == (1 if made.likelihood.num_latents == 1 else 4)
    paths = posterior.sample_paths(2, generator=draws())
    torch.testing.assert_close(paths(x)[:, 3:5], paths(x[3:5]))
    groups = made.parameter_groups()
    assert sum(map(len, groups.values())) == len(list(made.parameters()))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: AdditiveGridLayer(RBF(), 0), ConfigError, "^num_inputs=0 must be at least 1$"),
        (lambda: AdditiveGridLayer(Linear(), 2), ConfigError, "take a stationary kernel, got Lin"),
        (lambda: AdditiveGridLayer(RBF(), 2, 1, 5), ConfigError, "at least 6 points"),
        (lambda: layer()(inputs(4, 2)), ShapeError, r"of 3 inputs got shape \(4, 2\)"),
        (lambda: small(Gaussian(), pretrain_steps=-1), ConfigError, "pretrain_steps=-1"),
    ],
)
def test_invalid_arguments_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_dependent_functions_are_not_mixed_again():
    options = {"num_inputs": 3, "hidden": (4,), "num_features": 2, "grid_size": 8}
    made = SVDKL(kernel=RBF(2), likelihood=MixedOutputs(2), **options)
    with pytest.raises(ConfigError, match="MixedOutputs would mix dependent functions"):
        made.check(inputs())
    SVDKL(kernel=RBF(2), likelihood=GaussianOutputs(2), **options).check(inputs())
