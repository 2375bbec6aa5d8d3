"""Triton's passes over Fourier features against float64, interpreted."""

import pytest
import torch
from triton_cases import PRECISIONS, error, points, skip_without_interpreter, truncate_dots

skip_without_interpreter()
pytestmark = pytest.mark.triton


import gpx.backends.triton.availability as availability  # noqa: E402
from gpx.backends.triton.blocks import Blocks  # noqa: E402
from gpx.backends.triton.fourier import (  # noqa: E402
    fourier_moments,
    fourier_product,
    plain_moments,
    plain_product,
)
from gpx.backends.triton.frequencies import SeededFrequencies  # noqa: E402
from gpx.bases.counter_random import standard_normals  # noqa: E402
from gpx.bases.fourier import products, sweep  # noqa: E402
from gpx.bases.fourier.products import FourierForm, FourierProducts, FourierSquares  # noqa: E402
from gpx.kernels import RBF, Matern12, Matern32, Matern52  # noqa: E402
from gpx.linalg.matmul import set_matmul  # noqa: E402


def problem(n, count, inputs, columns, dtype):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return draw(n, inputs), draw(count, inputs), draw(2, count, columns), draw(n, columns)


def limit(x, frequencies):
    """Rounding of an angle, a sum over its terms, moves a wave by as much."""
    largest = float((x.double().abs() @ frequencies.double().abs().T).max())
    return 2.0 * torch.finfo(x.dtype).eps * (1.0 + largest)


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
@pytest.mark.parametrize(
    ("n", "count", "inputs", "columns", "splits"),
    [
        (1, 1, 1, 1, 1),
        (16, 33, 3, 1, 2),
        (33, 16, 8, 5, 1),
        (17, 40, 17, 33, 3),
        (31, 15, 2, 16, 5),
    ],
)
def test_products_and_moments_at_every_edge(n, count, inputs, columns, splits, dtype, precision):
    x, frequencies, weights, directions = problem(n, count, inputs, columns, dtype)
    blocks = Blocks(16, 16, 4, 2, splits=splits)
    wide = [t.double() for t in (x, frequencies, weights, directions)]
    found = fourier_product(x, frequencies, weights, precision, blocks)
    assert found.dtype == dtype
    assert error(found, plain_product(*wide[:3])) < limit(x, frequencies)
    found = fourier_moments(x, frequencies, directions, precision, blocks)
    assert error(found, plain_moments(*wide[:2], wide[3])) < limit(x, frequencies)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [RBF, Matern12, Matern32, Matern52])
def test_frequencies_made_inside_are_those_of_the_kernel(kernel, dtype):
    kernel = kernel(3, [0.6, 1.0, 1.7]).double()
    freedom = kernel.num_spectral_normals(3) - 3
    indices = torch.arange(20) * 7 + 2**33
    frequencies = kernel.spectral_frequencies(standard_normals(9, indices, 3 + freedom)).detach()
    made = SeededFrequencies(9, indices, 1.0 / kernel.lengthscale.detach().to(dtype), freedom)
    assert error(made.materialise(), frequencies) < 4 * torch.finfo(dtype).eps
    x, _, weights, directions = problem(21, 20, 3, 1, dtype)
    x = x / frequencies.abs().max()  # Matern frequencies have heavy tails
    wide = [t.double() for t in (x, weights, directions)]
    blocks = Blocks(16, 16, 4, 2)
    allowed = 4 * limit(x, frequencies)
    found = fourier_product(x, made, weights, blocks=blocks)
    assert error(found, plain_product(wide[0], frequencies, wide[1])) < allowed
    several = weights.expand(2, 20, 3)
    found = fourier_product(x, made, several, blocks=blocks)
    assert error(found, plain_product(wide[0], frequencies, several.double())) < allowed
    found = fourier_moments(x, made, directions, blocks=blocks)
    assert error(found, plain_moments(wide[0], frequencies, wide[2])) < allowed


