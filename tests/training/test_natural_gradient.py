"""Natural gradient steps against closed forms and against dense natural parameters."""

import gc
import math
import weakref
from itertools import pairwise

import pytest
import torch
from claimed_cuda import claimed_cuda
from recordings import FromTheHost, Recorder, Watched
from torch import nn

from gpx.errors import ConfigError
from gpx.inference.variational import FullCholesky, MeanField, WhitenedGaussian
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian, GaussianOutputs, Poisson, StudentT
from gpx.linalg.cholesky import checks_deferred
from gpx.linalg.replayed import EAGER_STEPS
from gpx.means import Zero
from gpx.models import SVGP
from gpx.objectives import SVGPELBO, PredictiveLogLikelihood
from gpx.options.build import build
from gpx.options.composition import composed
from gpx.training.first_order import FirstOrder
from gpx.training.natural_gradient import MAX_STEP, NaturalGradient

NATURAL = {
    "variational": {"algorithm": "natural", "lr": 1.0},
    "inducing": {"lr": 0.0},
    "hyperparameters": {"lr": 0.0},
}


def problem(rows=40):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    return x, torch.sin(2.0 * x[:, 0]) + 0.1 * x[:, 1]


def model_of(likelihood, family=None):
    x, y = problem()
    model = SVGP(
        kernel=RBF(ard_num_dims=2),
        mean=Zero(),
        likelihood=likelihood,
        num_inputs=2,
        num_inducing=7,
        family=family,
        warm_start=False,
    ).double()
    y = y if likelihood.num_outputs == 1 else torch.stack([y] * likelihood.num_outputs, 1)
    model.initialise(x, y, generator=torch.Generator().manual_seed(1))
    return model


def steps(model, x, y, count, rate=1.0):
    """Bounds before each step on all data, and after the last."""
    objective = SVGPELBO(len(x))
    groups = {**NATURAL, "variational": {"algorithm": "natural", "lr": rate}}
    optimizer = FirstOrder(groups)
    optimizer.bind(model.parameter_groups(), count, model, len(x))
    found = []
    for step in range(count):
        optimizer.before_step(step)
        evidence = objective.evidence(model, x, y)
        objective.loss(evidence, model, x).backward()
        optimizer.step(step)
        found.append(evidence.value.item())
    return [*found, objective.evidence(model, x, y).value.item()]


