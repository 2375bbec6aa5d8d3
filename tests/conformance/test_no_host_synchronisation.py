"""Stochastic steps and products never wait for the device, and never mix devices.

Tensors on the ``meta`` device have shapes and no data: whatever reads a value back (``float``,
``item``, boolean indexing, ``nonzero``) fails on them, and so does a tensor left on the CPU. What
passes here therefore runs on an accelerator without a hidden synchronisation, and needs none to be
tested.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from gpx.bases import RandomFourier
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Bernoulli, Gaussian, Laplace, Softmax
from gpx.means import Zero
from gpx.models import CNN, CNNGP, QSGP
from gpx.objectives import QuadruplyStochasticELBO, SampledELBO, SiteBoundELBO
from gpx.operators import KernelMatrix, KhatriRao, Kronecker, LowRankPlusDiagonal, Toeplitz

META = torch.device("meta")
N, D, ROWS = 200, 3, 50


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=META, requires_grad=True)


def test_reading_a_value_back_is_noticed():
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(numbers(3).sum())
    with pytest.raises(RuntimeError):
        numbers(3) + torch.ones(3)


@pytest.mark.parametrize("kernel", [RBF, Matern32])
@pytest.mark.parametrize("covariance", ["mean_field", "chevron"])
@pytest.mark.parametrize("coefficient", [1.0, "auto"])
def test_quadruply_stochastic_step(kernel, covariance, coefficient):
    model = QSGP(
        kernel=kernel(ard_num_dims=D),
        mean=Zero(),
        likelihood=Gaussian(),
        num_basis=1000,
        covariance=covariance,
        num_dense=3 if covariance == "chevron" else 0,
        basis=partial(RandomFourier, block_frequencies=5),
    ).to(META)
    objective = QuadruplyStochasticELBO(N, columns=100, coefficient=coefficient).to(META)
    step(model, objective)


@pytest.mark.parametrize("likelihood", [Bernoulli, Laplace])
def test_site_bound_step(likelihood):
    model = QSGP(
        kernel=RBF(ard_num_dims=D),
        mean=Zero(),
        likelihood=likelihood(),
        num_basis=1000,
        basis=partial(RandomFourier, block_frequencies=5),
    ).to(META)
    step(model, SiteBoundELBO(N, columns=100).to(META))


def step(model: QSGP, objective: QuadruplyStochasticELBO | SiteBoundELBO) -> None:
    x, y = numbers(N, D).detach(), numbers(N).detach()
    objective.prepare(model, x, y, generator=torch.Generator())
    rows = torch.randint(N, (ROWS,), device=META)
    for _ in range(2):
        objective.before_step(model, x, y, rows)
        evidence = objective.evidence(model, x[rows], y[rows], generator=torch.Generator())
        (-evidence.value / N).backward()
        objective.after_step(model)
    assert evidence.value.device == META
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None or not parameter.requires_grad, name


@pytest.mark.parametrize(
    "make",
    [
        CNN,
        partial(CNN, dropout=True),
        CNNGP,
        partial(CNNGP, depth=2, width=3),
        partial(CNNGP, frequencies="learned_signs"),
        partial(CNNGP, backbone="resnet", blocks=1),
        partial(CNNGP, backbone="alexnet"),
    ],
)
def test_steps_of_networks(make):
    model = make(likelihood=Softmax(3), num_inputs=64, num_features=8).to(META)
    x, y = numbers(ROWS, 64).detach(), torch.zeros(ROWS, device=META)
    evidence = SampledELBO(N).evidence(model, x, y)
    (-evidence.value / N).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None or not parameter.requires_grad, name


@pytest.mark.parametrize("backend", ["dense", "chunked"])
def test_kernel_products(backend):
    kernel, x = RBF(ard_num_dims=D).to(META), numbers(N, D)
    (KernelMatrix.of(kernel, x, backend=backend) @ numbers(N, 2)).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (N, D)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Toeplitz(numbers(20)),
        lambda: Kronecker(numbers(5, 5), numbers(4, 4)),
        lambda: KhatriRao(numbers(20, 3), numbers(20, 4)),
        lambda: LowRankPlusDiagonal(numbers(20, 3), numbers(20)),
    ],
    ids=["Toeplitz", "Kronecker", "KhatriRao", "LowRankPlusDiagonal"],
)
def test_structured_products(build):
    operator = build()
    (operator @ numbers(operator.shape[-1], 2)).sum().backward()
