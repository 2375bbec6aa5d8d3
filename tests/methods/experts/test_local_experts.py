"""Local experts: one is the exact process, the nearest one predicts, batches equal loops."""

import copy
import pickle
import weakref

import dense_experts as dense
import numpy as np
import pytest
import torch
from draws import draws

from gpx.errors import ConfigError, DataError
from gpx.inducing import ClusterBlocks, ColumnBlocks, RandomBlocks
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant
from gpx.methods.experts.local_posterior import PointsByExpert
from gpx.methods.experts.posterior import MAX_BLOCK_ROWS, ExpertsPosterior
from gpx.models import ExactGP, LocalExperts
from gpx.objectives import ExpertsMLL
from gpx.priors import LogNormal, Priors
from gpx.runs.hyperparameters import hyperparameters_of
from gpx.training import LBFGSB


def local(x, y, kernel="rbf", **options):
    model = LocalExperts(**dense.parts(kernel), **options)
    model.initialise(x, y, generator=draws())
    return model


def apart(model):
    """Hyperparameters that differ from expert to expert."""
    with torch.no_grad():
        for parameter in model.own.parameters():
            parameter += 0.4 * torch.randn(parameter.shape, generator=draws(1)).double()
    return model


@pytest.mark.parametrize("sharing", ["own", "shared"])
def test_one_expert_is_the_exact_process(sharing):
    x, y, new = dense.data()
    posterior = local(x, y, num_experts=1, hyperparameters=sharing).condition(x, y)
    exact = ExactGP(**dense.parts()).condition(x, y)
    found, want = posterior.predict(new), exact.predict(new)
    torch.testing.assert_close(found, want, rtol=0.0, atol=1e-10)
    likelihood = dense.parts()["likelihood"]
    a, b = (p.predictive(new, likelihood) for p in (posterior, exact))
    torch.testing.assert_close(a.stddev, b.stddev, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("kernel", dense.KERNELS)
@pytest.mark.parametrize("points", [None, 20])
def test_predictions_in_batches_are_those_of_one_expert_at_a_time(kernel, points):
    x, y, new = dense.data()
    model = apart(local(x, y, kernel, num_experts=5, points_per_expert=points))
    unit = model.regions.weights.rsqrt()
    nearest = torch.cdist(new / unit, model.regions.centres / unit).argmin(1)
    rows = model.expert_rows(x)
    own = rows.rows.split(rows.sizes.tolist())
    for budget in (1, 10**9):
        model.batch_bytes = budget
        posterior = model.condition(x, y)
        every = [own[k] for k in nearest]
        dense.require_predictions_of_experts(posterior, model, x, y, new, nearest, every)


def test_experts_that_are_not_kept_are_factorised_one_after_the_other(monkeypatch):
    """Once each for all test points, and not those without any."""
    x, y, new = dense.data()
    model = local(x, y, num_experts=5)
    model.batch_bytes = 1
    posterior = model.condition(x, y)
    new = new[posterior.regions.nearest(new) != 2]
    want = posterior.predict(new)
    held, made = [], ExpertsPosterior._members

    def noted(self, batch, *rest):
        assert sum(factor() is not None for factor in held) <= 1
        found = made(self, batch, *rest)
        held.append(weakref.ref(found.factor))
        return found

    monkeypatch.setattr(ExpertsPosterior, "_members", noted)
    assert torch.equal(posterior.predict(new).mean, want.mean)
    assert len(held) == len(posterior.regions.nearest(new).unique()) < 5


def test_the_points_of_one_block_of_test_rows_are_sorted_and_held_at_a_time(monkeypatch):
    x, y, _ = dense.data()
    posterior = local(x, y, num_experts=5).condition(x, y)
    new = torch.randn(40, x.shape[1], generator=draws(2), dtype=x.dtype)
    want = posterior.predict(new)
    held, sort = [], PointsByExpert.of

    def noted(expert, num_experts):
        assert sum(order() is not None for order in held) <= 1
        found = sort(expert, num_experts)
        held.append(weakref.ref(found.order))
        return found

    monkeypatch.setattr(PointsByExpert, "of", noted)
    monkeypatch.setitem(MAX_BLOCK_ROWS, "cpu", 8)
    torch.testing.assert_close(posterior.predict(new), want, rtol=1e-12, atol=1e-12)
    assert len(held) >= 5


@pytest.mark.parametrize("kernel", dense.KERNELS)
def test_a_kernel_that_is_not_trained_is_the_same_for_all_experts(kernel):
    x, y, new = dense.data()

    def of(sharing):
        parts = dense.parts(kernel)
        parts["kernel"].requires_grad_(False)
        model = LocalExperts(**parts, num_experts=3, hyperparameters=sharing)
        model.initialise(x, y, generator=draws())
        return model

    own, shared = of("own"), of("shared")
    value, want = (ExpertsMLL().evidence(model, x, y).value for model in (own, shared))
    torch.testing.assert_close(value, want, rtol=1e-12, atol=0.0)
    assert torch.autograd.grad(value, list(own.own.parameters()))[0].isfinite().all()
    found, want = (model.condition(x, y).predict(new) for model in (own, shared))
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


def test_priors_of_hyperparameters_that_each_expert_has_are_refused():
    x, y, _ = dense.data()
    priors = Priors({"lengthscale": LogNormal(1.0, 3.0)})
    own = local(x, y, num_experts=2)
    with pytest.raises(ConfigError, match="every expert has its own: choose hyperparameters=shar"):
        own.hyperpriors = priors
    own.hyperpriors = None
    assert pickle.loads(pickle.dumps(own)).hyperpriors is None
    shared = local(x, y, num_experts=2, hyperparameters="shared")
    evidence, objective = ExpertsMLL().evidence(shared, x, y), ExpertsMLL()
    without = objective.loss(evidence, shared, x)
    shared.hyperpriors = priors
    change = objective.loss(evidence, shared, x) - without
    torch.testing.assert_close(change, -priors.log_prob(shared) / len(x))


def test_a_number_of_experts_that_was_not_given_follows_the_data():
    x, y, _ = dense.data(1600)
    model = LocalExperts(**dense.parts())
    for rows in (1600, 600, 1600):
        model.initialise(x[:rows], y[:rows], generator=draws())
        assert model.num_experts == round(rows / 500)
        assert model.own.num_experts == len(model.sizes) == model.num_experts
    given = LocalExperts(**dense.parts(), num_experts=3)
    for rows in (1600, 60):
        given.initialise(x[:rows], y[:rows], generator=draws())
        assert given.num_experts == 3


def test_reported_hyperparameters_are_those_of_every_expert():
    x, y, _ = dense.data()
    model = apart(local(x, y, num_experts=3))
    told = hyperparameters_of(model.condition(x, y), model.likelihood)
    for k in range(3):
        kernel, _, likelihood, _ = model.parts.of_expert(k)
        lengthscale = kernel.lengthscale.detach().numpy()
        np.testing.assert_array_equal(told["kernel.lengthscale"][k], lengthscale)
        noise = float(likelihood.noise_variance.detach())
        assert told["likelihood.noise_variance"][k] == noise
    assert told["likelihood.noise_variance"].shape == (3,)
    shared = local(x, y, num_experts=3, hyperparameters="shared")
    told = hyperparameters_of(shared.condition(x, y), shared.likelihood)
    assert told["likelihood.noise_variance"].shape == ()


def test_experts_have_the_points_nearest_to_their_centre():
    x, y, _ = dense.data()
    model = local(x, y, num_experts=4, points_per_expert=9)
    unit = model.regions.weights.rsqrt()
    gaps = torch.cdist(model.regions.centres / unit, x / unit)
    for k, own in enumerate(model.expert_rows(x).rows.split(9)):
        assert set(own.tolist()) == set(gaps[k].argsort()[:9].tolist())


def test_predictions_jump_where_regions_meet_and_nowhere_else():
    x = torch.linspace(-2.0, 2.0, 40, dtype=torch.float64).unsqueeze(1)
    y = (3.0 * x[:, 0]).sin()
    model = LocalExperts(
        kernel=RBF(1, 0.6).double(),
        mean=Constant().double(),
        likelihood=Gaussian(0.01).double(),
        num_experts=2,
        partition=ClusterBlocks(),
    )
    model.initialise(x, y, generator=draws())
    posterior = model.condition(x, y)
    edge = float(model.regions.centres.mean())
    step = 1e-9
    for point, jumps in ((edge, True), (edge + 0.3, False), (edge - 0.3, False)):
        pair = torch.tensor([[point - step], [point + step]], dtype=torch.float64)
        mean = posterior.predict(pair).mean
        assert (float((mean[0] - mean[1]).abs()) > 1e-4) == jumps


def test_experts_trained_together_end_where_each_ends_alone():
    """The hyperparameters of one expert say nothing of another's evidence."""
    x, y, _ = dense.data(60)
    model = local(x, y, num_experts=3, partition=ClusterBlocks())
    rows = model.expert_rows(x).rows.split(20)
    parameters = list(model.own.parameters())
    objective = ExpertsMLL()

    def train(parameters, loss, evaluations):
        LBFGSB(ftol=0.0, gtol=1e-9).minimise(parameters, loss, evaluations, lambda *_: None)

    train(parameters, lambda: objective(model, x, y), 300)
    together = float(objective.evidence(model, x, y).value.detach())
    total = 0.0
    for own in rows:
        alone = local(x[own], y[own], num_experts=1, hyperparameters="shared")
        parts = copy.deepcopy(alone)
        train(
            list(parts.parameters()),
            lambda parts=parts, own=own: objective(parts, x[own], y[own]),
            200,
        )
        total += float(objective.evidence(parts, x[own], y[own]).value.detach())
    assert together == pytest.approx(total, abs=1e-3)


def test_the_published_configuration_runs():
    """64 experts of 100 points."""
    generator = draws(2)
    x = torch.randn(2000, 3, generator=generator, dtype=torch.float64)
    y = (2.0 * x).sin().sum(1) + 0.1 * torch.randn(2000, generator=generator).double()
    model = LocalExperts(
        kernel=RBF(3, 1.0).double(),
        mean=Constant().double(),
        likelihood=Gaussian(0.05).double(),
        num_experts=64,
        points_per_expert=100,
    )
    model.initialise(x, y, generator=draws())
    objective = ExpertsMLL()
    before = float(objective(model, x, y).detach())
    LBFGSB().minimise(
        list(model.own.parameters()), lambda: objective(model, x, y), 5, lambda *_: None
    )
    assert float(objective(model, x, y).detach()) < before
    new = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    error = model.condition(x, y).predict(new).mean - (2.0 * new).sin().sum(1)
    assert float(error.square().mean().sqrt()) < 0.75 * float((2.0 * new).sin().sum(1).std())


@pytest.mark.parametrize("sharing", ["own", "shared"])
def test_sampled_functions_have_the_mean_and_variance_of_the_experts(sharing):
    x, y, new = dense.data()
    model = local(x, y, num_experts=3, hyperparameters=sharing)
    posterior = (apart(model) if sharing == "own" else model).condition(x, y)
    dense.require_moments_of_paths(posterior, new)


def test_invalid_setups_are_refused():
    x, y, _ = dense.data()
    with pytest.raises(ConfigError, match="regions of the input space, which random blocks"):
        LocalExperts(**dense.parts(), partition=RandomBlocks())
    with pytest.raises(ConfigError, match="hyperparameters=mine: expected one of own, shared"):
        LocalExperts(**dense.parts(), hyperparameters="mine")
    with pytest.raises(ConfigError, match="points_per_expert=0 must be at least 1"):
        LocalExperts(**dense.parts(), points_per_expert=0)
    with pytest.raises(ConfigError, match=r"LocalExperts is made of exact .* got Bernoulli"):
        LocalExperts(**{**dense.parts(), "likelihood": Bernoulli()})
    with pytest.raises(DataError, match="num_experts=100 is more than the 61 training points"):
        local(x, y, num_experts=100)
    with pytest.raises(DataError, match="points_per_expert=62 is more than the 61"):
        local(x, y, num_experts=3, points_per_expert=62)
    with pytest.raises(DataError, match="points_per_expert=62 is more than the 61"):
        LocalExperts(**dense.parts(), num_experts=3, points_per_expert=62).check(x)
    with pytest.raises(DataError, match="of 3 blocks have no training rows"):
        local(torch.zeros_like(x), y, num_experts=3)
    with pytest.raises(ConfigError, match=r"call initialise\(x, y, generator"):
        LocalExperts(**dense.parts(), num_experts=3).condition(x, y)
    with pytest.raises(ConfigError, match="not placed among these 20 training rows"):
        local(x, y, num_experts=3).condition(x[:20], y[:20])


def test_a_region_for_every_value_of_a_column():
    x, y, new = dense.data()
    x[:, 1] = (torch.arange(61) % 3).double()
    new[:, 1] = (torch.arange(11) % 3).double()
    model = LocalExperts(**dense.parts(), partition=ColumnBlocks(1))
    assert model.settle(x)["num_experts"][0] == 3
    model.initialise(x, y, generator=draws())
    found = model.condition(x, y)
    assert found.regions.nearest(new).tolist() == [k % 3 for k in range(11)]
