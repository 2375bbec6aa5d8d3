"""The variational nearest-neighbour process: its prior, its bound, its best q(u)."""

import pytest
import torch
from draws import draws
from torch.distributions import MultivariateNormal, kl_divergence

from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern52
from gpx.likelihoods import Bernoulli, Gamma, Gaussian, Poisson, RowNoise, StudentT
from gpx.linalg import UnconvergedWarning
from gpx.means import Constant
from gpx.methods.nearest import value_prior
from gpx.models import VNNGP, ExactGP
from gpx.objectives import VNNGPELBO

NUM, JITTER = 30, 1e-6


def data(seed=0):
    generator = draws(seed)
    x = torch.randn(NUM, 2, generator=generator).double()
    return x, x.sin().sum(1) + 0.3 * torch.randn(NUM, generator=generator).double()


def model(x, y, k=5, likelihood=None, **options):
    made = VNNGP(
        kernel=Matern52(2, lengthscale=[0.8, 1.3], outputscale=1.4),
        mean=Constant(0.2),
        likelihood=Gaussian(0.1) if likelihood is None else likelihood,
        num_inputs=2,
        num_neighbours=k,
        **{"num_data": NUM, "jitter": JITTER, **options},
    ).double()
    made.initialise(x, y, generator=draws())
    return made


def anywhere(made, seed=2):
    generator = draws(seed)
    with torch.no_grad():
        values = torch.randn(2, len(made.unit), generator=generator).double()
        made.q_scaled_mean[: len(made.unit), 0] = values[0] / made.unit
        made.q_log_deviation[: len(made.unit), 0] = 0.5 * values[1] - 1.0
    return made


def prior_precision(made, x):
    """(I - B)^T F^{-1} (I - B), from the conditionals of a dense covariance matrix."""
    eye = torch.eye(len(x)).double()
    joint = made.kernel.evaluate(x) + JITTER * made.kernel.outputscale * eye
    rows, rest = eye.clone(), []
    for j, near in enumerate(made.near):
        near = near[near >= 0]
        b = torch.linalg.solve(joint[near][:, near], joint[near, j])
        rows[j, near] -= b
        rest.append(joint[j, j] - b @ joint[near, j])
    return rows.mT @ (rows / torch.stack(rest).unsqueeze(1))


def q(made):
    return MultivariateNormal(made.q_mean, made.q_deviation.square().diag())


