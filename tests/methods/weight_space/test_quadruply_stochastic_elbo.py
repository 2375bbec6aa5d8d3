"""The estimator is unbiased: value and gradient averaged over every possible sample."""

import itertools
import math
from functools import partial

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from gpx.bases import (
    ImportanceWeightedFourier,
    LaplacianEigenfunctions,
    RandomFourier,
    standard_normals,
)
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.weight_space.control_variate import factor_rows
from gpx.methods.weight_space.exact_elbo import WeightSpaceELBO
from gpx.methods.weight_space.qsgp import QSGP
from gpx.methods.weight_space.qsrvm import QSRVM
from gpx.methods.weight_space.quadruply_stochastic_elbo import QuadruplyStochasticELBO

N = 4
BLOCKS = 3  # of one frequency: m = 6


pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(num_dense=0, diagonal="free", num_basis=2 * BLOCKS, n=N, seed=0, spread=1.0):
    """Data and a model with random variational parameters."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator)
    y = torch.sin(x.sum(1)) + 0.1 * torch.randn(n, generator=generator)
    model = QSGP(
        kernel=RBF(ard_num_dims=2, lengthscale=(0.9, 1.4), outputscale=1.5),
        mean=Zero(),
        likelihood=Gaussian(0.2),
        num_basis=num_basis,
        covariance="chevron" if num_dense else "mean_field",
        num_dense=num_dense,
        diagonal=diagonal,
        warm_start=False,
        diagonal_rows=0,
        basis=partial(RandomFourier, block_frequencies=1, spread=spread),
    )
    model.initialise(x, y, generator=generator)
    with torch.no_grad():
        for parameter in model.family.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model, x, y


def prepared(model, x, y, **options):
    objective = QuadruplyStochasticELBO(num_data=x.shape[0], **options)
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(5))
    return objective


def test_the_bound_in_float32_is_finite_when_lengthscales_have_left_the_proposal():
    """At four times the lengthscales, prior variances of high frequencies are below e^-88."""
    _, x, y = problem(n=20)
    basis = partial(ImportanceWeightedFourier, num_inputs=2)
    model = QSGP(
        kernel=RBF(2),
        mean=Zero(),
        likelihood=Gaussian(0.2),
        num_basis=2000,
        basis=basis,
        warm_start=False,
    ).float()
    x, y = x.float(), y.float()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    objective = prepared(model, x, y, support_rows=0)
    with torch.no_grad():
        model.kernel.lengthscale = 4.0
    found = objective.evidence(model, x, y, generator=torch.Generator().manual_seed(0))
    assert bool(found.value.isfinite())
    assert all(bool(slope.isfinite().all()) for slope in gradients(found.value, model))


def gradients(value, model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return [
        torch.zeros_like(p) if g is None else (g.to_dense() if g.is_sparse else g)
        for p, g in zip(parameters, found, strict=True)
    ]


def lists(length, scheme):
    """All equally likely block lists of a sampling scheme."""
    if scheme == "with":
        return [torch.tensor(t) for t in itertools.product(range(BLOCKS), repeat=length)]
    return [torch.tensor(t) for t in itertools.permutations(range(BLOCKS), length)]


def expectation(objective, model, x, y, length, scheme, batch=3, tied=False):
    """Mean value and gradients over all mini-batches and all block lists."""
    assert len(lists(length, scheme)) ** 2 % BLOCKS == 0
    values, total, count = 0.0, None, 0
    options = lists(length, scheme)
    for rows in itertools.combinations(range(x.shape[0]), batch):
        for i, j in itertools.product(options, options):
            right = i if tied else j
            # the diagonal term depends on r alone: an r that takes each value equally often will do
            picked, r = list(rows), torch.tensor([count % BLOCKS])
            value = objective.estimate(model, x[picked], y[picked], i, right, r).value
            found = gradients(value, model)
            total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
            values += float(value.detach())
            count += 1
    return values / count, [g / count for g in total]


def exact(model, x, y):
    value = WeightSpaceELBO().evidence(model, x, y).value
    return float(value.detach()), gradients(value, model)


def check_unbiased(objective, model, x, y, length, scheme, batch=3):
    value, found = expectation(objective, model, x, y, length, scheme, batch)
    want_value, want = exact(model, x, y)
    assert value == pytest.approx(want_value, rel=1e-12)
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("num_dense", [0, 3, 6])
@pytest.mark.parametrize(("length", "scheme"), [(1, "with"), (2, "without")])
@pytest.mark.parametrize("support", [0, 3])
def test_unbiased_value_and_gradient(num_dense, length, scheme, support):
    model, x, y = problem(num_dense)
    objective = prepared(model, x, y, support_rows=support)
    check_unbiased(objective, model, x, y, length, scheme)


def test_unbiased_with_replacement_within_a_list():
    model, x, y = problem(2)
    objective = prepared(model, x, y, support_rows=2, coefficient=0.7)
    check_unbiased(objective, model, x, y, 2, "with", batch=4)


def test_unbiased_where_prior_precisions_differ():
    model, x, y = problem(2, spread=(1.0, 2.5))
    precision = model.basis.precision_diagonal()
    assert float(precision.max() / precision.min()) > 1.5
    objective = prepared(model, x, y, support_rows=3)
    check_unbiased(objective, model, x, y, 1, "with")
    # and the exact bound is that of dense matrices
    with torch.no_grad():
        blocks, noise = torch.arange(BLOCKS), model.noise_variance
        factors = factor_rows(model.family, blocks)
        mean, root = factors[:, 0], torch.diag(model.log_scales(blocks).exp().reshape(-1))
        root[:, :2] = factors[:, 1:]
        posterior = MultivariateNormal(mean, root @ root.T)
        prior = MultivariateNormal(torch.zeros_like(mean), precision_matrix=torch.diag(precision))
        phi = model.basis(x)
        fit = Normal(phi @ mean, noise.sqrt()).log_prob(y).sum()
        dense = fit - 0.5 * (phi @ root).square().sum() / noise - kl_divergence(posterior, prior)
    assert exact(model, x, y)[0] == pytest.approx(float(dense), rel=1e-12)


def test_unbiased_with_anchor():
    model, x, y = problem(1)
    objective = prepared(model, x, y, support_rows=0)
    objective.anchor = torch.randn(2, 2, generator=torch.Generator().manual_seed(8))
    objective.control.rows = 3
    objective.control.start(
        model.basis, model.family, objective.anchor, x, torch.Generator().manual_seed(1)
    )
    check_unbiased(objective, model, x, y, 1, "with")


def move(model, seed=4):
    with torch.no_grad():
        for p in model.family.parameters():
            p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("support", [0, 3])
def test_unbiased_with_snapshot(support):
    model, x, y = problem(1)
    model.basis.requires_grad_(False)
    objective = prepared(model, x, y, support_rows=support, snapshot=True)
    model.likelihood.noise_variance = torch.tensor(0.35)
    move(model)
    if support:
        control = objective.control
        frozen = control.frozen_basis(model.basis)
        control.projection = control.exact_projection(frozen, model.family, objective.anchor)
    check_unbiased(objective, model, x, y, 1, "with")


def test_nothing_in_the_fit_is_left_to_chance_at_the_snapshot():
    model, x, y = problem()
    model.basis.requires_grad_(False)
    objective = prepared(model, x, y, support_rows=0, snapshot=True)
    want = WeightSpaceELBO().evidence(model, x, y).parts["fit"]
    lists_ = (torch.tensor([0]), torch.tensor([2]), torch.tensor([1]))
    for row in range(N):
        found = objective.estimate(model, x[[row]], y[[row]], *lists_).parts["fit"]
        torch.testing.assert_close(found, want)


def test_snapshot_at_zero_weights_holds_the_moments_of_the_targets():
    model, x, y = problem()
    with torch.no_grad():
        model.family.mean.zero_()
    objective = prepared(model, x, y, support_rows=0, snapshot=True)
    want = (model.basis(x).T @ y).detach()
    torch.testing.assert_close(objective.moment.reshape(-1), want)
    torch.testing.assert_close(objective.misfit, y.square().sum())


def test_snapshot_refuses_moving_features_and_survives_a_checkpoint():
    model, x, y = problem()
    objective = QuadruplyStochasticELBO(N, support_rows=0, snapshot=True)
    with pytest.raises(ConfigError, match="no snapshot yet"):
        objective.evidence(model, x, y)
    objective.prepare(model, x, y)
    with pytest.raises(ConfigError, match="freeze them"):
        objective.evidence(model, x, y)
    model.basis.requires_grad_(False)
    fresh = QuadruplyStochasticELBO(N, support_rows=0, snapshot=True)
    fresh.load_state_dict(objective.state_dict())
    move(model)
    values = [
        o(model, x, y, generator=torch.Generator().manual_seed(3)).detach()
        for o in (objective, fresh)
    ]
    assert torch.equal(*values)


def test_column_squares_follow_the_lengthscales_only_once_these_have_moved():
    model, x, y = problem(diagonal="closed_form", num_basis=20, n=400)
    objective = prepared(model, x, y, columns=4, diagonal_columns=20, refresh=0.1)
    generator = torch.Generator().manual_seed(0)
    start = model.family.column_ratio.clone()

    def steps(count):
        for _ in range(count):
            rows = torch.randint(400, (100,), generator=generator)
            objective(model, x[rows], y[rows], generator=generator)
            objective.after_step(model)

    steps(3)
    assert torch.equal(model.family.column_ratio, start)
    with torch.no_grad():
        model.kernel.lengthscale = torch.tensor([3.0, 4.0])
        model.likelihood.noise_variance = torch.tensor(0.4)
    phi = model.basis(x).detach()
    want = (0.4 / (phi.square().sum(0) + 0.4)).sqrt().log()
    before = (model.log_scales(torch.arange(10)).reshape(-1) - want).abs().max()
    steps(60)
    after = (model.log_scales(torch.arange(10)).reshape(-1) - want).abs().max()
    # a column square is an average over about 20 mini-batches of 100 rows: a few per cent
    assert before > 0.5
    assert after < 0.1


def test_column_squares_do_not_follow_precisions():
    model, x, y = relevance_problem(0)
    objective = prepared(model, x, y, columns=6, diagonal_columns=6, refresh=1.0)
    start = model.family.column_ratio.clone()
    with torch.no_grad():
        model.basis.log_precision += 1.0
    objective(model, x[:2], y[:2], generator=torch.Generator().manual_seed(0))
    objective.after_step(model)
    assert torch.equal(model.family.column_ratio, start)


def test_full_refresh_on_all_rows_is_the_numerical_minimiser():
    model, x, y = problem(diagonal="closed_form", n=30)
    objective = prepared(model, x, y, support_rows=0, refresh=1.0)
    with torch.no_grad():
        model.kernel.lengthscale = torch.tensor([2.0, 0.4])
        model.kernel.outputscale = torch.tensor(0.7)
        model.likelihood.noise_variance = torch.tensor(0.4)
    every = torch.arange(BLOCKS)
    objective.estimate(model, x, y, every, every, every)
    objective.after_step(model)
    phi = model.basis(x).detach()
    squares = phi.square().sum(0)
    log_c = torch.zeros(6, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [log_c],
        max_iter=200,
        tolerance_grad=1e-14,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def loss():
        optimiser.zero_grad()
        value = ((2 * log_c).exp() * (squares / 0.4 + 1) - 2 * log_c).sum()
        value.backward()
        return value

    optimiser.step(loss)
    torch.testing.assert_close(
        model.log_scales(every).reshape(-1), log_c.detach(), rtol=1e-10, atol=1e-10
    )


def test_unbiased_after_hyperparameters_moved():
    # the control variate keeps its features at the initial hyperparameters
    model, x, y = problem(1)
    objective = prepared(model, x, y, support_rows=3)
    with torch.no_grad():
        model.kernel.lengthscale = torch.tensor([0.5, 2.0])
        model.likelihood.noise_variance = torch.tensor(0.35)
    check_unbiased(objective, model, x, y, 1, "with")


def test_lengthscale_gradient_through_sampled_features_is_that_of_the_dense_bound():
    # the bound written out for dense matrices, features from normals over lengthscales
    model, x, y = problem()
    objective = prepared(model, x, y, support_rows=3)
    _, found = expectation(objective, model, x, y, 2, "without")
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    raw = dict(model.named_parameters())
    kernel, noise = model.kernel, model.noise_variance
    normals = standard_normals(model.basis.seed, torch.arange(BLOCKS), 2, dtype=torch.float64)
    angles = x @ (normals / kernel.lengthscale).T
    scale = (2.0 * kernel.outputscale / model.basis.num_basis).sqrt()
    phi = scale * torch.stack((angles.cos(), angles.sin()), dim=2).reshape(len(y), -1)
    mu, log_c = model.family.mean.reshape(-1), model.family.log_scale.reshape(-1)
    covariance = (2.0 * log_c).exp().diag()
    marginal = torch.distributions.Normal(phi @ mu, noise.sqrt()).log_prob(y).sum()
    trace = 0.5 / noise * (phi @ covariance @ phi.T).trace()
    kl = 0.5 * (mu @ mu + covariance.trace() - len(mu)) - log_c.sum()
    (marginal - trace - kl).backward()
    checked = 0
    for name, grad in zip(names, found, strict=True):
        torch.testing.assert_close(grad, raw[name].grad, rtol=1e-9, atol=1e-9)
        checked += "lengthscale" in name
    assert checked == 1


def relevance_problem(num_dense):
    """Data and a relevance vector machine at random precisions and variational parameters."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2 * BLOCKS, 2, generator=generator)
    y = torch.sin(x.sum(1)) + 0.1 * torch.randn(2 * BLOCKS, generator=generator)
    model = QSRVM(
        kernel=RBF(ard_num_dims=2, lengthscale=(0.9, 1.4), outputscale=1.5),
        mean=Zero(),
        likelihood=Gaussian(0.2),
        num_data=len(x),
        num_inputs=2,
        num_dense=num_dense,
        sweeps=0,
        block_size=2,
    )
    model.initialise(x, y, generator=generator)
    with torch.no_grad():
        for parameter in (model.basis.log_precision, *model.family.parameters()):
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator))
    return model, x, y


