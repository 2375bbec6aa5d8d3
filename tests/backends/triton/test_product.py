"""Triton's kernel-matrix products and derivatives against dense float64, under its interpreter."""

import math

import pytest
import torch
from triton_cases import (
    PRECISIONS,
    error,
    points,
    rounding,
    skip_without_interpreter,
    tensor_core_products,
    truncate_dots,
)

skip_without_interpreter()
pytestmark = pytest.mark.triton

from gpx.backends.radial_parts import RadialPart  # noqa: E402
from gpx.backends.triton.blocks import Blocks  # noqa: E402
from gpx.backends.triton.factors import (  # noqa: E402
    distance_factors,
    halves,
    packed,
    scaled_halves,
)
from gpx.backends.triton.gradient import _row_sums, gradients, plain_gradients  # noqa: E402
from gpx.backends.triton.product import Product, plain_product  # noqa: E402
from gpx.kernels import RBF, Matern12, Matern32, Matern52, RationalQuadratic  # noqa: E402

KERNELS = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational_quadratic": RationalQuadratic,
}
SMALL = Blocks(16, 16, 4, 2)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Fresh memory holds NaN, so that reading what was never written shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


def parts(profile, dtype, n1, n2, inputs):
    """The same part in a dtype and in float64; square where n2 is None. Row 0 meets a copy."""
    together = points(n1 + (n2 or 0), inputs).to(dtype)
    z1, z2 = together[:n1], None if n2 is None else together[n1:].clone()
    if z2 is not None and n2:
        z2[0] = z1[-1]
    found = []
    for kind in (dtype, torch.float64):
        one = z1.to(kind)
        shape = torch.tensor(1.3, dtype=dtype).to(kind) if profile == "rational_quadratic" else None
        scale = torch.tensor(1.7, dtype=dtype).to(kind)
        found.append(RadialPart(profile, one, one if z2 is None else z2.to(kind), scale, shape))
    return found


