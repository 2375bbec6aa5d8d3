"""Eigenfunctions of a grid against dense algebra: limits, orderings, logarithms, gradients."""

import itertools
import math

import pytest
import torch
from draws import uniform
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.bases import GridEigenfunctions, GridOptions
from gpx.bases.grid_eigenfunctions.factors import ProductFactors
from gpx.bases.grid_eigenfunctions.products import ProductPlan, tree_products
from gpx.errors import ConfigError
from gpx.kernels import RBF, AxisProduct, Constant, Matern32, Matern52, Periodic
from gpx.linalg import khatri_rao_columns, kronecker_extremes


def natural(kernel, **values):
    """A float64 kernel with exactly these parameters."""
    kernel = kernel.double()
    for name, value in values.items():
        setattr(kernel, name, torch.tensor(value, dtype=torch.float64))
    return kernel


AXES = [[-0.1, 0.1, 0.5, 0.8, 1.2], [0.0, 0.4, 0.7, 1.1], [-0.2, 0.0, 0.3, 0.5, 0.9, 1.0]]


def problem(p, axes=AXES, jitter=0.0, kernel=None):
    d = len(axes)
    if kernel is None:
        kernel = natural(RBF(ard_num_dims=d), lengthscale=[0.5, 0.8, 0.4][:d], outputscale=1.7)
    basis = GridEigenfunctions(kernel, d, p, GridOptions(axes=axes), factor_jitter=jitter).double()
    basis.place(uniform(3, d))
    nodes = torch.cartesian_prod(*[torch.tensor(a, dtype=torch.float64) for a in axes])
    return basis, nodes.reshape(-1, d)


def dense_features(kernel, nodes, x, p):
    values, vectors = torch.linalg.eigh(kernel.evaluate(nodes, nodes))
    values, vectors = values.flip(0)[:p], vectors.flip(1)[:, :p]
    return kernel.evaluate(x, nodes) @ vectors / values.sqrt()


