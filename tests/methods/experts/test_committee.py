"""Committees: every rule against its definition, the limits in which it is exact, far from data."""

import dense_experts as dense
import pytest
import torch
from draws import draws
from largest_tensor import Largest

from gpx.errors import ConfigError, DataError
from gpx.inducing import ColumnBlocks, RandomBlocks
from gpx.kernels import RBF, Constant, Linear
from gpx.likelihoods import Bernoulli
from gpx.methods.experts.committee_posterior import CommitteePosterior
from gpx.models import Committee, ExactGP
from gpx.sampling import Frequencies

RULES = ("poe", "gpoe", "bcm", "rbcm", "grbcm")


def committee(rule, x, y, count, kernel="rbf", **options):
    model = Committee(**dense.parts(kernel), rule=rule, num_experts=count, **options)
    model.initialise(x, y, generator=draws())
    return model


def definition(model, rule, x, y, new):
    """The formula of a rule, from dense predictions of one expert at a time."""
    noise = model.likelihood.noise_variance
    arguments = (model.kernel, model.mean, noise)
    rows = [model.labels == k for k in range(model.num_experts)]
    base_mean, base = torch.zeros(len(new)).double(), model.kernel.diagonal(new)
    if rule == "grbcm":
        first, *rest = rows
        base_mean, base = dense.prediction(*arguments, x[first], y[first], new)
        rows = [first | other for other in rest]
    found = [dense.prediction(*arguments, x[r], y[r], new) for r in rows]
    precision, weighted, total = 0.0, 0.0, 0.0
    for k, (mean, variance) in enumerate(found):
        beta = {
            "poe": 1.0,
            "gpoe": 1.0 / len(found),
            "bcm": 1.0,
            "rbcm": 0.5 * (base.log() - variance.log()),
            "grbcm": 1.0 if k == 0 else 0.5 * (base.log() - variance.log()),
        }[rule]
        precision, weighted = precision + beta / variance, weighted + beta * mean / variance
        total = total + beta
    correction = 0.0 if rule in ("poe", "gpoe") else 1.0 - total
    precision = precision + correction / base
    weighted = weighted + correction * base_mean / base
    return model.mean(new) + weighted / precision, 1.0 / precision


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kernel", ["rbf", "sum"])
def test_every_rule_is_its_definition(rule, kernel):
    x, y, new = dense.data()
    model = committee(rule, x, y, 5, kernel)
    with torch.no_grad():
        mean, variance = definition(model, rule, x, y, new)
    for budget in (1, 10**5, 10**9):  # one expert at a time; all kept
        model.batch_bytes = budget
        posterior = model.condition(x, y)
        for _ in range(2):  # anew, and from what was kept
            found = posterior.predict(new)
            torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(found.variance, variance, rtol=1e-9, atol=1e-10)
        assert posterior.facts()["jitter"] == 0.0


@pytest.mark.parametrize("rule", ["poe", "grbcm"])
def test_a_kernel_whose_matrices_are_one_number_expanded(rule):
    x, y, new = dense.data()
    model = Committee(
        **{**dense.parts(), "kernel": Constant(0.8).double()}, rule=rule, num_experts=5
    )
    model.initialise(x, y, generator=draws())
    with torch.no_grad():
        mean, variance = definition(model, rule, x, y, new)
    found = model.condition(x, y).predict(new)
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.variance, variance, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("rule", ["poe", "gpoe", "bcm", "grbcm"])
def test_one_expert_is_the_exact_process(rule):
    x, y, new = dense.data()
    exact = ExactGP(**dense.parts()).condition(x, y).predict(new)
    found = committee(rule, x, y, 1).condition(x, y).predict(new)
    torch.testing.assert_close(found, exact, rtol=0.0, atol=1e-10)


def test_one_robust_expert_is_not_the_exact_process():
    """Its weight is (log v_0 - log v_1) / 2, which is one only by chance."""
    x, y, new = dense.data()
    exact = ExactGP(**dense.parts()).condition(x, y).predict(new)
    found = committee("rbcm", x, y, 1).condition(x, y).predict(new)
    prior = dense.parts()["kernel"].diagonal(new).detach()
    beta = 0.5 * (prior / exact.variance).log()
    precision = beta / exact.variance + (1.0 - beta) / prior
    torch.testing.assert_close(found.variance, 1.0 / precision, rtol=1e-10, atol=0.0)
    assert float((found.variance - exact.variance).abs().max()) > 1e-3


