"""Several targets that share nothing, against exact processes of each, one after the other."""

import copy

import gpytorch
import pytest
import torch
from draws import draws

from gpx.errors import ConfigError, DataError, NotPositiveDefinite
from gpx.kernels import RBF, ArcCosine, Linear, Matern32, Matern52, Periodic, RationalQuadratic
from gpx.likelihoods import Gaussian, GaussianOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant, Zero
from gpx.means import Linear as LinearMean
from gpx.methods.independent import evidence
from gpx.models import CoregionalGP, ExactGP, IndependentGP
from gpx.objectives import ExactMLL, IndependentMLL

N, D, P = 23, 2, 4
KERNELS = {
    "rbf": lambda: RBF(D, lengthscale=0.8),
    "one lengthscale": lambda: Matern32(lengthscale=0.9, outputscale=None),
    "composed": lambda: (
        2.0 * (RBF(1, active_dims=[0]) + Periodic(active_dims=[1]) * Matern52(1, active_dims=[1]))
    ),
    "shared twice": lambda: RBF(D) ** 2,
    "by formula": lambda: RationalQuadratic(D) + Linear(),
    "by vmap": lambda: ArcCosine(D) + 0.5,
}


def problem(kernel=None, mean=None, missing=True, rows=N):
    """A model whose targets all differ, x (n, 2) and y (n, 4), a fifth of which is missing."""
    generator = draws(1)
    x = torch.randn(rows, D, generator=generator).double()
    y = torch.randn(rows, P, generator=generator).double()
    if missing:
        y[torch.rand(rows, P, generator=generator) < 0.2] = torch.nan
        y[:12, 2] = torch.nan
    model = IndependentGP(
        kernel=RBF(D) if kernel is None else kernel,
        mean=Constant(0.2) if mean is None else mean,
        likelihood=GaussianOutputs(P, 0.2),
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator).double()
    return model, x, y


def alone(model, target):
    """An exact process with copies of the parts of one target."""
    own = copy.deepcopy(model.parts[target])
    likelihood = model.likelihood.output(target)
    return ExactGP(kernel=own.kernel, mean=own.mean, likelihood=likelihood).double()


def rows_of(x, y, target):
    seen = ~y[:, target].isnan()
    return x[seen], y[seen, target]


@pytest.fixture(params=["batches", "one after the other"])
def way(request, monkeypatch):
    """Both ways in which evidences are computed."""
    if request.param == "one after the other":
        monkeypatch.setattr(evidence, "BATCH_BYTES", {"cpu": 0})
    return request.param


@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_evidence_and_gradient_are_those_of_exact_processes(kernel, missing, way):
    model, x, y = problem(kernel(), LinearMean(D) if missing else Zero(), missing)
    found = IndependentMLL().evidence(model, x, y)
    found.value.backward()
    total = 0.0
    for target in range(P):
        other = alone(model, target)
        want = ExactMLL().evidence(other, *rows_of(x, y, target))
        want.value.backward()
        total += want.value.item()
        for one, two in zip(
            model.parts[target].parameters(),
            [*other.kernel.parameters(), *other.mean.parameters()],
            strict=True,
        ):
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-9, atol=1e-10)
        (noise,) = other.likelihood.parameters()
        (mine,) = model.likelihood.parameters()
        assert mine.grad[target].item() == pytest.approx(noise.grad.item(), rel=1e-9)
    assert found.value.item() == pytest.approx(total, rel=1e-10)
    assert found.facts["missing_targets"] == int(y.isnan().sum())
    parts = sum(part.item() for part in found.parts.values())
    assert parts == pytest.approx(total, rel=1e-12)


def test_gradcheck(way):
    model, x, y = problem(KERNELS["composed"]())
    parameters = list(model.parameters())
    values = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    names = [name for name, _ in model.named_parameters()]
    objective = IndependentMLL()

    def evidence(*given):
        with torch.no_grad():
            for parameter, value in zip(parameters, given, strict=True):
                parameter.copy_(value)
        for parameter in parameters:
            parameter.grad = None
        value = objective.evidence(model, x, y).value
        if not torch.is_grad_enabled():
            return value
        return Attached.apply(value.detach(), torch.autograd.grad(value, parameters), *given)

    class Attached(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, gradients, *given):
            ctx.gradients = gradients
            return value.clone()

        @staticmethod
        def backward(ctx, grad):
            return (None, None, *(grad * each for each in ctx.gradients))

    assert len(names) == len(values)
    assert torch.autograd.gradcheck(evidence, values, atol=1e-6)


