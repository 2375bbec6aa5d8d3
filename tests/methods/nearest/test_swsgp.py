"""SWSGP: the exact tests of its specification (H1), its neighbours, its posterior."""

import math

import derivatives
import pytest
import torch
from draws import draws
from torch.distributions import MultivariateNormal, kl_divergence

from gpx.errors import ConfigError, DataError, NotPositiveDefinite, ShapeError
from gpx.kernels import RBF, Linear, Matern32, Matern52
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant, Zero
from gpx.methods.base.batch import Batch
from gpx.methods.nearest import seen_points, swsgp
from gpx.methods.nearest.nearness import nearest_inducing
from gpx.models import SWSGP, VNNGP, NearestPosterior
from gpx.objectives import SWSGPObjective

NUM, M = 40, 12
JITTER = 1e-6


def data(n=NUM, d=2, seed=0):
    generator = draws(seed)
    x = torch.randn(n, d, generator=generator).double()
    return x, x.sin().sum(1) + 0.3 * torch.randn(n, generator=generator).double()


def model(h=4, m=M, seed=1, likelihood=None, **options):
    """Anywhere in the space of its parameters."""
    made = SWSGP(
        kernel=Matern52(2, lengthscale=[0.8, 1.3], outputscale=1.4),
        mean=Constant(0.2),
        likelihood=Gaussian(0.1) if likelihood is None else likelihood,
        num_inputs=2,
        num_inducing=m,
        num_neighbours=h,
        jitter=JITTER,
        **{"learn_inducing": True, **options},
    ).double()
    generator = draws(seed)
    with torch.no_grad():
        made.inducing.copy_(torch.randn(m, 2, generator=generator))
        made.unit.copy_(torch.rand(m, generator=draws(9)) + 0.5)
        made.q_scaled_mean.copy_(torch.randn(m, 1, generator=generator) / made.unit[:, None])
        if made.q_factor is None:
            made.q_log_deviation.copy_(0.5 * torch.randn(m, 1, generator=generator) - 1.0)
        else:
            root = 0.3 * torch.randn(m, m, generator=generator).tril().double()
            made.q_factor.copy_(root + torch.eye(m).double())
    return made


def covariances(made):
    """K_zz with its jitter, and S, both dense."""
    z = made.inducing
    prior = made.kernel.evaluate(z)
    prior = prior + JITTER * made.kernel.outputscale * torch.eye(len(z)).double()
    if made.q_factor is None:
        return prior, (2.0 * made.q_log_deviation.squeeze(1)).exp().diag()
    root = made.q_factor.tril()
    return prior, root @ root.mT


def svgp(made, x, y, total):
    """The unwhitened bound of an SVGP with the same Z and q(u), written down."""
    prior, s = covariances(made)
    m, cross = made.q_mean, made.kernel.evaluate(made.inducing, x)
    a = torch.linalg.solve(prior, cross)
    mean = a.mT @ m + made.mean(x)
    variance = made.kernel.diagonal(x) - (cross * a).sum(0) + (a * (s @ a)).sum(0)
    kl = kl_divergence(MultivariateNormal(m, s), MultivariateNormal(torch.zeros_like(m), prior))
    fit = made.likelihood.expected_log_prob(y, mean, variance).sum() * total / len(x)
    return mean, variance, fit - kl


