"""Passes over the data with eigenfunctions: compiled loops and torch operations agree."""

import pytest
import torch
from draws import uniform
from eigenfunction_series import placed, series_of

import gpx.bases.grid_eigenfunctions.data_pass as passes
from gpx.bases import GridEigenfunctions, GridOptions
from gpx.bases.grid_eigenfunctions.data_pass import EigenfunctionPass, eigenfunction_gradient
from gpx.bases.grid_eigenfunctions.native import eigenfunction_loops
from gpx.bases.grid_eigenfunctions.products import ProductPlan
from gpx.bases.sufficient_statistics import BLOCK_BYTES
from gpx.errors import DTypeError, ShapeError
from gpx.kernels import RBF, Constant

DOUBLE = torch.float64
WAYS = ("compiled", "series", "exponentials")


@pytest.fixture
def way(request, monkeypatch):
    """One of the three ways in which features come about."""
    if request.param == "compiled" and eigenfunction_loops(torch.zeros(1)) is None:
        pytest.skip("no C compiler")
    if request.param != "compiled":
        monkeypatch.setattr(passes, "eigenfunction_loops", lambda like: None)
    if request.param == "exponentials":
        monkeypatch.setattr(passes, "column_polynomials", lambda *a: None)
    return request.param


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
@pytest.mark.parametrize("whole", [True, False])  # products in between that nobody asked for
def test_a_pass_gives_features_and_their_gradient(way, dtype, whole, monkeypatch):
    monkeypatch.setitem(BLOCK_BYTES, "cpu", 8 * 70 * 45)
    x = (2.0 * uniform(150, 3, seed=2) - 0.5).to(dtype)
    kernel = RBF(ard_num_dims=3, lengthscale=[0.4, 0.9, 0.5])
    basis = placed(kernel, x.double(), 70, points_per_dim=60 if way == "series" else 6)
    basis.select()
    if not whole:
        basis.index = basis.index[torch.arange(1, 70, 2)]
        basis._plan = ProductPlan(basis.index)
        assert basis._plan.kept is not None
    modes = basis.modes()
    weight = torch.randn(
        len(modes.plan.index), 150, generator=torch.Generator().manual_seed(3), dtype=DOUBLE
    )
    features = basis.features(x.double(), modes)
    parameters = list(kernel.parameters())
    want = torch.autograd.grad((features * weight).sum(), parameters, allow_unused=True)
    functions = EigenfunctionPass(basis, basis.modes(), x, gradient=True)
    assert (functions._compiled is not None) == (way == "compiled")
    assert (functions._polynomials is not None) == (way != "exponentials")
    blocks = list(functions.blocks())
    assert len(blocks) > 1
    accuracy = 1e-11 if dtype == DOUBLE else 2e-5
    for rows in blocks:
        found = functions(rows)
        torch.testing.assert_close(
            found.double(), features[:, rows].detach(), rtol=accuracy, atol=accuracy
        )
        functions.add(functions.weights().copy_(weight[:, rows]))
    gradients = functions.gradients()
    assert len(gradients) == len(functions.parameters) == 2
    for gradient, wanted in zip(gradients, want, strict=True):
        wanted = torch.zeros_like(gradient) if wanted is None else wanted
        size = float(wanted.abs().max())
        torch.testing.assert_close(gradient, wanted, rtol=0.0, atol=50 * accuracy * size + 1e-12)


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_products_that_underflow_are_summed_as_logarithms(way):
    d = 60
    x = uniform(40, d, seed=4)
    x[7] = 9.0  # far from every other point: its ground product is 1e-190
    kernel = RBF(ard_num_dims=d, lengthscale=3.0)
    basis = placed(kernel, x, 100, axes=[torch.linspace(0.0, 1.0, 6).tolist()] * d)
    basis.select()
    modes = basis.modes()
    weight = uniform(len(modes.plan.index), 40, seed=5)
    features = basis.features(x, modes)
    assert 0.0 < float(features[0, 7].detach()) < 1e-100
    (raw,) = (p for name, p in kernel.named_parameters() if "lengthscale" in name)
    (want,) = torch.autograd.grad((features * weight).sum(), raw)
    functions = EigenfunctionPass(basis, basis.modes(), x, gradient=True)
    found = functions(slice(0, 40))
    torch.testing.assert_close(found, features.detach(), rtol=1e-9, atol=1e-13)
    functions.add(weight)
    where = [p is raw for p in functions.parameters].index(True)
    torch.testing.assert_close(functions.gradients()[where], want, rtol=1e-9, atol=1e-11)


