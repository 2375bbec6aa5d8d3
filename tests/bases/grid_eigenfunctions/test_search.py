"""The search for lengthscales before training: its evidence, its moves, what it must not touch."""

import math

import pytest
import torch
from torch.nn.utils import parametrize

from gpx.bases import GridEigenfunctions, GridOptions
from gpx.bases.grid_eigenfunctions import search as grief_search
from gpx.bases.grid_eigenfunctions.data_pass import feature_sums
from gpx.bases.grid_eigenfunctions.search import evidence_at_ratio, search_lengthscales
from gpx.errors import ConfigError
from gpx.kernels import RBF, Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import GRIEF

DOUBLE = torch.float64


def data(n=80, d=4):
    """Only the first two of d inputs matter."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator, dtype=DOUBLE)
    noise = 0.05 * torch.randn(n, generator=generator, dtype=DOUBLE)
    return x, (1.5 * x[:, 0]).sin() * x[:, 1] + noise


def basis_of(x, p, **options):
    basis = GridEigenfunctions(
        RBF(outputscale=None, **options).double(), x.shape[1], p, GridOptions()
    )
    basis.place(x)
    return basis


def run(basis, x, y, sweeps=3):
    return search_lengthscales(basis, x, y, 0.1, sweeps, generator=torch.Generator())


@torch.no_grad()
@pytest.mark.parametrize("p", [5, 60])  # fewer and more functions than rows
def test_evidence_at_a_ratio_is_the_dense_one_at_its_best_outputscale(p):
    x, y = data(30, 2)
    basis = basis_of(x, p)
    sums = feature_sums(basis, basis.modes(), x, y)
    features = basis(x)

    def dense(outputscale, ratio):
        matrix = features @ features.mT + ratio * torch.eye(30, dtype=DOUBLE)
        quadratic = y @ torch.linalg.solve(outputscale * matrix, y)
        logdet = torch.logdet(outputscale * matrix)
        return float(-0.5 * (quadratic + logdet + 30 * math.log(2 * math.pi)))

    for ratio in (1e-3, 0.5):
        matrix = features @ features.mT + ratio * torch.eye(30, dtype=DOUBLE)
        best = float(y @ torch.linalg.solve(matrix, y)) / 30
        got = evidence_at_ratio(sums, ratio)
        assert got == pytest.approx(dense(best, ratio), rel=1e-9)
        assert got > max(dense(0.9 * best, ratio), dense(1.1 * best, ratio))


@torch.no_grad()
def test_a_ratio_below_rounding_is_never_the_best():
    x, y = data(30, 2)
    basis = basis_of(x, 60)  # more functions than rows: without noise the sums are singular
    sums = feature_sums(basis, basis.modes(), x, y)
    assert evidence_at_ratio(sums, 1e-300) == -math.inf


@torch.no_grad()
def test_inputs_that_do_not_matter_lose_their_share_of_the_functions():
    x, y = data()
    basis = basis_of(x, 20, ard_num_dims=4, lengthscale=[1.0, 1.5, 2.0, 2.0])
    basis.select()
    before = (basis.index > 0).sum(0)
    found = run(basis, x, y)
    assert found.gain > 0.1
    assert found.evaluations > 8
    lengthscale = basis.kernel.lengthscale
    assert lengthscale[2:].min() > 4.0 * lengthscale[:2].max()
    basis.select()
    after = (basis.index > 0).sum(0)
    assert after[2:].sum() < before[2:].sum()
    assert after[:2].sum() > before[:2].sum()
    # every move is a power of two, and the grid still resolves what was found
    steps = torch.log2(lengthscale / torch.tensor([1.0, 1.5, 2.0, 2.0], dtype=DOUBLE))
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-5)
    assert (lengthscale >= basis.resolved_lengthscales(x)).all()


@torch.no_grad()
def test_a_shared_lengthscale_moves_as_one_and_a_fixed_one_stays():
    x, y = data(d=2)
    shared = basis_of(x, 20, lengthscale=6.0)
    assert run(shared, x, y).gain > 0.0
    assert shared.kernel.lengthscale.ndim == 0
    assert shared.kernel.lengthscale < 4.0
    fixed = basis_of(x, 20, lengthscale=8.0)
    parametrize.remove_parametrizations(fixed.kernel, "lengthscale")
    assert run(fixed, x, y).evaluations == 0
    assert float(fixed.kernel.lengthscale.detach()) == pytest.approx(8.0)


@torch.no_grad()
def test_a_choice_of_functions_is_left_alone_and_a_start_without_gain_stays():
    x, y = data(60)
    basis = basis_of(x, 15, ard_num_dims=4)
    run(basis, x, y)
    basis.select()
    kept, best = basis.index.clone(), basis.kernel.lengthscale.clone()
    ratio = best_ratio(basis, x, y)
    again = search_lengthscales(basis, x, y, ratio, 1, generator=torch.Generator())
    assert torch.equal(basis.index, kept)
    assert again.gain < 0.1
    assert ((basis.kernel.lengthscale - best).abs() > 1e-9).sum() <= 1


@torch.no_grad()
def test_lengthscales_stay_above_their_floor_where_every_value_is_a_node():
    # no two of few rows share their values, so that the target is best explained row by row
    x = torch.arange(9, dtype=DOUBLE)[:, None].expand(9, 2) * 1e-3
    y = (-1.0) ** torch.arange(9, dtype=DOUBLE)
    basis = basis_of(x, 9, ard_num_dims=2, lengthscale=1e-3)
    assert basis.resolved_lengthscales(x).max() == 0.0
    run(basis, x, y, sweeps=30)
    span = 8e-3
    assert (basis.kernel.lengthscale >= 1e-3 * span).all()


def best_ratio(basis, x, y):
    sums = feature_sums(basis, basis.leading_modes(), x, y)
    ratios = [2.0**k for k in range(-20, 5)]
    return max(ratios, key=lambda ratio: evidence_at_ratio(sums, ratio))


def model_of(**options):
    return GRIEF(
        kernel=RBF(ard_num_dims=4),
        mean=Zero(),
        likelihood=Gaussian(),
        num_inputs=4,
        num_eigenfunctions=20,
        **options,
    ).double()


def test_the_model_searches_before_it_trains_and_says_so():
    x, y = data()
    model, plain = model_of(), model_of(search_sweeps=0)
    for each in (model, plain):
        each.initialise(x, y, generator=torch.Generator())
    assert "sets of lengthscales compared" in model.note
    assert "sets of lengthscales compared" not in plain.note
    torch.testing.assert_close(plain.kernel.lengthscale, torch.ones(4, dtype=DOUBLE))
    with pytest.raises(ConfigError, match="search_sweeps counts rounds"):
        model_of(search_sweeps=-1)


@torch.no_grad()
def test_a_start_that_explains_nothing_says_what_to_try():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator, dtype=DOUBLE)
    y = torch.randn(60, generator=generator, dtype=DOUBLE)  # nothing to be found at all
    model = model_of(search_sweeps=0)
    model.initialise(x, y, generator=torch.Generator())
    assert "explain nothing of the targets" in model.note
    assert "lengthscale=2.0" in model.note
    model.initialise(x, x[:, 0], generator=torch.Generator())
    assert "explain nothing" not in model.note


@torch.no_grad()
def test_an_input_of_few_values_far_apart_loses_its_multiples_of_the_functions():
    x, y = data(200, 3)
    x[:, 2] = 0.0
    x[0, 2], x[1, 2] = 90.0, -90.0  # three nodes, of equal eigenvalues at a lengthscale of one
    basis = basis_of(x, 30, ard_num_dims=3)
    basis.select()
    assert (basis.index[:, 2] > 0).sum() == 20  # each function three times
    doubled = basis.kernel.lengthscale.clone()
    doubled[2] *= 8.0
    found = run(basis, x, y, 1)
    assert found.gain > 0.1
    assert basis.kernel.lengthscale[2] >= 90.0
    basis.select()
    assert (basis.index[:, 2] > 0).sum() < 10
    # eight times as long was no way there: nothing changes before the nodes feel each other
    again = basis_of(x, 30, ard_num_dims=3)
    again.kernel.lengthscale = doubled
    again.select()
    assert (again.index[:, 2] > 0).sum() == 20


@torch.no_grad()
def test_no_sweep_begins_after_the_most_evaluations(monkeypatch):
    x, y = data()
    start = {"ard_num_dims": 4, "lengthscale": [1.0, 1.5, 2.0, 2.0]}
    single, free = basis_of(x, 20, **start), basis_of(x, 20, **start)
    one, several = run(single, x, y, 1), run(free, x, y, 9)
    assert several.evaluations > one.evaluations
    monkeypatch.setattr(grief_search, "MAX_EVALUATIONS", one.evaluations)
    bounded = basis_of(x, 20, **start)
    assert run(bounded, x, y, 9) == one
    torch.testing.assert_close(bounded.kernel.lengthscale, single.kernel.lengthscale)


def test_a_search_ends_at_the_best_so_far_when_it_is_told():
    """After k evidences it stands where the best of them is, which more of them only raise."""
    x, y = data()
    whole = basis_of(x, 20, ard_num_dims=4)
    found = run(whole, x, y)
    gains = []
    for most in (0, 3, found.evaluations):
        basis, ends = basis_of(x, 20, ard_num_dims=4), iter([False] * most + [True] * 999)
        cut = search_lengthscales(
            basis,
            x,
            y,
            0.1,
            3,
            generator=torch.Generator(),
            spent=ends.__next__,
        )
        assert cut.evaluations == min(most + 1, found.evaluations)
        gains.append(cut.gain)
    assert gains[0] == 0.0
    assert gains == sorted(gains)
    assert gains[-1] == found.gain
    assert torch.equal(basis.kernel.lengthscale, whole.kernel.lengthscale)


def test_lengthscales_of_periodic_parts_are_not_compared_with_distances():
    x = torch.linspace(0.0, 1000.0, 60, dtype=DOUBLE)[:, None]
    kernel = Periodic(1, lengthscale=0.7, period=400.0).double()
    basis = GridEigenfunctions(kernel, 1, 20, GridOptions(points_per_dim=20))
    basis.place(x)
    assert float(basis.resolved_lengthscales(x)) > 10.0
    assert basis.raise_lengthscales(x) == []
    least, longest = grief_search._limits(basis, x)
    assert float(least) < 0.01
    assert 100.0 < float(longest) < 1e4
    assert float(kernel.lengthscale.detach()) == pytest.approx(0.7)