def test_the_bound_is_that_of_the_dense_prior():
    x, y = data()
    made = anywhere(model(x, y))
    objective = VNNGPELBO(NUM)
    prior = MultivariateNormal(torch.zeros(NUM).double(), precision_matrix=prior_precision(made, x))
    mean = made.q_mean + made.mean(x)
    fit = made.likelihood.expected_log_prob(y, mean, made.q_deviation.square()).sum()
    want = fit - kl_divergence(q(made), prior)
    got = objective.evidence(made, x, y).value
    torch.testing.assert_close(got, want, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(
        objective.full_evidence(made, x, y, batch_size=7).value, want, rtol=1e-9, atol=0.0
    )
    found = torch.autograd.grad(got, list(made.parameters()))
    for ours, theirs in zip(found, torch.autograd.grad(want, list(made.parameters())), strict=True):
        torch.testing.assert_close(
            ours.to_dense() if ours.is_sparse else ours, theirs, rtol=1e-5, atol=1e-6
        )


def test_the_jitter_of_smooth_functions_moves_the_bound_with_their_variance():
    """It is what is left of most values given their neighbours, and relative to that variance."""
    x, y = data()
    made = anywhere(model(x, y))
    made.kernel = RBF(2, lengthscale=3.0, outputscale=1.4).double()

    def bound(scale):
        made.kernel.outputscale = scale
        return VNNGPELBO(NUM).evidence(made, x, y).value

    raw = made.kernel.parametrizations.outputscale.original
    (found,) = torch.autograd.grad(bound(1.4), raw)
    slope = (bound(1.4 + 1e-5) - bound(1.4 - 1e-5)).detach() / 2e-5
    made.kernel.outputscale = 1.4
    (by_raw,) = torch.autograd.grad(made.kernel.outputscale, raw)
    torch.testing.assert_close(found, slope * by_raw, rtol=1e-4, atol=0.0)


def repeated():
    """Rows of which some repeat an input, and their distinct inputs in order."""
    x, y = data()
    x[20:] = x[torch.tensor([3, 3, 7, 0, 11, 3, 19, 12, 12, 5])]
    return x, y, x[:20]


def test_rows_of_one_input_share_a_value():
    x, y, distinct = repeated()
    made = anywhere(model(x, y))
    assert torch.equal(made.inducing, distinct)
    precision = prior_precision(made, distinct)
    prior = MultivariateNormal(torch.zeros(20).double(), precision_matrix=precision)
    mean, variance = made.q_mean[made.value_of] + made.mean(x), made.q_deviation.square()
    fit = made.likelihood.expected_log_prob(y, mean, variance[made.value_of]).sum()
    objective = VNNGPELBO(NUM)
    got = objective.evidence(made, x, y).value
    torch.testing.assert_close(got, fit - kl_divergence(q(made), prior), rtol=1e-9, atol=0.0)
    values = []
    for rows in torch.randperm(NUM, generator=draws()).split(6):
        objective.before_step(made, x, y, rows)
        values.append(objective.evidence(made, x[rows], y[rows], rows=rows).value)
    torch.testing.assert_close(torch.stack(values).mean(), got, rtol=1e-12, atol=0.0)
    assert made.fit_variational(x, y)
    assert objective.evidence(made, x, y).value > got
    told = made.repeats.diag() / 0.1
    sums = torch.zeros(20).double().index_add(0, made.value_of, y - made.mean(x))
    best = torch.linalg.solve(precision + told, sums / 0.1)
    torch.testing.assert_close(made.q_mean, best, rtol=0.0, atol=1e-3)
    want = (precision + told).diagonal()
    torch.testing.assert_close(made.q_deviation.pow(-2.0), want, rtol=1e-8, atol=0.0)
    assert made.condition(x, y).inducing.shape == (20, 2)


@pytest.mark.parametrize("distinct", [1, 3])
def test_fewer_distinct_inputs_than_neighbours(distinct):
    """The exact process at the same few inputs: k = 5 sees all of them."""
    x, y = data()
    x = x[torch.arange(NUM) % distinct]
    made = model(x, y, k=5)
    found = made.condition(x, y).predict(x[:distinct])
    joint = made.kernel.evaluate(x) + 0.1 * torch.eye(NUM).double()
    weights = torch.linalg.solve(joint, made.kernel.evaluate(x, x[:distinct]))
    torch.testing.assert_close(
        found.mean, made.mean(x[:distinct]) + weights.T @ (y - 0.2), rtol=0.0, atol=1e-5
    )


@pytest.mark.parametrize("likelihood", [Gaussian(0.1), Bernoulli(), StudentT()])
def test_steps_after_which_q_is_the_best_one(likelihood):
    x, y = data()
    made = anywhere(model(x, y.sign(), likelihood=likelihood))
    before, objective = made.q_mean.detach().clone(), VNNGPELBO(NUM, refresh=3)
    moved = []
    for _ in range(4):
        objective.before_step(made, x, y.sign(), torch.arange(6))
        moved.append(not torch.equal(made.q_mean, before))
    assert moved == ([False, False, True, True] if made.computes_best_q else [False] * 4)
    other = VNNGPELBO(NUM, refresh=3)
    other.load_state_dict(objective.state_dict())
    assert other.steps == 4


def test_training_does_not_lose_the_best_q_where_inputs_nearly_repeat():
    """Steps of one length for all means cost the squares of those over variances of 1e-6."""
    x, y = data()
    x[20:] = x[:10] + 1e-5
    made, objective = model(x, y), VNNGPELBO(NUM)
    best = objective.evidence(made, x, y).value.item()
    optimiser = torch.optim.SparseAdam(made.parameter_groups()["touched"], lr=0.01)
    for step in range(40):
        rows = torch.randperm(NUM, generator=draws(step))[:6]
        optimiser.zero_grad()
        objective.before_step(made, x, y, rows)
        (-objective.evidence(made, x[rows], y[rows], rows=rows).value).backward()
        optimiser.step()
    assert objective.evidence(made, x, y).value.item() > best - 0.1 * NUM


def test_batches_of_a_partition_average_to_the_bound():
    x, y = data()
    made, objective = anywhere(model(x, y)), VNNGPELBO(NUM)
    values = []
    for rows in torch.randperm(NUM, generator=draws()).split(6):
        values.append(objective.evidence(made, x[rows], y[rows], rows=rows).value)
    whole = objective.evidence(made, x, y).value
    torch.testing.assert_close(torch.stack(values).mean(), whole, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("k", [4, NUM])
def test_it_is_below_the_evidence_of_its_own_process(k):
    """Of the process asked for where every row is given all before it."""
    x, y = data()
    made = model(x, y, k)
    covariance = torch.linalg.inv(prior_precision(made, x)).detach()
    if k == NUM:
        dense = made.kernel.evaluate(x).detach() + JITTER * 1.4 * torch.eye(NUM).double()
        torch.testing.assert_close(covariance, dense, rtol=1e-5, atol=1e-6)
    evidence = MultivariateNormal(
        made.mean(x), covariance + made.likelihood.noise_variance * torch.eye(NUM).double()
    ).log_prob(y)
    values = [VNNGPELBO(NUM).evidence(anywhere(made, s), x, y).value for s in range(10)]
    made.fit_variational(x, y)
    best = VNNGPELBO(NUM).evidence(made, x, y).value
    assert max(values) < best < evidence


def test_the_best_q_is_where_the_bound_is_flat():
    x, y = data()
    made = model(x, y)
    assert made.fit_variational(x, y)
    value = VNNGPELBO(NUM).evidence(made, x, y).value
    for gradient in torch.autograd.grad(value, [made.q_scaled_mean, made.q_log_deviation]):
        assert float(gradient.to_dense().abs().max()) < 2e-2  # the solve is to 1e-4
    precision = prior_precision(made, x) + torch.eye(NUM).double() / 0.1
    want = torch.linalg.solve(precision, (y - made.mean(x)) / 0.1)
    torch.testing.assert_close(made.q_mean, want, rtol=0.0, atol=1e-3)
    torch.testing.assert_close(
        made.q_deviation.square().reciprocal(), precision.diagonal(), rtol=1e-8, atol=0.0
    )


def test_conditioning_refits_q_and_leaves_the_trained_q():
    x, y = data()
    made = anywhere(model(x, y))
    before = made.q_mean.detach().clone()
    best = made.condition(x, y)
    assert torch.equal(made.q_mean, before)
    assert not torch.equal(best.q_mean, before)
    trained = anywhere(model(x, y, refit=False)).condition(x, y)
    assert torch.equal(trained.q_mean, before)
    # at a row of the data, which is its own nearest neighbour, f is u but for the jitter
    torch.testing.assert_close(trained.predict(x).mean, before + 0.2, rtol=0.0, atol=1e-3)


TARGETS = {
    "classes": (Bernoulli, lambda y: y.sign()),
    "counts": (Poisson, lambda y: (2.0 * y).exp().round()),
    "durations": (lambda: Gamma(3.0), lambda y: y.exp()),
}


@pytest.mark.parametrize("solver", ["dense", "iterative"])
@pytest.mark.parametrize("name", TARGETS)
def test_the_best_q_of_log_concave_likelihoods_is_where_the_bound_is_flat(
    name, solver, monkeypatch
):
    """Rows that share a value included."""
    if solver == "iterative":
        monkeypatch.setattr(value_prior, "MAX_DENSE", 0)
        monkeypatch.setattr(value_prior, "REFIT_TOLERANCE", 1e-8)
    monkeypatch.setattr(value_prior, "SETTLED", 1e-12)
    make, of = TARGETS[name]
    x, y, _ = repeated()
    y = of(y)
    made = anywhere(model(x, y, likelihood=make()))
    objective = VNNGPELBO(NUM)
    assert made.fit_variational(x, y)
    value = objective.evidence(made, x, y).value
    for gradient in torch.autograd.grad(value, [made.q_scaled_mean, made.q_log_deviation]):
        assert float(gradient.to_dense().abs().max()) < 1e-4
    # it is where q(u) starts, and what predictions use
    started = model(x, y, likelihood=make())
    begun = objective.evidence(started, x, y).value
    torch.testing.assert_close(begun, value, rtol=1e-8, atol=0.0)
    used = anywhere(started).condition(x, y)
    torch.testing.assert_close(used.q_mean, made.q_mean, rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("name", [None, *TARGETS])
def test_smooth_kernels_have_the_best_q_by_iterations_too(name, monkeypatch):
    """Precisions of the prior from one to a million: the diagonal alone needs thousands of them."""
    generator, num = draws(), 300
    x = torch.randn(num, 2, generator=generator).double()
    y = x.sin().sum(1) + 0.3 * torch.randn(num, generator=generator).double()
    make, of = (lambda: Gaussian(0.1), lambda y: y) if name is None else TARGETS[name]
    found = []
    for most in (num, 0):
        monkeypatch.setattr(value_prior, "MAX_DENSE", most)
        monkeypatch.setattr(value_prior, "SETTLED", 1e-8)
        made = VNNGP(
            kernel=RBF(2, lengthscale=1.5, outputscale=4.0),
            mean=Constant(),
            likelihood=make(),
            num_inputs=2,
            num_data=num,
            num_neighbours=20,
        ).double()
        made.initialise(x, of(y), generator=draws())
        assert made.fit_variational(x, of(y))
        found.append((made.q_mean, made.q_deviation))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-2)


def test_a_row_of_weight_two_counts_as_two_rows():
    x, y, _ = repeated()
    counts = (2.0 * y).exp().round()
    twice = torch.arange(NUM)
    twice[-1] = 0  # the last row becomes the first once more
    doubled = model(x[twice], counts[twice], likelihood=Poisson())
    wrong = counts[twice].clone()
    wrong[-1] = 50.0  # of a row of weight zero
    weighted = model(x[twice], wrong, likelihood=Poisson())
    relative = torch.ones(NUM).double()
    relative[0], relative[-1] = 0.5, 1e12
    weighted.know_noise(RowNoise(torch.zeros(NUM).double(), relative))
    assert weighted.fit_variational(x[twice], wrong)
    torch.testing.assert_close(weighted.q_mean, doubled.q_mean, rtol=0.0, atol=1e-3)
    torch.testing.assert_close(weighted.q_deviation, doubled.q_deviation, rtol=1e-3, atol=0.0)


def test_counts_of_thousands_are_found_from_a_mean_of_one():
    """A whole step of Newton from there would overflow."""
    x, y = data()
    counts = (8.0 + y).exp().round()
    made = model(x, counts, likelihood=Poisson())
    torch.testing.assert_close(made.q_mean + 0.2, counts.log(), rtol=0.0, atol=0.1)


def test_heavy_tails_start_at_the_prior_and_train():
    x, y = data()
    made, objective = model(x, y.sign(), likelihood=StudentT()), VNNGPELBO(NUM)
    assert (made.q_mean == 0.0).all()
    first = objective.evidence(made, x, y.sign()).value.item()
    touched = made.parameter_groups()["touched"]
    optimiser = torch.optim.SparseAdam(touched, lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        loss = -objective.evidence(made, x, y.sign()).value
        loss.backward()
        optimiser.step()
    assert -loss.item() > first + 5.0
    with pytest.raises(
        ConfigError, match="for the Gaussian and for log-concave likelihoods, not for Stu"
    ):
        made.fit_variational(x, y.sign())


def test_rows_are_those_whose_numbers_are_given_also_when_they_are_all():
    x, y = data()
    made, objective = anywhere(model(x, y)), VNNGPELBO(NUM)
    order = torch.randperm(NUM, generator=draws())
    found = objective.evidence(made, x[order], y[order], rows=order).value
    torch.testing.assert_close(found, objective.evidence(made, x, y).value)
    assert objective.num_data(x[:3]) == NUM


def test_a_saved_model_is_the_same_elsewhere():
    x, y, _ = repeated()
    made = anywhere(model(x, y))
    again = VNNGP(
        kernel=Matern52(2),
        mean=Constant(),
        likelihood=Gaussian(),
        num_inputs=2,
        num_data=NUM,
        num_neighbours=5,
        jitter=JITTER,
    ).double()
    again.load_state_dict(made.state_dict())
    rows = torch.tensor([3, 25, 7])
    found, expected = again.row_terms(rows), made.row_terms(rows)
    torch.testing.assert_close(found.kl, expected.kl)
    torch.testing.assert_close(found.marginals.mean, expected.marginals.mean)
    torch.testing.assert_close(again.q_deviation, made.q_deviation)


@pytest.mark.parametrize(("rows", "neighbours"), [(1, 1), (2, 1), (4, 3), (9, 5)])
def test_no_more_neighbours_than_other_rows(rows, neighbours):
    x, y = data()
    made = VNNGP(
        kernel=Matern52(2),
        mean=Constant(),
        likelihood=Gaussian(),
        num_inputs=2,
        num_data=rows,
        num_neighbours=5,
    ).double()
    made.initialise(x[:rows], y[:rows], generator=draws())
    assert made.near.shape == (rows, neighbours)
    assert VNNGPELBO(rows).evidence(made, x[:rows], y[:rows]).value.isfinite()


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_predictions_from_few_rows_see_all_of_them(rows):
    x, y = data()
    made = model(x[:rows], y[:rows], k=64, num_data=rows)
    exact = ExactGP(kernel=made.kernel, mean=made.mean, likelihood=made.likelihood)
    found, want = (m.condition(x[:rows], y[:rows]).predict(x[10:]) for m in (made, exact))
    torch.testing.assert_close(found.mean, want.mean, rtol=1e-3, atol=1e-4)


def test_hyperparameters_are_all_but_q():
    groups = model(*data()).parameter_groups()
    assert [p.shape for p in groups["touched"]] == [(NUM, 1), (NUM, 1)]
    assert len(groups["hyperparameters"]) == 4  # lengthscales, outputscale, mean, noise


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "num_data=0 must be at least 1"), ((9, -1), "refresh=-1 must be at least 0")],
)
def test_invalid_objectives_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        VNNGPELBO(*arguments)