def factor_of(model):
    """mu (m,) and C (m, m), with gradients; scales in closed form are constants."""
    rows, every = factor_rows(model.family, torch.arange(BLOCKS)), torch.arange(BLOCKS)
    root = torch.diag(model.log_scales(every).exp().reshape(-1))
    return rows[:, 0], torch.cat((rows[:, 1:], root[:, rows.shape[1] - 1 :]), 1)


def dense_bound(model, x, y):
    """E_q log p(y | w) - KL(q, p) of dense Gaussians, no line of it shared with the objectives."""
    mean, root = factor_of(model)
    phi, noise = model.basis(x), model.noise_variance
    precision = model.basis.precision_diagonal()
    prior = MultivariateNormal(
        torch.zeros_like(mean), covariance_matrix=torch.diag(1.0 / precision)
    )
    fit = Normal(phi @ mean, noise.sqrt()).log_prob(y).sum()
    posterior = MultivariateNormal(mean, scale_tril=root)
    return fit - 0.5 * (phi @ root).square().sum() / noise - kl_divergence(posterior, prior)


@pytest.mark.parametrize("kind", ["features", "free", "relevance"])
@pytest.mark.parametrize("num_dense", [0, 3])
def test_gradient_of_every_parameter_is_that_of_dense_gaussians(kind, num_dense):
    """Averaged over all samples: weights, scales, precisions, kernel and noise, none left out.

    Held against the bound of dense matrices, because the exact objective has the estimate's terms:
    one that both of them keep from the gradient would pass between them.
    """
    if kind == "relevance":
        model, x, y = relevance_problem(num_dense)
    else:
        model, x, y = problem(num_dense, "free" if kind == "free" else "closed_form")
    objective = prepared(model, x, y, support_rows=3)
    value, found = expectation(objective, model, x, y, 1, "with", batch=len(x) - 1)
    want = dense_bound(model, x, y)
    assert value == pytest.approx(float(want.detach()), rel=1e-11)
    _, exactly = exact(model, x, y)
    slopes = gradients(want, model)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    for name, a, b, c in zip(names, found, exactly, slopes, strict=True):
        assert float(c.abs().max()) > 1e-3, name
        torch.testing.assert_close(a, c, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
        torch.testing.assert_close(b, c, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
    if kind == "relevance":
        # d / d log s_i = (1 - s_i (mu_i^2 + Sigma_ii)) / 2, whatever C
        mean, root = factor_of(model)
        s = model.basis.precision_diagonal()
        slope = 0.5 * (1.0 - s * (mean.square() + root.square().sum(1)))
        torch.testing.assert_close(
            found[names.index("basis.log_precision")][:, 0], slope, rtol=1e-9, atol=1e-9
        )


def test_tied_lists_are_biased():
    model, x, y = problem()
    objective = prepared(model, x, y, support_rows=0)
    value, _ = expectation(objective, model, x, y, 1, "with", tied=True)
    want, _ = exact(model, x, y)
    assert abs(value - want) > 0.05 * abs(want)


@pytest.mark.parametrize("num_dense", [0, 2])
@pytest.mark.parametrize("diagonal", ["free", "closed_form"])
def test_all_columns_and_rows_give_the_exact_bound(num_dense, diagonal):
    model, x, y = problem(num_dense, diagonal)
    objective = prepared(model, x, y, columns=6, diagonal_columns=6, support_rows=2)
    generator = torch.Generator().manual_seed(0)
    i, j, r = objective.draw(model, generator=generator, device=x.device)
    assert i.tolist() == j.tolist() == r.tolist() == [0, 1, 2]
    evidence = objective.evidence(model, x, y, generator=generator)
    want_value, want = exact(model, x, y)
    assert float(evidence.value.detach()) == pytest.approx(want_value, rel=1e-12)
    for a, b in zip(gradients(evidence.value, model), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert sum(float(p) for p in evidence.parts.values()) == pytest.approx(want_value)


def test_gradient_of_tables_is_sparse_and_holds_sampled_blocks_only():
    model, x, y = problem(2, num_basis=40)
    objective = prepared(model, x, y, columns=4, diagonal_columns=2, support_rows=2)
    i, j, r = torch.tensor([0, 5]), torch.tensor([5, 9]), torch.tensor([3])
    (-objective.estimate(model, x, y, i, j, r).value).backward()
    for table, blocks in (
        (model.family.mean, [0, 5, 9]),
        (model.family.dense, [0, 5, 9]),
        (model.family.log_scale, [3]),
    ):
        assert table.grad.is_sparse
        assert table.grad.coalesce().indices()[0].tolist() == blocks


def test_loss_is_minus_evidence_per_point_and_seeds_repeat():
    model, x, y = problem()
    objective = prepared(model, x, y, columns=2, support_rows=2)
    assert objective.num_data(x[:2]) == N
    first = objective(model, x, y, generator=torch.Generator().manual_seed(3))
    evidence = objective.evidence(model, x, y, generator=torch.Generator().manual_seed(3))
    assert float(first.detach()) == -float(evidence.value.detach()) / N


def test_state_survives_a_checkpoint():
    model, x, y = problem(1)
    objective = prepared(model, x, y, columns=2, support_rows=3, coefficient="auto")
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimiser.zero_grad()
        objective(model, x, y, generator=generator).backward()
        optimiser.step()
        objective.after_step(model)
    fresh = QuadruplyStochasticELBO(N, columns=2, support_rows=3, coefficient="auto")
    fresh.load_state_dict(objective.state_dict())
    assert fresh.control.steps == 3
    model.kernel.lengthscale = torch.tensor([0.3, 0.3])  # frozen features must come from the state
    for a in (objective, fresh):
        a.result = a(model, x, y, generator=torch.Generator().manual_seed(9))
    assert torch.equal(objective.result, fresh.result)


def test_errors():
    model, x, y = problem()
    with pytest.raises(ConfigError, match="at least 1"):
        QuadruplyStochasticELBO(num_data=0)
    with pytest.raises(ConfigError, match="stratified"):
        QuadruplyStochasticELBO(num_data=4, sampling="sometimes")
    with pytest.raises(ConfigError, match="support_rows=5 is above the 4 training rows"):
        QuadruplyStochasticELBO(num_data=4, support_rows=5)
    with pytest.raises(ConfigError, match="refresh=2"):
        QuadruplyStochasticELBO(num_data=4, refresh=2.0)
    for name in ("columns", "diagonal_columns"):
        with pytest.raises(ConfigError, match=f"{name}=7 is above the 6 basis functions"):
            QuadruplyStochasticELBO(num_data=4, **{name: 7}).check(model)
    QuadruplyStochasticELBO(num_data=4).check(model)
    with pytest.raises(ConfigError, match="num_data=5"):
        QuadruplyStochasticELBO(num_data=5).prepare(model, x, y)
    with pytest.raises(ConfigError, match="prepare"):
        QuadruplyStochasticELBO(num_data=4).evidence(model, x, y)


def test_estimator_with_normal_noise_matches_monte_carlo_of_draws():
    # the objective's own draws, averaged: 4 standard errors, false alarm 6e-5 (seed fixed)
    model, x, y = problem(1, num_basis=20)
    for sampling in ("stratified", "with_replacement", "without_replacement"):
        objective = prepared(
            model, x, y, columns=6, diagonal_columns=2, support_rows=2, sampling=sampling
        )
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            values = torch.stack(
                [objective.evidence(model, x, y, generator=generator).value for _ in range(200)]
            )
        want, _ = exact(model, x, y)
        assert abs(float(values.mean()) - want) < 4 * float(values.std()) / math.sqrt(200)


def test_training_resumed_from_state_dicts_is_bitwise_the_uninterrupted_one():
    def session(steps, state=None):
        model, x, y = problem(1, num_basis=40, n=30)
        objective = QuadruplyStochasticELBO(
            30, columns=8, diagonal_columns=4, support_rows=10, coefficient="auto", drift_interval=4
        )
        groups = model.parameter_groups()
        optimisers = [
            torch.optim.Adagrad(groups["variational"], lr=0.05),
            torch.optim.Adam(groups["hyperparameters"], lr=0.01),
        ]
        generator = torch.Generator().manual_seed(3)
        if state is None:
            objective.prepare(model, x, y, generator=generator)
        else:
            model.load_state_dict(state[0])
            objective.load_state_dict(state[1])
            for optimiser, saved in zip(optimisers, state[2], strict=True):
                optimiser.load_state_dict(saved)
            generator.set_state(state[3])
        for _ in range(steps):
            rows = torch.randint(30, (6,), generator=generator)
            for optimiser in optimisers:
                optimiser.zero_grad()
            objective(model, x[rows], y[rows], generator=generator).backward()
            with torch.sparse.check_sparse_tensor_invariants(False):
                for optimiser in optimisers:
                    optimiser.step()
            objective.after_step(model)
        saved = [optimiser.state_dict() for optimiser in optimisers]
        return model.state_dict(), objective.state_dict(), saved, generator.get_state()

    whole, parted = session(9), session(4, state=session(5))
    for a, b in zip(whole[:2], parted[:2], strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            same = torch.equal(value, b[name]) if torch.is_tensor(value) else value == b[name]
            assert same, name


def test_a_snapshot_allows_hyperparameters_that_do_not_move_the_features():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(30, 1, generator=generator)
    y = torch.sin(3.0 * x[:, 0])
    model = QSGP(
        kernel=RBF(1),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_basis=12,
        covariance="mean_field",
        basis=partial(LaplacianEigenfunctions, num_inputs=1),
    )
    model.initialise(x, y, generator=generator)
    objective = QuadruplyStochasticELBO(30, support_rows=0, snapshot=True)
    objective.prepare(model, x, y)
    objective.evidence(model, x, y, generator=generator).value.backward()
    assert model.kernel.parametrizations.lengthscale.original.grad is not None
