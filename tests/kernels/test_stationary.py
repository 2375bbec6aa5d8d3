"""What the stationary base promises: exact diagonals, accuracy, subclasses in one method."""

import copy
import itertools

import numpy as np
import pytest
import torch

from gpx.errors import ConfigError, GPXError, ShapeError
from gpx.inference.batched_covariance import batched_covariances
from gpx.kernels import (
    RBF,
    AxisProduct,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Stationary,
)
from gpx.kernels.fused import squared_distance
from gpx.kernels.mercer import mercer_spectrum

pytestmark = pytest.mark.usefixtures("float64_by_default")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("d", [1, 8, 100])
def test_squared_distance_error_is_a_few_epsilon_of_the_radius(d):
    x, z = draw(200, d), draw(150, d, seed=1)
    direct = ((x[:, None] - z[None]) ** 2).sum(-1)
    radius = x.square().sum(1)[:, None] + z.square().sum(1)[None]
    for dtype in (torch.float64, torch.float32):
        found = squared_distance(x.to(dtype), z.to(dtype))
        # inputs are rounded to dtype as well: two epsilon more
        bound = 12 * torch.finfo(dtype).eps * radius
        assert (found.double() - direct).abs().le(bound).all()
        assert (found >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 8, 100])
def test_coincident_rows_of_two_sets_are_at_distance_zero(d, dtype):
    x = draw(500, d).to(dtype)
    assert (squared_distance(x, x.clone()).diagonal() == 0).all()


@pytest.mark.parametrize("kernel", [RBF, Matern12, Matern32, Matern52])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_diagonal_is_the_outputscale_to_the_last_bit_far_from_the_origin(kernel, dtype):
    k = kernel(3, 0.5, 1.7).to(dtype)
    x = (draw(300, 3) + 1e3).to(dtype)
    assert (k.evaluate(x).diagonal() == k.outputscale).all()