@pytest.mark.parametrize("outputs", [1, 2])
def test_one_step_of_rate_one_is_the_optimum_for_gaussian_noise(outputs):
    x, y = problem()
    if outputs == 2:
        y = torch.stack([y, y.cos()], 1)
    likelihood = Gaussian(0.1) if outputs == 1 else GaussianOutputs(2, noise_variance=0.1)
    model = model_of(likelihood)
    _, after = steps(model, x, y, 1)
    mean, factor = model.q.mean.clone(), model.q.factor().clone()
    model.fit_variational(x, y)
    torch.testing.assert_close(mean, model.q.mean.data, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(factor, model.q.factor().data, rtol=1e-9, atol=1e-10)
    assert after == pytest.approx(SVGPELBO(40).evidence(model, x, y).value.item(), rel=1e-12)


def test_mean_field_comes_to_its_optimum_at_once_where_coordinates_do_not_meet():
    """For A A^T diagonal the fully factorised optimum is that of one step."""
    q = MeanField().start(3).double()
    target, precision = torch.tensor([[1.0, -2.0, 0.5]]).double(), torch.tensor([2.0, 5.0, 9.0])
    fit = 0.5 * ((q.mean - target).square() + q.root().square()) * precision.double()
    (fit.sum() + q.kl(q.root())).backward()
    q.natural_step(1.0)
    expected = precision.double() / (1.0 + precision.double())
    torch.testing.assert_close(q.mean.data, expected * target)
    torch.testing.assert_close(q.root().data, (1.0 + precision.double()).rsqrt()[None])


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_a_step_is_that_of_dense_natural_parameters(rate):
    """P' = P + 2 rate dloss/dS and P' m' = P m - rate (dloss/dm - 2 dloss/dS m)."""
    x, y = problem()
    labels = torch.where(y > 0, 1.0, -1.0).double()
    model = model_of(Bernoulli())
    steps(model, x, labels, 2, rate=0.5)
    mean = model.q.mean.detach().clone()
    covariance = (model.q.factor() @ model.q.factor().mT).detach()

    moved = [mean.clone().requires_grad_(), covariance.clone().requires_grad_()]
    projection = _projection(model, x)
    f_mean = (moved[0] @ projection)[0]
    spread = torch.einsum("mb,mk,kb->b", projection, moved[1][0], projection)
    f_variance = model.kernel.diagonal(x).detach() - projection.square().sum(0) + spread
    fit = model.likelihood.expected_log_prob(labels, f_mean, f_variance).sum()
    kl = 0.5 * (moved[1][0].trace() + moved[0].square().sum() - torch.logdet(moved[1][0]))
    of_mean, of_covariance = torch.autograd.grad(kl - fit, moved)
    of_covariance = 0.5 * (of_covariance + of_covariance.mT)
    precision = torch.linalg.inv(covariance) + 2.0 * rate * of_covariance
    first = torch.linalg.inv(covariance)[0] @ mean[0] - rate * (
        of_mean[0] - 2.0 * of_covariance[0] @ mean[0]
    )

    steps(model, x, labels, 1, rate=rate)
    found = model.q.factor() @ model.q.factor().mT
    torch.testing.assert_close(found.data, torch.linalg.inv(precision), rtol=1e-8, atol=1e-10)
    expected = torch.linalg.solve(precision[0], first)
    torch.testing.assert_close(model.q.mean.data[0], expected, rtol=1e-8, atol=1e-10)


def _projection(model, x):
    variables = model._variables
    with torch.no_grad():
        lower = variables.whitening().cholesky
        return torch.linalg.solve_triangular(lower, variables.cross(x), upper=False)


@pytest.mark.parametrize("family", [FullCholesky(), MeanField()])
def test_the_bound_rises_step_by_step_for_labels(family):
    x, y = problem()
    bounds = steps(
        model_of(Bernoulli(), family), x, torch.where(y > 0, 1.0, -1.0).double(), 12, 0.5
    )
    assert all(later > earlier for earlier, later in pairwise(bounds[:9]))
    assert bounds[-1] == pytest.approx(bounds[-2], abs=1e-3)


@pytest.mark.parametrize("family", [FullCholesky, MeanField])
def test_q_stays_a_distribution_where_the_loss_is_concave_in_its_variance(family):
    """Then P + 2 rate dloss/dS is not positive definite; E + E^2 / 2 in the place of E is."""
    q = family().start(4).double()
    (-50.0 * q.root().square().sum()).backward()
    q.natural_step(1.0)
    change = -100.0
    expected = torch.full((4,), 1.0 / (1.0 + change + 0.5 * change**2), dtype=torch.float64)
    covariance = q.factor()[0] @ q.factor()[0].mT
    torch.testing.assert_close(covariance.data, torch.diag(expected))


@pytest.mark.parametrize("largest", [1e6, 1e12])
def test_directions_of_little_curvature_survive_beside_those_of_much(largest):
    """Where P has to be raised: its eigenvalues lie up to 24 decades apart."""
    q = FullCholesky().start(4).double()
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))
    change = torch.tensor([largest, 5.0, -3.0, -2.0], dtype=torch.float64)
    matrix = basis @ torch.diag(change) @ basis.mT
    (0.5 * (matrix * (q.root() @ q.root().mT)).sum()).backward()
    q.natural_step(1.0)
    factor = q.factor()[0].detach()
    variances = (basis.mT @ factor).square().sum(1)[1:]
    expected = 1.0 / (1.0 + change + 0.5 * change.square())
    torch.testing.assert_close(variances, expected[1:], rtol=1e-3 * largest / 1e12 + 1e-9, atol=0.0)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_counts_of_hundreds_are_trained_from_the_prior(rate):
    """The first full step would take f hundreds of prior deviations up, where exp(f) overflows."""
    x, y = problem()
    counts = (400.0 * y.exp()).round()
    model = model_of(Poisson())
    before = model.q.mean.detach().clone()
    steps(model, x, counts, 1, rate)
    length = torch.linalg.vector_norm(model.q.mean.detach() - before)
    assert float(length) == pytest.approx(MAX_STEP)
    bounds = steps(model, x, counts, 150, rate)
    assert all(math.isfinite(bound) for bound in bounds)
    assert bounds[-1] == pytest.approx(bounds[-30], abs=0.1)
    steps(model, x, counts, 1, rate)
    gradients = torch.cat([p.grad.flatten() for p in model.q.parameters()])
    assert float(gradients.abs().max()) < 1e-3


def test_a_likelihood_that_is_not_log_concave_is_trained():
    x, y = problem()
    y = y.clone()
    y[::7] += 8.0
    model = model_of(StudentT(scale=0.1, df=3.0))
    bounds = steps(model, x, y, 40, rate=0.3)
    assert all(math.isfinite(bound) for bound in bounds)
    assert bounds[-1] > bounds[0] + 10.0
    assert bounds[-1] == pytest.approx(bounds[-2], abs=0.05)


