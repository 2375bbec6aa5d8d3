"""The relevance vector machine: fixed points, sparsity, and the sparse model it leaves."""

import pytest
import torch

from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant, Zero
from gpx.methods.weight_space.qsrvm import PRUNING_PRECISION, QSRVM
from gpx.objectives import QuadruplyStochasticELBO, WeightSpaceELBO
from gpx.training import FirstOrder

pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(n=120, **options):
    generator = torch.Generator().manual_seed(0)
    x = 20.0 * torch.rand(n, 1, generator=generator) - 10.0
    y = torch.sinc(x[:, 0] / torch.pi) + 0.1 * torch.randn(n, generator=generator)
    kernel = RBF(lengthscale=2.0, outputscale=None)
    settings = {"num_data": n, "num_inputs": 1, "block_size": 10, **options}
    model = QSRVM(
        kernel=kernel,
        mean=Zero(),
        likelihood=settings.pop("likelihood", Gaussian(0.01)),
        **settings,
    )
    model.initialise(x, y, generator=generator)
    return model, x, y


def test_sweeps_keep_the_noise_above_its_floor():
    model, _, _ = problem(sweeps=2, likelihood=Gaussian(0.1, noise_floor=0.05))
    assert model.noise_variance.item() == pytest.approx(1.05 * 0.05)


def test_few_vectors_fit_the_noiseless_function():
    model, x, y = problem(group_size=60)
    posterior = model.condition(x, y)
    grid = torch.linspace(-9.5, 9.5, 100)[:, None]
    error = posterior.predict(grid).mean - torch.sinc(grid[:, 0] / torch.pi)
    assert posterior.num_vectors <= 30
    assert error.square().mean().sqrt() <= 0.05
    assert 0.005 < model.noise_variance < 0.02