FORMS = {
    "dense": lambda k, x, z: k.evaluate(x, z),
    "tiles": lambda k, x, z: k(x, z, backend="chunked") @ torch.eye(len(z)).to(z),
    "batch": lambda k, x, z: batched_covariances(k, x[None], z[None])[0],
    "square": lambda k, x, z: k.evaluate(torch.cat([x, z]))[: len(x), len(x) :],
    "square tiles": lambda k, x, z: (
        k(torch.cat([x, z]), backend="chunked") @ torch.eye(len(x) + len(z)).to(z)
    )[: len(x), len(x) :],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", [RBF, Matern32, RationalQuadratic])
@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)])
def test_rows_far_from_all_others_cost_these_no_digits(kernel, form, places):
    """Such as a code like -9999 or 1e9 for a missing value among the rows to predict."""
    sets = [draw(40, 2), draw(30, 2, seed=1)]
    far = torch.tensor([[1e9, 0.0], [-9999.0, -9999.0], [0.3, 3e5]])
    mixed = [torch.cat([z[:7], far, z[7:]]) if i in places else z for i, z in enumerate(sets)]
    kept = [torch.isin(both, near).all(1) for both, near in zip(mixed, sets, strict=True)]
    k = kernel(lengthscale=0.7).requires_grad_(False)
    found = FORMS[form](copy.deepcopy(k).float(), *(z.float() for z in mixed))
    exact = k.evaluate(*sets)
    torch.testing.assert_close(found[kept[0]][:, kept[1]].double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", [RBF, Matern12, Matern32, Matern52])
def test_several_tiles_equal_one_tile(kernel, monkeypatch):
    x, z, weights = draw(40, 2), draw(30, 2, seed=1), draw(40, 30, seed=2)
    z[:4] = x[7:11]
    found = []
    for tile in (1 << 22, 30 * 8 * 7):
        monkeypatch.setattr("gpx.kernels.fused.CPU_TILE_BYTES", tile)
        k = kernel(2, [0.7, 1.2], 1.3)
        a, b = x.clone().requires_grad_(), z.clone().requires_grad_()
        value = k.evaluate(a, b)
        (value * weights).sum().backward()
        square = k.evaluate(x)
        found.append([value, square, a.grad, b.grad, *(p.grad for p in k.parameters())])
    for one, several in zip(*found, strict=True):
        torch.testing.assert_close(one, several, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kernel", [RBF, Matern12, Matern32, Matern52])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_gradients_of_some_inputs_equal_plain_autograd(kernel, count):
    """Of each alone and with others: the in-place profile against a profile as a user writes it."""

    class Plain(kernel):
        def of_squared_distance(self, r2):
            return super().of_squared_distance(r2)

    assert Plain.in_place is None
    x, z, weights = draw(20, 2), draw(15, 2, seed=1), draw(20, 15, seed=2)
    z[:4] = x[7:11]
    for wanted in itertools.combinations(("x", "z", "lengthscale", "outputscale"), count):
        found = []
        for cls in (kernel, Plain):
            k = cls(2, [0.7, 1.2], 1.3).requires_grad_(False)
            leaf = {"x": x.clone(), "z": z.clone()}
            for name in ("lengthscale", "outputscale"):
                leaf[name] = getattr(k.parametrizations, name).original
            leaves = [leaf[name].requires_grad_() for name in wanted]
            value = k.evaluate(leaf["x"], leaf["z"])
            found.append((value.detach(), torch.autograd.grad((value * weights).sum(), leaves)))
        torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-11, atol=1e-12)


def test_float32_gradients_keep_six_digits():
    x, z, weights = draw(300, 4), draw(200, 4, seed=1), draw(300, 200, seed=2)
    found = []
    for dtype in (torch.float32, torch.float64):
        k = Matern32(4, 0.8, 1.3).to(dtype)
        (k.evaluate(x.to(dtype), z.to(dtype)) * weights.to(dtype)).sum().backward()
        found.append([p.grad.double() for p in k.parameters()])
    for single, double in zip(*found, strict=True):
        torch.testing.assert_close(single, double, rtol=0, atol=2e-4 * double.abs().max().item())


def test_a_second_derivative_of_a_kernel_with_a_kink_is_refused():
    x = draw(4, 1).requires_grad_()
    value = Matern12(1).evaluate(x, draw(3, 1)).sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(GPXError, match="only first derivatives"):
        gradient.sum().backward()


def test_a_user_kernel_is_one_method():
    class Cauchy(Stationary):
        def of_squared_distance(self, r2):
            return 1.0 / (1.0 + r2.sqrt())

    k = Cauchy(2, [0.5, 2.0], 1.2)
    x = draw(6, 2)
    direct = 1.2 / (1.0 + ((x[:, None] - x[None]) / torch.tensor([0.5, 2.0])).norm(dim=-1))
    torch.testing.assert_close(k.evaluate(x), direct, rtol=0, atol=1e-12)
    leaf = x.clone().requires_grad_()
    k.evaluate(leaf).sum().backward()
    assert torch.isfinite(leaf.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in k.parameters())


class Squared(RBF):
    """A profile of its own on the parent's name."""

    def of_squared_distance(self, r2):
        return 1.0 / (1.0 + r2).square()


class Shifted(RBF):
    """A covariance of its own."""

    def covariance(self, x1, x2):
        return super().covariance(x1, x2) + 1.0

    def variance(self, x):
        return super().variance(x) + 1.0


class Bent(RBF):
    """Coordinates of its own."""

    def coordinates(self, x):
        return super().coordinates(x).sinh()


@pytest.mark.parametrize("changed", [Squared, Shifted, Bent])
def test_a_subclass_runs_on_nothing_that_holds_for_its_parent_alone(changed):
    """Whatever the road to a matrix, it is the subclass's; of its spectrum nothing is known."""
    kernel, x, z = changed(2, [0.7, 1.2], 1.3), draw(9, 2), draw(7, 2, seed=1)
    want = kernel.evaluate(x, z).detach()
    assert (want - RBF(2, [0.7, 1.2], 1.3).evaluate(x, z)).abs().max() > 0.1
    for backend in ("dense", "chunked"):
        found = kernel(x, z, backend=backend) @ torch.eye(7)
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(kernel.pairs(x[:7], z), want.diagonal(), rtol=1e-12, atol=1e-13)
    assert kernel.has_formula == (changed is not Shifted)
    for ask in (
        lambda: kernel.num_spectral_normals(2),
        lambda: kernel.spectral_density(x),
        lambda: AxisProduct(changed, 2).spectral_frequencies(x),
        lambda: mercer_spectrum(kernel, torch.ones(2), 3),
    ):
        with pytest.raises(ConfigError, match=f"kernel {changed.__name__} has no"):
            ask()


def test_a_shape_that_is_nearly_a_squared_exponential_keeps_the_digits_of_float32():
    x = torch.linspace(0.0, 3.0, 20)[:, None].float()
    ratio = RationalQuadratic(alpha=1e5).float().evaluate(x)
    # the two differ by r^4 / (8 alpha) in the exponent: 1e-4 at r = 3
    torch.testing.assert_close(ratio, RBF().float().evaluate(x), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("one", [np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_one_number_may_be_of_numpy_or_torch(one):
    assert RBF(lengthscale=one).lengthscale.item() == pytest.approx(0.5)
    assert RBF(2, one).lengthscale.tolist() == pytest.approx([0.5, 0.5])


def test_options():
    x = draw(5, 4)
    k = RBF(2, [0.5, 2.0], 1.3, active_dims=[3, 1])
    torch.testing.assert_close(k.evaluate(x), RBF(2, [0.5, 2.0], 1.3).evaluate(x[:, [3, 1]]))
    fixed = RBF(outputscale=None)
    assert fixed.outputscale.item() == 1.0
    assert [n for n, _ in fixed.named_parameters()] == ["parametrizations.lengthscale.original"]
    k.lengthscale = torch.tensor([1.0, 3.0])
    np.testing.assert_allclose(k.lengthscale.detach(), [1.0, 3.0], rtol=1e-14)
    with pytest.raises(ConfigError, match="2 values were given for ard_num_dims=3; give a single"):
        RBF(3, [1.0, 2.0])
    with pytest.raises(ConfigError, match="one lengthscale per active column"):
        RBF(3, active_dims=[0, 1])
    with pytest.raises(ConfigError, match="column numbers"):
        RBF(active_dims=[])
    with pytest.raises(ShapeError, match="RBF has 3 lengthscales"):
        RBF(3).evaluate(x)
    with pytest.raises(ShapeError, match="only 4 columns"):
        RBF(active_dims=[4]).evaluate(x)
    with pytest.raises(ShapeError, match="Periodic has 3"):
        Periodic(3).evaluate(x)


@pytest.mark.parametrize("columns", [[0.5], ["a"], [-1], []])
def test_active_dims_are_column_numbers(columns):
    with pytest.raises(ConfigError, match="it must list column numbers from 0 on"):
        RBF(active_dims=columns)


@pytest.mark.parametrize("count", [0, -1])
def test_no_inputs_are_refused(count):
    with pytest.raises(ConfigError, match=f"ard_num_dims={count} must be at least 1"):
        RBF(ard_num_dims=count)
