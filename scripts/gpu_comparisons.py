"""Stage of ``gpu_hour.py``: comparisons with GPyTorch on the same device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gpu_machine import (
    DTYPES,
    LENGTHSCALE,
    NOISE,
    Machine,
    backends,
    catch_errors,
    in_process,
    write_row,
)
from peers import Regression, Sparse, by_cholesky, product_by_rows, rbf
from timing import named
from torch import Tensor

from gpx.inference.exact_density import log_marginal_likelihood
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.linalg.replayed import EAGER_STEPS
from gpx.means import Zero
from gpx.methods.base.replayed_step import ReplayedStep
from gpx.models import SGPR, SVGP, Model
from gpx.objectives import SVGPELBO, CollapsedELBO, Objective
from gpx.operators import KernelMatrix


def peers(machine: Machine) -> None:
    """Kernel products, and one loss and gradient of SVGP, SGPR and the exact GP."""
    sizes = (1000,) if machine.quick else (36_000, 100_000, 391_000)
    cases = tuple((n, columns) for n in sizes for columns in (1, 16))
    keops: dict[tuple[int, int], float] = {}
    if "keops" in backends(machine):
        with catch_errors("products by KeOps"):
            # a fault of code that KeOps compiled would end this process
            keops = in_process(keops_products, (str(machine.device), machine.quick, cases))
    for n, columns in cases:
        products(machine, n, columns, keops.get((n, columns)))
    for dtype in DTYPES.values():
        svgp_step(machine, dtype)
        sgpr_step(machine, dtype)
        for n in (300,) if machine.quick else (10_000, 36_000):
            exact_step(machine, dtype, n)


def keops_products(task: tuple[str, bool, Sequence[tuple[int, int]]]) -> dict[Any, float]:
    """Milliseconds of the products of all sizes."""
    device, quick, cases = task
    machine = Machine(device, quick, 60.0)
    return {case: product_ms(machine, "keops", *case) for case in cases}


def products(machine: Machine, n: int, columns: int, keops: float | None) -> None:
    """Products of K and a block by every backend, and by GPyTorch in blocks of rows."""
    peer, peer_name = None, "GPyTorch, by rows"
    with catch_errors(f"GPyTorch's product, n = {n:,}"):
        x, right = machine.normal(n, 8), machine.normal(n, columns, seed=1)
        step = product_by_rows(x, right, rbf(8, LENGTHSCALE))
        peer = 1e3 * machine.seconds(step, 3)
        del x, right, step
    for backend in backends(machine):
        if backend == "dense" and n > 60_000:
            continue
        name = f"product, n = {n:,}, {columns} columns, {backend}"
        if machine.left() < 20:
            write_row(name, passed=None, note="no time left")
            continue
        with catch_errors(name):
            found = keops if backend == "keops" else product_ms(machine, backend, n, columns)
            write_row(name, value=found, unit="ms", peer=peer, peer_name=peer_name)


def product_ms(machine: Machine, backend: str, n: int, columns: int) -> float:
    """Milliseconds of a product by a backend."""
    x, right = machine.normal(n, 8), machine.normal(n, columns, seed=1)
    kernel = RBF(8, lengthscale=LENGTHSCALE).to(machine.device).requires_grad_(False)
    matrix = KernelMatrix.of(kernel, x, backend=backend, memory_budget=2**34)  # type: ignore[arg-type]
    return 1e3 * machine.seconds(lambda: matrix @ right, 3)


def loss_and_gradient(
    model: torch.nn.Module, objective: torch.nn.Module, x: Tensor, y: Tensor
) -> Callable[[], object]:
    """Loss and gradient of one step, without the optimiser."""

    def step() -> None:
        model.zero_grad()
        objective(model, x, y).backward()

    return step


def parts() -> dict[str, Any]:
    """Kernel, mean and likelihood of all comparisons, for 8 inputs."""
    return {
        "kernel": RBF(8, lengthscale=LENGTHSCALE),
        "mean": Zero(),
        "likelihood": Gaussian(NOISE),
        "num_inputs": 8,
    }


def svgp_step(machine: Machine, dtype: torch.dtype) -> None:
    """SVGP with 512 inducing points and 1,024 rows; peer: GPyTorch's large-batch strategy."""
    size, batch = machine.size(512, 16), machine.size(1024, 64)
    name = f"SVGP-{size}, {batch:,} rows, {named(dtype)}"
    with catch_errors(name):
        z = machine.normal(size, 8, dtype=dtype)
        x, y = machine.normal(batch, 8, dtype=dtype, seed=1), machine.normal(batch, dtype=dtype)
        model = SVGP(**parts(), num_inducing=size).to(machine.device, dtype)
        model.place(z)
        found = machine.seconds(loss_and_gradient(model, SVGPELBO(36_000), x, y), 20)
        sparse = Sparse(z, rbf(8, LENGTHSCALE), NOISE, large_batch=True)
        peer = 1e3 * machine.seconds(sparse.step(x, y, 36_000), 20)
        write_row(name, value=1e3 * found, unit="ms", peer=peer, peer_name="GPyTorch, large batch")
        if machine.is_gpu:  # training replays steps
            name = f"{name}, replayed"
            with catch_errors(name):
                peers_own = {"peer": peer, "peer_name": "GPyTorch, large batch"}
                replayed(machine, name, model, SVGPELBO(36_000), x, y, peers_own)


