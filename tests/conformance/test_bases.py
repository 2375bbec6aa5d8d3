"""The contract of bases: any columns on demand, blocks, products, a weight prior, gradients."""

import pytest
import torch
from copies import copies
from public_classes import public_classes

from gpx import bases
from gpx.bases.closed_forms import Radial, Waves
from gpx.kernels import RBF, ArcCosine, Matern32

D = 2


def rbf():
    return RBF(D, [0.7, 1.1], 1.3).double()


def centres():
    return torch.randn(12, D, generator=torch.Generator().manual_seed(2)).double()


def started(basis):
    x = torch.randn(40, D, generator=torch.Generator().manual_seed(3)).double()
    basis.start(x, x[:, 0], torch.tensor(0.1), generator=torch.Generator().manual_seed(5))
    return basis


def placed(cls, **options):
    found = cls(rbf(), **options).double()
    found.place(centres())
    return found


REGISTRY = {
    "RandomFourier": lambda: bases.RandomFourier(rbf(), 24, block_frequencies=3).double(),
    "RandomFourier wide": lambda: bases.RandomFourier(
        Matern32(D, 0.8).double(), 24, block_frequencies=3, spread=[1.0, 4.0]
    ).double(),
    "OrthogonalFourier": lambda: bases.OrthogonalFourier(rbf(), 24, block_frequencies=4).double(),
    "StructuredOrthogonalFourier": lambda: bases.StructuredOrthogonalFourier(
        rbf(), 24, block_frequencies=4
    ).double(),
    "FastfoodFourier": lambda: bases.FastfoodFourier(rbf(), 24, block_frequencies=4).double(),
    "ArcCosineFeatures": lambda: bases.ArcCosineFeatures(
        ArcCosine(1, D, [0.7, 1.1], 1.3).double(), 24, D, block_columns=4
    ).double(),
    "ArcCosineFeatures orthogonal": lambda: bases.ArcCosineFeatures(
        ArcCosine(2, D, [0.7, 1.1], 1.3).double(), 24, D, directions="orthogonal", block_columns=4
    ).double(),
    "QuasiMonteCarloFourier": lambda: bases.QuasiMonteCarloFourier(
        rbf(), 24, block_frequencies=3
    ).double(),
    "GaussHermiteFourier": lambda: bases.GaussHermiteFourier(
        rbf(), 36, block_frequencies=6
    ).double(),
    "ImportanceWeightedFourier": lambda: bases.ImportanceWeightedFourier(
        rbf(), 24, num_inputs=D
    ).double(),
    "InterpolatedGrid": lambda: placed(bases.InterpolatedGrid, num_inputs=D, num_basis=49),
    "LaplacianEigenfunctions": lambda: placed(
        bases.LaplacianEigenfunctions, num_inputs=D, num_basis=12, boundary=3.0, block_columns=4
    ),
    "KernelDictionary": lambda: bases.KernelDictionary(
        rbf(), centres(), block_size=4, precision=2.0
    ).double(),
    "InducingPoints": lambda: bases.InducingPoints(rbf(), centres()).double(),
    "GridEigenfunctions": lambda: placed(bases.GridEigenfunctions, num_inputs=D, num_basis=12),
    "GridFeatures": lambda: placed(bases.GridFeatures, num_inputs=D, num_basis=12, block_columns=4),
    "TrainingPoints": lambda: started(bases.TrainingPoints(rbf(), 12, D, 40).double()),
}
NAMES = sorted(REGISTRY)
DENSE = ("InducingPoints", "InterpolatedGrid", "TrainingPoints")
DIAGONAL = [name for name in NAMES if name not in DENSE]
"""Bases whose prior precision is diagonal."""
FIXED = ("ImportanceWeightedFourier", "InterpolatedGrid", "LaplacianEigenfunctions")
FORMLESS = (
    "ArcCosineFeatures",
    "ArcCosineFeatures orthogonal",
    "InducingPoints",
    "InterpolatedGrid",
    "TrainingPoints",
)
LEARNS = [name for name in NAMES if name not in FIXED]
"""Bases whose features move with the kernel; with the others the prior carries it instead."""


