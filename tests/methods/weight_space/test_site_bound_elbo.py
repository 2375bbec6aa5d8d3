"""The stochastic bound for log-concave sites, by enumeration of everything it samples."""

import itertools
from functools import partial

import pytest
import torch
from torch.nn.functional import logsigmoid

from gpx.bases import ImportanceWeightedFourier, LaplacianEigenfunctions, RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian, Laplace, Poisson
from gpx.means import Zero
from gpx.methods.base.batch import Batch
from gpx.methods.weight_space.qsgp import QSGP
from gpx.methods.weight_space.sites import SiteReport
from gpx.objectives import QuadruplyStochasticELBO, SiteBoundELBO, WeightSpaceELBO, exact_site_elbo
from gpx.training import FirstOrder

ROWS = 5
EVERY = torch.arange(ROWS)
BLOCKS = 6
WIDTH = 2


pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(likelihood=None, num_dense=0, log_scale=-1.0, outputscale=2.0, seed=0):
    """A model with random q(w), its data and an objective's arguments."""
    generator = torch.Generator().manual_seed(seed)
    likelihood = Bernoulli(num_nodes=101) if likelihood is None else likelihood
    x = torch.randn(ROWS, 2, generator=generator)
    y = torch.where(torch.randn(ROWS, generator=generator) > 0, 1.0, -1.0)
    model = QSGP(
        kernel=RBF(ard_num_dims=2, lengthscale=(0.8, 1.2), outputscale=outputscale),
        mean=Zero(),
        likelihood=likelihood,
        num_basis=BLOCKS * WIDTH,
        covariance="chevron" if num_dense else "mean_field",
        num_dense=num_dense,
        diagonal="free",
        basis=partial(RandomFourier, block_frequencies=WIDTH // 2),
    )
    with torch.no_grad():
        model.num_data.fill_(ROWS)
        model.family.mean.normal_(generator=generator)
        model.family.log_scale.normal_(log_scale, 0.3, generator=generator)
        if num_dense:
            model.family.dense.normal_(0.0, 0.3 * 10**log_scale, generator=generator)
            model.family.log_dense.fill_(log_scale)
    return model, x, y


def exact_standard_deviation(model, x, y):
    return model.condition(x, y).predict(x).variance.mean().sqrt()


def averaged(objective, model, x, y, length, *, replacement=False, rows=None):
    """Mean of the estimate over all tuples of all lists, every row in the batch."""
    tuples = (
        itertools.product(range(BLOCKS), repeat=length)
        if replacement
        else itertools.combinations(range(BLOCKS), length)  # the order within a list is immaterial
    )
    lists = [torch.tensor(chosen) for chosen in tuples]
    pairs = itertools.product(lists, repeat=2 if model.family.num_dense else 1)
    values = [objective.estimate(model, x, y, *chosen, rows=rows).value for chosen in pairs]
    return torch.stack(values).mean()


@pytest.mark.parametrize("likelihood", [None, Laplace(0.4), Gaussian(0.5), Poisson()])
@pytest.mark.parametrize("log_scale", [-2.0, 0.5])
@pytest.mark.parametrize("bound", ["affine", "reparam"])
def test_average_over_all_lists_is_below_the_exact_bound(likelihood, log_scale, bound):
    with torch.no_grad():
        model, x, y = problem(likelihood, log_scale=log_scale)
        y = y.abs() if isinstance(likelihood, Poisson) else y
        exact = exact_site_elbo(model, x, y).value
        objective = SiteBoundELBO(ROWS, bound=bound, eta=1.0)
        if bound == "affine":
            objective.eta.copy_(exact_standard_deviation(model, x, y))
            # any eta is valid, including a poor one
            poor = SiteBoundELBO(ROWS, bound=bound, eta=5.0)
            assert averaged(poor, model, x, y, 2) < exact
        values = [averaged(objective, model, x, y, k) for k in (2, 3)]
        assert values[0] < values[1] < exact
        repeats = averaged(objective, model, x, y, 2, replacement=True)
        assert repeats < values[0]  # repeats cost tightness


@pytest.mark.parametrize("log_scale", [-1.0, 0.5])
@pytest.mark.parametrize("bound", ["affine", "reparam"])
def test_chevron_average_over_all_pairs_of_lists_is_below_the_exact_bound(log_scale, bound):
    with torch.no_grad():
        model, x, y = problem(num_dense=3, log_scale=log_scale)
        exact = exact_site_elbo(model, x, y).value
        objective = SiteBoundELBO(ROWS, bound=bound, eta=1.0)
        objective.eta.copy_(exact_standard_deviation(model, x, y))
        one, two = (averaged(objective, model, x, y, k) for k in (1, BLOCKS - 1))
        assert one < two < exact


@pytest.mark.parametrize("num_dense", [0, 3])
@pytest.mark.parametrize("bound", ["affine", "reparam"])
def test_all_functions_give_the_exact_bound_row_by_row(num_dense, bound):
    model, x, y = problem(num_dense=num_dense)
    everything = [torch.arange(BLOCKS)] * (2 if num_dense else 1)
    # affine is tight where eta is the row's own standard deviation; cosine and sine pairs of one
    # scale would make it the same for all rows, here it is not, so one row at a time
    deviations = model.condition(x, y).predict(x).variance.sqrt()
    objective = SiteBoundELBO(1, bound=bound, eta=1.0)
    for row in range(ROWS):
        objective.eta.copy_(deviations[row])
        found = objective.estimate(model, x[row : row + 1], y[row : row + 1], *everything).value
        exact = exact_site_elbo(model, x[row : row + 1], y[row : row + 1]).value
        torch.testing.assert_close(found, exact)


def test_the_bound_as_printed_exceeds_the_exact_one_where_latent_variances_are_below_one():
    everything = torch.arange(BLOCKS)
    with torch.no_grad():
        model, x, y = problem(log_scale=-1.0)
        assert model.condition(x, y).predict(x).variance.max() < 0.5
        paper = SiteBoundELBO(ROWS, bound="paper")
        assert paper.estimate(model, x, y, everything).value > exact_site_elbo(model, x, y).value
        model, x, y = problem(log_scale=1.0)
        assert model.condition(x, y).predict(x).variance.min() > 1.0
        assert paper.estimate(model, x, y, everything).value < exact_site_elbo(model, x, y).value
        assert paper.estimate(model, x, y, everything).kind == "estimate"


def test_gaussian_sites_reproduce_the_gaussian_bound_with_all_functions():
    for num_dense in (0, 3):
        model, x, y = problem(Gaussian(0.3), num_dense=num_dense)
        everything = [torch.arange(BLOCKS)] * (2 if num_dense else 1)
        found = SiteBoundELBO(ROWS, bound="reparam").estimate(model, x, y, *everything).value
        want = WeightSpaceELBO().evidence(model, x, y).value
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(exact_site_elbo(model, x, y).value, want.detach())


def test_without_variance_the_bound_is_dropout_on_a_linear_model():
    model, x, y = problem(log_scale=-60.0)
    objective = SiteBoundELBO(ROWS, bound="reparam")
    kept = torch.tensor([0, 2, 5])
    found = objective.estimate(model, x, y, kept).parts["fit"]
    rate = 1.0 - len(kept) / BLOCKS
    mask = torch.zeros(BLOCKS).index_fill_(0, kept, 1.0).repeat_interleave(WIDTH) / (1.0 - rate)
    linear = torch.nn.functional.linear(model.basis(x) * mask, model.family.mean.reshape(1, -1))
    # the quadrature takes variances below its rounding unit as that unit
    torch.testing.assert_close(found, logsigmoid(y * linear[:, 0]).sum(), rtol=1e-8, atol=0.0)
    # averaged over masks, dropout bounds the log-likelihood from below
    masks = itertools.combinations(range(BLOCKS), 3)
    fits = [objective.estimate(model, x, y, torch.tensor(m)).parts["fit"] for m in masks]
    full = logsigmoid(y * (model.basis(x) @ model.family.mean.reshape(-1))).sum()
    assert torch.stack(fits).mean() < full


@pytest.mark.parametrize("num_dense", [0, 3])
def test_kl_is_unbiased(num_dense):
    with torch.no_grad():
        model, x, y = problem(num_dense=num_dense)
        objective = SiteBoundELBO(ROWS)
        lists = [torch.tensor([k]) for k in range(BLOCKS)]
        pairs = list(itertools.product(lists, repeat=2 if num_dense else 1))
        found = [objective.estimate(model, x, y, *pair).parts["complexity"] for pair in pairs]
        exact = exact_site_elbo(model, x, y).parts["complexity"]
        torch.testing.assert_close(torch.stack(found).mean(), exact)
        # against the normal distributions of torch
        p, c = torch.distributions, model.family.log_scale.exp().reshape(-1)
        covariance = torch.diag(
            c.square() * model.family.is_diagonal_column(torch.arange(BLOCKS)).reshape(-1)
        )
        dense = model.family.dense_of(torch.arange(BLOCKS)).reshape(len(c), -1)
        q = p.MultivariateNormal(model.family.mean.reshape(-1), covariance + dense @ dense.T)
        prior = p.MultivariateNormal(torch.zeros_like(c), torch.eye(len(c)))
        torch.testing.assert_close(-exact, p.kl_divergence(q, prior))


def test_prior_term_of_an_anchored_start_is_exact_whatever_the_list():
    with torch.no_grad():
        model, x, y = problem()
        model.family.mean[2:] = 0.0  # as exact solves of the first two blocks leave it
        model.family.log_scale.fill_(-1.0)
        model.report = SiteReport(2, 2, 1, True, 1.0)
        objective = SiteBoundELBO(ROWS, columns=WIDTH, snapshot=False)
        objective.prepare(model, x, y, generator=torch.Generator().manual_seed(0))
        assert objective.anchor.shape[0] == 2
        exact = exact_site_elbo(model, x, y).parts["complexity"]
        lists = [torch.tensor([k]) for k in range(BLOCKS)]
        for chosen in lists:
            found = objective.estimate(model, x, y, chosen).parts["complexity"]
            torch.testing.assert_close(found, exact)
        # and unbiased once steps have moved the weights
        model.family.mean.normal_(generator=torch.Generator().manual_seed(4))
        found = [objective.estimate(model, x, y, chosen).parts["complexity"] for chosen in lists]
        exact = exact_site_elbo(model, x, y).parts["complexity"]
        torch.testing.assert_close(torch.stack(found).mean(), exact)


def quadrants(**options):
    """A model of 200 signs of x_1 x_2, the data, and the generator."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator)
    y = torch.where(x.prod(1) > 0, 1.0, -1.0)
    model = QSGP(
        kernel=RBF(lengthscale=1.0, outputscale=4.0),
        mean=Zero(),
        likelihood=Bernoulli(),
        num_basis=400,
        warm_start_size=40,
        **options,
        basis=partial(RandomFourier, block_frequencies=10),
    )
    model.initialise(x, y, generator=generator)
    return model, x, y, generator


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("algorithm", ["adagrad", "sgd"])
def test_steps_raise_the_exact_bound(algorithm, snapshot):
    model, x, y, generator = quadrants(site_passes=0)
    start = exact_site_elbo(model, x, y).value
    objective = SiteBoundELBO(200, columns=100, snapshot=snapshot)
    objective.prepare(model, x, y, generator=generator)
    rate = {"adagrad": 0.02, "sgd": 1.0}[algorithm]
    optimiser = FirstOrder(
        {
            "variational": {"algorithm": algorithm, "lr": rate},
            "hyperparameters": {"algorithm": "adam", "lr": 0.0, "freeze_steps": 1000},
        }
    )
    optimiser.bind(model.parameter_groups(), 100)
    values = []
    for step in range(100):
        rows = torch.randint(200, (50,), generator=generator)
        optimiser.before_step(step)
        objective.before_step(model, x, y, rows)
        batch = Batch.of(model, x, y, rows)
        found = objective.evidence_of(model, batch, generator=generator)
        objective.loss(found, model, batch.x).backward()
        optimiser.step(step)
        objective.after_step(model)
        if step % 50 == 49:
            values.append(exact_site_elbo(model, x, y).value)
    assert start + 2.0 < values[0] < values[1]  # nats, far above rounding


def test_gradient_is_that_of_the_value():
    model, x, y = problem(num_dense=2)
    objective = SiteBoundELBO(ROWS, eta=0.7)
    lists = torch.tensor([0, 3]), torch.tensor([1, 3])
    parameters = [*model.family.parameters(), *model.basis.parameters()]
    objective.estimate(model, x, y, *lists).value.backward()
    generator = torch.Generator().manual_seed(3)
    for parameter in parameters:
        grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        direction = torch.randn(parameter.shape, generator=generator)
        values = []
        with torch.no_grad():
            for step in (1e-5, -1e-5):
                parameter.add_(direction, alpha=step)
                values.append(objective.estimate(model, x, y, *lists).value)
                parameter.add_(direction, alpha=-step)
        slope = (values[0] - values[1]) / 2e-5
        torch.testing.assert_close((grad * direction).sum(), slope, rtol=1e-5, atol=1e-6)


def test_running_eta_is_the_deviation_of_earlier_steps():
    model, x, y = problem()
    objective = SiteBoundELBO(ROWS, columns=BLOCKS * WIDTH)
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(0))
    want = exact_standard_deviation(model, x, y)
    torch.testing.assert_close(objective.eta, want, rtol=0.2, atol=0.0)  # rows drawn with repeats
    for _ in range(600):
        objective._sampled_variance = want.square()
        objective.after_step(model)
    torch.testing.assert_close(objective.eta, want, rtol=1e-3, atol=0.0)


def snapshot_of(model, x, y, eta=None, **options):
    """An objective with a snapshot, tight where all functions are listed."""
    objective = SiteBoundELBO(ROWS, **options)
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(0))
    objective.eta.copy_(exact_standard_deviation(model, x, y) if eta is None else eta)
    return objective


def test_a_snapshot_takes_the_cost_of_sampling_away_until_something_moves():
    with torch.no_grad():
        model, x, y = problem(log_scale=-1.0)
        model.family.log_scale.fill_(-1.0)  # latent variances alike: eta fits all rows
        exact = exact_site_elbo(model, x, y).value
        whole, plain = snapshot_of(model, x, y), SiteBoundELBO(ROWS)
        plain.eta.copy_(whole.eta)
        for k in range(BLOCKS):  # whatever the list
            found = whole.estimate(model, x, y, torch.tensor([k]), rows=EVERY).value
            torch.testing.assert_close(found, exact, rtol=1e-9, atol=0.0)
        assert averaged(plain, model, x, y, 2) < exact - 1.0
        # weights and features move: a bound again, and far tighter than without
        generator = torch.Generator().manual_seed(5)
        model.family.mean.add_(0.1 * torch.randn(BLOCKS, WIDTH, generator=generator))
        model.kernel.lengthscale = torch.tensor([0.85, 1.1])
        whole.snapshot.moved = True
        exact = exact_site_elbo(model, x, y).value
        found = averaged(whole, model, x, y, 2, rows=EVERY)
        assert averaged(plain, model, x, y, 2) - exact < 5.0 * (found - exact) < 0.0
        complexity = [
            whole.estimate(model, x, y, torch.tensor([k]), rows=EVERY).parts["complexity"]
            for k in range(BLOCKS)
        ]
        torch.testing.assert_close(
            torch.stack(complexity).mean(), exact_site_elbo(model, x, y).parts["complexity"]
        )


def test_a_batch_finds_its_own_rows_in_the_snapshot():
    """Where nothing has moved, the fit of a batch is exact, whatever the list."""
    with torch.no_grad():
        model, x, y = problem()
        model.family.log_scale.fill_(-1.0)  # and so are sampled variances
        objective = snapshot_of(model, x, y, columns=WIDTH)
        marginals = model.condition(x, y).predict(x)
        eta = objective.eta
        squares = (0.5 * (eta + marginals.variance / eta)).square()
        each = model.likelihood.expected_log_prob(y, marginals.mean, squares)
        for chosen in ([4, 1, 4], [0, 1, 2]):
            rows = torch.tensor(chosen)
            batch = Batch.of(model, x, y, rows)
            objective.before_step(model, x, y, EVERY[:3])
            found = objective.evidence_of(model, batch, generator=torch.Generator())
            torch.testing.assert_close(found.parts["fit"], each[rows].sum() * ROWS / 3)


def test_prior_term_beside_a_snapshot_where_the_kernel_moves_the_prior():
    """Averaged over lists it is the exact one, and so is its gradient in the kernel."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator)
    y = x[:, 0].sign()
    made = partial(LaplacianEigenfunctions, num_inputs=2, block_columns=4)
    model = QSGP(
        kernel=RBF(2),
        mean=Zero(),
        likelihood=Bernoulli(),
        num_basis=24,
        warm_start_size=8,
        basis=made,
        diagonal="free",
    )
    model.initialise(x, y, generator=generator)
    objective = SiteBoundELBO(30)
    objective.prepare(model, x, y, generator=generator)
    with torch.no_grad():
        model.kernel.lengthscale = torch.tensor([0.9, 1.2])
    objective.snapshot.moved = True
    lists = [torch.tensor([k]) for k in range(model.basis.num_blocks)]
    found = [objective.estimate(model, x, y, chosen, rows=torch.arange(30)) for chosen in lists]
    whole = SiteBoundELBO(30, snapshot=False).estimate(model, x, y, torch.cat(lists))
    complexity = torch.stack([one.parts["complexity"] for one in found]).mean()
    torch.testing.assert_close(complexity, whole.parts["complexity"])
    # the fit does not depend on the kernel: these functions stay
    raw = model.kernel.parametrizations.lengthscale.original
    average = torch.stack([one.value for one in found]).mean()
    slopes = [torch.autograd.grad(value, raw)[0] for value in (average, whole.value)]
    torch.testing.assert_close(*slopes)


def test_float32_sites_beside_prior_variances_in_float64():
    torch.set_default_dtype(torch.float32)
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    for passes, snapshot in ((2, True), (0, False)):
        made = partial(ImportanceWeightedFourier, num_inputs=2)
        model = QSGP(
            kernel=RBF(2),
            mean=Zero(),
            likelihood=Bernoulli(),
            num_basis=40,
            warm_start_size=20,
            basis=made,
            site_passes=passes,
        )
        model.initialise(x, x[:, 0].sign(), generator=torch.Generator().manual_seed(0))
        objective = SiteBoundELBO(30, columns=20, snapshot=snapshot)
        generator = torch.Generator().manual_seed(0)
        objective.prepare(model, x, x[:, 0].sign(), generator=generator)
        batch = Batch.of(model, x, x[:, 0].sign(), torch.arange(30))
        objective.evidence_of(model, batch, generator=generator).value.backward()
        assert bool(model.family.mean.grad.to_dense().isfinite().all())


@pytest.mark.parametrize("moved", [False, True])
def test_gradient_at_the_snapshot_is_that_of_the_exact_bound(moved):
    model, x, y = problem(log_scale=-1.0)
    with torch.no_grad():
        model.family.log_scale.fill_(-1.0)
    objective = snapshot_of(model, x, y)
    objective.snapshot.moved = moved  # True: features of then beside those of now
    parameters = [model.family.mean, *model.basis.parameters()]
    lists = [torch.tensor(pair) for pair in itertools.combinations(range(BLOCKS), 2)]
    for chosen in lists:
        (objective.estimate(model, x, y, chosen, rows=EVERY).value / len(lists)).backward()
    found = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    plain = SiteBoundELBO(ROWS)  # without a snapshot all functions give the exact bound
    plain.eta.copy_(objective.eta)
    plain.estimate(model, x, y, torch.arange(BLOCKS)).value.backward()
    for parameter, grad in zip(parameters, found, strict=True):
        want = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        torch.testing.assert_close(grad, want)


def test_refreshing_never_lowers_the_bound_and_undoes_what_did():
    model, x, y, generator = quadrants(site_passes=2)
    objective = SiteBoundELBO(200, refresh_steps=1, refresh_passes=2)
    objective.prepare(model, x, y, generator=generator)
    start = exact_site_elbo(model, x, y).value
    torch.testing.assert_close(objective.snapshot.value, start)
    with torch.no_grad():
        model.family.mean.add_(0.1 * torch.randn(model.family.mean.shape, generator=generator))
        model.kernel.lengthscale = torch.tensor([[0.95]])
    spoiled = exact_site_elbo(model, x, y).value
    assert spoiled < start
    objective.before_step(model, x, y, torch.arange(50))
    objective.after_step(model)  # passes mend the weights for the new lengthscale
    mended = exact_site_elbo(model, x, y).value
    assert mended > start + 1.0
    kept = model.family.mean.detach().clone()
    with torch.no_grad():
        model.family.mean.mul_(-1.0)
        model.kernel.lengthscale = 30.0
    objective.before_step(model, x, y, torch.arange(50))
    objective.after_step(model)
    assert model.kernel.lengthscale.item() == pytest.approx(0.95)
    torch.testing.assert_close(model.family.mean.detach(), kept)
    torch.testing.assert_close(exact_site_elbo(model, x, y).value, mended)
    # and all of it survives a checkpoint
    other = SiteBoundELBO(200, refresh_steps=1, refresh_passes=2)
    other.load_state_dict(objective.state_dict())
    assert other.steps == 2
    lists, rows = torch.tensor([1, 3]), torch.arange(50)
    for trained in (True, False):  # bit for bit, also where nothing moves
        model.basis.requires_grad_(trained)
        values = [
            made.estimate(model, x[rows], y[rows], lists, rows=rows).value
            for made in (objective, other)
        ]
        assert torch.equal(*values)
        assert other.snapshot.moved is False
    with torch.no_grad():
        model.kernel.lengthscale = 1.2
    other.load_state_dict(objective.state_dict())
    other.estimate(model, x[rows], y[rows], lists, rows=rows)
    assert other.snapshot.moved


@pytest.mark.parametrize("num_dense", [0, 2])
def test_an_undone_refresh_leaves_the_model_that_has_the_bound(num_dense):
    """Also the likelihood's parameters and the dense columns of q."""
    model, x, y = problem(Laplace(0.7), num_dense)
    objective = snapshot_of(model, x, y)
    snapshot = objective.snapshot
    want = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.likelihood.scale = 0.02
        for parameter in model.family.parameters():
            parameter.add_(1.0)
    assert not snapshot.refresh(model, x, y, passes=0)
    torch.testing.assert_close(dict(model.state_dict()), want, rtol=0.0, atol=0.0)
    torch.testing.assert_close(exact_site_elbo(model, x, y).value, snapshot.value)


def test_a_snapshot_of_the_scales_alone_still_undoes_them():
    """As runs hold it that were saved before the others were kept."""
    model, x, y = problem(Laplace(0.7))
    snapshot = snapshot_of(model, x, y).snapshot
    snapshot.scales = model.family.log_scale.detach().clone()
    want = snapshot.scales.clone()
    with torch.no_grad():
        model.likelihood.scale = 0.02
        model.family.log_scale.add_(1.0)
    assert not snapshot.refresh(model, x, y, passes=0)
    assert torch.equal(model.family.log_scale, want)
    assert model.likelihood.scale.item() == pytest.approx(0.02)


def test_invalid_setups_are_refused():
    model, _, _ = problem()
    with pytest.raises(ConfigError, match="bound=tight: expected one of affine, reparam, paper"):
        SiteBoundELBO(ROWS, bound="tight")
    with pytest.raises(ConfigError, match="only a snapshot can be refreshed"):
        SiteBoundELBO(ROWS, snapshot=False, refresh_steps=5)
    with pytest.raises(ConfigError, match=r"eta=-1: expected a positive number or running"):
        SiteBoundELBO(ROWS, eta=-1)
    with pytest.raises(ConfigError, match=r"columns=13 basis functions per step, but .*=12"):
        SiteBoundELBO(ROWS, columns=13).check(model)
    with pytest.raises(ConfigError, match="needs the Gaussian likelihood, got Bernoulli"):
        QuadruplyStochasticELBO(ROWS).check(model)
    with pytest.raises(ConfigError, match="num_data=4 but there are 5 training rows"):
        SiteBoundELBO(4).prepare(model, torch.zeros(5, 2), torch.ones(5))


def test_memory_of_a_step_does_not_grow_with_the_number_of_functions():
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 784, generator=generator) / 28.0
    y = torch.where(x[:, 0] > 0, 1.0, -1.0)
    peaks = []
    for m in (10_000, 1_000_000):
        model = QSGP(
            kernel=RBF(lengthscale=1.0),
            mean=Zero(),
            likelihood=Bernoulli(),
            num_basis=m,
            warm_start=False,
        )
        objective = SiteBoundELBO(20, columns=1000, snapshot=False)
        objective.prepare(model, x, y, generator=generator)
        for _ in range(2):  # the first step also allocates what stays
            model.zero_grad(set_to_none=True)
            with torch.profiler.profile(profile_memory=True) as profile:
                objective(model, x, y, generator=generator).backward()
        current = peak = 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                current += event.nbytes()
                peak = max(peak, current)
        peaks.append(peak)
    assert peaks[0] > 2**20  # the frequencies of the sampled functions at least
    assert peaks[1] < 1.05 * peaks[0]