def replayed(
    machine: Machine,
    name: str,
    model: Model,
    objective: Objective,
    x: Tensor,
    y: Tensor,
    peer: dict[str, Any],
) -> None:
    """The same step replayed from a CUDA graph; passes if its loss is that of the plain step."""

    def loss_of(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        found = objective.evidence(model, x, y)
        return objective.loss(found, model, x), dict(found.parts)

    step = ReplayedStep(loss_of, list(model.parameters()))
    losses = [float(step(x, y)[0]) for _ in range(EAGER_STEPS)]
    began = time.perf_counter()
    losses.append(float(step(x, y)[0]))
    making = 1e3 * (time.perf_counter() - began)
    found = machine.seconds(lambda: step(x, y), 20)
    same = step.replays > 0 and abs(losses[-1] - losses[0]) <= 1e-5 * abs(losses[0])
    note = step.given_up or f"{step.replays} replays; the recording took {making:.0f} ms"
    write_row(name, value=1e3 * found, unit="ms", passed=same, note=note, **peer)


def sgpr_step(machine: Machine, dtype: torch.dtype) -> None:
    """SGPR with 512 inducing points and 36,000 rows."""
    n, m = machine.size(36_000, 300), machine.size(512, 16)
    name = f"SGPR-{m}, n = {n:,}, {named(dtype)}"
    with catch_errors(name):
        x, y = machine.normal(n, 8, dtype=dtype), machine.normal(n, dtype=dtype, seed=2)
        model = SGPR(**parts(), num_inducing=m).to(machine.device, dtype)
        model.initialise(x, y, generator=torch.Generator(machine.device).manual_seed(0))
        found = machine.seconds(loss_and_gradient(model, CollapsedELBO(), x, y))
        seconds = machine.seconds(Regression(x, y, rbf(8, LENGTHSCALE), NOISE, x[:m]).step())
        peer = {"peer": 1e3 * seconds, "peer_name": "GPyTorch"}
        write_row(name, value=1e3 * found, unit="ms", **peer)
        if machine.is_gpu:  # training replays evaluations
            name = f"{name}, replayed"
            with catch_errors(name):
                replayed(machine, name, model, CollapsedELBO(), x, y, peer)


def exact_step(machine: Machine, dtype: torch.dtype, n: int) -> None:
    """Evidence and gradient of the exact GP by Cholesky."""
    name = f"exact GP, n = {n:,}, {named(dtype)}"
    if machine.left() < 20:
        write_row(name, passed=None, note="no time left")
        return
    with catch_errors(name):
        x, y = machine.normal(n, 8, dtype=dtype), machine.normal(n, dtype=dtype, seed=2)
        kernel = RBF(8, lengthscale=LENGTHSCALE).to(machine.device, dtype)
        noise = x.new_tensor(NOISE)
        found = machine.seconds(
            lambda: log_marginal_likelihood(kernel, x, y, noise, gradient=True), 3
        )
        peer = None
        if n <= 10_000:  # autograd through a factor holds several arrays of n x n
            step = Regression(x, y, rbf(8, LENGTHSCALE), NOISE).step(by_cholesky)
            peer = machine.seconds(step, 3)
        write_row(name, value=found, unit="s", peer=peer, peer_name="GPyTorch, Cholesky")
