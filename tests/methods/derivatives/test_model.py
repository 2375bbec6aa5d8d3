"""Values and derivatives regressed on together, against dense covariances, limits and GPyTorch."""

import copy
import math

import gpytorch
import pytest
import torch
from draws import draws
from targets_posteriors import require_posterior, require_value_and_gradient

from gpx.errors import ConfigError, DataError, NotAvailable, ShapeError
from gpx.inference import dense_factor
from gpx.kernels import RBF, Linear, Matern12, Matern32, Matern52, Periodic, Polynomial
from gpx.likelihoods import Gaussian, GaussianOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant, Mean
from gpx.means import Linear as LinearMean
from gpx.models import DerivativeGP, ExactGP
from gpx.objectives import DerivativeMLL, ExactMLL
from gpx.sampling import Frequencies

N, D = 9, 2
NOISE = torch.tensor([0.1, 0.3, 0.05], dtype=torch.float64)
INPUTS = (None, 0, 1)
pytestmark = pytest.mark.usefixtures("float64_by_default")


class Wave(Mean):
    """sin(a x_0) x_1, whose derivatives move with a."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return (self.a * x[:, 0]).sin() * x[:, 1]


def linear_mean():
    mean = LinearMean(D, 0.2)
    mean.weight.data = torch.tensor([0.4, -0.3])
    return mean


KERNELS = {
    "RBF": lambda: RBF(D, [1.3, 0.8], 1.5),
    "Matern32 of both": lambda: Matern32(lengthscale=1.1),
    "a sum of products": lambda: (
        Matern52(D, [1.3, 0.8], 1.5) * Periodic(period=3.0, active_dims=[0]) + Linear(D)
    ),
}
MEANS = {"constant": lambda: Constant(0.3), "linear": linear_mean, "wave": Wave}


def problem(kernel="RBF", mean="constant", missing=0.0):
    generator = draws(1)
    x = torch.randn(N, D, generator=generator)
    y = torch.randn(N, 3, generator=generator)
    y[torch.rand(N, 3, generator=generator) < missing] = torch.nan
    model = DerivativeGP(kernel=KERNELS[kernel](), mean=MEANS[mean](), likelihood=outputs())
    return model, x, y


def outputs(p=3):
    likelihood = GaussianOutputs(p)
    likelihood.noise_variance = NOISE[:p] if p <= 3 else torch.full((p,), 0.1)
    return likelihood


def blocks(kernel, a, b, inputs=INPUTS):
    """Dense covariance, targets in order of outputs: blocks of pairs."""
    found = kernel.derivatives(a[:, None], b[None])
    return torch.cat([torch.cat([found.entry(i, j) for j in inputs], 1) for i in inputs], 0)


def means(model, x):
    value = model.mean(x)
    slopes = torch.autograd.functional.jacobian(
        lambda at: model.mean(at), x, create_graph=True
    ).diagonal(dim1=0, dim2=1)
    return torch.cat([value[:, None], slopes.mT], 1)


def dense(model, x, y):
    noise = model.likelihood.noise_variance.repeat_interleave(len(x))
    matrix = blocks(model.kernel, x, x) + noise.diag()
    residual = (y - means(model, x)).mT.reshape(-1)
    seen = ~residual.isnan()
    return matrix[seen][:, seen], residual[seen], seen


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mean", MEANS)
def test_evidence_and_gradient_are_those_of_the_dense_covariance(kernel, mean, missing):
    model, x, y = problem(kernel, mean, missing)
    x.requires_grad_()
    found = DerivativeMLL().evidence(model, x, y)
    matrix, residual, _ = dense(model, x, y)
    zeros = torch.zeros_like(residual).detach()
    want = torch.distributions.MultivariateNormal(zeros, matrix).log_prob(residual)
    require_value_and_gradient(found, want, [*model.parameters(), x])
    assert found.facts["missing_targets"] == int(y.isnan().sum())


def test_blocks_of_rows_add_up(monkeypatch):
    model, x, y = problem("a sum of products", "wave", 0.3)
    whole = DerivativeMLL().evidence(model, x, y).value
    slopes = torch.autograd.grad(whole, list(model.parameters()))
    monkeypatch.setitem(dense_factor.BLOCK_BYTES, "cpu", 2000)  # one or two rows
    parts = DerivativeMLL().evidence(model, x, y).value
    torch.testing.assert_close(parts, whole, rtol=1e-13, atol=0)
    again = torch.autograd.grad(parts, list(model.parameters()))
    for own, other in zip(again, slopes, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("mean", MEANS)
@torch.no_grad()
def test_posterior_is_that_of_the_dense_covariance(mean, missing):
    model, x, y = problem("a sum of products", mean, missing)
    new = torch.randn(5, D, generator=draws(2))
    with torch.enable_grad():
        matrix, residual, seen = (part.detach() for part in dense(model, x, y))
        own = means(model, new).detach()
    cross = blocks(model.kernel, new, x)[:, seen]
    mean = (cross @ torch.linalg.solve(matrix, residual)).view(3, 5).mT + own
    covariance = blocks(model.kernel, new, new) - cross @ torch.linalg.solve(matrix, cross.mT)
    posterior = model.condition(x, y)
    each = require_posterior(model, posterior, new, mean, covariance, NOISE)
    weighted = posterior.predictive_of_rows(
        new, model.likelihood, RowNoise(torch.zeros(5), torch.full((5,), 0.5))
    )
    torch.testing.assert_close(
        weighted.covariance_matrix, each + 0.5 * NOISE.diag(), rtol=1e-9, atol=1e-9
    )


@torch.no_grad()
def test_draws_have_mean_and_covariance_of_the_posterior():
    model, x, y = problem(missing=0.3)
    posterior = model.condition(x, y)
    new = torch.randn(3, D, generator=draws(2))
    mean, jointly = posterior.predict(new).mean, posterior.outputs_covariance(new)
    drawn = posterior.sample(new, 20_000, generator=draws(4))
    many = Frequencies(count=10_000)  # slopes weigh frequencies by their squares
    paths = posterior.sample_paths(1_000, generator=draws(3), frequencies=many)
    values = paths(new)
    assert values.shape == (1_000, 3, 3)
    torch.testing.assert_close(paths(new[:2]), values[:, :2])
    for sampled, error in ((drawn, 0.03), (values, 0.12)):
        apart = sampled - mean
        assert (apart.mean(0).abs() < 0.1).all()
        found = torch.einsum("kti,kuj->tiuj", apart, apart) / len(apart)
        torch.testing.assert_close(found, jointly, rtol=0.05, atol=error)


def test_the_columns_of_a_sampled_path_are_a_function_and_its_derivatives():
    model, x, y = problem(missing=0.3)
    paths = model.condition(x, y).sample_paths(3, generator=draws(3))
    new = torch.randn(4, D, generator=draws(2)).requires_grad_()
    values = paths(new)
    for path in values:
        (slopes,) = torch.autograd.grad(path[:, 0].sum(), new, retain_graph=True)
        torch.testing.assert_close(path[:, 1:].detach(), slopes, rtol=1e-9, atol=1e-9)


def test_the_predicted_derivative_is_that_of_the_predicted_value():
    model, x, y = problem("a sum of products", "wave", 0.3)
    new = torch.randn(4, D, generator=draws(2)).requires_grad_()
    found = model.condition(x, y).predict(new)
    (slopes,) = torch.autograd.grad(found.mean[:, 0].sum(), new, retain_graph=True)
    torch.testing.assert_close(found.mean[:, 1:].detach(), slopes, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_derivatives_it_is_an_exact_gp_that_predicts_them(kernel):
    model, x, y = problem(kernel)
    y[:, 1:] = torch.nan
    alone = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=Gaussian(float(NOISE[0])))
    value = DerivativeMLL().evidence(model, x, y).value
    torch.testing.assert_close(value, ExactMLL().evidence(alone, x, y[:, 0]).value)
    new = (x[:4] + 0.1).requires_grad_()
    found, want = model.condition(x, y).predict(new), alone.condition(x, y[:, 0]).predict(new)
    torch.testing.assert_close(found.mean[:, 0], want.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(found.variance[:, 0], want.variance, rtol=1e-6, atol=1e-6)
    (slopes,) = torch.autograd.grad(want.mean.sum(), new)
    torch.testing.assert_close(found.mean[:, 1:].detach(), slopes, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_a_derivative_is_the_limit_of_a_difference_of_two_values():
    """Observing (f(x + h/2) - f(x - h/2)) / h, as two values whose noise is next to nothing."""
    step, i, kernel = 1e-3, 1, RBF(D, [1.3, 0.8], 1.5)
    x, new = torch.randn(6, D, generator=draws(1)), torch.randn(4, D, generator=draws(2))
    slopes = torch.randn(6, generator=draws(3))
    model = DerivativeGP(kernel=kernel, mean=Constant(0.0), likelihood=outputs())
    y = torch.full((6, 3), torch.nan)
    y[:, 1 + i] = slopes
    found = model.condition(x, y).predict(new)
    offset = 0.5 * step * torch.eye(D)[i]
    # the differences' covariance, by values alone
    ends, signs = torch.cat([x + offset, x - offset]), torch.tensor([1.0, -1.0]) / step
    values = kernel.evaluate(ends).view(2, 6, 2, 6)
    matrix = torch.einsum("a,aibj,b->ij", signs, values, signs) + NOISE[1 + i] * torch.eye(6)
    cross = torch.einsum("taj,a->tj", kernel.evaluate(new, ends).view(4, 2, 6), signs)
    mean = cross @ torch.linalg.solve(matrix, slopes)
    variance = kernel.diagonal(new) - (cross * torch.linalg.solve(matrix, cross.mT).mT).sum(1)
    torch.testing.assert_close(found.mean[:, 0], mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.variance[:, 0], variance, rtol=1e-5, atol=1e-5)
    value = DerivativeMLL().evidence(model, x, y).value
    law = torch.distributions.MultivariateNormal(torch.zeros(6), matrix)
    torch.testing.assert_close(value, law.log_prob(slopes), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_with_many_exact_slopes_a_line_is_known_and_its_level_is_not():
    x = torch.linspace(-1.0, 1.0, 20)[:, None]
    y = torch.stack([torch.full((20,), torch.nan), torch.full((20,), 0.7)], 1)
    y[3, 0] = 2.0
    likelihood = GaussianOutputs(2)
    likelihood.noise_variance = 1e-5
    model = DerivativeGP(kernel=Polynomial(2, 1.0, 3.0), mean=Constant(0.0), likelihood=likelihood)
    found = model.condition(x, y).predict(x)
    want = 2.0 + 0.7 * (x[:, 0] - x[3, 0])
    torch.testing.assert_close(found.mean[:, 0], want, rtol=1e-3, atol=1e-3)
    y[3, 0] = torch.nan
    y[3, 1] = torch.nan
    found = model.condition(x, y).predict(x)
    assert (found.variance[:, 0] > 1.0).all()
    assert (found.variance[:, 1] < 1e-4).all()


@torch.no_grad()
def test_intervals_of_draws_from_the_prior_cover_as_they_say():
    """Values, and derivatives that were and that were not observed."""
    kernel, generator = Matern52(D, [1.3, 0.8], 1.5), draws(5)
    scores = []
    for _ in range(60):
        x = torch.randn(14, D, generator=generator)
        matrix = blocks(kernel, x, x)
        root = torch.linalg.cholesky(matrix + 1e-10 * torch.eye(len(matrix)))
        f = (root @ torch.randn(len(root), generator=generator)).view(3, 14).mT
        y = f + NOISE.sqrt() * torch.randn(14, 3, generator=generator)
        y[::2, 0] = torch.nan
        y[1::3, 1:] = torch.nan
        model = DerivativeGP(kernel=kernel, mean=Constant(0.0), likelihood=outputs())
        law = model.condition(x[:10], y[:10]).predict(x[10:])
        scores.append((f[10:] - law.mean) / law.stddev)
    scores = torch.cat(scores)  # (240, 3) standard normals, correlated in groups of four rows
    assert (scores.mean(0).abs() < 0.3).all()
    assert ((scores.square().mean(0) - 1.0).abs() < 0.35).all()
    assert (((scores.abs() < 1.96).double().mean(0) - 0.95).abs() < 0.05).all()


PEERS = {
    "RBFKernelGrad": lambda: RBF(D, [1.3, 0.8], 1.5),
    "Matern52KernelGrad": lambda: Matern52(D, [1.3, 0.8], 1.5),
}


class Peer(gpytorch.models.ExactGP):
    def __init__(self, name, x, y, ours):
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(3, has_global_noise=False)
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMeanGrad()
        base = getattr(gpytorch.kernels, name)(ard_num_dims=D)
        self.covar_module = gpytorch.kernels.ScaleKernel(base)
        base.lengthscale = ours.kernel.lengthscale.detach()
        self.covar_module.outputscale = ours.kernel.outputscale.detach()
        self.mean_module.constant.data.fill_(0.3)
        likelihood.task_noises = ours.likelihood.noise_variance.detach()

    def forward(self, x):
        law = gpytorch.distributions.MultitaskMultivariateNormal
        return law(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize("name", PEERS)
def test_evidence_and_predictions_are_those_of_gpytorch(name):
    model, x, y = problem()
    model.kernel = PEERS[name]()
    peer = Peer(name, x, y, model)
    peer.train()
    exactly = gpytorch.settings.fast_computations(False, False, False)
    with exactly, gpytorch.settings.max_cholesky_size(1000):
        theirs = peer.likelihood(peer(x)).log_prob(y)
        peer.eval()
        new = torch.randn(4, D, generator=draws(2))
        with gpytorch.settings.fast_pred_var(False):
            law = peer(new)
    ours = DerivativeMLL().evidence(model, x, y).value
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
    found = model.condition(x, y).predict(new)
    torch.testing.assert_close(found.mean, law.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(found.variance, law.variance, rtol=1e-6, atol=1e-7)


def test_missing_cells_equal_cells_of_infinite_noise():
    model, x, y = problem(missing=0.4)
    new = x[:3] + 0.2
    want = model.condition(x, y).predict(new)
    filled = copy.deepcopy(model)
    seen = ~y.isnan()
    noise = torch.where(seen, NOISE, 1e12).mT.reshape(-1)
    matrix = blocks(filled.kernel, x, x) + noise.diag()
    residual = (y.nan_to_num(0.0) - means(model, x)).mT.reshape(-1)
    cross = blocks(filled.kernel, new, x)
    mean = (cross @ torch.linalg.solve(matrix, residual)).view(3, 3).mT + means(model, new)
    torch.testing.assert_close(want.mean, mean, rtol=1e-7, atol=1e-7, check_stride=False)


@pytest.mark.parametrize("cells", [False, True])
def test_known_noise_of_rows_or_cells_is_added_to_that_of_the_targets(cells):
    model, x, y = problem(mean="wave", missing=0.3)
    known = torch.rand(N, 3 if cells else 1, generator=draws(8))
    model.know_noise(known if cells else known[:, 0])
    matrix, residual, seen = dense(model, x, y)
    matrix = matrix + known.expand(N, 3).mT.reshape(-1)[seen].diag()
    law = torch.distributions.MultivariateNormal(torch.zeros(len(matrix)), matrix)
    value, want = DerivativeMLL().evidence(model, x, y).value, law.log_prob(residual)
    torch.testing.assert_close(value, want, rtol=1e-12, atol=1e-12)
    for own, right in zip(
        *(torch.autograd.grad(v, list(model.parameters())) for v in (value, want)), strict=True
    ):
        torch.testing.assert_close(own, right, rtol=1e-9, atol=1e-9)
    new = x[:3] + 0.2
    found = model.condition(x, y)
    cross = blocks(model.kernel, new, x)[:, seen].detach()
    mean = (cross @ torch.linalg.solve(matrix, residual)).view(3, 3).mT + means(model, new)
    torch.testing.assert_close(found.predict(new).mean, mean.detach())
    again = model.new_posterior()
    again.load_state_dict(found.state_dict())
    torch.testing.assert_close(again.predict(new).variance, found.predict(new).variance)
    # rows that come later bring theirs
    first = copy.deepcopy(model)
    first.know_noise(known[:5] if cells else known[:5, 0])
    more = RowNoise.of_variances(known[5:] if cells else known[5:, 0])
    joined = first.condition(x[:5], y[:5]).with_observations(x[5:], y[5:], model.likelihood, more)
    torch.testing.assert_close(joined.predict(new).mean, found.predict(new).mean)
    model.initialise(x, y, generator=draws(1))


def test_further_rows_are_conditioned_on():
    model, x, y = problem(mean="wave", missing=0.3)
    posterior = model.condition(x[:5], y[:5])
    more = posterior.with_observations(x[5:], y[5:], model.likelihood)
    new = x[:3] + 0.2
    want = model.condition(x, y).predict(new)
    torch.testing.assert_close(more.predict(new).mean, want.mean)
    torch.testing.assert_close(more.predict(new).variance, want.variance)


def test_some_derivatives_in_another_order():
    model, x, y = problem()
    some = DerivativeGP(
        kernel=model.kernel, mean=model.mean, likelihood=outputs(2), with_respect_to=[1]
    )
    rest = y.clone()
    rest[:, 1] = torch.nan
    one = copy.deepcopy(model)
    one.likelihood.noise_variance = torch.tensor([0.1, 0.7, 0.3])
    value = DerivativeMLL().evidence(some, x, y[:, [0, 2]]).value
    torch.testing.assert_close(value, DerivativeMLL().evidence(one, x, rest).value)
    turned = DerivativeGP(
        kernel=model.kernel, mean=model.mean, likelihood=outputs(), with_respect_to=[1, 0]
    )
    turned.likelihood.noise_variance = NOISE[[0, 2, 1]]
    value = DerivativeMLL().evidence(turned, x, y[:, [0, 2, 1]]).value
    torch.testing.assert_close(value, DerivativeMLL().evidence(model, x, y).value)


def function(n=40, scale=1.0):
    """Values and gradients of sin(3 scale x_0) cos(x_1), and their rows."""
    x = 2.0 * torch.rand(n, D, generator=draws(7)) - 1.0
    a, b = 3.0 * scale * x[:, 0], x[:, 1]
    slopes = (3.0 * scale * a.cos() * b.cos(), -a.sin() * b.sin())
    return x, torch.stack([a.sin() * b.cos(), *slopes], 1)


def test_it_starts_at_lengthscales_of_which_the_derivatives_tell():
    """Also from a start far off, and along an input of which no derivative is known."""
    for scale in (1.0, 5.0):
        x, y = function(scale=scale)
        model = DerivativeGP(kernel=RBF(D, 30.0), mean=Constant(0.0), likelihood=outputs())
        objective = DerivativeMLL()
        before = objective.evidence(model, x, y).value
        model.initialise(x, y, generator=draws(1))
        found = model.kernel.lengthscale.detach()
        assert objective.evidence(model, x, y).value > before
        assert 0.2 / scale < found[0] < 1.5 / scale
        assert found[1] > found[0]
        fixed = DerivativeGP(kernel=RBF(D, 30.0), mean=Constant(0.0), likelihood=outputs())
        for parameter in fixed.parameters():
            parameter.requires_grad_(False)
        fixed.initialise(x, y, generator=draws(1))
        torch.testing.assert_close(fixed.kernel.lengthscale, torch.tensor([30.0, 30.0]))
        torch.testing.assert_close(fixed.likelihood.noise_variance, NOISE)
    one = DerivativeGP(
        kernel=RBF(D, 30.0), mean=Constant(0.0), likelihood=outputs(2), with_respect_to=[0]
    )
    one.initialise(x, y[:, :2], generator=draws(1))
    torch.testing.assert_close(one.kernel.lengthscale[0], one.kernel.lengthscale[1])
    parts = RBF(D, 30.0) + Linear(D)
    both = DerivativeGP(kernel=parts, mean=Constant(0.0), likelihood=outputs())
    both.initialise(x, y, generator=draws(1))
    assert parts.parts[0].lengthscale[0] < 3.0


def test_a_start_of_values_alone_is_that_of_an_exact_gp():
    model, x, y = problem()
    assert model.start_targets(y) is None
    y[:, 1:] = torch.nan
    assert model.start_targets(y) is y
    before = copy.deepcopy(model.kernel.state_dict())
    model.initialise(x, y, generator=draws(1))
    assert all(torch.equal(v, before[name]) for name, v in model.kernel.state_dict().items())
    noise = model.likelihood.noise_variance
    torch.testing.assert_close(noise[0], NOISE[0])
    assert (noise[1:] < 1e-5).all()  # of derivatives that were never observed


def test_the_noise_of_one_value_is_not_learned():
    """It would take any value: a function passes through one point anyway."""
    x, y = function()
    y[1:, 0] = torch.nan
    model = DerivativeGP(kernel=RBF(D), mean=Constant(0.0), likelihood=outputs())
    model.initialise(x, y, generator=draws(1))
    torch.testing.assert_close(model.likelihood.noise_variance[0], torch.tensor(0.001))
    (slope,) = torch.autograd.grad(
        DerivativeMLL().evidence(model, x, y).value, list(model.likelihood.parameters())
    )
    assert slope[0] == 0.0
    assert (slope[1:] != 0.0).all()


def make(**changes):
    parts = {"kernel": RBF(D), "mean": Constant(), "likelihood": outputs(), **changes}
    return DerivativeGP(**parts)


REFUSED = {
    "another likelihood": ({"likelihood": Gaussian()}, r"take likelihood=GaussianOutputs\(\)"),
    "a name": ({"with_respect_to": ["x", "y"]}, "must hold numbers of columns"),
    "a negative number": ({"with_respect_to": [-1, 0]}, "must hold numbers of columns"),
    "too few": ({"with_respect_to": [0]}, "names 1 inputs, and there are 2 derivatives"),
    "twice": ({"with_respect_to": [1, 1]}, "names an input twice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_do_not_fit_are_refused_in_one_sentence(name):
    changes, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words) as refusal:
        make(**changes)
    assert "\n" not in str(refusal.value)


def test_data_that_do_not_fit_are_refused():
    model, x, y = problem()
    objective = DerivativeMLL()
    far = make(with_respect_to=[0, 4])
    for call in (
        lambda: far.condition(x, y),
        lambda: far.check(x),
        lambda: objective.evidence(far, x, y),
        lambda: far.initialise(x, y, generator=draws(0)),
    ):
        with pytest.raises(ConfigError, match="names input 4, and x has 2 columns"):
            call()
    rough = make(kernel=Matern12(D))
    for call in (
        lambda: rough.condition(x, y),
        lambda: rough.check(x),
        lambda: objective.evidence(rough, x, y),
    ):
        with pytest.raises(ConfigError, match="nowhere differentiable"):
            call()
    with pytest.raises(DataError, match="every target is missing"):
        objective.evidence(model, x, y * torch.nan)
    infinite = y.clone()
    infinite[2, 1] = math.inf
    for call in (objective.evidence, lambda m, x, y: m.condition(x, y)):
        with pytest.raises(DataError, match="1 targets are infinite, the first in row 2 of"):
            call(model, x, infinite)
    with pytest.raises(ShapeError):
        model.condition(x, y[:, :2])
    posterior = model.condition(x, y)
    with pytest.raises(NotAvailable):
        posterior.joint_covariance(x)


@pytest.mark.parametrize("columns", [1, 3])
def test_predictions_at_rows_of_another_number_of_inputs_are_refused(columns):
    x, y = torch.rand(5, 2, dtype=torch.float64), torch.rand(5, 3, dtype=torch.float64)
    model = DerivativeGP(kernel=RBF(), mean=Constant(), likelihood=GaussianOutputs(3, 0.1))
    posterior = model.double().condition(x, y)
    with pytest.raises(ShapeError, match=f"inputs have {columns} columns, but it is made for 2"):
        posterior.predict(torch.rand(2, columns, dtype=torch.float64))