def inputs(n=9):
    return 0.7 * torch.randn(n, D, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("name", REGISTRY)
def test_a_start_passes_on_whether_time_is_spent(name, monkeypatch):
    """What is written for one basis asks the parent's start, whose search must end in time, too."""
    basis, passed = REGISTRY[name](), []

    def start(self, x, residual, noise, *, generator, spent=bases.base.never):
        passed.append(spent)
        self.place(x)
        return ""

    def spent() -> bool:
        return True

    monkeypatch.setattr(bases.base.Basis, "start", start)
    x = torch.randn(40, D, generator=torch.Generator().manual_seed(3)).double()
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():
        basis.start(x, x[:, 0], torch.tensor(0.1).double(), generator=draws, spent=spent)
    assert all(one is spent for one in passed)


def test_every_public_basis_is_listed():
    public = public_classes(bases, bases.Basis)
    assert public == {name.split()[0] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_any_columns_are_those_of_the_whole(name):
    basis, x = REGISTRY[name](), inputs()
    whole = basis(x)
    assert whole.shape == (9, basis.num_basis)
    columns = torch.tensor([3, 0, 7, 3])
    torch.testing.assert_close(basis(x, columns), whole[:, columns], rtol=1e-12, atol=1e-13)


def evaluated(form, x):
    """The functions of a closed form at x (n, d), written out."""
    if isinstance(form, Waves):
        turned = x @ form.turns.mT + form.start
        return form.amplitude * (2.0 * torch.pi * turned).cos()
    if isinstance(form, Radial):
        square = (form.rate * x.unsqueeze(1) - form.centres).square().sum(-1)
        return form.amplitude * form.profile(square)
    each = form.functions(x.clamp(form.low, form.high))
    chosen = each[torch.arange(x.shape[1]), form.which]  # (m, d, n)
    return form.amplitude * chosen.prod(1).mT


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_form_gives_the_functions(name):
    basis, x = REGISTRY[name](), inputs().clamp(-0.5, 0.5)  # a grid ends with its nodes
    form = basis.closed_form(D)
    if form is None:
        assert name in FORMLESS
        return
    torch.testing.assert_close(evaluated(form, x), basis(x), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_partition_the_columns(name):
    basis, x = REGISTRY[name](), inputs()
    assert basis.num_blocks * basis.block_size == basis.num_basis
    blocks = torch.tensor([1, 0]) if basis.num_blocks > 1 else torch.tensor([0])
    torch.testing.assert_close(
        basis.block_features(x, blocks),
        basis(x)[:, basis.columns_of(blocks)],
        rtol=1e-9,
        atol=1e-12,
    )


@pytest.mark.parametrize("name", NAMES)
def test_products_with_selected_blocks(name):
    basis, x = REGISTRY[name](), inputs()
    blocks = torch.arange(basis.num_blocks).flip(0)[:3]
    phi = basis(x)[:, basis.columns_of(blocks)]
    generator = torch.Generator().manual_seed(4)
    weights = torch.randn(phi.shape[1], 2, generator=generator).double()
    direction = torch.randn(9, 2, generator=generator).double()
    selected = basis.selected(blocks, x)
    close = {"rtol": 1e-9, "atol": 1e-11}
    kept = []
    torch.testing.assert_close(selected.products(x, weights, kept), phi @ weights, **close)
    total, product = selected.form(x, weights, direction)
    torch.testing.assert_close(total, (direction * (phi @ weights)).sum(), **close)
    torch.testing.assert_close(product, phi @ weights, **close)
    torch.testing.assert_close(selected.column_squares(x), phi.square().sum(0), **close)
    moved = phi @ weights
    selected.carry(moved, kept[0], weights)
    torch.testing.assert_close(moved, 2.0 * phi @ weights, **close)


@pytest.mark.parametrize("name", DIAGONAL)
def test_the_prior_precision_is_positive_and_subsets_are_consistent(name):
    basis = REGISTRY[name]()
    whole = basis.precision_diagonal()
    assert whole.shape == (basis.num_basis,)
    assert (whole > 0.0).all()
    columns = torch.tensor([2, 5, 0])
    torch.testing.assert_close(basis.precision_diagonal(columns), whole[columns])


@pytest.mark.parametrize("name", LEARNS)
def test_features_are_differentiable_in_the_hyperparameters(name):
    basis, x = REGISTRY[name](), inputs(4)
    parameters = [p for p in basis.kernel.parameters() if p.requires_grad]
    direction = torch.randn(4, basis.num_basis, generator=torch.Generator().manual_seed(1)).double()

    def value():
        # products of features, which signs of eigenvectors leave alone
        phi = basis(x)
        return ((phi @ phi.mT) * direction[:, :4]).sum()

    found = torch.autograd.grad(value(), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, found, strict=True):
        gradient = torch.zeros_like(parameter) if gradient is None else gradient
        for i in range(parameter.numel()):
            step = 1e-5
            with torch.no_grad():
                flat = parameter.view(-1)
                kept = flat[i].item()
                flat[i] = kept + step
                above = value()
                flat[i] = kept - step
                below = value()
                flat[i] = kept
            want = (above - below) / (2.0 * step)
            torch.testing.assert_close(gradient.reshape(-1)[i], want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_no_global_draws_and_the_same_basis_again(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = REGISTRY[name]()(inputs())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    basis = REGISTRY[name]()
    for again in (basis, *copies(basis)):
        assert torch.equal(again(inputs()), first)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_are_no_matrix_are_refused(name):
    with pytest.raises(Exception, match=r"shape|inputs|matrix") as error:
        REGISTRY[name]()(torch.zeros(5, dtype=torch.float64))
    assert type(error.value).__module__ == "gpx.errors"