class OwnFamily(MeanField):
    natural_step = WhitenedGaussian.natural_step


def test_what_has_no_natural_step_is_refused_before_training():
    model = model_of(Gaussian(0.1), OwnFamily())
    optimizer = FirstOrder(NATURAL)
    with pytest.raises(ConfigError, match="SVGP has variational parameters without natural"):
        optimizer.require_fit(model, SVGPELBO(40), 40, 10)
    with pytest.raises(ConfigError, match="without natural gradient steps"):
        optimizer.bind({"variational": [nn.Parameter(torch.zeros(3))]}, 10)


OTHERWISE = {"algorithm": "natural", "lr": 0.1, "otherwise": {"algorithm": "sgd", "lr": 0.25}}


def algorithm_for(model, setting=OTHERWISE):
    optimizer = FirstOrder({**NATURAL, "variational": setting})
    optimizer.bind(model.parameter_groups(), 10, model, 40)
    return optimizer, type(optimizer.optimisers["variational"])


def test_a_family_without_a_natural_step_is_trained_by_otherwise():
    optimizer, kind = algorithm_for(model_of(Gaussian(0.1), OwnFamily()))
    assert kind is torch.optim.SGD
    assert optimizer.learning_rates(0)["variational"] == 0.25
    assert algorithm_for(model_of(Gaussian(0.1), MeanField()))[1] is NaturalGradient


def test_otherwise_is_for_the_model_that_needs_it_alone():
    optimizer, kind = algorithm_for(model_of(Gaussian(0.1), OwnFamily()))
    assert kind is torch.optim.SGD
    model = model_of(Gaussian(0.1))
    optimizer.bind(model.parameter_groups(), 10, model, 40)
    assert type(optimizer.optimisers["variational"]) is NaturalGradient
    assert optimizer.learning_rates(0)["variational"] == 0.1
    assert not optimizer.replaced


def test_objectives_that_are_no_lower_bound_are_trained_by_otherwise():
    """Natural steps left the positive definite matrices there: the loss was NaN in ten steps."""
    model = model_of(Gaussian(0.1))
    groups = model.parameter_groups()
    for objective, kind in (
        (SVGPELBO(40), NaturalGradient),
        (PredictiveLogLikelihood(40), torch.optim.SGD),
    ):
        optimizer = FirstOrder({**NATURAL, "variational": OTHERWISE})
        optimizer.bind(groups, 10, model, 40, objective=objective)
        assert type(optimizer.optimisers["variational"]) is kind


class OneScale(MeanField):
    def _start(self):
        self.log_scale = nn.Parameter(self.mean.new_zeros(len(self.mean), 1))

    def root(self):
        return self.log_scale.exp().expand_as(self.mean)

    @torch.no_grad()
    def assign(self, mean, factor):
        self.mean.copy_(mean)
        self.log_scale.copy_(factor.diagonal(dim1=-2, dim2=-1).log().mean(-1, keepdim=True))


class OneScaleWithSteps(OneScale):
    def natural_step(self, rate, longest=math.inf, gradients=None):
        pass


def test_a_step_inherited_from_a_family_of_other_parameters_is_none():
    assert algorithm_for(model_of(Gaussian(0.1), OneScale()))[1] is torch.optim.SGD
    assert algorithm_for(model_of(Gaussian(0.1), OneScaleWithSteps()))[1] is NaturalGradient


def test_a_family_of_which_a_part_is_fixed_is_trained_by_otherwise():
    model = model_of(Gaussian(0.1))
    next(q for q in model.modules() if isinstance(q, WhitenedGaussian)).mean.requires_grad_(False)
    assert algorithm_for(model)[1] is torch.optim.SGD


def test_otherwise_keeps_the_steps_for_which_a_role_is_frozen():
    setting = {**OTHERWISE, "freeze_steps": 2}
    optimizer, _ = algorithm_for(model_of(Gaussian(0.1), OwnFamily()), setting)
    rates = [optimizer.learning_rates(step)["variational"] for step in range(3)]
    assert rates == [0.0, 0.0, 0.25]


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ([], 0.1),
        (["optimizer.groups.variational.algorithm=adam"], 0.01),
        (["optimizer.groups.variational={algorithm: adam, lr: 0.003}"], 0.003),
        (["optimizer.groups.variational.lr=0.5"], 0.5),
    ],
)
def test_the_rate_of_q_fits_its_algorithm(options, rate):
    made = build(composed(["approx=svgp", *options]), "optimizer")
    assert made.settings["variational"]["lr"] == rate


