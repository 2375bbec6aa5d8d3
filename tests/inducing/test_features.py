"""Inducing variables of every kind: bounds, invariance, optimality, gradients, checkpoints."""

import math

import pytest
import torch

from gpx.diagnostics.certificate import certify
from gpx.errors import ConfigError
from gpx.inducing import Eigenfunctions, Eigenvectors, GreedyConditionalVariance, Points
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels import RBF, Matern32
from gpx.kernels.mercer import mercer_spectrum
from gpx.likelihoods import Gaussian
from gpx.linalg import lanczos
from gpx.means import Constant, Zero
from gpx.methods.sparse.collapsed_elbo import collapsed_elbo
from gpx.models import SGPR, ExactGP
from gpx.objectives import CollapsedELBO, ExactMLL

NOISE = torch.tensor(0.05, dtype=torch.float64)
GREEDY = GreedyConditionalVariance()


def data(n=60, d=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = (2 * x.sum(1)).sin() + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, y


def sparse(num_inducing, kernel=None, mean=Zero, features=Eigenfunctions, num_inputs=1):
    return SGPR(
        kernel=RBF(lengthscale=0.8) if kernel is None else kernel,
        mean=mean(),
        likelihood=Gaussian(0.05),
        num_inputs=num_inputs,
        num_inducing=num_inducing,
        features=features(),
        fit_noise=False,
    )


def bound(kernel, x, y, z, features):
    with torch.no_grad():
        terms, _, report = collapsed_elbo(kernel, x, z, y, NOISE, gradient=False, features=features)
    assert report.relative == 0.0
    return float(sum(terms))


def errors(kernel, x, y, z, features):
    """T and the largest eigenvalue of K_xx - Q_xx."""
    with torch.no_grad():
        q = NystromMatrix.of(kernel, x, z, y, NOISE, features=features)
        nystrom = q.matmul(torch.eye(len(x), dtype=x.dtype))
        gap = kernel.evaluate(x) + NOISE * torch.eye(len(x), dtype=x.dtype) - nystrom
    return float(q.sums.trace_error), float(torch.linalg.eigvalsh(gap)[-1])


def test_eigenvectors_leave_the_least_error_of_all():
    x, y = data(d=2)
    kernel = Matern32().double()
    features = Eigenvectors()
    z = features.choose(x, kernel, 12, selector=GREEDY)
    with torch.no_grad():
        values = torch.linalg.eigvalsh(kernel.evaluate(x)).flip(0)
    trace, largest = errors(kernel, x, y, z, features)
    assert trace == pytest.approx(float(values[12:].sum()), rel=1e-8)
    assert largest == pytest.approx(float(values[12]), rel=1e-8)
    for points in (x[:12], GREEDY(x, kernel, 12)):
        worse_trace, worse_largest = errors(kernel, x, y, points, Points())
        assert worse_trace >= trace
        assert worse_largest >= largest
    with torch.no_grad():
        evidence = float(
            torch.distributions.MultivariateNormal(
                torch.zeros_like(y), kernel.evaluate(x) + NOISE * torch.eye(len(x)).double()
            ).log_prob(y)
        )
    kl = evidence - bound(kernel, x, y, z, features)
    share = largest / (largest + float(NOISE))
    assert 0.0 <= kl <= (trace + share * float(y @ y)) / (2 * float(NOISE))


def test_any_mixture_of_the_variables_gives_the_same_bound():
    x, y = data(d=2)
    kernel, features = Matern32().double(), Eigenvectors(x)
    choice = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:10]
    z = torch.eye(60, dtype=torch.float64)[choice]
    want = bound(kernel, x, y, x[choice], Points())
    assert bound(kernel, x, y, z, features) == pytest.approx(want, rel=1e-10)
    mix = torch.randn(10, 10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert bound(kernel, x, y, mix @ z, features) == pytest.approx(want, rel=1e-7)


def test_krylov_features_only_gain():
    x, y = data(d=2)
    kernel = Matern32().double()
    with torch.no_grad():
        matrix = kernel.evaluate(x) + NOISE * torch.eye(60, dtype=torch.float64)
    basis = lanczos(lambda v: matrix @ v, y, 15).basis[0]
    found = [bound(kernel, x, y, basis[:m], Eigenvectors(x)) for m in (1, 2, 5, 10, 15)]
    nothing = -0.5 * float(y @ y / NOISE + 60 * (2 * math.pi * NOISE).log() + 60 / NOISE)
    assert nothing <= found[0]
    assert found == sorted(found)


def test_eigenfunctions_leave_the_tail_on_average_over_the_density():
    kernel = RBF(ard_num_dims=2, lengthscale=[0.9, 2.0], outputscale=1.5).double()
    features = Eigenfunctions()
    x, _ = data(4000, 2)
    z = features.choose(x, kernel, 25, selector=GREEDY)
    tail = float(mercer_spectrum(kernel, features.spread, 25).tails[25])
    with torch.no_grad():
        left = kernel.diagonal(x) - features.cross(kernel, x, z).square().sum(1)
    assert float(left.min()) >= -1e-12
    error = float(left.std()) / math.sqrt(len(x))
    assert abs(float(left.mean()) - tail) < 4 * error  # the moments of rho are the sample's


@torch.no_grad()
def test_enough_eigenfunctions_are_exact_inference():
    x, y = data(80)
    model = sparse(60, mean=Constant).double()
    model.initialise(x, y, generator=torch.Generator())
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    got, want = CollapsedELBO().evidence(model, x, y), ExactMLL().evidence(exact, x, y)
    assert float(got.value) == pytest.approx(float(want.value), abs=1e-6)
    assert float(got.value) <= float(want.value) + 1e-9
    at = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    posterior = model.condition(x, y)
    for one, other in zip(posterior.predict(at), exact.condition(x, y).predict(at), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    rebuilt = sparse(60, RBF(), Constant).double().new_posterior()
    rebuilt.load_state_dict(posterior.state_dict())
    assert torch.equal(rebuilt.predict(at).mean, posterior.predict(at).mean)
    with pytest.raises(ConfigError, match="need inducing points"):
        posterior.sample_paths(2, generator=torch.Generator())


@torch.no_grad()
def test_a_posterior_of_eigenfunctions_can_be_certified():
    x, y = data(80)
    kernel, likelihood = RBF(lengthscale=0.8).double(), Gaussian(0.05).double()
    features = Eigenfunctions()
    z = features.choose(x, kernel, 9, selector=GREEDY)
    at = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    found = certify(kernel, Zero(), likelihood, z, x, y, at, products=False, features=features)
    exact = ExactGP(kernel=kernel, mean=Zero(), likelihood=likelihood)
    evidence = float(ExactMLL().evidence(exact, x, y).value)
    assert found.lower <= evidence <= found.upper
    assert 1e-3 < evidence - found.lower <= found.kl
    moments, truth = found.moments, exact.condition(x, y).predict(at)
    assert bool((moments.mean_lower <= truth.mean).all() & (truth.mean <= moments.mean_upper).all())
    assert bool((moments.variance_lower <= truth.variance).all())
    assert bool((truth.variance <= moments.variance_upper).all())


@pytest.mark.parametrize("kind", [Points, Eigenfunctions, Eigenvectors])
def test_gradient_of_the_bound_equals_that_of_dense_algebra(kind):
    x, y = data(40, 2)
    kernel = RBF(ard_num_dims=2, lengthscale=[0.8, 1.4], outputscale=1.2)
    model = sparse(12, kernel, features=kind, num_inputs=2).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    parameters = [p for group in model.parameter_groups().values() for p in group]
    assert (model.inducing_points in set(parameters)) == model.features.trainable
    value = CollapsedELBO().evidence(model, x, y).value
    got = torch.autograd.grad(value, parameters)
    z, noise = model.inducing_points, model.likelihood.noise_variance
    cross = model.features.cross(model.kernel, x, z)
    nystrom = cross @ torch.linalg.solve(model.features.gram(model.kernel, z), cross.mT)
    normal = torch.distributions.MultivariateNormal(
        torch.zeros_like(y), nystrom + noise * torch.eye(len(x), dtype=x.dtype)
    )
    trace = (model.kernel.diagonal(x) - nystrom.diagonal()).sum()
    dense = normal.log_prob(y) - 0.5 * trace / noise
    torch.testing.assert_close(value, dense, rtol=1e-9, atol=1e-9)
    for one, other in zip(got, torch.autograd.grad(dense, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_float32_keeps_the_bound_below():
    x, y = data(80)
    wide = sparse(30)
    wide.initialise(x.float(), y.float(), generator=torch.Generator())
    with torch.no_grad():
        found = CollapsedELBO().evidence(wide, x.float(), y.float())
        narrow = float(found.value)
        want = float(CollapsedELBO().evidence(wide.double(), x, y).value)
    assert found.report.relative == 1e-6
    assert narrow == pytest.approx(want, rel=1e-3, abs=0.1)


def test_a_selector_that_no_feature_asks_is_warned_of():
    parts = {"kernel": RBF(), "mean": Zero(), "likelihood": Gaussian(0.05), "num_inputs": 1}
    with pytest.warns(UserWarning, match=r"^selector=GreedyConditionalVariance\(\) has no effect"):
        SGPR(**parts, num_inducing=5, features=Eigenfunctions(), selector=GREEDY)


def test_mistakes_are_explained():
    x, _ = data()
    common = {"mean": Zero(), "likelihood": Gaussian(), "num_inputs": 1}
    wrong = SGPR(kernel=Matern32(), features=Eigenfunctions(), **common).double()
    with pytest.raises(ConfigError, match="choose kernel=RBF"):
        wrong.settle(x)
    with pytest.raises(ConfigError, match="needs inducing points: set features=None"):
        SGPR(kernel=RBF(), features=Eigenfunctions(), num_inducing="auto", **common)
    with pytest.raises(ConfigError, match=r"spread=0\.0 must be positive"):
        Eigenfunctions(spread=0.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@torch.no_grad()
def test_cuda_agrees_with_cpu():
    x, y = data(80)
    values = []
    for device in ("cpu", "cuda"):
        model = sparse(20).to(device, torch.float64)
        model.initialise(x.to(device), y.to(device), generator=torch.Generator(device))
        values.append(float(CollapsedELBO().evidence(model, x.to(device), y.to(device)).value))
    assert values[1] == pytest.approx(values[0], rel=1e-9)
