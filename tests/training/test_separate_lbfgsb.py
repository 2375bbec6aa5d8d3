"""Training of several targets, each by itself, against runs of each."""

import copy

import pytest
import torch
from draws import draws

from gpx.constraints import fix
from gpx.errors import ConfigError
from gpx.kernels import RBF, ChangePoints, Matern32
from gpx.likelihoods import GaussianOutputs
from gpx.means import Constant, Zero
from gpx.models import ExactGP, IndependentGP
from gpx.objectives import ExactMLL, IndependentMLL
from gpx.priors import DimensionScaled, Gamma, LogNormal, Normal, Priors
from gpx.training import LBFGSB, SeparateLBFGSB, SubsetInitialisation
from gpx.training.separate_lbfgsb import SeparateProblem

N, D, P = 30, 2, 3


def problem(kernel=None, missing=True):
    x = torch.randn(N, D, generator=draws(0)).double()
    weights = torch.tensor([[2.0, 0.0, 0.5], [0.0, 1.0, 0.5]]).double()
    y = (x @ weights).sin() + 0.2 * torch.randn(N, P, generator=draws(1)).double()
    if missing:
        y[torch.rand(N, P, generator=draws(2)) < 0.2] = torch.nan
    model = IndependentGP(
        kernel=RBF(D) if kernel is None else kernel,
        mean=Constant(),
        likelihood=GaussianOutputs(P, 0.1),
    ).double()
    return model, x, y


def minimised(model, x, y, most=100, **options):
    steps = SeparateProblem(model, x, y, **options)
    searches = steps.searches()
    for _ in range(most):
        steps.advance(searches)
    return searches


def alone(model, target):
    own = copy.deepcopy(model.parts[target])
    likelihood = model.likelihood.output(target)
    return ExactGP(kernel=own.kernel, mean=own.mean, likelihood=likelihood).double()


def evidence_of(model, x, y, target):
    seen = ~y[:, target].isnan()
    own = alone(model, target)
    return ExactMLL().evidence(own, x[seen], y[seen, target]).value.item()


@pytest.mark.parametrize("missing", [False, True])
def test_every_target_ends_where_its_own_run_does(missing):
    model, x, y = problem(missing=missing)
    start = copy.deepcopy(model)
    minimised(model, x, y)
    for target in range(P):
        seen, own = ~y[:, target].isnan(), alone(start, target)
        data = x[seen], y[seen, target]

        def loss(own=own, data=data):
            return -ExactMLL().evidence(own, *data).value / len(data[0])

        LBFGSB().minimise(list(own.parameters()), loss, 200, lambda *_: None)
        want = ExactMLL().evidence(own, *data).value.item()
        assert evidence_of(model, x, y, target) == pytest.approx(want, abs=1e-4)


def test_fixed_values_stay():
    kernel = RBF(D, lengthscale=0.7)
    fix(kernel, "lengthscale")
    model, x, y = problem(kernel)
    fix(model.likelihood, "noise_variance")
    minimised(model, x, y)
    for each in model.parts:
        torch.testing.assert_close(each.kernel.lengthscale, torch.full((D,), 0.7).double())
        assert each.kernel.outputscale.item() != 1.0
    torch.testing.assert_close(model.likelihood.noise_variance, torch.full((P,), 0.1).double())


def test_bounds_hold_for_all_targets_or_for_one():
    model, x, y = problem()
    bounds = {
        "kernel.lengthscale": (0.5, 0.8),
        "targets.1.kernel.outputscale": (0.1, 0.2),
        "likelihood.noise_variance": (0.3, 9.0),
    }
    searches = minimised(model, x, y, bounds=bounds)
    lengths = torch.stack([each.kernel.lengthscale for each in model.parts])
    assert lengths.min() >= 0.5 - 1e-12
    assert lengths.max() <= 0.8 + 1e-12
    assert 0.1 <= model.parts[1].kernel.outputscale <= 0.2 + 1e-12
    assert model.parts[0].kernel.outputscale > 0.2
    torch.testing.assert_close(model.likelihood.noise_variance, torch.full((P,), 0.3).double())
    assert not searches.active()
    with pytest.raises(ConfigError, match=r"bounds of kernel.period: .*there are kernel.length"):
        minimised(model, x, y, bounds={"kernel.period": (0.5, 0.8)})