@pytest.mark.parametrize(
    ("otherwise", "message"),
    [
        ({"algorithm": "adm", "lr": 0.1}, r"variational.otherwise.algorithm=adm"),
        ({"algorithm": "adam"}, r"variational.otherwise.lr=null"),
        ("adam", r"variational.otherwise=adam: expected options"),
    ],
)
def test_an_invalid_otherwise_is_refused(otherwise, message):
    with pytest.raises(ConfigError, match=message):
        FirstOrder({**NATURAL, "variational": {**OTHERWISE, "otherwise": otherwise}})


@pytest.mark.parametrize("rate", [1.5, 2])
def test_rates_above_one_are_refused(rate):
    optimizer = FirstOrder({**NATURAL, "variational": {"algorithm": "natural", "lr": rate}})
    with pytest.raises(ConfigError, match=r"variational: lr=.*at most 1"):
        optimizer.bind(model_of(Gaussian(0.1)).parameter_groups(), 10)


def stepped(family, changes, record):
    """Parameters of q after steps whose curvature grows by each of ``changes``, and the optimiser.

    Rates differ from step to step.
    """
    q = family()
    q.start(4, 2)
    q.double()
    model = nn.Module()
    model.q, model.likelihood = q, Gaussian(0.1)
    optimiser = NaturalGradient(q.parameters(), lr=0.5)
    optimiser.attach(model, 1.0)
    if record is not None:
        optimiser.replay(record)
    for step, change in enumerate(changes):
        generator = torch.Generator().manual_seed(step)
        for parameter in q.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator).double()
        list(q.parameters())[1].grad += change * (torch.eye(4) if family is FullCholesky else 1.0)
        optimiser.param_groups[0]["lr"] = 0.5 / (step + 1)
        optimiser.step()
    return [p.detach().clone() for p in q.parameters()], optimiser


@pytest.mark.parametrize("family", [FullCholesky, MeanField])
def test_replayed_steps_are_those_that_run_as_they_are(family):
    recorder, changes = Recorder(), [8.0] * 8
    found, optimiser = stepped(family, changes, recorder)
    expected, _ = stepped(family, changes, None)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert (recorder.recordings, recorder.replays) == (1, 8 - EAGER_STEPS)
    assert optimiser._replayed.replays == 8 - EAGER_STEPS


def test_a_recording_goes_with_the_last_reference_to_its_optimiser():
    recorder = Watched()
    stepped(FullCholesky, [8.0], None)  # what torch imports at first use leaves cycles of frames
    gc.collect()
    gc.disable()
    try:
        _, optimiser = stepped(FullCholesky, [8.0] * (EAGER_STEPS + 1), recorder)
        assert (recorder.replays, recorder.alive) == (1, 1)
        left = weakref.ref(optimiser)
        del optimiser
        assert left() is None
        assert recorder.alive == 0
    finally:
        gc.enable()


def test_a_replayed_step_without_a_positive_precision_is_made_again_as_it_is():
    changes = [8.0] * (EAGER_STEPS + 1) + [-300.0] + [8.0] * 2
    found, optimiser = stepped(FullCholesky, changes, Recorder())
    expected, _ = stepped(FullCholesky, changes, None)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert optimiser._replayed.replays == 3  # all but the one that failed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_failed_step_leaves_every_bit_of_q(dtype):
    q = FullCholesky()
    q.start(20, 2)
    q.to(dtype)
    generator = torch.Generator().manual_seed(0)
    for parameter in q.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    before = [p.detach().clone() for p in q.parameters()]
    with checks_deferred() as noted:
        q.natural_step(1.0, MAX_STEP, [torch.zeros_like(q.mean), -40.0 * torch.ones(2, 20, 20)])
    assert [bool(note) for note in noted] == [True]
    for parameter, kept in zip(q.parameters(), before, strict=True):
        assert torch.equal(parameter, kept)


@pytest.mark.parametrize("family", [FullCholesky, MeanField])
@pytest.mark.parametrize("curvature", [1.0, -40.0])
def test_a_step_under_recording_neither_waits_nor_copies_from_the_host(family, curvature):
    with claimed_cuda() as waits:
        q = family()
        q.start(4, 2)
        q.double().cuda()
        given = [torch.full_like(p, 0.1) for p in q.parameters()]
        given[1] += curvature
        rate = torch.ones((), dtype=torch.float64, device="cuda")
        before = [p.detach().clone() for p in q.parameters()]
        waits.clear()
        with FromTheHost() as seen, checks_deferred() as noted:
            q.natural_step(rate, MAX_STEP, given)
        assert not waits
        assert not seen.names
        failed = [bool(note) for note in noted]
        assert failed == ([curvature < 0.0] if family is FullCholesky else [])
        same = [torch.equal(a, b) for a, b in zip(q.parameters(), before, strict=True)]
        assert all(same) if any(failed) else not any(same)