def test_known_noise_of_cells_and_weights_of_rows(way):
    model, x, y = problem()
    known = torch.rand(N, P, generator=draws(4)).double()
    relative = 0.5 + torch.rand(N, generator=draws(5)).double()
    model.know_noise(RowNoise(known, relative))
    found = IndependentMLL().evidence(model, x, y).value.item()
    posterior, total = model.condition(x, y), 0.0
    for target in range(P):
        seen, other = ~y[:, target].isnan(), alone(model, target)
        other.know_noise(RowNoise(known[seen, target], relative[seen]))
        own = rows_of(x, y, target)
        total += ExactMLL().evidence(other, *own).value.item()
        want = other.condition(*own).predict(x[:5] + 0.1)
        have = posterior.predict(x[:5] + 0.1)
        torch.testing.assert_close(have.mean[:, target], want.mean, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(have.variance[:, target], want.variance, rtol=1e-8, atol=1e-10)
    assert found == pytest.approx(total, rel=1e-10)
    restored = model.new_posterior()
    restored.load_state_dict(posterior.state_dict())
    torch.testing.assert_close(restored.predict(x).mean, posterior.predict(x).mean, rtol=0, atol=0)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_predictions_are_those_of_exact_processes(kernel, way):
    model, x, y = problem(kernel(), LinearMean(D))
    at = torch.randn(9, D, generator=draws(2)).double()
    posterior = model.condition(x, y)
    found = posterior.predict(at)
    noisy = posterior.predictive(at, model.likelihood)
    for target in range(P):
        other = alone(model, target)
        want = other.condition(*rows_of(x, y, target))
        mean, variance = want.predict(at)
        torch.testing.assert_close(found.mean[:, target], mean, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(found.variance[:, target], variance, rtol=1e-8, atol=1e-10)
        law = want.predictive(at, other.likelihood)
        torch.testing.assert_close(noisy.variance[:, target], law.variance)


def test_gradients_of_predictions_by_inputs():
    model, x, y = problem()
    at = (x[:3] + 0.1).requires_grad_()
    posterior = model.condition(x, y)
    (slope,) = torch.autograd.grad(posterior.predict(at).mean[:, 1].sum(), at)
    other = alone(model, 1).condition(*rows_of(x, y, 1))
    (want,) = torch.autograd.grad(other.predict(at).mean.sum(), at)
    torch.testing.assert_close(slope, want)


def test_draws_are_independent_between_targets_and_joint_over_rows():
    model, x, y = problem()
    posterior, at = model.condition(x, y), x[:3] + 0.05
    drawn = posterior.sample(at, 20_000, generator=draws())
    assert drawn.shape == (20_000, 3, P)
    for target in (0, 2):
        want = posterior.target(target).joint_covariance(at)
        found = drawn[:, :, target].mT.cov()
        scale = want.diagonal().sqrt()
        # five standard errors of a covariance
        assert ((found - want).abs() / (scale * scale[:, None])).max() < 5 * (2 / 20_000) ** 0.5
    between = torch.stack([drawn[:, 0, 0], drawn[:, 0, 2]]).corrcoef()[0, 1]
    assert abs(between) < 5 / 20_000**0.5
    paths = posterior.sample_paths(7, generator=draws())
    assert paths(at).shape == (7, 3, P)
    torch.testing.assert_close(paths(at), paths(at))


def test_further_rows_are_as_if_they_had_been_there():
    model, x, y = problem()
    some, more = slice(0, 18), slice(18, None)
    found = model.condition(x[some], y[some]).with_observations(x[more], y[more], model.likelihood)
    want = model.condition(x, y)
    torch.testing.assert_close(found.predict(x).mean, want.predict(x).mean)
    torch.testing.assert_close(found.predict(x).variance, want.predict(x).variance)


def test_every_target_has_the_posterior_of_an_exact_process():
    model, x, y = problem()
    posterior = model.condition(x, y)
    left, every = posterior.target(1).leave_one_out(), posterior.leave_one_out()
    seen = ~y.isnan()
    torch.testing.assert_close(every.log_density()[seen[:, 1], 1], left.log_density())
    assert torch.equal(every.log_density().isnan(), ~seen)
    torch.testing.assert_close(posterior.training_targets()[seen], y[seen])
    want = alone(model, 1).condition(*rows_of(x, y, 1)).leave_one_out()
    torch.testing.assert_close(left.log_density(), want.log_density())


def test_order_of_targets_does_not_matter():
    model, x, y = problem()
    order = [2, 0, 3, 1]
    other = copy.deepcopy(model)
    other.targets = torch.nn.ModuleList([other.targets[place] for place in order])
    other.likelihood.noise_variance = model.likelihood.noise_variance.detach()[order]
    objective = IndependentMLL()
    one = objective.evidence(model, x, y).value.item()
    two = objective.evidence(other, x, y[:, order]).value.item()
    assert one == pytest.approx(two, rel=1e-12)
    found, want = (m.condition(x, t).predict(x) for m, t in ((other, y[:, order]), (model, y)))
    torch.testing.assert_close(found.mean, want.mean[:, order])


def test_kernels_of_several_forms():
    kernels = [RBF(D), Matern32(D), RBF(D) + Linear(), RBF()]
    model, x, y = problem(kernels)
    assert not model.stacked().alike
    found = IndependentMLL().evidence(model, x, y)
    found.value.backward()
    want = sum(
        ExactMLL().evidence(alone(model, target), *rows_of(x, y, target)).value.item()
        for target in range(P)
    )
    assert found.value.item() == pytest.approx(want, rel=1e-10)
    posterior = model.condition(x, y)
    assert posterior.own_hyperparameters() is None
    mean = alone(model, 2).condition(*rows_of(x, y, 2)).predict(x).mean
    torch.testing.assert_close(posterior.predict(x).mean[:, 2], mean)


def test_hyperparameters_have_an_axis_of_targets():
    model, x, y = problem()
    found = model.condition(x, y).own_hyperparameters()
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    assert shapes == {
        "kernel.lengthscale": (P, D),
        "kernel.outputscale": (P,),
        "mean.constant": (P,),
        "likelihood.noise_variance": (P,),
    }
    torch.testing.assert_close(found["kernel.lengthscale"][2], model.parts[2].kernel.lengthscale)


class Batched(gpytorch.models.ExactGP):
    """GPyTorch's batch mode, with the hyperparameters of a model."""

    def __init__(self, ours, x, y):
        noise = gpytorch.likelihoods.GaussianLikelihood(
            batch_shape=torch.Size([P]), noise_constraint=gpytorch.constraints.GreaterThan(1e-6)
        )
        super().__init__(x.expand(P, *x.shape), y.mT, noise)
        shape = torch.Size([P])
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
        rbf = gpytorch.kernels.RBFKernel(ard_num_dims=D, batch_shape=shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf, batch_shape=shape)
        self.double()
        parts = ours.parts
        rbf.lengthscale = torch.stack([each.kernel.lengthscale for each in parts]).unsqueeze(1)
        self.covar_module.outputscale = torch.stack([each.kernel.outputscale for each in parts])
        self.mean_module.constant.data = torch.stack([each.mean.constant for each in parts])
        noise.noise = ours.likelihood.noise_variance.unsqueeze(1)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_batch_mode_of_gpytorch():
    model, x, y = problem(missing=False)
    peer = Batched(model, x, y)
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(peer.likelihood, peer)
    peer.train()
    theirs = evidence(peer(*peer.train_inputs), peer.train_targets).sum() * N
    found = IndependentMLL().evidence(model, x, y).value
    assert found.item() == pytest.approx(theirs.item(), rel=1e-9)
    peer.eval()
    at = x[:5] + 0.1
    with torch.no_grad():
        law = peer.likelihood(peer(at.expand(P, *at.shape)))
        mine = model.condition(x, y).predictive(at, model.likelihood)
    torch.testing.assert_close(mine.mean, law.mean.mT, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(mine.variance, law.variance.mT, rtol=1e-6, atol=1e-7)


def test_one_target_that_needs_jitter_does_not_change_the_others():
    x = torch.zeros(6, 1, dtype=torch.float64)  # all rows alike
    y = torch.randn(6, 3, generator=draws()).double()
    model = IndependentGP(
        kernel=RBF(), mean=Zero(), likelihood=GaussianOutputs(3, 0.1, noise_floor=0.0)
    ).double()
    model.likelihood.noise_variance = torch.tensor([0.1, 1e-18, 0.1], dtype=torch.float64)
    with pytest.warns(UserWarning, match="only with a jitter"):
        found = IndependentMLL().evidence(model, x, y)
    assert found.facts["jitter"] > 0.0
    want = ExactMLL().evidence(alone(model, 0), x, y[:, 0]).value.item()
    parts = evidence.target_evidences(
        model.stacked(), model.cells(x, y), [0, 2], model.stacked().read()[[0, 2]], gradient=False
    )
    assert parts.total()[0].item() == pytest.approx(want, rel=1e-12)
    with pytest.warns(UserWarning, match="only with a jitter"):
        assert model.condition(x, y).facts()["jitter"] > 0.0


def test_a_matrix_without_a_factor_is_an_error():
    class Wrong(RBF):
        def covariance(self, x1, x2):
            return -super().covariance(x1, x2)

        def variance(self, x):
            return -super().variance(x)

    model, x, y = problem(Wrong(D))
    with pytest.raises(NotPositiveDefinite, match="not positive definite"):
        IndependentMLL().evidence(model, x, y)
    with pytest.raises(NotPositiveDefinite, match="not positive definite"):
        model.condition(x, y)


def test_single_precision_is_close_and_warns_of_small_noise():
    model, x, y = problem()
    want = IndependentMLL().evidence(model, x, y).value.item()
    low = copy.deepcopy(model).float()
    found = IndependentMLL().evidence(low, x.float(), y.float()).value.item()
    assert found == pytest.approx(want, rel=1e-4)
    low.likelihood.noise_variance = torch.full((P,), 2e-6)
    with pytest.warns(UserWarning, match="float32 has too few digits"):
        IndependentMLL().evidence(low, x.float(), y.float())


def test_what_is_refused():
    model, x, y = problem()
    parts = {"kernel": RBF(D), "mean": Zero(), "likelihood": GaussianOutputs(P)}
    with pytest.raises(ConfigError, match=r"take GaussianOutputs\(num_outputs\)"):
        IndependentGP(**(parts | {"likelihood": Gaussian()}))
    with pytest.raises(ConfigError, match="of which each of 4 targets has a copy, or a list of 4"):
        IndependentGP(**(parts | {"kernel": [RBF(D), RBF(D)]}))
    shared = RBF(D)
    with pytest.raises(ConfigError, match="two targets of IndependentGP share a parameter"):
        IndependentGP(**(parts | {"kernel": [shared, RBF(D), shared + Linear(), RBF(D)]}))
    with pytest.raises(ConfigError, match="got str"):
        IndependentGP(**(parts | {"mean": "zero"}))
    with pytest.raises(ConfigError, match="needs IndependentGP, or a model with stacked"):
        IndependentMLL().evidence(CoregionalGP(**parts).double(), x, y)
    for wrong, words in (
        (torch.inf, "1 targets are infinite, the first in row 3 of target 1"),
        (torch.nan, "target 1 of 4 was never observed"),
    ):
        bad = y.clone()
        bad[3 if wrong == torch.inf else slice(None), 1] = wrong
        for call in (model.condition, lambda a, b: IndependentMLL().evidence(model, a, b)):
            with pytest.raises(DataError, match=words):
                call(x, bad)


def test_without_rows_the_evidence_is_zero():
    model, x, y = problem()
    assert IndependentMLL().evidence(model, x[:0], y[:0]).value.item() == 0.0


def test_kernels_that_differ_in_a_sequence_are_not_taken_for_each_other():
    class Powers(RBF):
        def __init__(self, powers):
            super().__init__()
            self.powers = powers

        def evaluate(self, x1, x2=None):
            return sum(super(Powers, self).evaluate(x1, x2) ** power for power in self.powers)

    def alike(*powers):
        kernels = [Powers(each) for each in powers]
        likelihood = GaussianOutputs(len(kernels))
        return IndependentGP(kernel=kernels, mean=Zero(), likelihood=likelihood).stacked().alike

    assert alike((1, 2), (1, 2))
    assert not alike((1, 2), (1, 3))


def test_a_parameter_that_was_replaced_is_noticed():
    """As by ``load_state_dict(assign=True)``, after an evidence that has read the old one."""
    model, x, y = problem()
    IndependentMLL().evidence(model, x, y)
    held = model.targets[1].kernel.parametrizations.lengthscale
    held.original = torch.nn.Parameter(held.original.detach() + 1.0)
    expected = IndependentMLL().evidence(copy.deepcopy(model), x, y).value
    torch.testing.assert_close(IndependentMLL().evidence(model, x, y).value, expected)
