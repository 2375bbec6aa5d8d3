"""Eigenfunctions of a grid that lies over some data, and their series there."""

from gpx.bases import GridEigenfunctions, GridOptions
from gpx.bases.grid_eigenfunctions.polynomials import column_polynomials


def placed(kernel, x, p, **options):
    basis = GridEigenfunctions(kernel.double(), x.shape[1], p, GridOptions(**options))
    basis.place(x)
    return basis


def series_of(basis, x):
    modes = basis.modes()
    single = basis.sizes == 1
    return column_polynomials(basis.factors, basis.nodes, single, modes.transforms, x)