def test_data_of_another_size_than_the_objective_was_made_for():
    x, y = data()
    with pytest.raises(ConfigError, match="num_data"):
        VNNGPELBO(NUM + 1).prepare(model(x, y), x, y)


def test_a_batch_of_unknown_rows():
    x, y = data()
    with pytest.raises(ConfigError, match="which rows of the training data"):
        VNNGPELBO(NUM).evidence(model(x, y), x[:7], y[:7])


def test_other_data_are_refused():
    x, y = data()
    with pytest.raises(ConfigError, match="num_data=30 but there are 20 training rows"):
        model(x, y).initialise(x[:20], y[:20], generator=draws())


@pytest.mark.parametrize("rows", [slice(0, 20), slice(None, None, None)])
def test_the_best_q_is_that_of_the_rows_of_the_start(rows):
    """Each value belongs to a row of ``initialise``, by its number."""
    x, y = data()
    made = model(x, y)
    other = (x if rows.stop else x.flip(0))[rows]
    for use in (made.condition, made.fit_variational):
        with pytest.raises(ConfigError, match="a value for every one of the 30 rows"):
            use(other, y[rows])
    assert made.float().fit_variational(x.float(), y.float())
    assert made.double().fit_variational(x, y)


def test_predictions_from_a_solve_that_stopped_early_say_so(monkeypatch):
    x, y = data()
    made = model(x, y, warm_start=False)
    monkeypatch.setattr(value_prior, "MAX_DENSE", 0)
    monkeypatch.setattr(value_prior, "REFIT_ITERATIONS", 1)
    with pytest.warns(UnconvergedWarning, match="solves of at most 1 iterations"):
        made.condition(x, y)