@pytest.mark.parametrize(
    "priors",
    [
        Priors({"lengthscale": LogNormal(0.4, 1.2), "mean.constant": Normal(0.1, 0.2)}),
        DimensionScaled(D),
        Priors(
            {
                "targets.2.kernel.lengthscale": Gamma(3.0, 9.0),
                "noise_variance": torch.distributions.Gamma(
                    torch.tensor([2.0, 3.0, 4.0]), torch.tensor([9.0, 8.0, 7.0])
                ),
            }
        ),
    ],
    ids=["all", "by dimension", "of one target, and for each"],
)
def test_priors_are_those_of_the_model(priors):
    model, x, y = problem()
    model.hyperpriors = priors
    steps = SeparateProblem(model, x, y, priors=priors)
    values = steps.parts.read().detach()
    density, gradient = steps.priors(values, [0, 2], values[[0, 2]])
    every, slopes = steps.priors(values, [0, 1, 2], values)
    total = priors.log_prob(model)
    assert every.sum().item() == pytest.approx(total.item(), rel=1e-12)
    torch.testing.assert_close(density, every[[0, 2]])
    torch.testing.assert_close(gradient, slopes[[0, 2]])
    parameters = list(model.parameters())
    want = torch.autograd.grad(total, parameters, materialize_grads=True)
    found = torch.autograd.grad(steps.parts.read(), parameters, slopes)
    for one, two in zip(found, want, strict=True):
        torch.testing.assert_close(one, two)
    searches = minimised(model, x, y, priors=priors)
    evidence = IndependentMLL().evidence(model, x, y).value + priors.log_prob(model)
    assert steps.density(searches).sum().item() == pytest.approx(evidence.item(), rel=1e-10)


def test_kernels_of_several_forms_are_trained():
    model, x, y = problem([RBF(D), Matern32(D), RBF()])
    before = IndependentMLL().evidence(model, x, y).value.item()
    searches = minimised(model, x, y)
    assert IndependentMLL().evidence(model, x, y).value.item() > before + 5.0
    assert not searches.active()


def test_what_it_cannot_train():
    steps = SeparateLBFGSB()
    own = alone(problem()[0], 0)
    with pytest.raises(ConfigError, match="optimises every target of an IndependentGP by itself"):
        steps.require_fit(own, ExactMLL(), N, 10)
    model, *_ = problem()
    with pytest.raises(ConfigError, match=r"is another: take optimizer=LBFGSB\(\)"):
        steps.require_fit(model, ExactMLL(), N, 10)
    with pytest.raises(ConfigError, match="memory=0 must be at least 1"):
        SeparateLBFGSB(memory=0)
    with pytest.raises(ConfigError, match="ftol=-1"):
        SeparateLBFGSB(ftol=-1)


def test_the_start_is_that_of_each_target_alone():
    x = torch.linspace(-2.0, 2.0, 90).double()[:, None]
    # the first is too fast for the start, from which a fit takes it for noise
    y = torch.cat([(30.0 * x).sin(), (2.0 * x).sin()], 1)
    y += 0.1 * torch.randn(90, 2, generator=draws(3)).double()
    model = IndependentGP(
        kernel=RBF(), mean=Constant(), likelihood=GaussianOutputs(2, 0.1)
    ).double()
    lines, initialise = [], SubsetInitialisation()
    found = copy.deepcopy(model)
    initialise(found, x, y, generator=draws(), say=lines.append)
    assert any("another fit of 1 of 2 targets" in line for line in lines)
    for target in range(2):
        own = alone(model, target)
        initialise(own, x, y[:, target], generator=draws(), say=lines.append)
        want = ExactMLL().evidence(own, x, y[:, target]).value.item()
        assert evidence_of(found, x, y, target) == pytest.approx(want, abs=0.1)
    assert found.parts[0].kernel.lengthscale < 0.1 < found.parts[1].kernel.lengthscale


def test_a_start_on_some_rows_gives_every_target_its_own():
    model, x, y = problem()
    y[4:, 1] = torch.nan  # a random subset of 8 rows would hardly have any of these
    lines = []
    SubsetInitialisation(num_points=8)(model, x, y, generator=draws(), say=lines.append)
    assert "on at most 8 points" in lines[0]
    assert model.parts[1].kernel.lengthscale.tolist() != [1.0, 1.0]


def test_open_change_points_are_placed_for_each_target():
    x = torch.linspace(-1.7, 1.7, 120).double()[:, None]
    y = torch.cat([torch.where(x < at, (2 * x).sin(), (18 * x).sin()) for at in (-0.6, 0.4)], 1)
    y += 0.05 * torch.randn(120, 2, generator=draws(5)).double()
    model = IndependentGP(
        kernel=ChangePoints([RBF(1), RBF(1)]), mean=Zero(), likelihood=GaussianOutputs(2)
    ).double()
    SubsetInitialisation()(model, x, y, generator=draws(), say=lambda line: None)
    places = [each.kernel.locations.item() for each in model.parts]
    assert places == pytest.approx([-0.6, 0.4], abs=0.1)
    assert model.likelihood.noise_variance.max() < 0.02
