"""Small grids with gaps, and dense algebra to compare with."""

from __future__ import annotations

import dataclasses

import torch

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.methods.grid.axes import CartesianGrid, GriddedRows
from gpx.models import ExactGP, GapOptions, GridGP

SIZES = (5, 6, 4)


def draw(share=0.65, sizes=SIZES, seed=0):
    """Rows in random order on a grid with uneven axes, and targets."""
    generator = torch.Generator().manual_seed(seed)
    axes = [torch.rand(m, generator=generator).double().sort().values for m in sizes]
    whole = torch.cartesian_prod(*axes)
    order = torch.randperm(len(whole), generator=generator)[: round(share * len(whole))]
    y = torch.randn(len(order), generator=generator).double()
    return whole, whole[order].contiguous(), y


def stations():
    """17 of 24 rows: four places in the plane, three times, two outputs; and targets."""
    generator = torch.Generator().manual_seed(2)
    place = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    rows = [[*p.tolist(), h, o] for p in place for h in (0.0, 1.0, 2.5) for o in (0.0, 1.0)]
    x = torch.tensor(rows, dtype=torch.float64)[torch.randperm(24, generator=generator)[:17]]
    return x, torch.randn(17, generator=generator, dtype=torch.float64)


def parts(d=3, noise=0.05, kernel=None):
    """Kernel, mean and likelihood as arguments."""
    kernel = RBF(d, [0.3, 0.5, 0.4][:d], 1.7) if kernel is None else kernel
    return {
        "kernel": kernel.double(),
        "mean": Constant().double(),
        "likelihood": Gaussian(noise).double(),
    }


def with_solver(**options):
    """Arguments of a grid model of which the solver's are gathered in one object."""
    names = {field.name for field in dataclasses.fields(GapOptions)}
    solver = {name: options.pop(name) for name in names & set(options)}
    return options | {"solver": GapOptions(**solver)}


def pair(d=3, noise=0.05, kernel=None, **options):
    """A grid model and a dense one that share their parameters."""
    shared = parts(d, noise, kernel)
    options = {"tolerance": 1e-12} | options
    return GridGP(**shared, **with_solver(**options)).double(), ExactGP(**shared).double()


def system_of(share, noise=0.05):
    """The system of a grid, a share of it observed, and its dense K_XX + sigma^2 I."""
    _, x, _ = draw(share)
    model, exact = pair(noise=noise)
    rows = model.gridded(x)
    with torch.no_grad():
        system = model.system(rows, model.axis_kernels(rows).matrices(rows.grid))
        eye = torch.eye(len(x), dtype=x.dtype)
        matrix = exact.kernel.evaluate(x) + system.noise * eye
    return system, matrix


def scattered(*shape):
    """One for observed cells, zero for a share of them (the last argument) at random."""
    *shape, share = shape
    flags = torch.ones(*shape)
    order = torch.randperm(flags.numel(), generator=torch.Generator().manual_seed(0))
    flags.view(-1)[order[: round(share * flags.numel())]] = 0.0
    return flags


def masked(flags):
    """Rows on a grid of which ``flags`` are observed."""
    axes = [torch.linspace(0.0, 1.0, m, dtype=torch.float64) for m in flags.shape]
    grid = CartesianGrid(tuple(a.unsqueeze(1) for a in axes), tuple((i,) for i in range(len(axes))))
    observed = flags.reshape(-1) > 0
    cells, gaps = observed.nonzero().squeeze(1), (~observed).nonzero().squeeze(1)
    return GriddedRows(grid, cells, gaps)
