"""Every route of the log-determinant on grids with gaps."""

import grid_problems
import pytest
import torch
from grid_problems import masked, scattered, system_of

from gpx.errors import ConfigError, DataError
from gpx.methods.grid import logdet as grid_logdet
from gpx.methods.grid import system as grid_system
from gpx.methods.grid.axes import CartesianGrid, GriddedRows
from gpx.methods.grid.gaps import GapOptions
from gpx.methods.grid.gcv import inverse_trace
from gpx.methods.grid.logdet import choose_logdet
from gpx.methods.grid.logdet import grid_logdet as logdet_of
from gpx.methods.grid.system import GridSystem
from gpx.objectives import GridMLL

OPTIONS = GapOptions(tolerance=1e-12)


@pytest.mark.parametrize(
    ("route", "rank"), [("slq_fill", None), ("slq_ignore", 0), ("slq_ignore", 20)]
)
def test_quadrature_and_its_gradient_are_exact_over_all_unit_probes(route, rank, monkeypatch):
    """sqrt(n) e_1 ... sqrt(n) e_n average to the trace itself: the estimators are unbiased."""
    system, _ = system_of(0.6)
    count = system.num_gaps if route == "slq_fill" else system.num_observed

    def units(system, rows, probes, generator):
        assert rows == probes == count
        return rows**0.5 * torch.eye(rows, dtype=torch.float64)

    monkeypatch.setattr(grid_logdet, "_probes", units)
    options = GapOptions(tolerance=1e-13, precondition_rank=rank)
    found = logdet_of(system, route, options, probes=count)
    want, slopes = grid_logdet._dense_observed(system)
    torch.testing.assert_close(found.value, want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.gradient.noise, slopes.noise, rtol=1e-8, atol=0)
    for ours, dense in zip(found.gradient.factors, slopes.factors, strict=True):
        both = dense + dense.mT
        torch.testing.assert_close(ours + ours.mT, both, rtol=1e-7, atol=1e-8 * float(both.max()))


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_the_identity_over_the_gaps_is_exact(share, monkeypatch):
    system, matrix = system_of(share)
    want = torch.linalg.slogdet(matrix).logabsdet
    inverse = torch.linalg.inv(matrix)
    for points in (1500, 0):  # over the observed cells; over the gaps where they are fewer
        monkeypatch.setattr(grid_system, "DENSE_POINTS", points)
        monkeypatch.setattr(grid_system, "BLOCK_NUMBERS", 1000)
        found = logdet_of(system, "dense", OPTIONS)
        torch.testing.assert_close(found.value, want, rtol=1e-9, atol=0)
        torch.testing.assert_close(found.gradient.noise, inverse.trace(), rtol=1e-8, atol=0)
    value, slopes = grid_logdet._dense_gaps(system)
    torch.testing.assert_close(value, want, rtol=1e-9, atol=0)
    _, want_slopes = grid_logdet._dense_observed(system)
    for ours, dense in zip(slopes.factors, want_slopes.factors, strict=True):
        # factors are symmetric: only the symmetric part of a derivative means anything
        torch.testing.assert_close(ours + ours.mT, dense + dense.mT, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("route", ["slq_fill", "slq_ignore"])
def test_quadrature_is_within_its_error_bars(route):
    system, matrix = system_of(0.6)
    found = logdet_of(system, route, OPTIONS, probes=60, generator=torch.Generator().manual_seed(1))
    want = torch.linalg.slogdet(matrix).logabsdet
    assert 0.0 < float(found.standard_error) < 5.0
    assert abs(float(found.value - want)) < 3.0 * float(found.standard_error)


@pytest.mark.parametrize(("theta", "noise"), [(0.1, 1e-2), (0.2, 1e-2), (0.2, 1e-6)])
def test_nystrom_estimate_at_half_gaps(theta, noise):
    """Below one per cent on 50 x 50 cells; exact without gaps."""
    axis = torch.linspace(0.0, 1.0, 50, dtype=torch.float64)
    factor = torch.exp(-(((axis[:, None] - axis) / theta) ** 2))
    grid = CartesianGrid((axis[:, None], axis[:, None]), ((0,), (1,)))
    order = torch.randperm(2500, generator=torch.Generator().manual_seed(0))
    for gaps in (1250, 0):
        rows = GriddedRows(grid, order[gaps:], order[:gaps].sort().values)
        system = GridSystem([factor, factor], torch.tensor(noise).double(), rows)
        found = float(logdet_of(system, "nystrom", OPTIONS).value)
        whole = torch.kron(factor, factor)[order[gaps:]][:, order[gaps:]]
        whole.diagonal().add_(system.noise)
        want = float(torch.linalg.slogdet(whole).logabsdet)
        assert found == pytest.approx(want, rel=1e-2 if gaps else 1e-9)


def test_eigenvalues_that_tie_share_the_places_left():
    """Identity factors: all eigenvalues equal; N of M of them, and the derivative is fair."""
    eye = torch.eye(4, dtype=torch.float64)
    grid = CartesianGrid((eye[:, :1], eye[:, :1]), ((0,), (1,)))
    order = torch.arange(16)
    rows = GriddedRows(grid, order[6:], order[:6])
    system = GridSystem([eye, eye], torch.tensor(0.5, dtype=torch.float64), rows)
    found = logdet_of(system, "nystrom", OPTIONS)
    share = 10 / 16
    assert float(found.value) == pytest.approx(
        10 * torch.tensor(share + 0.5).log().item(), rel=1e-6
    )
    want = share / (share + 0.5) * 10 / 16 * 4 * eye
    torch.testing.assert_close(found.gradient.factors[0], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("route", ["slq_fill", "slq_ignore"])
def test_probes_in_blocks_give_the_same(route, monkeypatch):
    """Where the grid is so large that a few columns fill memory."""
    system, _ = system_of(0.6)
    found = []
    for numbers in (2**25, 1, 3 * system.size):
        monkeypatch.setattr(grid_system, "BLOCK_NUMBERS", numbers)
        generator = torch.Generator().manual_seed(1)
        found.append(logdet_of(system, route, OPTIONS, probes=7, generator=generator))
        if route == "slq_ignore":
            continue
        generator = torch.Generator().manual_seed(1)
        trace = inverse_trace(system, "hutchinson", OPTIONS, probes=7, generator=generator)
        assert trace.report.converged
    for other in found[1:]:
        torch.testing.assert_close(other.value, found[0].value, rtol=1e-10, atol=0)
        torch.testing.assert_close(other.standard_error, found[0].standard_error, rtol=1e-8, atol=0)
        for a, b in zip(other.gradient.factors, found[0].gradient.factors, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_routes_are_chosen_by_size_and_by_what_is_missing():
    assert choose_logdet("auto", masked(torch.ones(60, 60))) == "full"
    assert choose_logdet("auto", masked(scattered(40, 40, 0.5))) == "dense"
    few = torch.ones(60, 60)
    few[20:30, 20:30] = 0.0
    assert choose_logdet("auto", masked(few)) == "dense"  # one hundred gaps among 3600 cells
    assert choose_logdet("auto", masked(scattered(70, 70, 0.5))) == "nystrom"
    block = torch.ones(70, 70)
    block[10:60, 10:59] = 0.0
    assert choose_logdet("auto", masked(block)) == "slq_fill"
    stripes = scattered(70, 70, 0.0)
    stripes[torch.randperm(70, generator=torch.Generator().manual_seed(0))[:35]] = 0.0
    assert choose_logdet("auto", masked(stripes)) == "slq_fill"  # whole lines, in random places
    nearly = torch.zeros(300, 300)
    nearly[50:100, 50:90] = 1.0
    assert choose_logdet("auto", masked(nearly)) == "slq_ignore"
    assert choose_logdet("slq_fill", masked(scattered(6, 6, 0.5))) == "slq_fill"
    with pytest.raises(ConfigError, match="expected one of auto, nystrom"):
        GridMLL("nystroem")
    with pytest.raises(ConfigError, match="probes=0"):
        GridMLL(probes=0)
    _, x, y = grid_problems.draw(0.6)
    model, exact = grid_problems.pair()
    with pytest.raises(ConfigError, match="needs GridGP, or a model with options and gridded"):
        GridMLL().check(exact)
    with pytest.raises(DataError, match="targets are not finite"):
        GridMLL().evidence(model, x, y * torch.nan)


def test_dense_routes_of_a_float32_system_are_computed_in_float64():
    flags = torch.ones(12, 12)
    flags[3:9, 3:9] = 0.0
    rows = masked(flags)
    axis = torch.linspace(0.0, 1.0, 12)
    factor = (-0.5 * ((axis[:, None] - axis) / 0.1).square()).exp()
    system = GridSystem([factor, factor], torch.tensor(1e-3), rows)
    matrix = torch.kron(factor.double(), factor.double())[rows.cells][:, rows.cells]
    matrix.diagonal().add_(system.noise.double())
    want = torch.linalg.slogdet(matrix).logabsdet
    for route in (grid_logdet._dense_observed, grid_logdet._dense_gaps):
        value, slopes = route(system)
        assert abs(float(value - want)) < 1e-9
        torch.testing.assert_close(slopes.noise, matrix.inverse().trace().float())
        assert slopes.factors[0].dtype == torch.float32