def test_noiseless_lines_are_found_by_a_kernel_whose_columns_are_nearly_the_same():
    x = torch.linspace(-2.0, 2.0, 40, dtype=torch.float64)[:, None]
    y = 2.0 * x[:, 0]
    model = QSRVM(
        kernel=RBF(1, lengthscale=100.0, outputscale=1e4),
        mean=Zero(),
        likelihood=Gaussian(2e-6),
        num_data=40,
        num_inputs=1,
        sweeps=50,
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    predicted = model.condition(x, y).predict(x)
    torch.testing.assert_close(predicted.mean, y, rtol=0.0, atol=0.01)


def test_sparse_posterior_is_dense_algebra_on_the_kept_vectors():
    model, x, y = problem(sweeps=20)
    posterior = model.condition(x, y)
    kept = model.basis.relevant()
    phi = model.basis(x, kept).detach()
    precision = model.basis.precision_diagonal(kept).detach()
    noise = model.noise_variance.detach()
    sigma = torch.linalg.inv(phi.T @ phi / noise + torch.diag(precision))
    found = posterior.predict(x)
    torch.testing.assert_close(found.mean, phi @ sigma @ phi.T @ y / noise, rtol=1e-6, atol=1e-8)
    want = (phi @ sigma @ phi.T).diagonal()
    torch.testing.assert_close(found.variance, want, rtol=1e-5, atol=1e-9)
    # the posterior carries itself, whatever the number of vectors
    again = model.new_posterior()
    again.load_state_dict(posterior.state_dict())
    torch.testing.assert_close(again.predict(x), found)
    paths = posterior.sample_paths(4000, generator=torch.Generator().manual_seed(1))(x[:3])
    # 4,000 draws: five standard errors
    error = (paths.mean(0) - found.mean[:3]).abs() / (found.variance[:3] / 4000).sqrt()
    assert error.max() < 5.0


def test_fixed_point_is_a_stationary_point_of_the_evidence():
    model, x, y = problem(n=40, group_size=40, sweeps=4000)
    log_s = model.basis.log_precision.detach()[:, 0].clone().requires_grad_()
    phi, noise = model.basis(x).detach(), model.noise_variance.detach()
    covariance = phi * (-log_s).exp() @ phi.T + noise * torch.eye(40)
    law = torch.distributions.MultivariateNormal(torch.zeros(40), covariance)
    (gradient,) = torch.autograd.grad(law.log_prob(y), log_s)
    finite = log_s < torch.tensor(PRUNING_PRECISION).log() - 3.0
    assert 2 <= finite.sum() <= 20
    assert gradient[finite].abs().max() < 0.05  # nats per unit of log s; a sweep stops at 1e-3


def test_stochastic_steps_learn_precisions_sparsely():
    model, x, y = problem(sweeps=0)
    objective = QuadruplyStochasticELBO(
        len(x), columns=40, diagonal_columns=40, support_rows=0, sampling="without_replacement"
    )
    generator = torch.Generator().manual_seed(0)
    objective.prepare(model, x, y, generator=generator)
    objective(model, x, y, generator=generator).backward()
    gradient = model.basis.log_precision.grad
    assert gradient.is_sparse
    assert gradient.coalesce().indices().shape[1] < len(x)


def test_stochastic_steps_alone_take_vectors_out_and_raise_the_bound():
    """Without a sweep, from 120 vectors: about 76 after 300 steps, by the gradient of log s alone.

    Gradients get no further in many more steps; to few vectors it is the sweeps or RelevanceSteps.
    """
    model, x, y = problem(sweeps=0, block_size=1)
    objective = QuadruplyStochasticELBO(len(x), columns=60, diagonal_columns=60, support_rows=60)
    generator = torch.Generator().manual_seed(0)
    objective.prepare(model, x, y, generator=generator)
    settings = {
        "variational": {"algorithm": "adagrad", "lr": 0.003},
        "precisions": {"algorithm": "adagrad", "lr": 4.0},
        "hyperparameters": {"algorithm": "adam", "lr": 1e-5, "freeze_steps": 10**6},
    }
    optimizer = FirstOrder(settings, {"name": "exponential", "final": 0.3})
    optimizer.bind(model.parameter_groups(), 300, model)
    start = WeightSpaceELBO().evidence(model, x, y).value.detach()
    for step in range(300):
        optimizer.before_step(step)
        rows = torch.randint(len(x), (60,), generator=generator)
        objective(model, x[rows], y[rows], generator=generator).backward()
        optimizer.step(step)
        objective.after_step(model)
    end = WeightSpaceELBO().evidence(model, x, y).value.detach()
    assert len(model.basis.relevant()) < 90
    assert float(end - start) > 100.0
    assert float(model.noise_variance.detach()) == pytest.approx(0.01, rel=1e-12)  # frozen


def test_invalid_setups_are_refused():
    kernel = RBF()
    with pytest.raises(ConfigError, match=r"model=QSRVM\(\) needs mean=Zero\(\), got Constant"):
        QSRVM(kernel=kernel, mean=Constant(), likelihood=Gaussian(), num_data=10, num_inputs=1)
    with pytest.raises(ConfigError, match=r"needs likelihood=Gaussian\(\), got Bernoulli"):
        QSRVM(kernel=kernel, mean=Zero(), likelihood=Bernoulli(), num_data=10, num_inputs=1)
    with pytest.raises(ConfigError, match="max_centres=0"):
        QSRVM(
            kernel=kernel,
            mean=Zero(),
            likelihood=Gaussian(),
            num_data=10,
            num_inputs=1,
            max_centres=0,
        )
    model = QSRVM(kernel=kernel, mean=Zero(), likelihood=Gaussian(), num_data=10, num_inputs=1)
    with pytest.raises(ConfigError, match=r"10 kernel functions .* only 7; set num_data=7"):
        model.initialise(torch.zeros(7, 1), torch.zeros(7), generator=torch.Generator())
    with pytest.raises(ShapeError, match="QSRVM: inputs have 2 columns, but it is made for 1"):
        model.condition(torch.zeros(10, 2), torch.zeros(10))


def test_precisions_have_a_group_of_their_own():
    model, _, _ = problem(n=20, sweeps=0)
    groups = model.parameter_groups()
    (own,) = groups["precisions"]
    assert own is model.basis.log_precision
    assert not any(p is own for p in groups["hyperparameters"])


@pytest.mark.parametrize("num_dense", [0, 3])
def test_a_second_start_finds_what_a_first_one_would(num_dense):
    again, x, y = problem(n=30, sweeps=20, num_dense=num_dense)
    fresh, _, _ = problem(n=30, sweeps=0, num_dense=num_dense)
    fresh.sweeps = 20
    if num_dense:
        again.family.dense.data.fill_(0.7)
    fresh.likelihood.load_state_dict(again.likelihood.state_dict())
    for model in (fresh, again):
        model.initialise(x, -y, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(again.family.mean, fresh.family.mean)
    torch.testing.assert_close(again.basis.log_precision, fresh.basis.log_precision)
    torch.testing.assert_close(again.family.state_dict(), fresh.family.state_dict())


def test_sweeps_leave_a_fixed_noise_variance():
    likelihood = Gaussian(0.2)
    likelihood.requires_grad_(False)
    model, *_ = problem(likelihood=likelihood)
    assert model.sweeps
    assert float(model.noise_variance) == pytest.approx(0.2)
