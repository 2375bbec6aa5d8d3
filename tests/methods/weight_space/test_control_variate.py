"""The control variate: zero mean, tracked projection, drift, coefficient."""

import itertools
from functools import partial

import pytest
import torch
from torch import nn

from gpx.bases import RandomFourier
from gpx.bases.base import Basis
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.weight_space.chevron import ChevronWeights
from gpx.methods.weight_space.control_variate import MOMENT_DECAY, ControlVariate, factor_rows
from gpx.methods.weight_space.mean_field import MeanFieldWeights
from gpx.methods.weight_space.qsgp import QSGP
from gpx.methods.weight_space.quadruply_stochastic_elbo import QuadruplyStochasticELBO


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    # torch's sparse AdaGrad warns once about an invariant check that is off by default
    with torch.sparse.check_sparse_tensor_invariants(False):
        yield
    torch.set_default_dtype(torch.float32)


def problem(num_basis, n=60, num_dense=0, diagonal="free", warm_start=False, seed=0, length=0.8):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator)
    y = torch.sin(2 * x[:, 0]) * torch.cos(x[:, 1]) + 0.1 * torch.randn(n, generator=generator)
    model = QSGP(
        kernel=RBF(ard_num_dims=2, lengthscale=length),
        mean=Zero(),
        likelihood=Gaussian(0.05),
        num_basis=num_basis,
        covariance="chevron" if num_dense else "mean_field",
        num_dense=num_dense,
        diagonal=diagonal,
        warm_start=warm_start,
        warm_start_size=num_basis // 4,
        diagonal_rows=0,
        basis=partial(RandomFourier, block_frequencies=2),
    )
    model.initialise(x, y, generator=generator)
    return model, x, y


def randomise(model, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.family.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))


def start(model, x, y, **options):
    objective = QuadruplyStochasticELBO(num_data=x.shape[0], **options)
    objective.prepare(model, x, y, generator=torch.Generator().manual_seed(2))
    return objective


def test_zero_mean_and_sparse_gradient_by_enumeration():
    # average over all pairs of lists: the correction vanishes, and so does its gradient
    model, x, y = problem(12, num_dense=2)  # 3 blocks of 4
    randomise(model)
    objective = start(model, x, y, support_rows=7)
    for options in (
        [torch.tensor(t) for t in itertools.product(range(3), repeat=2)],
        [torch.tensor(t) for t in itertools.permutations(range(3), 2)],
        [torch.tensor([b]) for b in range(3)],
    ):
        total, count, largest = 0.0, 0, 0.0
        for i, j in itertools.product(options, options):
            pair = torch.cat((i, j))
            factors = factor_rows(model.family, pair, sparse=True)
            zero = torch.zeros(())
            value = objective.control.correction(
                model.basis, model.family, pair, factors, zero, x.shape[0]
            )
            total, count = total + value, count + 1
            largest = max(largest, abs(float(value.detach())))
        mean = total / count
        assert abs(float(mean.detach())) < 1e-10 * largest
        grads = torch.autograd.grad(mean, [model.family.mean, model.family.dense])
        for grad in grads:
            assert grad.to_dense().abs().max() < 1e-10 * largest


class Stored(Basis):
    """Fixed features of fixed inputs: x holds row numbers."""

    def __init__(self, features, block_size):
        super().__init__()
        self.features = nn.Parameter(features)
        self.num_basis, self.block_size = features.shape[1], block_size

    def forward(self, x, columns=None):
        return self.features[x[:, 0].long()][:, columns]

    def mean_column_square(self):
        return self.features.square().mean()

    def precision_diagonal(self, columns=None):
        return torch.ones(self.num_basis if columns is None else columns.shape[0])


@pytest.mark.parametrize(("num_dense", "rows"), [(0, 1), (3, 5)])
def test_projection_does_not_drift_over_1000_adagrad_steps(num_dense, rows):
    generator = torch.Generator().manual_seed(0)
    basis = Stored(torch.randn(20, 24, generator=generator), 4)
    family = ChevronWeights(6, 4, num_dense) if num_dense else MeanFieldWeights(6, 4)
    control = ControlVariate(rows, 1.0, drift_interval=0)
    control.start(basis, family, torch.zeros(0, 4), torch.arange(20.0)[:, None], generator)
    optimiser = torch.optim.Adagrad(family.parameters(), lr=0.1)
    want = torch.randn(20, generator=generator)
    first = control.projection.clone()
    for _ in range(1000):
        i, j = (torch.randint(6, (2,), generator=generator) for _ in range(2))
        pair = torch.cat((i, j))
        factors = factor_rows(family, pair, sparse=True)
        fitted = basis.features.detach()[:, basis.columns_of(pair)] @ factors
        loss = (fitted[:, 0] - want).square().sum() + fitted[:, 1:].square().sum()
        loss = loss + control.correction(basis, family, pair, factors, loss, 20)
        optimiser.zero_grad()
        (loss - family.log_dense_diagonal().sum()).backward()
        optimiser.step()
        control.after_step(basis, family, torch.zeros(0, 4))
    assert control.steps == 1000
    assert (control.projection - first).norm() > 1.0
    assert control.check_drift(basis, family, torch.zeros(0, 4)) < 1e-10