@torch.no_grad()
@pytest.mark.parametrize("p", [1, 2, 30, 120])
def test_features_equal_the_dense_eigenvectors_on_an_uneven_grid(p):
    basis, nodes = problem(p)
    x = uniform(11, 3, seed=1)
    found, want = basis(x), dense_features(basis.kernel, nodes, x, p)
    assert found.shape == (11, p)
    assert basis.grid_size == 120
    size = want.abs().amax(0)
    for column in range(p):  # an eigenvector has no sign
        sign = torch.sign((found[:, column] * want[:, column]).sum())
        error = (found[:, column] - sign * want[:, column]).abs().max()
        assert error <= 2e-10 * max(1.0, float(1.0 / size[column]))
    columns = torch.tensor([p - 1, 0, p // 2])
    torch.testing.assert_close(basis(x, columns), found[:, columns], rtol=1e-12, atol=1e-14)


@torch.no_grad()
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_all_eigenfunctions_give_the_subset_of_regressors(columns):
    basis, nodes = problem(10**9, AXES[:columns])
    x = uniform(15, columns, seed=2)
    cross = basis.kernel.evaluate(x, nodes)
    want = cross @ torch.linalg.solve(basis.kernel.evaluate(nodes, nodes), cross.mT)
    features = basis(x)
    assert basis.num_basis == len(nodes)
    torch.testing.assert_close(features @ features.mT, want, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(1, 4), st.integers(1, 200), st.floats(0.05, 5.0), st.integers(0, 99))
def test_the_kernel_minus_its_approximation_is_positive(d, p, lengthscale, seed):
    kernel = natural(RBF(), lengthscale=lengthscale, outputscale=1.3)
    basis = GridEigenfunctions(kernel, d, p, GridOptions(points_per_dim=4)).double()
    x = uniform(25, d, seed=seed) * 2.0 - 0.5
    basis.place(uniform(40, d, seed=seed + 100))
    features = basis(x)
    rest = kernel.evaluate(x, x) - features @ features.mT
    assert torch.linalg.eigvalsh(rest).min() > -1e-8
    assert rest.diagonal().min() > -1e-8


@torch.no_grad()
def convergence(sizes, reference):
    """Largest errors over 20 points of 6 eigenfunctions of norm one, for grids of these sizes.

    The reference is dense: eigenvectors of the kernel matrix of that many equal steps, extended.
    K_XU q / lambda is the restriction of q to X where X is part of U; the 20 points in U that are
    not of its density make the error fall like 1 / m.
    """
    kernel = natural(RBF(outputscale=None), lengthscale=0.2)
    x = uniform(20, 1, seed=3).sort(0).values

    def functions(nodes):
        basis = GridEigenfunctions(kernel, 1, 6, GridOptions(axes=[nodes])).double()
        basis.place(x)
        modes = basis.modes()
        scaled = basis.features(x, modes)  # sqrt(lambda / m) times the normalised function
        size = (basis.eigenpairs()[0][0, modes.plan.index] / len(nodes)).sqrt()
        return scaled / size / math.sqrt(20.0)

    def middle(count):
        return (torch.arange(count, dtype=torch.float64) + 0.5) / count

    nodes = middle(reference).unsqueeze(1)
    values, vectors = torch.linalg.eigh(kernel.evaluate(nodes, nodes).double())
    values, vectors = values[-6:].flip(0), vectors[:, -6:].flip(1)
    want = (kernel.evaluate(x, nodes) @ vectors / values * math.sqrt(reference / 20.0)).mT
    errors = []
    for size in sizes:
        found = functions(torch.cat([x[:, 0], middle(size - 20)]).sort().values.tolist())
        sign = torch.sign((found * want).sum(1, keepdim=True))
        errors.append(float((found - sign * want).abs().max()))
    return errors


def test_eigenfunctions_converge_as_the_grid_grows():
    """Sizes four times each other: errors fall fourfold, to within a twentieth."""
    errors = convergence((20, 80, 320, 1280), 1001)
    assert errors[0] > 0.1
    assert all(b < a for a, b in itertools.pairwise(errors)), errors
    assert all(3.8 < a / b < 4.2 for a, b in itertools.pairwise(errors[1:])), errors
    assert errors[-1] < 4.0 * 1e-3


@pytest.mark.slow
def test_eigenfunctions_of_five_thousand_nodes():
    """An eigenproblem of 5,120 and one of 6,001 nodes: minutes."""
    errors = convergence((1280, 5120), 6001)
    assert errors[1] < errors[0]
    assert errors[1] < 2e-3


# --- products ------------------------------------------------------------------------------------


def lower_set(sizes, p, seed=0):
    values = [uniform(m, seed=seed + i).sort(descending=True).values for i, m in enumerate(sizes)]
    return kronecker_extremes(values, p).index


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 60), st.booleans())
def test_tree_products_equal_the_direct_ones(sizes, p, shuffled):
    index = lower_set(sizes, p)
    if shuffled:  # any set of multi-indices, parents missing
        order = torch.randperm(len(index), generator=torch.Generator().manual_seed(p))
        index = index[order[: max(1, len(order) // 2)]]
    plan = ProductPlan(index)
    if not shuffled:
        assert plan.num_nodes == len(index)  # one multiplication each
    factors = uniform(len(sizes), max(sizes), 7, seed=5) - 0.5
    want = torch.ones(len(index), 7, dtype=torch.float64)
    for i in range(len(sizes)):
        want = want * factors[i, index[:, i]]
    found = tree_products(factors, plan)
    torch.testing.assert_close(found[plan.order], want, rtol=1e-12, atol=1e-15)
    assert torch.equal(plan.index[plan.order], index)


def test_tree_products_have_exact_gradients_at_zeros():
    plan = ProductPlan(lower_set([3, 2, 4], 12))
    factors = uniform(3, 4, 5, seed=1) - 0.5
    factors[1, 1, 2] = 0.0
    factors[0, 2, 2] = 0.0
    factors.requires_grad_()
    assert torch.autograd.gradcheck(lambda f: tree_products(f, plan), factors)


def test_logarithms_take_over_where_the_ground_product_underflows():
    d, n = 100, 6
    plan = ProductPlan(lower_set([3] * d, 50))
    factors = 0.5 + uniform(d, 3, n, seed=2)
    factors[:, 0, 3] = 1e-5  # ground product 1e-500
    factors[4, 1, :] = 0.0
    factors.requires_grad_()
    found = tree_products(factors, plan)
    want = khatri_rao_columns([f.mT for f in factors], plan.index).mT
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, want, rtol=1e-11, atol=0)
    (slope,) = torch.autograd.grad(found.sum(), factors)
    assert torch.isfinite(slope).all()
    # the unaffected points agree with the tree
    rest = torch.arange(n) != 3
    tree = tree_products(factors[:, :, rest], plan)
    torch.testing.assert_close(found[:, rest], tree, rtol=1e-11, atol=0)


@torch.no_grad()
@pytest.mark.parametrize(("d", "m"), [(32, 10), (100, 100), (128, 10)])
def test_ten_to_the_many_inducing_points(d, m):
    kernel = natural(RBF(outputscale=None), lengthscale=math.sqrt(d))
    p = d + 1 if m == 100 else 200
    basis = GridEigenfunctions(kernel, d, p, GridOptions(points_per_dim=m)).double()
    x = (2.0 * uniform(120, d, seed=4) - 1.0) * math.sqrt(3.0)
    basis.place(x)
    assert basis.grid_size == m**d > 2**63
    assert basis.log10_grid_size == pytest.approx(d * math.log10(m))
    features = basis(x)
    assert torch.isfinite(features).all()
    squares = features.square().sum(1)
    assert squares.max() <= 1.0 + 1e-12
    assert squares.min() > 0.2
    # the ground function and one odd function of every column come first
    basis.select()
    assert int((basis.index[: d + 1] > 0).sum(1).max()) == 1


# --- kernels -------------------------------------------------------------------------------------


@torch.no_grad()
def test_factors_multiply_to_the_kernel():
    kernels = {
        "rbf": RBF(ard_num_dims=3, lengthscale=[0.5, 0.9, 2.0], outputscale=1.7),
        "subset": RBF(active_dims=[2, 0], ard_num_dims=2, lengthscale=[0.5, 0.9]),
        "product": Matern32(active_dims=[0], lengthscale=0.4)
        * Matern52(active_dims=[2], outputscale=0.7)
        * RBF(active_dims=[0, 1])
        * 1.5,
        "periodic": Periodic(ard_num_dims=3, period=[0.3, 0.8, 2.0], lengthscale=0.9),
        "constant": RBF() * Constant(0.4),
        "axes": AxisProduct(["matern32", "rbf"], 3, [[2], [0]], [0.4, 1.0, 0.9], outputscale=1.9),
        "scaled": 1.5 * AxisProduct("matern12", 3, outputscale=None),
    }
    x, z = uniform(6, 3, seed=1), uniform(4, 3, seed=2)
    for kernel in kernels.values():
        kernel = kernel.double()
        factors = ProductFactors(kernel, 3)
        product = factors.evaluate(x.mT, z).prod(0) * factors.outputscale
        torch.testing.assert_close(product, kernel.evaluate(x, z), rtol=1e-12, atol=1e-14)
        factors.set_outputscale(torch.tensor(2.5, dtype=torch.float64))
        torch.testing.assert_close(factors.outputscale, torch.tensor(2.5, dtype=torch.float64))


def test_kernels_that_do_not_factor_are_refused():
    with pytest.raises(ConfigError, match="Matern32 over 2 columns is no product"):
        GridEigenfunctions(Matern32(), 2)
    with pytest.raises(ConfigError, match="Sum over 2 columns is no product"):
        GridEigenfunctions(RBF() + RBF(), 2)
    with pytest.raises(ConfigError, match="column 4, but the inputs have only 2"):
        GridEigenfunctions(RBF(active_dims=[4]), 2)
    with pytest.raises(ConfigError, match="num_eigenfunctions=0"):
        GridEigenfunctions(RBF(), 2, 0)


@pytest.mark.parametrize("name", ["rbf", "matern"])
def test_gradient_of_the_approximate_kernel(name):
    kernel = (
        RBF(ard_num_dims=2, lengthscale=[0.5, 0.3])
        if name == "rbf"
        else Matern52(active_dims=[0], lengthscale=0.5) * Matern32(active_dims=[1])
    ).double()
    basis, nodes = problem(9, [[0.0, 0.3, 0.5, 1.0], [-0.1, 0.2, 0.9]], kernel=kernel)
    x = uniform(8, 2, seed=6)
    parameters = list(kernel.parameters())

    def value(features):
        return (features @ features.mT).sin().sum()

    found = torch.autograd.grad(value(basis(x)), parameters)
    want = torch.autograd.grad(value(dense_features(kernel, nodes, x, 9)), parameters)
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_float32_features_of_an_input_that_hardly_matters_keep_their_digits():
    """Its later functions are differences of kernel entries that agree in almost every digit."""
    x = uniform(50, 2).float()
    kernel = natural(RBF(ard_num_dims=2, outputscale=None), lengthscale=[1000.0, 1.5])
    basis = GridEigenfunctions(kernel, 2, 12, factor_jitter=1e-12).float()
    basis.place(x.double())
    found, want = basis(x), basis(x.double())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_float32_features_keep_float64_eigenproblems():
    basis, _ = problem(40, jitter=1e-12)
    x = uniform(50, 3, seed=7)
    want = basis(x)
    found = basis.float()(x.float())
    assert found.dtype == torch.float32
    assert basis.nodes.dtype == torch.float64
    torch.testing.assert_close(found.double(), want, rtol=2e-4, atol=2e-5)


@torch.no_grad()
def test_lengthscales_that_the_grid_cannot_resolve_are_raised():
    x = uniform(200, 3, seed=9)
    x[:, 1] = (x[:, 1] > 0.5).double()  # every value is a node
    lengthscale = [0.01, 0.01, 0.8]
    kernel = natural(RBF(ard_num_dims=3, outputscale=None), lengthscale=lengthscale)
    basis = GridEigenfunctions(kernel, 3, 100, GridOptions(points_per_dim=6)).double()
    basis.place(x)
    before = basis(x).square().sum(1)
    assert basis.raise_lengthscales(x) == [0]
    spacing = 1.2 * float(x[:, 0].max() - x[:, 0].min()) / 5
    found = kernel.lengthscale.tolist()
    assert 0.5 * spacing < found[0] <= 1.01 * spacing
    assert found[1:] == pytest.approx(lengthscale[1:])
    assert basis(x).square().sum(1).mean() > 3.0 * before.mean()
    assert basis.raise_lengthscales(x) == []
    shared = natural(RBF(outputscale=None), lengthscale=0.01)
    basis = GridEigenfunctions(shared, 3, 100, GridOptions(points_per_dim=6)).double()
    basis.place(x)
    assert basis.raise_lengthscales(x) == []  # the two-valued column allows it


@torch.no_grad()
def test_constant_columns_have_no_part():
    x = uniform(30, 2, seed=8)
    wide = torch.cat([x[:, :1], torch.full((30, 1), 4.0, dtype=torch.float64), x[:, 1:]], 1)
    kernel = natural(RBF(), lengthscale=0.6)
    options = GridOptions(points_per_dim=5)
    narrow = GridEigenfunctions(kernel, 2, 20, options).double()
    padded = GridEigenfunctions(kernel, 3, 20, options).double()
    narrow.place(x)
    padded.place(wide)
    assert padded.sizes.tolist() == [5, 1, 5]
    other = wide.clone()
    other[:, 1] = -7.0  # whatever it is elsewhere
    torch.testing.assert_close(padded(other), narrow(x), rtol=1e-9, atol=1e-10)


def test_the_closed_form_of_a_constant_column_has_a_width():
    x = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)
    x = torch.stack([x, torch.full_like(x, 3.0)], 1)
    basis = GridEigenfunctions(RBF(2).double(), 2, 5, GridOptions(points_per_dim=6))
    basis.place(x)
    basis.select()
    form = basis.closed_form(2)
    assert (form.low[1].item(), form.high[1].item()) == (2.0, 4.0)
    assert form.low[0].item() < -1.0
    assert form.high[0].item() > 1.0


def test_test_inputs_place_the_grid_only_where_that_is_asked_for():
    x, tests = uniform(30, 2), torch.tensor([[3.0, 0.5]], dtype=torch.float64)
    for options, end in (
        (GridOptions(), 1.1),
        (GridOptions(transductive=True, margin=0.0), 3.0),
    ):
        basis = GridEigenfunctions(RBF(ard_num_dims=2), 5, 2, options).double()
        basis.know_test_inputs(tests)
        basis.place(x)
        assert basis.nodes[0, -1] == pytest.approx(end, abs=0.1)
    assert basis.nodes[0, 0] == x[:, 0].min()
    basis = GridEigenfunctions(RBF(ard_num_dims=2), 5, 2, GridOptions(transductive=True)).double()
    with pytest.raises(ConfigError, match="test inputs as well, and there are none"):
        basis.place(x)