def test_compiled_loops_refuse_arrays_that_do_not_fit():
    loops = eigenfunction_loops(torch.zeros(1, dtype=DOUBLE))
    if loops is None:
        pytest.skip("no C compiler")
    x = uniform(20, 2)
    basis = placed(RBF(), x, 8)
    modes = basis.modes()
    series = series_of(basis, x).in_dtype(DOUBLE)
    out = torch.empty(modes.plan.num_nodes, 20, dtype=DOUBLE)
    assert loops.values(x, series, modes.plan, out)
    with pytest.raises(ShapeError, match="where 160 contiguous numbers"):
        loops.values(x, series, modes.plan, out[:, :19])
    with pytest.raises(DTypeError, match="float32"):
        loops.values(x.float(), series, modes.plan, out)
    with pytest.raises(ShapeError, match="of 2 inputs"):
        loops.values(x[:, :1].contiguous(), series, modes.plan, out)
    with pytest.raises(ShapeError, match="slopes of shape"):
        loops.add_slopes(x, series, modes.plan, out, out, torch.zeros(1, 3, dtype=DOUBLE))


@torch.no_grad()
def test_the_middle_of_a_range_is_a_number_of_the_dtype():
    # between 10^7 and 10^7 + 1 float32 has none: scaled inputs reached 2, where series overflow
    basis = placed(RBF(lengthscale=0.05), uniform(80, 1), 8, points_per_dim=8)
    x = torch.tensor([[1e7], [1e7 + 1.0]], dtype=torch.float32)
    found = series_of(basis, x).in_dtype(torch.float32)
    assert float(((x.squeeze(1) - found.middle) * found.inverse).abs().max()) <= 1.0
    functions = EigenfunctionPass(basis, basis.modes(), x)
    for rows in functions.blocks():
        assert bool(torch.isfinite(functions(rows)).all())


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
def test_a_block_has_room_for_its_features_in_float64(dtype, monkeypatch):
    """In it sums are taken, whatever the dtype of the features."""
    monkeypatch.setitem(BLOCK_BYTES, "cpu", 8 * 70 * 45)
    x = uniform(150, 3, seed=2)
    basis = placed(RBF(ard_num_dims=3, lengthscale=0.6), x, 70, points_per_dim=6)
    functions = EigenfunctionPass(basis, basis.modes(), x.to(dtype))
    assert all(functions(rows).numel() * 8 <= BLOCK_BYTES["cpu"] for rows in functions.blocks())


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize(("inputs", "frozen"), [(False, False), (True, False), (True, True)])
def test_weighted_eigenfunctions_have_the_gradient_of_the_whole(inputs, frozen, way, monkeypatch):
    monkeypatch.setitem(BLOCK_BYTES, "cpu", 7 * 15 * 8)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator, dtype=DOUBLE)
    weight = torch.randn(30, 15, generator=generator, dtype=DOUBLE)
    first = RBF(ard_num_dims=2, lengthscale=[1.0, 1.6], outputscale=2.0).double()
    chosen = GridEigenfunctions(first, 2, 15, GridOptions(points_per_dim=7))
    chosen.place(x)
    chosen.select()
    x.requires_grad_(inputs)
    kernel = RBF(ard_num_dims=2, lengthscale=[0.9, 1.8], outputscale=1.5).double()
    kernel.requires_grad_(not frozen)
    basis = chosen.under(kernel)
    assert basis.num_basis == 15
    tensors, got = eigenfunction_gradient(basis, x, weight)
    assert len(tensors) == (0 if frozen else 2) + inputs
    order = basis.modes().plan.order
    whole = (basis(x) * weight[:, order]).sum()
    for each, want in zip(got, torch.autograd.grad(whole, tensors), strict=True):
        torch.testing.assert_close(each, want, rtol=1e-9, atol=1e-11)


def test_a_constant_kernel_moves_only_the_scale_of_its_one_function():
    x = uniform(20, 2)
    kernel = Constant(1.7)
    basis = placed(kernel, x, 3)
    basis.select()
    weight = uniform(20, len(basis.modes().plan.index), seed=1)
    tensors, gradients = eigenfunction_gradient(basis, x, weight)
    loss = (weight * basis(x)).sum()
    want = torch.autograd.grad(loss, tensors)
    torch.testing.assert_close(gradients, list(want))
    assert abs(float(want[0])) > 0.1