def test_projection_is_tracked_with_an_anchor_and_checked_on_time():
    model, x, y = problem(40, num_dense=3, warm_start=True)
    objective = start(model, x, y, columns=16, diagonal_columns=4, support_rows=20)
    objective.control.drift_interval = 10
    assert objective.anchor.shape[0] == model.group
    optimiser = torch.optim.Adagrad(model.parameter_groups()["variational"], lr=0.02)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        rows = torch.randint(60, (10,), generator=generator)
        optimiser.zero_grad()
        objective(model, x[rows], y[rows], generator=generator).backward()
        optimiser.step()
        objective.after_step(model)
    # the third check has just replaced the projection by the exact one
    assert objective.control.check_drift(model.basis, model.family, objective.anchor) == 0.0
    assert objective.control.projection.norm() > 0.1


def test_the_frozen_basis_follows_the_precision():
    model, x, y = problem(12)
    control = start(model, x, y, support_rows=7).control
    kept = control.frozen_basis(model.basis)
    assert control.frozen_basis(model.basis) is kept
    model.float(), control.float()
    assert {p.dtype for p in control.frozen_basis(model.basis).parameters()} == {torch.float32}


def test_adam_misuse_is_detected():
    model, x, y = problem(80)
    objective = start(model, x, y, columns=16, support_rows=20, drift_interval=20)
    optimiser = torch.optim.SGD(model.parameter_groups()["variational"], lr=1e-3, momentum=0.9)
    generator = torch.Generator().manual_seed(0)

    def steps():
        for _ in range(20):
            optimiser.zero_grad(set_to_none=False)
            loss = objective(model, x, y, generator=generator)
            loss.backward()
            for parameter in model.family.parameters():  # what a dense optimiser would see
                parameter.grad = parameter.grad.to_dense()
            optimiser.step()
            objective.after_step(model)
            optimiser.zero_grad()

    with pytest.raises(ConfigError, match="moved weights that were not sampled"):
        steps()


def variance(length, steps, left_out, **options):
    """Of evaluations at fixed weights, less the first ones."""
    model, x, y = problem(200, n=300, length=length)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        model.family.mean.copy_(torch.randn(model.family.mean.shape, generator=generator))
    objective = start(model, x, y, columns=40, **options)
    values = []
    for _ in range(steps):
        rows = torch.randint(300, (40,), generator=generator)
        values.append(objective(model, x[rows], y[rows], generator=generator).detach())
    return float(torch.stack(values[left_out:]).var())


@pytest.mark.parametrize("coefficient", [1.0, "auto"])
def test_control_variate_reduces_the_variance(coefficient):
    # smooth kernel, as many support rows as the mini-batch; measured 0.06 of the variance without
    without, found = (
        variance(2.0, 100, 40, support_rows=rows, coefficient=coefficient) for rows in (0, 200)
    )
    assert found < 0.3 * without


def test_auto_coefficient_shrinks_a_harmful_control_variate():
    # few support rows and a rough kernel: coefficient one hurts, auto must not
    without = variance(0.1, 200, 100, support_rows=0)
    one = variance(0.1, 200, 100, support_rows=3, coefficient=1.0)
    auto = variance(0.1, 200, 100, support_rows=3, coefficient="auto")
    assert one > 1.5 * without
    assert auto < 1.25 * without  # sample variances of 100 heavy-tailed values


def test_auto_coefficient_is_the_regression_of_the_steps_before():
    model, x, y = problem(12, num_dense=2)
    randomise(model)
    one = start(model, x, y, support_rows=7).control
    auto = start(model, x, y, support_rows=7, coefficient="auto").control
    generator = torch.Generator().manual_seed(3)
    seen, used = [], []
    for k in range(6):
        for control in (one, auto):  # as after a step: the tracked expectation moves
            control.projection = control.projection * 1.1
        expected = 60 / 7 * one.projection.square().sum()
        pair = torch.randint(3, (4,), generator=generator)
        factors = factor_rows(model.family, pair, sparse=True)
        arguments = (model.basis, model.family, pair, factors)
        correction = one.correction(*arguments, torch.zeros(()), 60)
        # the target moves with half of the control variate, and by something of its own
        target = expected - 0.5 * correction.detach() * (1 + 0.1 * (-1) ** k)
        found = auto.correction(*arguments, target, 60)
        weight = MOMENT_DECAY ** torch.arange(len(seen)).flip(0)
        t, s = torch.tensor(seen).reshape(-1, 2).T
        covariance = (weight * t * s).sum() * weight.sum() - (weight * t).sum() * (weight * s).sum()
        variance = weight.sum() * (weight * s * s).sum()
        want = float(covariance / variance) if seen else 0.0
        atol = 1e-12 * float(correction.detach().abs())
        torch.testing.assert_close(found, want * correction, rtol=1e-10, atol=atol)
        seen.append((float((target - expected).detach()), float(-correction.detach())))
        used.append(want)
    assert all(0.1 < c < 0.9 for c in used[2:])  # inside the limits of 0 and 1


def test_options_are_checked():
    with pytest.raises(ConfigError, match="coefficient"):
        QuadruplyStochasticELBO(num_data=4, coefficient="best")
    with pytest.raises(ConfigError, match="support_rows=-1 must be at least 0"):
        QuadruplyStochasticELBO(num_data=4, support_rows=-1)