def test_sums_over_many_tiles_do_not_gather_truncation(monkeypatch):
    truncate_dots(monkeypatch)
    few = problem(16, 1, 1, 3, torch.float32)[0]
    many, values = (
        0.1 * few[:1].expand(1200, 1),
        1.0 + torch.rand(1200, 3, generator=torch.Generator().manual_seed(1)),
    )
    few, blocks = 0.1 * few, Blocks(16, 16, 4, 2)  # small angles: cosines are near one
    weights = torch.stack((values, torch.zeros_like(values)))
    known = plain_product(few.double(), many.double(), weights.double())
    assert error(fourier_product(few, many, weights, "tf32x3", blocks), known) < 7e-7
    known = plain_moments(many.double(), few.double(), values.double())[0]
    assert error(fourier_moments(many, few, values, "tf32x3", blocks)[0], known) < 7e-7


def test_nothing_to_sum():
    x, frequencies, weights, directions = problem(3, 4, 2, 1, torch.float32)
    assert fourier_product(x[:0], frequencies, weights).shape == (0, 1)
    assert not fourier_product(x, frequencies[:0], weights[:, :0]).any()
    assert not fourier_moments(x[:0], frequencies, directions[:0]).any()
    assert fourier_moments(x, frequencies, directions[:, :0]).shape == (2, 4, 0)


@pytest.fixture
def asked():
    """A function that asks for a precision of float32 products, as a run does."""
    yield set_matmul
    set_matmul(None)


def test_products_are_rounded_as_the_run_asked_for(asked):
    x, frequencies, weights, direction = problem(9, 7, 2, 3, torch.float32)
    found = {}
    for precision in ("ieee", "tf32x3", "tf32", None):
        asked(precision)
        found[precision] = (
            fourier_product(x, frequencies, weights),
            fourier_moments(x, frequencies, direction),
        )
    for precision in ("ieee", "tf32x3"):
        product = fourier_product(x, frequencies, weights, precision)
        moments = fourier_moments(x, frequencies, direction, precision)
        assert torch.equal(found[precision][0], product)
        assert torch.equal(found[precision][1], moments)
    assert not torch.equal(found["ieee"][0], found["tf32x3"][0])
    for other in ("tf32", None):  # plain TF32 is never for angles
        assert all(map(torch.equal, found[other], found["tf32x3"]))


def by_triton(monkeypatch):
    """From here on products with features are taken by Triton's passes."""
    for module in (products, sweep):
        monkeypatch.setattr(module, "triton_fourier", lambda x: True)
        monkeypatch.setattr(module, "fourier_pass", lambda x: None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 3])
def test_the_package_s_products_and_gradients_on_these_passes(columns, dtype, monkeypatch):
    """Values and gradients of all autograd functions, by Triton and in float64 torch."""
    made = problem(9, 7, 2, columns, torch.float64)
    found = []
    for kind in (dtype, torch.float64):
        if kind is dtype and not found:
            by_triton(monkeypatch)
        else:
            monkeypatch.undo()
        x, frequencies, weights, direction = (t.to(kind).clone().requires_grad_() for t in made)
        scale = torch.tensor(0.7, dtype=kind, requires_grad=True)
        product = FourierProducts.apply(x, frequencies, scale, weights, None)
        value, again = FourierForm.apply(x, frequencies, scale, weights, direction, None)
        squares = FourierSquares.apply(x, frequencies, scale)
        (product.cos().sum() + 2.0 * value + squares.sqrt().sum()).backward()
        leaves = x, frequencies, weights, direction, scale
        results = (product, value[None], again, squares)
        found.append([t.detach() for t in results] + [t.grad for t in leaves])
    for ours, reference in zip(*found, strict=True):
        assert reference.abs().max() > 1e-3
        assert error(ours, reference) < 4 * limit(*(t.to(dtype) for t in made[:2]))


def test_features_are_not_kept_where_a_pass_makes_them_again(monkeypatch):
    by_triton(monkeypatch)
    x, frequencies, weights, _ = problem(9, 7, 2, 1, torch.float64)
    weights.requires_grad_()
    product = FourierProducts.apply(x, frequencies, torch.ones((), dtype=x.dtype), weights, None)
    assert all(t is None or t.shape != (2, 7, 9) for t in product.grad_fn.saved_tensors)


def test_the_trial_passes_and_never_takes_a_cpu():
    assert availability.fourier_trial_error(torch.device("cpu"), torch.float32, 3) < 1e-6
    assert not availability.triton_fourier(points(3, 2))
