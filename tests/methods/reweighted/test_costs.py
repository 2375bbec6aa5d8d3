"""Counted operations of an evaluation with its gradient, over the size of the basis."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.methods.reweighted.evidence import joint_density
from gpx.methods.reweighted.state import reweighted_form

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "dot", "mv", "addmv")
NORMS = ("linalg_vector_norm", "linalg_matrix_norm")
FACTORISATIONS = ("linalg_", "_linalg_", "cholesky", "qr", "geqrf", "orgqr", "ormqr", "lu_")
"""Beginnings of the names of all operations that take their size to the third power."""


class Work(TorchDispatchMode):
    """Multiply-adds of products and factorisations, and numbers that other operations touch."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.is_view:  # of no cost
            return out
        name = func.overloadpacket.__name__
        tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        work = max((t.numel() for t in tensors), default=0)
        if name.rstrip("_") in PRODUCTS:
            factors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)][-2:]
            work = factors[0].numel() * (factors[1].shape[-1] if factors[1].ndim > 1 else 1)
        elif name.startswith(FACTORISATIONS) and name not in NORMS:
            work = tensors[0].numel() * max((t.shape[-1] for t in tensors[:2] if t.ndim), default=1)
        self.total += work
        return out


def statistics(m):
    """Of 2 m rows."""
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(2 * m, m, generator=generator, dtype=torch.float64)
    y = torch.randn(2 * m, generator=generator, dtype=torch.float64)
    return SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, 2 * m)


def work(structure, m):
    """Of one evaluation, when those before have done what is done once."""
    form = reweighted_form(statistics(m), structure)
    position = torch.zeros(form.num_weights + 1, dtype=torch.float64)
    if structure == "householder":
        position[m:-1] = 0.1 / math.sqrt(m)
    joint_density(form, None, position)
    with Work() as counted:
        joint_density(form, None, position)
    return counted.total


@pytest.mark.parametrize(
    ("structure", "power"), [("orthogonal", 1), ("householder", 2), ("diagonal", 3)]
)
def test_cost_grows_with_the_power_that_is_stated(structure, power):
    """From 384 to 768 functions; lower orders of m leave a tenth of a power."""
    growth = math.log2(work(structure, 768) / work(structure, 384))
    assert growth == pytest.approx(power, abs=0.25)
    if structure != "diagonal":
        assert growth < power + 0.05


@pytest.mark.parametrize("structure", ["orthogonal", "householder", "diagonal"])
def test_cost_does_not_depend_on_the_number_of_rows(structure):
    known = statistics(40)
    counts = []
    for num_data in (80, 10**9):
        few = SufficientStatistics(known.gram, known.projected, known.squared, num_data)
        form = reweighted_form(few, structure)
        position = torch.zeros(form.num_weights + 1, dtype=torch.float64)
        with Work() as counted:
            joint_density(form, None, position)
        counts.append(counted.total)
    assert counts[0] == counts[1]