def draw(rows, columns, dtype, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(dtype)


def dense(profile, part):
    """The matrix by the package's own kernel."""
    more = {} if part.shape is None else {"alpha": float(part.shape)}
    kernel = KERNELS[profile](part.z1.shape[1], 1.0, float(part.scale), **more).double()
    return kernel.evaluate(part.z1, None if part.square else part.z2).detach()


@pytest.mark.parametrize("profile", KERNELS)
def test_twins_are_the_kernels(profile):
    for n2 in (9, None):
        _, part = parts(profile, torch.float64, 7, n2, 3)
        right = draw(part.z2.shape[0], 2, torch.float64)
        assert error(plain_product(part, right), dense(profile, part) @ right) < 1e-13


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
@pytest.mark.parametrize("profile", KERNELS)
def test_products_of_square_and_rectangular_matrices(profile, dtype, precision):
    for n1, n2, inputs, columns in ((33, None, 3, 5), (17, 34, 8, 17), (35, 16, 1, 1)):
        part, reference = parts(profile, dtype, n1, n2, inputs)
        right = draw(part.z2.shape[0], columns, dtype)
        found, limit = Product(part, precision, SMALL)(right), rounding(part.z1, part.z2)
        assert found.dtype == dtype
        assert error(found, plain_product(reference, right.double())) < limit


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
@pytest.mark.parametrize("profile", KERNELS)
def test_gradients_for_coordinates_scale_and_shape(profile, dtype, precision):
    for n1, n2, inputs, columns in ((33, None, 3, 5), (17, 34, 8, 17), (20, 7, 1, 1)):
        part, reference = parts(profile, dtype, n1, n2, inputs)
        left, right = draw(n1, columns, dtype), draw(part.z2.shape[0], columns, dtype, seed=4)
        limit = rounding(part.z1, part.z2)
        found = gradients(part, left, right, precision, blocks=SMALL)
        known = plain_gradients(reference, left.double(), right.double())
        assert (found.z2 is None) == (n2 is None)
        assert (found.shape is None) == (profile != "rational_quadratic")
        size = (left.double().abs().sum() * right.double().abs().sum()) / n1
        for ours, twin in zip(found, known, strict=True):
            if ours is not None and ours.ndim:
                assert error(ours, twin) < 2 * limit
            elif ours is not None:  # a sum of terms of both signs
                assert abs(float(ours) - float(twin)) < limit * size
        fewer = gradients(part, left, right, precision, coordinates=False, blocks=SMALL)
        assert fewer.z1 is None
        assert fewer.z2 is None
        assert torch.equal(fewer.scale, found.scale)


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
@pytest.mark.parametrize("n1", [1, 15, 16, 17, 32])
def test_every_edge_of_the_tiles(n1, dtype, precision):
    """Rows, columns and vectors one short of a tile, one tile, one more; shares that stay empty."""
    for n2, columns, splits in ((None, 1, 1), (1, 16, 2), (15, 15, 1), (31, 17, 5), (65, 65, 3)):
        part, reference = parts("matern52", dtype, n1, n2, 2)
        right = draw(part.z2.shape[0], columns, dtype)
        blocks = Blocks(16, 16, 4, 2, splits=splits)
        found, limit = Product(part, precision, blocks)(right), rounding(part.z1, part.z2)
        assert error(found, plain_product(reference, right.double())) < limit
        left = draw(n1, columns, dtype, seed=4)
        ours = gradients(part, left, right, precision, blocks=blocks).z1
        twin = plain_gradients(reference, left.double(), right.double()).z1
        size = max(float(twin.abs().max()), 1.0)
        assert float((ours.double() - twin).abs().max()) < 2 * limit * size


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
def test_tiles_of_unequal_sides_and_the_widths_of_many_inputs(dtype, precision):
    for blocks, inputs in ((Blocks(32, 16, 4, 2), 14), (Blocks(16, 32, 4, 2), 40)):
        part, reference = parts("rbf", dtype, 50, None, inputs)
        small = RadialPart("rbf", part.z1 / 4, part.z1 / 4, part.scale)
        z = small.z1.double()
        small = RadialPart("rbf", small.z1, small.z1, small.scale)
        twin = RadialPart("rbf", z, z, reference.scale)
        right = draw(50, 3, dtype)
        found, limit = Product(small, precision, blocks)(right), rounding(small.z1)
        assert error(found, plain_product(twin, right.double())) < limit
        ours = gradients(small, right, right, precision, blocks=blocks).z1
        known = plain_gradients(twin, right.double(), right.double()).z1
        assert error(ours, known) < 2 * limit


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
@pytest.mark.parametrize("profile", KERNELS)
def test_the_diagonal_is_exact_and_coincident_rows_have_no_slope(profile, dtype, precision):
    part, _ = parts(profile, dtype, 18, None, 3)
    far = RadialPart(profile, part.z1 + 300.0, part.z1 + 300.0, part.scale, part.shape)
    far = RadialPart(profile, far.z1, far.z1, part.scale, part.shape)
    identity = torch.eye(18, dtype=dtype)
    matrix = Product(far, precision, SMALL)(identity)
    assert torch.equal(matrix.diagonal(), part.scale.expand(18))
    same = part.z1[:1].expand(20, 3).contiguous()
    coincident = RadialPart(profile, same, same.clone(), part.scale, part.shape)
    ones = torch.ones(20, 1, dtype=dtype)
    found = gradients(coincident, ones, ones, precision, blocks=SMALL)
    if profile in ("rbf", "rational_quadratic", "matern12"):
        assert error(Product(coincident, precision, SMALL)(ones), 34.0 * ones.double()) < 1e-6
        limit = 100 * rounding(part.z1)
        assert profile == "matern12" or float(found.z1.abs().max()) < limit


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
@pytest.mark.parametrize("profile", KERNELS)
def test_distances_beyond_the_range_of_exponentials_give_no_nan(profile, dtype, precision):
    z = torch.tensor([[0.0], [60.0], [1e5]], dtype=dtype)
    shape = torch.tensor(2.0, dtype=dtype) if profile == "rational_quadratic" else None
    part = RadialPart(profile, z, z.clone(), torch.ones((), dtype=dtype), shape)
    ones = torch.ones(3, 1, dtype=dtype)
    assert Product(part, precision, SMALL)(ones).isfinite().all()
    found = gradients(part, ones, ones, precision, blocks=SMALL)
    assert all(t.isfinite().all() for t in found if t is not None)


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
@pytest.mark.parametrize("profile", KERNELS)
def test_nan_stays_nan(profile, dtype, precision):
    """The minimum of a GPU drops NaN: a lengthscale that diverged must not give numbers."""
    part, _ = parts(profile, dtype, 5, 4, 2)
    part.z1[2, 1] = torch.nan
    ones = torch.ones(5, 1, dtype=dtype)
    found = Product(part, precision, SMALL)(ones[:4])
    assert found.isnan().flatten().tolist() == [False, False, True, False, False]
    assert gradients(part, ones, ones[:4], precision, blocks=SMALL).z1[2].isnan().all()


def test_columns_of_very_different_sizes_keep_their_own_precision():
    part, reference = parts("rbf", torch.float32, 20, None, 3)
    right = draw(20, 4, torch.float32) * torch.tensor([1e-30, 1.0, 1e30, 0.0])
    found, limit = Product(part, "tf32x3", SMALL)(right), rounding(part.z1)
    twin = plain_product(reference, right.double())
    for column in range(3):
        assert error(found[:, column], twin[:, column]) < limit
    assert not found[:, 3].any()
    assert Product(part, "tf32x3", SMALL)(right * 1e-40).isfinite().all()
    right[3, 1] = torch.nan
    assert Product(part, "tf32x3", SMALL)(right)[:, 1].isnan().all()


def test_small_kernel_values_keep_their_digits():
    """Values of 1e-7 are float16 numbers of few bits unless they are lifted first."""
    z1, z2 = torch.zeros(1, 1), torch.full((1, 1), math.sqrt(2 * 16.0))
    part = RadialPart("rbf", z1, z2, torch.ones(()))
    found = Product(part, "tf32x3", SMALL)(torch.ones(1, 1))
    assert float(found) == pytest.approx(math.exp(-16.0), rel=3e-6)


def test_sums_over_many_tiles_do_not_gather_truncation(monkeypatch):
    """Tensor cores truncate sums, so that thousands of positive terms would come out too small."""
    truncate_dots(monkeypatch)
    z = 0.1 * draw(1200, 2, torch.float32)
    part = RadialPart("rbf", z[:16], z, torch.ones(()))
    right = 1.0 + draw(1200, 1, torch.float32, seed=4).abs()
    known = plain_product(
        RadialPart("rbf", z[:16].double(), z.double(), part.scale), right.double()
    )
    assert error(Product(part, "tf32x3", SMALL)(right), known) < 7e-7
    moments, _, _ = _row_sums(part, torch.ones(16, 1), right, "tf32x3", True, SMALL)
    assert error(moments[:, 2:], -0.5 * known) < 7e-7  # the slope of the profile is -k / 2


@pytest.mark.parametrize("inputs", [1, 3, 8, 20, 40])
def test_coincident_rows_have_no_distance_where_sums_are_truncated(inputs):
    """The square root of Matern 1/2 would turn a distance of rounding into a thousandth."""
    z = 2.0 * draw(500, inputs, torch.float32)
    factors = distance_factors(z, z.clone(), 1.0, "tf32x3")
    found = tensor_core_products(*factors) / z.double().square().sum(1)
    assert float(found.max()) <= 0.0
    assert float(found.min()) > -16.0 * torch.finfo(torch.float32).eps


def test_empty_matrices_and_no_vectors():
    part = RadialPart("rbf", torch.zeros(0, 2), torch.zeros(3, 2), torch.ones(()))
    assert Product(part, "tf32x3")(torch.ones(3, 2)).shape == (0, 2)
    assert not Product(part.transposed(), "tf32x3")(torch.ones(0, 2)).any()
    found = gradients(part, torch.ones(0, 2), torch.ones(3, 2), "tf32x3")
    assert found.z1.shape == (0, 2)
    assert not found.z2.any()
    assert float(found.scale) == 0.0


def test_halves_have_eleven_bits_and_make_products_right_to_float32_rounding():
    values = draw(200, 1, torch.float32) * 1e3
    high, low = halves(values)
    for half in (high, low):
        assert not (half.view(torch.int32) & ((1 << 13) - 1)).any()
    assert float(((high.double() + low - values) / values).abs().max()) <= 2.0**-22
    left, right = values[:100].mT.contiguous(), values[100:].mT.contiguous()
    product = (
        packed(left, "tf32x3", left=True).double() @ packed(right, "tf32x3", left=False).double().mT
    )
    exact = left.double() @ right.double().mT
    size = left.double().abs() @ right.double().abs().mT
    assert float(((product - exact).abs() / size).max()) < 2.0**-20
    high, low, scale = scaled_halves(values, 2048.0)
    back = scale.double() * (high.double() + low.double() / 2048.0)
    assert float((back - values.double()).abs().max() / values.abs().max()) < 2.0**-22