def gradients(value, made):
    found = torch.autograd.grad(value, list(made.parameters()), allow_unused=True)
    return [g.to_dense() if g.is_sparse else g for g in found]


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("scope", ["point", "batch", "independent"])
def test_with_all_inducing_points_it_is_svgp(covariance, scope):
    x, y = data()
    made = model(M, covariance=covariance)
    found = SWSGPObjective(200, scope).evidence(made, x, y, generator=draws())
    mean, variance, value = svgp(made, x, y, 200)
    torch.testing.assert_close(found.value, value, rtol=1e-10, atol=0.0)
    assert found.kind == "unbiased"
    terms = made.local_terms(x, made.nearest(x))
    torch.testing.assert_close(terms.marginals.mean, mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(terms.marginals.variance, variance, rtol=1e-8, atol=1e-10)
    for ours, theirs in zip(gradients(found.value, made), gradients(value, made), strict=True):
        if covariance == "full" and ours.shape == (M, M):
            theirs = theirs.tril()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("h", [1, 3, M])
def test_at_the_prior_correction_and_divergence_are_zero(h):
    x, _ = data()
    made = model(h, covariance="full")
    prior, _ = covariances(made)
    with torch.no_grad():
        made.q_scaled_mean.zero_()
        made.q_factor.copy_(torch.linalg.cholesky(prior))
    terms = made.local_terms(x, made.nearest(x))
    torch.testing.assert_close(terms.marginals.mean, made.mean(x), rtol=0.0, atol=1e-12)
    torch.testing.assert_close(terms.marginals.variance, made.kernel.diagonal(x), rtol=1e-9, atol=0)
    torch.testing.assert_close(terms.kl, torch.zeros(NUM).double(), rtol=0.0, atol=1e-9)


def test_the_prior_of_f_is_that_of_the_kernel_for_any_neighbours():
    """4,000 draws of neighbours, u and f: within four standard errors of K_xx, 15 entries."""
    x, _ = data(5)
    made = model(3)
    z, generator, num = made.inducing.detach(), draws(3), 4000
    prior, _ = covariances(made)
    prior, cross = prior.detach(), made.kernel.evaluate(z, x).detach()
    want = made.kernel.evaluate(x).detach()
    seen = torch.rand(num, M, generator=generator).argsort(1)[:, :3]
    inner = prior[seen.unsqueeze(2), seen.unsqueeze(1)]
    u = torch.linalg.cholesky(inner) @ torch.randn(num, 3, 1, generator=generator).double()
    system = made.system(seen, x.expand(num, 5, 2))
    a = system.weights.detach()
    rest = want - cross[seen].mT @ torch.linalg.solve(inner, cross[seen])
    left = rest.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(system.rest.detach(), left, rtol=1e-7, atol=1e-9)
    rest = rest + 1e-9 * torch.eye(5).double()
    noise = torch.linalg.cholesky(rest) @ torch.randn(num, 5, 1, generator=generator).double()
    f = (a.mT @ u + noise).squeeze(2)
    found = f.mT @ f / num
    variances = want.diagonal()
    error = ((want.square() + variances.outer(variances)) / num).sqrt()
    assert ((found - want).abs() < 4.0 * error).all()


def test_divergence_grows_with_the_number_of_neighbours():
    x, _ = data(6)
    made = model(M, covariance="full")
    order = made.nearest(x)
    values = torch.stack([made.local_terms(x, order[:, :h]).kl for h in range(1, M + 1)])
    assert (values.diff(dim=0) > -1e-9).all()
    prior, s = covariances(made)
    m = made.q_mean
    whole = kl_divergence(MultivariateNormal(m, s), MultivariateNormal(torch.zeros_like(m), prior))
    torch.testing.assert_close(values[-1], whole.expand(6), rtol=1e-9, atol=0.0)


def test_the_order_of_inducing_points_does_not_matter():
    x, y = data()
    made, other = model(), model()
    order = torch.randperm(M, generator=draws())
    with torch.no_grad():
        for name in ("inducing", "unit", "q_scaled_mean", "q_log_deviation"):
            getattr(other, name).copy_(getattr(made, name)[order])
    values = [SWSGPObjective(NUM).evidence(each, x, y).value for each in (made, other)]
    torch.testing.assert_close(*values, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_unused_inducing_points_have_no_gradient(covariance):
    x, y = data(2)
    made = model(3, covariance=covariance)
    SWSGPObjective(NUM).evidence(made, x, y).value.backward()
    seen = made.nearest(x).unique()
    unseen = [i for i in range(M) if i not in seen.tolist()]
    assert unseen
    parameters = (made.inducing, made.q_scaled_mean, made.q_log_deviation, made.q_factor)
    for parameter in (p for p in parameters if p is not None):
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        assert (gradient[unseen] == 0.0).all()
        assert (gradient[seen] != 0.0).any(1).all()
    assert made.q_scaled_mean.grad.is_sparse == (covariance == "diagonal")


def test_the_nearest_of_a_trained_svgp_predict_by_the_same_code():
    """Mean and root of the q(u) of any SVGP, kept in the posterior; one local system a row."""
    x, _ = data(6)
    made = model(4, covariance="full")
    posterior = NearestPosterior(
        made.kernel, made.mean, num_neighbours=4, rule="kernel", jitter=JITTER
    ).double()
    posterior.keep(
        made.inducing,
        inducing=made.inducing,
        q_mean=made.q_mean,
        q_root=made.q_factor.tril(),
    )
    found = posterior.predict(x)
    prior, s = covariances(made)
    for i, near in enumerate(made.nearest(x)):
        inner, cross = prior[near][:, near], made.kernel.evaluate(made.inducing[near], x[i : i + 1])
        a = torch.linalg.solve(inner, cross).squeeze(1)
        mean = a @ made.q_mean[near] + made.mean(x[:1])[0]
        variance = 1.4 - a @ cross.squeeze(1) + a @ s[near][:, near] @ a
        torch.testing.assert_close(found.mean[i], mean, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(found.variance[i], variance, rtol=1e-8, atol=1e-10)
    mine = made.condition(x, x[:, 0]).predict(x)
    torch.testing.assert_close(mine.mean, found.mean, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("count", [1, 9])
def test_derivatives_by_the_inputs_with_a_kernel_of_distances(count, tree, monkeypatch):
    """Whose profile has no derivative by the squared distance at zero, however points are found."""
    monkeypatch.setattr(seen_points, "MIN_TREE_POINTS", 0 if tree else 1000)
    x, y = data()
    made = SWSGP(
        kernel=Matern32(2, lengthscale=0.7),
        mean=Constant(0.2),
        likelihood=Gaussian(0.1),
        num_inputs=2,
        num_inducing=20,
        num_neighbours=6,
    ).double()
    made.initialise(x, y, generator=torch.Generator().manual_seed(0))
    posterior = made.condition(x, y)
    derivatives.check(posterior.predict, data(count, seed=5)[0])
    at_a_point = posterior.inducing[:2].clone().requires_grad_()
    (slope,) = torch.autograd.grad(posterior.predict(at_a_point).mean.sum(), at_a_point)
    assert torch.isfinite(slope).all()


def test_a_diagonal_factor_is_the_diagonal_variant():
    x, y = data()
    diagonal, full = model(), model(covariance="full")
    with torch.no_grad():
        full.q_factor.copy_(diagonal.q_log_deviation.squeeze(1).exp().diag())
    values = [SWSGPObjective(NUM).evidence(each, x, y).value for each in (diagonal, full)]
    torch.testing.assert_close(*values, rtol=1e-12, atol=0.0)


def test_batches_of_a_partition_average_to_all_the_data():
    x, y = data()
    made, objective = model(), SWSGPObjective(NUM)
    parts = [
        objective.evidence(made, x[rows], y[rows]).value for rows in torch.arange(NUM).split(8)
    ]
    whole = objective.full_evidence(made, x, y, batch_size=7)
    torch.testing.assert_close(torch.stack(parts).mean(), whole.value, rtol=1e-12, atol=0.0)
    assert whole.kind == "estimate"
    assert not whole.facts["bound"]


def log_evidence(made, x, y):
    noise = made.likelihood.noise_variance * torch.eye(len(x)).double()
    joint = made.kernel.evaluate(x) + noise
    return MultivariateNormal(made.mean(x), joint).log_prob(y)


def test_one_set_for_all_points_bounds_the_evidence():
    x, y = data()
    for seed in range(20):
        made = model(5, seed=seed)
        near = torch.randperm(M, generator=draws(seed))[:5][None]
        terms = made.local_terms(x, near)
        fit = made.likelihood.expected_log_prob(y, *terms.marginals).sum()
        assert fit - terms.kl.sum() <= log_evidence(made, x, y)


def test_an_independent_batch_estimates_a_bound_without_bias(monkeypatch):
    """By enumeration: three rows, batches of two, and two others, of the nine ordered pairs."""
    x, y = data(3)
    made = model(2, m=6)
    objective = SWSGPObjective(3, "independent")
    pairs = [torch.tensor([i, j]) for i in range(3) for j in range(3)]
    values, found = [], []
    for drawn in pairs:
        near = made.nearest(x[drawn]).unique()[None]
        terms = made.local_terms(x, near)
        fit = made.likelihood.expected_log_prob(y, *terms.marginals).sum()
        values.append(fit - terms.kl.sum())
        assert values[-1] <= log_evidence(made, x, y)
        monkeypatch.setattr(torch, "randint", lambda *_, drawn=drawn, **__: drawn)
        for rows in pairs:
            objective.before_step(made, x, y, rows)
            found.append(objective.evidence(made, x[rows], y[rows], generator=draws()).value)
    want = torch.stack(values).mean()
    torch.testing.assert_close(torch.stack(found).mean(), want, rtol=1e-11, atol=0.0)


def test_each_point_with_neighbours_of_its_own_is_no_bound():
    """The specification's example: 30 points, H = 1, held hyperparameters, all data a step.

    Every input sees the inducing point that it is, and a thirtieth of its divergence is charged:
    the best N(m_i, s_i^2) has precision 1 + 30 / noise and mean y_i / (1 + noise / 30).
    """
    x, noise = torch.linspace(-2.0, 2.0, 30).double()[:, None], 0.05
    kernel = Matern52(1, lengthscale=0.3)
    made = SWSGP(
        kernel=kernel,
        mean=Zero(),
        likelihood=Gaussian(noise),
        num_inputs=1,
        num_inducing=30,
        num_neighbours=1,
        covariance="full",
        jitter=1e-8,
    ).double()
    joint = kernel.evaluate(x).detach() + noise * torch.eye(30).double()
    y = torch.linalg.cholesky(joint) @ torch.randn(30, generator=draws()).double()
    with torch.no_grad():
        made.inducing.copy_(x)
        made.q_scaled_mean.copy_(y[:, None] / (1.0 + noise / 30.0))
        made.q_factor.copy_((1.0 + 30.0 / noise) ** -0.5 * torch.eye(30))
    objective, chosen = SWSGPObjective(30), [made.q_scaled_mean, made.q_factor]
    value = objective.evidence(made, x, y).value
    assert max(float(g.abs().max()) for g in torch.autograd.grad(value, chosen)) < 1e-4  # the best
    assert value > log_evidence(made, x, y) + 20.0
    found = objective.full_evidence(made, x, y, batch_size=30)
    assert (found.kind, found.facts["bound"]) == ("estimate", False)


@pytest.mark.parametrize("rule", ["kernel", "correlation", "euclidean"])
def test_kernel_correlation_and_distance_find_the_same_neighbours(rule):
    x, _ = data()
    z = model(m=M).inducing.detach()
    kernel = RBF(2, lengthscale=[0.3, 2.0]).double()
    near = nearest_inducing(kernel, z, x, 5, rule)
    scale = kernel.lengthscale.detach()
    want = torch.cdist(x / scale, z / scale).topk(5, largest=False).indices
    assert torch.equal(near.sort(1).values, want.sort(1).values)


def test_points_without_prior_variance_hide_no_others_from_the_correlation():
    z, x = torch.randn(2048, 2, generator=draws()), torch.randn(64, 2, generator=draws(1))
    z, x = z.double(), x.double()
    z[5] = 0.0
    kernel = Linear(2).double()
    near = nearest_inducing(kernel, z, x, 4, "correlation")
    correlation = kernel.evaluate(x, z) / kernel.diagonal(z).sqrt()
    correlation[:, 5] = -torch.inf
    assert torch.equal(near.sort(1).values, correlation.topk(4).indices.sort(1).values)


def test_random_points_belong_to_the_input():
    x, _ = data()
    z = model(m=M).inducing.detach()
    first = nearest_inducing(RBF(2).double(), z, x, 5, "random")
    assert torch.equal(first[7:9], nearest_inducing(RBF(2).double(), z, x[7:9], 5, "random"))
    assert (first.sort(1).values.diff() > 0).all()
    assert len({tuple(row) for row in first.sort(1).values.tolist()}) > 10


def test_fixed_inducing_points_have_their_neighbours_found_once():
    x, y = data()
    made = model(learn_inducing=False)
    objective, free = SWSGPObjective(NUM, refresh=2), SWSGPObjective(NUM)
    objective.prepare(made, x, y)
    assert objective.table.shape == (NUM, 4)
    rows = torch.tensor([3, 30, 11])
    objective.before_step(made, x, y, rows)
    got = objective.evidence_of(made, Batch.of(made, x, y, rows)).value
    torch.testing.assert_close(got, free.evidence(made, x[rows], y[rows]).value)
    with torch.no_grad():
        made.kernel.lengthscale = torch.tensor([5.0, 0.1]).double()
    before = objective.table.clone()
    terms = made.local_terms(x[rows], before[rows].long())  # as found, until they are found anew
    fit = made.likelihood.expected_log_prob(y[rows], *terms.marginals).sum() * NUM / 3
    got = objective.evidence_of(made, Batch.of(made, x, y, rows)).value
    torch.testing.assert_close(got, fit - terms.kl.mean())
    assert abs(got - free.evidence(made, x[rows], y[rows]).value) > 1e-3
    objective.after_step(made)
    assert torch.equal(objective.table, before)
    for _ in range(2):
        objective.before_step(made, x, y, rows)
        objective.after_step(made)
    assert not torch.equal(objective.table, before)
    assert torch.equal(objective.table.long(), made.nearest(x))


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_the_start_is_near_the_posterior_or_at_the_prior(covariance):
    x, y = data(200)
    made = SWSGP(
        kernel=Matern52(2),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_inputs=2,
        num_inducing=40,
        num_neighbours=10,
        covariance=covariance,
    ).double()
    made.initialise(x, y, generator=draws())
    predicted = made.condition(x, y).predict(x).mean
    assert float((predicted - y).square().mean()) < 0.2 * float(y.var())

    def labelled(**options):
        labels = SWSGP(
            kernel=Matern52(2),
            mean=Zero(),
            likelihood=Bernoulli(),
            num_inputs=2,
            num_inducing=40,
            num_neighbours=10,
            covariance=covariance,
            **options,
        ).double()
        labels.initialise(x, y.sign(), generator=draws())
        return labels, labels.local_terms(x, labels.nearest(x))

    labels, terms = labelled()
    probabilities = labels.likelihood.predictive(*terms.marginals).probs
    assert float(((probabilities > 0.5) == (y > 0.0)).double().mean()) > 0.85
    labels, terms = labelled(warm_start=False)
    assert (terms.marginals.mean == 0.0).all()
    if covariance == "full":
        torch.testing.assert_close(terms.kl, torch.zeros(200).double(), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"h": 20}, "num_neighbours=20 is above num_inducing=12"),
        ({"rule": "far"}, "rule=far: expected one of"),
        ({"covariance": "banded"}, "covariance=banded: expected one of diagonal, full"),
        ({"h": 0}, "must be at least 1"),
        ({"h": 2.5}, r"^num_neighbours=2\.5: expected a whole number$"),
        ({"num_data": "40"}, r"^num_data='40': expected a whole number$"),
        ({"m": 8193, "covariance": "full"}, "covariance=full has 8193 x 8193 numbers"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        model(**options)


def test_a_model_of_few_rows_is_rebuilt_from_its_settled_options():
    parts = {"kernel": RBF(2), "mean": Zero(), "likelihood": Gaussian(0.1), "num_inputs": 2}
    few = SWSGP(**parts, num_data=3)
    settled = {name: value for name, (value, _) in few.settle(torch.eye(3)[:, :2]).items()}
    assert settled == {"num_inducing": 3, "num_neighbours": 3}
    again = SWSGP(**parts, num_data=3, **settled)
    assert again.num_neighbours == few.num_neighbours
    assert again.settle(torch.eye(3)[:, :2]) == {}


def test_the_start_raises_noise_to_what_the_inducing_points_leave_unexplained():
    """10 of 300 rows and 3 of each input: far more is left than the noise that is given."""
    x, y = data(300)

    def started(**options):
        made = SWSGP(
            kernel=Matern52(2),
            mean=Zero(),
            likelihood=Gaussian(1e-4),
            num_inputs=2,
            num_inducing=10,
            num_neighbours=3,
            **options,
        ).double()
        made.initialise(x, y, generator=draws())
        return made

    made = started()
    marginals = made.local_terms(x, made.nearest(x)).marginals
    want = ((y - marginals.mean).square() + marginals.variance).mean()
    torch.testing.assert_close(made.likelihood.noise_variance, want, rtol=1e-6, atol=0.0)
    assert want > 0.01
    kept = started(warm_start=False).likelihood.noise_variance
    torch.testing.assert_close(kept, torch.tensor(1e-4).double(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(("rows", "distinct"), [(60, 15), (40, 1)])
def test_repeated_inputs_leave_one_inducing_point_each(rows, distinct):
    """With two points at one place, K_I would be singular and the divergence without bound."""
    x, y = data(rows)
    x = x[torch.arange(rows) % distinct]
    made = of_kind(SWSGP, Gaussian(0.1), num_data=rows, num_neighbours=20)
    settled = {name: value for name, (value, _) in made.settle(x).items()}
    assert settled == {"num_inducing": distinct, "num_neighbours": distinct}
    made.initialise(x, y, generator=draws())
    assert len(made.inducing.unique(dim=0)) == distinct
    bound = SWSGPObjective(rows).evidence(made, x, y)
    assert bound.kind == "unbiased"  # an input sees all inducing points
    assert log_evidence(made, x, y) - 40.0 < bound.value < log_evidence(made, x, y)
    with pytest.raises(DataError, match=f"training inputs have {distinct} distinct values; set"):
        of_kind(SWSGP, Gaussian(0.1), num_data=rows).initialise(x, y, generator=draws())


@pytest.mark.parametrize("likelihood", [Gaussian(0.1), Bernoulli()])
def test_close_inducing_points_do_not_start_far_from_the_prior(likelihood):
    """A lengthscale ten times the data's width; S = diag(K) would be 10^5 nats from the prior."""
    x, y = data()
    made = of_kind(SWSGP, likelihood, num_neighbours=10)
    made.kernel.lengthscale = 30.0
    made.initialise(x, y.sign() if isinstance(likelihood, Bernoulli) else y, generator=draws())
    kl = made.local_terms(x, made.nearest(x)).kl
    assert (kl > 0.0).all()
    assert kl.mean() < 100.0


def test_a_diagonal_start_is_the_one_closest_to_the_prior():
    """No change of a variance brings q(u) nearer to p(u) in the points' neighbourhoods."""
    x, y = data()
    made = of_kind(SWSGP, Bernoulli(), num_neighbours=4, warm_start=False)
    made.initialise(x, y.sign(), generator=draws())
    near = made.nearest(made.inducing)
    kl = made.local_terms(made.inducing.detach(), near).kl.sum()
    (slope,) = torch.autograd.grad(kl, [made.q_log_deviation])
    assert slope.to_dense().abs().max() < 1e-6


def test_states_that_hold_the_mean_itself_load():
    made, state = model(), model(seed=3).state_dict()
    mean = state.pop("q_scaled_mean")
    del state["unit"]
    made.load_state_dict({**state, "q_mean": mean})
    torch.testing.assert_close(made.q_mean, mean[:, 0], rtol=0.0, atol=0.0)


def test_states_whose_unit_is_a_column_load():
    made, state = model(), model(seed=3).state_dict()
    made.load_state_dict({**state, "unit": state["unit"][:, None]})
    torch.testing.assert_close(made.unit, state["unit"], rtol=0.0, atol=0.0)


def of_kind(kind, likelihood, **changed):
    parts = {"kernel": Matern52(2), "mean": Zero(), "likelihood": likelihood}
    sizes = {"num_inputs": 2, "num_data": NUM, "num_neighbours": 3, **changed}
    return kind(**parts, **sizes).double()


@pytest.mark.parametrize("kind", [SWSGP, VNNGP])
def test_targets_that_are_not_finite_are_named(kind):
    x, y = data()
    y[7] = math.nan
    with pytest.raises(DataError, match=r"1 of 40 targets are not finite.* row 7"):
        of_kind(kind, Gaussian(0.1)).initialise(x, y, generator=draws())


@pytest.mark.parametrize("rows", [1, 7])
def test_inputs_of_another_width_than_in_training_are_refused(rows):
    x, y = data()
    made = SWSGP(
        kernel=RBF(), mean=Zero(), likelihood=Gaussian(0.1), num_inputs=2, num_data=NUM
    ).double()
    made.initialise(x, y, generator=draws())
    with pytest.raises(ShapeError, match="inputs have 1 columns, but it is made for 2"):
        made.condition(x, y).predict(x[:rows, :1])
    with pytest.raises(ShapeError, match="inputs have 1 columns, but it is made for 2"):
        made.initialise(x[:, :1], y, generator=draws())


@pytest.mark.parametrize("kind", [SWSGP, VNNGP])
def test_jitter_does_not_depend_on_the_variance_at_one_point(kind):
    """A linear kernel has no variance at the first of these inputs."""
    x = torch.arange(20.0).double()[:, None]
    made = kind(
        kernel=Linear(1),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_inputs=1,
        num_data=20,
        num_neighbours=5,
    ).double()
    made.initialise(x, 2.0 * x[:, 0], generator=draws())
    variance = made.kernel.diagonal(made.inducing).mean().detach()
    torch.testing.assert_close(made._jitter(), made.jitter * variance)
    found = made.condition(x, 2.0 * x[:, 0])
    torch.testing.assert_close(found._points().jitter, made._jitter())
    torch.testing.assert_close(found.predict(x).mean, 2.0 * x[:, 0], rtol=0.0, atol=0.5)


@pytest.mark.parametrize("warm_start", [False, True])
def test_values_without_prior_variance_start_at_finite_parameters(warm_start):
    x = torch.arange(20.0).double()[:, None]
    made = SWSGP(
        kernel=Linear(1),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_inputs=1,
        num_inducing=20,
        num_neighbours=5,
        warm_start=warm_start,
    ).double()
    made.initialise(x, 2.0 * x[:, 0], generator=draws())
    assert made.q_scaled_mean.isfinite().all()
    assert made.q_log_deviation.isfinite().all()
    assert made.local_terms(x, made.nearest(x)).kl.isfinite().all()


def test_neighbours_of_all_inducing_points_are_searched_for_once(monkeypatch):
    """Each search among many points makes a tree of them."""
    monkeypatch.setattr(swsgp, "CHUNK_BYTES", 1)
    x, y = data()
    made = of_kind(SWSGP, Bernoulli(), rule="euclidean")
    searches = []
    search = made.nearest
    monkeypatch.setattr(made, "nearest", lambda points: searches.append(0) or search(points))
    made.initialise(x, y.sign(), generator=draws())
    assert len(searches) == 1


@pytest.mark.parametrize("kind", [SWSGP, VNNGP])
def test_neighbours_without_a_factor_ask_for_more_jitter(kind):
    x, y = data()
    made = of_kind(kind, Bernoulli(), num_neighbours=30, jitter=0.0)
    made.kernel.lengthscale = 1e5
    with pytest.raises(NotPositiveDefinite, match="a larger jitter, or fewer neighbours"):
        made.initialise(x, y.sign(), generator=draws())
