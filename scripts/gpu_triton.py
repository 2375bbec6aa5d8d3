"""Part of the stage ``correctness``: every Triton kernel against float64 torch, on the device.

The kernels of a case compile for seconds, so cases are divided among processes. The tests compare
the same kernels in an interpreter, which shows neither races nor the rounding of tensor cores.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import torch
from gpu_machine import DTYPES, Machine, catch_errors, write_row
from torch import Tensor

from gpx.backends.radial_parts import RadialPart
from gpx.backends.triton import triton_fourier, triton_normals, triton_refusal, triton_tree
from gpx.bases.counter_random import standard_normals
from gpx.kernels import RBF
from gpx.operators import KernelMatrix

PROFILES = ("rbf", "matern12", "matern32", "matern52", "rational_quadratic")
PROCESSES = 8
ALLOWED = {"float64": 1e-10, "float32": 1e-4}
"""Largest accepted difference, relative to the largest entry of a result."""

Case = tuple[str, str, str, str]
"""Kind of kernel, its variant, dtype and precision."""


def cases() -> Iterator[Case]:
    """All of them; variants of the slower precisions compile the same code, so a few are enough."""
    for profile in PROFILES:
        yield "product and gradient", f"{profile}, square", "float32", "tf32x3"
    for variant in ("rbf, rectangular", "rational_quadratic, square"):
        yield "product and gradient", variant, "float32", "tf32x3" if "rbf" in variant else "ieee"
        yield "product and gradient", variant, "float64", "ieee"
    for variant in ("1 column", "17 columns", "1 column, seeded", "17 columns, seeded"):
        yield "Fourier passes", variant, "float32", "tf32x3"
    for variant in ("17 columns", "1 column, seeded"):
        yield "Fourier passes", variant, "float64", "ieee"
    yield "Fourier passes", "17 columns", "float32", "ieee"
    yield "normals", "two seeds", "float64", "ieee"
    for dtype in DTYPES:
        yield "products of eigenfunctions", "60 nodes", dtype, "ieee"


def triton_kernels(machine: Machine) -> None:
    """A row for every case, or one that says why there are none."""
    x = machine.normal(4, 2)
    refusal = triton_refusal(KernelMatrix.of(RBF(2).to(machine.device), x).entries)
    if refusal is not None:
        write_row("Triton kernels", passed=None, note=refusal)
        return
    if machine.is_gpu:
        passes_in_use(machine)
    tasks = [(case, str(machine.device), machine.quick) for case in cases()]
    if machine.quick:
        found = map(checked, tasks[::4])
        for row in found:
            write_row(**row)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes
    spawned = multiprocessing.get_context("spawn")
    with catch_errors("Triton kernels"), spawned.Pool(PROCESSES) as pool:
        for row in pool.imap_unordered(checked, tasks):
            write_row(**row)


def passes_in_use(machine: Machine) -> None:
    """Whether models take the kernels that no option asks for: all, on a device that can."""
    x = machine.normal(4, 2)
    with torch.no_grad():  # as in the forward pass of an autograd function
        used = {
            "Fourier features": triton_fourier(x),
            "normals": triton_normals(torch.arange(4, device=machine.device)),
            "products of eigenfunctions": triton_tree(x[:, 0]),
        }
    unused = [name for name, taken in used.items() if not taken]
    write_row("Triton passes in use", passed=not unused, note=", ".join(unused))


def checked(task: tuple[Case, str, bool]) -> dict[str, Any]:
    """The row of a case."""
    (kind, variant, dtype, precision), device, quick = task
    name = f"{kind}, {variant}, {dtype}, {precision}: off by, relative"
    run = {
        "product and gradient": product_and_gradient,
        "Fourier passes": fourier_passes,
        "normals": normals,
        "products of eigenfunctions": eigenfunctions,
    }[kind]
    try:
        off = run(variant, DTYPES[dtype], precision, Machine(device, quick, 60.0))
    except Exception as error:  # of any kind: the other cases may still work
        said = " ".join(str(error).split())[:200]
        return {"name": name, "passed": False, "note": f"{type(error).__name__}: {said}"}
    return {"name": name, "value": off, "passed": off <= ALLOWED[dtype]}


def difference(found: Tensor, known: Tensor) -> float:
    """Largest difference, relative to the largest entry; NaN counts as infinite."""
    off = (found.double() - known).abs().max() / known.abs().max().clamp(min=1e-30)
    return float(off.nan_to_num(torch.inf))


def product_and_gradient(
    variant: str, dtype: torch.dtype, precision: Any, machine: Machine
) -> float:
    """Products and all gradients; distances of some rows are zero."""
    from gpx.backends.triton.gradient import gradients, plain_gradients
    from gpx.backends.triton.product import Product, plain_product

    profile, shape = variant.split(", ")
    n1, n2 = machine.size(1000, 20), machine.size(700, 33)
    z1, z2 = machine.normal(n1, 8), machine.normal(n2, 8, seed=1)
    # differentiable profiles may be coincident off the diagonal
    z2[:5] = z1[:5] if profile in ("rbf", "rational_quadratic") else z2[:5]
    square = shape == "square"
    left = machine.normal(n1, 17, seed=2).to(dtype)
    right = machine.normal(n1 if square else n2, 17, seed=3).to(dtype)

    def part(kind: torch.dtype) -> RadialPart:
        one = (0.5 * z1).to(dtype).to(kind)
        other = one if square else (0.5 * z2).to(dtype).to(kind)
        scale, alpha = (torch.tensor(v, dtype=kind, device=machine.device) for v in (1.5, 2.0))
        return RadialPart(
            profile,  # type: ignore[arg-type]
            one,
            other,
            scale,
            alpha if profile == "rational_quadratic" else None,
        )

    own, wide = part(dtype), part(torch.float64)
    found = [Product(own, precision)(right), *gradients(own, left, right, precision)]
    known = [
        plain_product(wide, right.double()), *plain_gradients(wide, left.double(), right.double())
    ]  # fmt: skip
    pairs = [(a, b) for a, b in zip(found, known, strict=True) if a is not None and b is not None]
    # a scalar is a sum of terms of both signs, to be judged beside their size
    size = float(left.norm() * right.norm())
    offs = [difference(a, b) if b.ndim else float((a.double() - b).abs()) / size for a, b in pairs]
    return max(offs)


def fourier_passes(variant: str, dtype: torch.dtype, precision: Any, machine: Machine) -> float:
    """Products and moments; frequencies given, or generated inside for RBF and Matern 3/2."""
    from gpx.backends.triton import fourier

    n, count = machine.size(1000, 20), machine.size(3000, 40)
    columns = int(variant.split()[0])
    x = machine.normal(n, 8).to(dtype)
    weights = machine.normal(2, count, columns, seed=1).to(dtype)
    directions = machine.normal(n, columns, seed=2).to(dtype)
    made: list[Any] = [machine.normal(count, 8, seed=3).to(dtype)]
    if "seeded" in variant:
        addresses = torch.arange(count, device=machine.device) * 3
        unit = torch.linspace(0.2, 1.0, 8, dtype=dtype, device=machine.device)
        made = [fourier.SeededFrequencies(7, addresses, unit, freedom) for freedom in (0, 3)]
    offs = []
    for frequencies in made:
        given = frequencies if isinstance(frequencies, Tensor) else frequencies.materialise()
        # Student's t has heavy tails, whose large angles are rounded more
        near = x / max(1.0, 0.2 * float(given.abs().max()))
        known = near.double(), given.double()
        product = fourier.fourier_product(near, frequencies, weights, precision)
        offs.append(difference(product, fourier.plain_product(*known, weights.double())))
        moments = fourier.fourier_moments(near, frequencies, directions, precision)
        offs.append(difference(moments, fourier.plain_moments(*known, directions.double())))
    return max(offs)


def normals(variant: str, dtype: torch.dtype, precision: str, machine: Machine) -> float:
    """Counter-based normals, against those of the CPU; large addresses and seeds."""
    from gpx.backends.triton import normals as compiled

    rows = torch.arange(machine.size(100_000, 50)) * 7 + 2**33
    offs = []
    for seed in (7, 2**63 + 5):
        found = compiled.standard_normals(seed, rows.to(machine.device), 11, dtype)
        offs.append(difference(found.cpu(), standard_normals(seed, rows, 11)))
    return max(offs)


def eigenfunctions(variant: str, dtype: torch.dtype, precision: str, machine: Machine) -> float:
    """Products of eigenfunctions down a tree, and their gradient."""
    from gpx.backends.triton.tree import plain_tree, tree, tree_gradients

    nodes, ratios, n = 60, 9, machine.size(10_000, 50)
    draws = torch.Generator().manual_seed(0)
    parent = [0, *(int(torch.randint(k, (), generator=draws)) for k in range(1, nodes))]
    which = torch.randint(ratios, (nodes,), generator=draws)
    index = torch.tensor([parent, which.tolist()], dtype=torch.int32, device=machine.device)
    root = (1.0 + 0.1 * machine.normal(n)).to(dtype)
    ratio = (1.0 + 0.1 * machine.normal(ratios, n, seed=1)).to(dtype)
    weights = machine.normal(nodes, n, seed=2).to(dtype)
    leaves = [t.double().requires_grad_() for t in (root, ratio)]
    known = plain_tree(*leaves, *index)
    slopes = torch.autograd.grad(known, leaves, weights.double())
    found = tree(root, ratio, *index)
    ours = tree_gradients(ratio, *index, found, weights)
    pairs = zip((found, *ours), (known.detach(), *slopes), strict=True)
    return max(difference(a, b) for a, b in pairs)