def test_two_generalised_robust_experts_are_the_exact_process():
    """The one expert beside the communication expert has all rows and weight one."""
    x, y, new = dense.data()
    exact = ExactGP(**dense.parts()).condition(x, y).predict(new)
    found = committee("grbcm", x, y, 2).condition(x, y).predict(new)
    torch.testing.assert_close(found, exact, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize(
    ("rule", "factor"), [("poe", 1 / 4), ("gpoe", 1.0), ("bcm", 1.0), ("rbcm", 1.0), ("grbcm", 1.0)]
)
def test_far_from_the_data_only_the_product_of_experts_is_overconfident(rule, factor):
    x, y, _ = dense.data()
    model = committee(rule, x, y, 4)
    far = torch.full((1, 2), 1e3).double()
    mean, variance = model.condition(x, y).predict(far)
    prior = model.kernel.diagonal(far).detach()
    torch.testing.assert_close(variance, factor * prior, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(mean, model.mean(far).detach(), rtol=1e-12, atol=1e-12)


def test_a_joint_prediction_is_its_definition():
    x, y, new = dense.data()
    model = committee("bcm", x, y, 4)
    posterior = model.condition(x, y)
    found = posterior.joint(new)
    with torch.no_grad():
        prior, noise = model.kernel.evaluate(new), model.likelihood.noise_variance
        precision, weighted = -3.0 * torch.linalg.inv(prior), 0.0
        for k in range(4):
            own = x[model.labels == k]
            inverse = torch.linalg.inv(model.kernel.evaluate(own) + noise * torch.eye(len(own)))
            cross = model.kernel.evaluate(new, own)
            residual = y[model.labels == k] - model.mean(own)
            each = torch.linalg.inv(prior - cross @ inverse @ cross.mT)
            precision = precision + each
            weighted = weighted + each @ (cross @ inverse @ residual)
        covariance = torch.linalg.inv(precision)
        mean = model.mean(new) + covariance @ weighted
    torch.testing.assert_close(found.mean, mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.covariance, covariance, rtol=1e-8, atol=1e-9)
    assert found.jitter == 0.0
    alone, at = posterior.joint(new[:1]), posterior.predict(new[:1])
    torch.testing.assert_close(alone.mean, at.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(alone.covariance[0], at.variance, rtol=1e-10, atol=1e-12)
    with pytest.raises(ConfigError, match="only rule=bcm has a joint prediction"):
        committee("rbcm", x, y, 4).condition(x, y).joint(new)


def test_four_parts_of_forty_rows_are_near_the_exact_mean_together():
    """Published: within 0.05, measured 0.019."""
    x = torch.linspace(-3.0, 3.0, 40, dtype=torch.float64).unsqueeze(1)
    y = x[:, 0].sin() + 0.1 * torch.randn(40, generator=draws(3), dtype=torch.float64)
    parts = {**dense.parts(noise=0.01), "kernel": RBF(1, 1.0).double()}
    new = torch.linspace(-2.9, 2.9, 8, dtype=torch.float64).unsqueeze(1)
    exact = ExactGP(**parts).condition(x, y).predict(new)
    for count, limit in ((1, 1e-10), (4, 0.05)):
        model = Committee(**parts, rule="bcm", num_experts=count, partition=RandomBlocks())
        model.initialise(x, y, generator=draws())
        found = model.condition(x, y).joint(new)
        assert float((found.mean - exact.mean).abs().max()) < limit
        if count == 1:
            torch.testing.assert_close(
                found.covariance.diagonal(), exact.variance, rtol=0.0, atol=1e-10
            )


def test_the_communication_expert_is_random_and_the_others_are_clusters():
    x, y, _ = dense.data(60)
    model = committee("grbcm", x, y, 6)
    sizes = torch.bincount(model.labels)
    assert sizes.tolist() == [10] * 6
    spread = [float(x[model.labels == k].var(0).sum()) for k in range(6)]
    assert spread[0] > 1.5 * max(spread[1:])


@pytest.mark.parametrize("rule", ["poe", "bcm", "rbcm", "grbcm"])
def test_sampled_functions_have_the_mean_and_variance_of_the_committee(rule):
    x, y, new = dense.data()
    posterior = committee(rule, x, y, 3).condition(x, y)
    dense.require_moments_of_paths(posterior, new)


def of_sizes(sizes, budget):
    """Posterior of experts with so many rows each, and their inputs."""
    x = torch.randn(sum(sizes), 2, generator=draws(), dtype=torch.float64)
    x[:, 1] = 0.01 * torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    model = Committee(**dense.parts(), rule="rbcm", partition=ColumnBlocks(1), memory_budget=budget)
    model.initialise(x, x[:, 0].sin(), generator=draws())
    return model.condition(x, x[:, 0].sin()), x


def test_many_small_experts_beside_a_large_one_predict_within_the_budget(monkeypatch):
    budget, taken, cross = 2**22, [], CommitteePosterior._cross

    def watched(self, members, x):
        found = cross(self, members, x)
        taken.append(8 * found.numel())
        return found

    posterior, x = of_sizes([1000, *[1] * 10_000], budget)
    monkeypatch.setattr(CommitteePosterior, "_cross", watched)
    posterior.predict(x[:20])
    assert 4 * max(taken) <= budget  # several such arrays are held


def test_functions_of_many_experts_are_drawn_and_evaluated_within_the_budget():
    budget = 2**22
    posterior, x = of_sizes([2] * 300, budget)
    with Largest() as largest:
        posterior.sample_paths(2, generator=draws(), frequencies=Frequencies(8))(x[:300])
    assert 4 * largest.bytes <= budget


def test_invalid_setups_are_refused():
    x, y, _ = dense.data()
    with pytest.raises(ConfigError, match="rule=median: expected one of poe, gpoe, bcm, rbcm, gr"):
        Committee(**dense.parts(), rule="median")
    with pytest.raises(ConfigError, match="num_experts=0 must be at least 1"):
        Committee(**dense.parts(), num_experts=0)
    with pytest.raises(ConfigError, match="needs the Gaussian likelihood, got Bernoulli"):
        Committee(**{**dense.parts(), "likelihood": Bernoulli()})
    with pytest.raises(ConfigError, match="partition by a column has none"):
        Committee(**dense.parts(), rule="grbcm", partition=ColumnBlocks(0))
    with pytest.raises(DataError, match="num_experts=62 is more than the 61 training points"):
        Committee(**dense.parts(), num_experts=62).settle(x)
    model = Committee(**dense.parts(), num_experts=3)
    with pytest.raises(ConfigError, match=r"call initialise\(x, y, generator"):
        model.condition(x, y)
    model.initialise(x, y, generator=draws())
    with pytest.raises(ConfigError, match="61 training rows are partitioned and there are 60"):
        model.condition(x[1:], y[1:])
    with pytest.raises(ConfigError, match="num_experts=3, but the partition has 61 blocks"):
        Committee(**dense.parts(), rule="bcm", num_experts=3, partition=ColumnBlocks(0)).settle(x)


def test_the_number_of_experts_is_settled_by_the_rows_or_the_partition():
    x, _, _ = dense.data()
    many = torch.zeros(2600, 2, dtype=torch.float64)
    assert Committee(**dense.parts()).settle(many)["num_experts"] == (5, "about 520 rows each")
    assert Committee(**dense.parts()).settle(x)["num_experts"][0] == 1
    assert Committee(**dense.parts(), num_experts=4).settle(x) == {}
    x[:, 1] = torch.arange(61) % 3
    model = Committee(**dense.parts(), rule="bcm", partition=ColumnBlocks(1))
    assert model.settle(x)["num_experts"][0] == 3


def test_a_number_of_experts_that_was_not_given_follows_the_data():
    x, y, _ = dense.data(1100)
    model = Committee(**dense.parts(), rule="bcm")
    for rows in (1100, 100, 1100):
        model.initialise(x[:rows], y[:rows], generator=draws())
        assert model.num_experts == len(model.labels.unique()) == max(1, round(rows / 500))
    columns = Committee(**dense.parts(), rule="bcm", partition=ColumnBlocks(1))
    for values in (4, 6):
        columns.initialise(
            torch.stack([x[:, 0], torch.arange(1100) % values], 1), y, generator=draws()
        )
        assert columns.num_experts == values


def test_a_partition_of_fixed_size_has_no_communication_expert():
    class Thirds(RandomBlocks):
        def num_blocks(self, x):
            return 3

    x, y, _ = dense.data()
    with pytest.raises(ConfigError, match="a partition that fixes the number of blocks has none"):
        Committee(**dense.parts(), rule="grbcm", partition=Thirds()).initialise(
            x, y, generator=draws()
        )


@pytest.mark.parametrize("rule", RULES)
def test_points_of_zero_prior_variance_are_the_prior_mean(rule):
    x = torch.arange(-50.0, 51.0, dtype=torch.float64)[:, None] / 30.0
    kernel = Linear(1).double()
    model = Committee(**dense.parts() | {"kernel": kernel}, rule=rule, num_experts=4)
    model.initialise(x, x[:, 0], generator=draws())
    mean, variance = model.condition(x, x[:, 0]).predict(x[49:52])
    assert mean.isfinite().all()
    torch.testing.assert_close(mean[1], model.mean(x)[50])
    assert 0.0 <= variance[1] < 1e-12