def test_without_data_q_starts_at_the_independent_values_nearest_to_the_prior():
    x, y = data()
    counts = model(x, y.exp().round(), likelihood=Poisson(), warm_start=False, refit=False)
    terms = counts.row_terms(torch.arange(NUM))
    assert (counts.q_mean == 0.0).all()
    (slope,) = torch.autograd.grad(terms.kl.sum(), counts.q_log_deviation)
    torch.testing.assert_close(slope.to_dense(), torch.zeros(NUM, 1).double(), rtol=0.0, atol=1e-9)
    # with the prior's own variances near values would not cancel: here twice that of the prior
    assert counts.condition(x, y).predict(x + 0.05).variance.max() < 1.4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 2.5}, r"^num_neighbours=2\.5: expected a whole number$"),
        ({"k": 0}, "num_neighbours=0 must be at least 1$"),
        ({"jitter": -1e-6}, "jitter=-1e-06 must"),
    ],
)
def test_invalid_sizes_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        model(*data(), **options)


def test_a_model_that_has_seen_no_data_says_so():
    x, y = data()
    made = VNNGP(
        kernel=Matern52(), mean=Constant(), likelihood=Gaussian(), num_inputs=2, num_data=NUM
    ).double()
    for call in (
        lambda: VNNGPELBO(NUM).evidence(made, x, y),
        lambda: made.fit_variational(x, y),
        lambda: made.condition(x, y),
    ):
        with pytest.raises(ConfigError, match=r"knows no neighbours yet: call initialise\(x, y"):
            call()
