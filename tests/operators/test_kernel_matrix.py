"""The lazy kernel matrix against the dense one."""

import pytest
import torch
from composed_kernels import KERNELS, make_kernel
from draws import draw

from gpx.errors import DTypeError, GPXError, ShapeError
from gpx.kernels import RBF, Matern12
from gpx.operators import KernelMatrix, select

WHOLE = 1 << 30
SMALL = 2 * 8 * 36  # product tiles of 6 x 6 float64 numbers
BACKENDS = ["dense", "chunked"]
BUDGETS = [(make, budget) for make in KERNELS for budget in (WHOLE, SMALL)] + [(make_kernel, 1)]
"""Each kernel as a whole matrix and in tiles; one also in tiles of one number, which take long."""


pytestmark = pytest.mark.usefixtures("float64_by_default")


@pytest.fixture(params=["square", "rectangular"])
def inputs(request):
    x = draw(23, 2)
    return (x, None) if request.param == "square" else (draw(17, 2, seed=1), x)


@pytest.mark.parametrize("shape", [(), (3,), (2, 4, 3), (0,)])
@pytest.mark.parametrize(("make_kernel", "budget"), BUDGETS)
def test_products_and_transposed_products(inputs, make_kernel, budget, shape):
    kernel = make_kernel()
    operator, dense = kernel(*inputs, memory_budget=budget), kernel.evaluate(*inputs)
    assert operator.backend == ("dense" if budget == WHOLE else "chunked")
    *batch, columns = shape or (None,)
    right = draw(23) if columns is None else draw(*batch, 23, columns)
    left = draw(dense.shape[0]) if columns is None else draw(*batch, dense.shape[0], columns)
    torch.testing.assert_close(operator @ right, dense @ right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(operator.mT @ left, dense.mT @ left, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("make_kernel", "budget"), BUDGETS)
def test_gradients_equal_those_of_the_dense_product(inputs, make_kernel, budget):
    found = []
    for lazy in (True, False):
        kernel = make_kernel()
        x1, x2 = (None if t is None else t.clone().requires_grad_() for t in inputs)
        right = draw(23, 3, seed=2).requires_grad_()
        matrix = kernel(x1, x2, memory_budget=budget) if lazy else kernel.evaluate(x1, x2)
        ((matrix @ right) ** 2).sum().backward()
        leaves = [*kernel.parameters(), x1, right] + ([] if x2 is None else [x2])
        found.append([t.grad for t in leaves])
    # each tile is centred by itself; the square root of Matern 1/2 magnifies the rounding of r2
    for ours, dense in zip(*found, strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-8, atol=1e-8)


def test_gradcheck_of_a_chunked_square_product():
    kernel = RBF(2, [0.8, 1.3], 1.4)
    names = tuple(n for n, _ in kernel.named_parameters())
    raw = [p.detach().clone().requires_grad_() for p in kernel.parameters()]

    def product(x, right, *parameters):
        operator = KernelMatrix(
            x, x, *parameters, kernel=kernel, names=names, square=True, memory_budget=8 * 8 * 9
        )
        assert operator.backend == "chunked"
        return operator @ right

    x, right = draw(7, 2).requires_grad_(), draw(7, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(product, (x, right, *raw))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_inputs_that_are_not_contiguous_get_their_gradients(backend, layout):
    """Strided views are where wrapped libraries return zeros."""
    base = {"transposed": draw(2, 12), "strided": draw(24, 2), "expanded": draw(1, 2)}[layout]
    view = {
        "transposed": lambda t: t.mT,
        "strided": lambda t: t[::2].flip(1),
        "expanded": lambda t: t.expand(12, 2),
    }[layout]
    z, right = draw(9, 2, seed=1), draw(3, 9, seed=2).mT
    found = []
    for lazy in (True, False):
        leaf = base.clone().requires_grad_()
        matrix = RBF(2)(view(leaf), z, backend=backend) if lazy else RBF(2).evaluate(view(leaf), z)
        ((matrix @ right) ** 2).sum().backward()
        found.append(leaf.grad)
    assert found[1].abs().max() > 0
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_a_dense_matrix_is_evaluated_once_and_again_after_a_change(monkeypatch):
    calls = []
    original = RBF.tiles

    def recording(self, x1, x2=None):
        calls.append(x1.shape)
        return original(self, x1, x2)

    monkeypatch.setattr(RBF, "tiles", recording)
    kernel, x, right = RBF(2), draw(23, 2), draw(23)
    operator = kernel(x)
    first = operator @ right
    torch.testing.assert_close(operator @ right, first, rtol=0, atol=0)
    assert len(calls) == 1
    with torch.no_grad():
        next(kernel.parameters()).add_(0.5)
    assert not torch.allclose(operator @ right, first)
    torch.testing.assert_close(operator @ right, kernel.evaluate(x) @ right)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_backward_passes_through_one_operator(backend):
    kernel, x = RBF(2), draw(23, 2)
    operator = kernel(x, backend=backend)
    for _ in range(2):
        (operator @ draw(23)).sum().backward()
    twice = next(kernel.parameters()).grad.clone()
    kernel.zero_grad()
    (2 * (kernel.evaluate(x) @ draw(23)).sum()).backward()
    torch.testing.assert_close(twice, next(kernel.parameters()).grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_are_refused_not_wrong(backend):
    kernel, right = RBF(2), draw(23)
    x = draw(23, 2).requires_grad_()
    product = (kernel(x, backend=backend) @ right).square().sum()
    (gradient,) = torch.autograd.grad(product, x, create_graph=True)
    with pytest.raises(GPXError, match="second derivative"):
        gradient.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_mode_and_empty_matrices(backend):
    kernel, x, right = RBF(2), draw(400, 2), draw(400, 2)
    with torch.inference_mode():
        found = kernel(x, backend=backend) @ right
    torch.testing.assert_close(found, (kernel.evaluate(x) @ right).detach())
    empty = draw(0, 2)
    assert (kernel(empty, x, backend=backend) @ right).shape == (0, 2)
    assert (kernel(x, empty, backend=backend) @ draw(0, 2)).eq(0).all()
    z = x.clone().requires_grad_()
    (kernel(z, empty, backend=backend) @ draw(0, 2)).sum().backward()
    assert z.grad.eq(0).all()


def test_a_principal_block_stays_symmetric():
    kernel, x = Matern12(2), draw(23, 2)
    block = kernel(x)[3:9, 3:9]
    assert block.entries.square
    torch.testing.assert_close(block.to_dense(), kernel.evaluate(x)[3:9, 3:9])
    chosen = torch.tensor([7, 0, 3])
    selected = select(kernel(x), rows=chosen, columns=chosen)
    assert isinstance(selected, KernelMatrix)
    torch.testing.assert_close(selected.to_dense(), kernel.evaluate(x)[chosen][:, chosen])


def test_conversion_copies_the_kernel():
    kernel = RBF(1, 0.8, None, active_dims=[1])
    dense = kernel.evaluate(draw(23, 2)) @ draw(23)
    for single in (kernel(draw(23, 2)).to(torch.float32), kernel(draw(23, 2)).float()):
        product = single @ draw(23).float()
        assert product.dtype == torch.float32
        assert kernel.lengthscale.dtype == torch.float64
        torch.testing.assert_close(product.double(), dense, rtol=1e-5, atol=1e-5)


def test_a_batch_repeats_the_matrix():
    operator, right = make_kernel()(draw(23, 2)), draw(3, 23, 2)
    repeated = operator.expand(3, 23, 23)
    torch.testing.assert_close(repeated @ right, operator.to_dense() @ right)
    torch.testing.assert_close(repeated.to_dense(), operator.to_dense().expand(3, 23, 23))
    torch.testing.assert_close(repeated[1, 2:5].to_dense(), operator.to_dense()[2:5])
    torch.testing.assert_close(repeated.diagonal(), operator.diagonal().expand(3, 23))
    torch.testing.assert_close(operator.unsqueeze(0) @ right, operator.to_dense() @ right)


def test_mismatches_are_one_clear_error_each():
    kernel, x = RBF(2), draw(5, 2)
    with pytest.raises(ShapeError, match="must be a matrix"):
        kernel(x[None])
    with pytest.raises(ShapeError, match="2 and 1 columns"):
        kernel(x, x[:, :1])
    with pytest.raises(DTypeError, match=r"float32 on cpu, but a parameter is torch.float64"):
        kernel(x.float())
    with pytest.raises(DTypeError, match="the inputs of the columns is"):
        kernel(x, x.float())
    with pytest.raises(ShapeError, match=r"expected \(5,\)"):
        kernel(x) @ draw(4)
    with pytest.raises(DTypeError, match="right-hand side"):
        kernel(x) @ draw(5).float()


def test_construction_evaluates_nothing(monkeypatch):
    def never(self, x1, x2):
        raise AssertionError("evaluated")

    monkeypatch.setattr(RBF, "covariance", never)
    monkeypatch.setattr(RBF, "tiles", never)
    operator = RBF(2)(draw(23, 2))
    rebuilt = operator.representation_tree()(*operator.representation())
    assert rebuilt.shape == (23, 23)
    assert operator[:5].mT.shape == (23, 5)
    assert operator.mT.shape == (23, 23)


def test_indexing_stays_lazy_and_agrees(inputs):
    kernel = make_kernel()
    operator, dense = kernel(*inputs), kernel.evaluate(*inputs)
    for index in [
        (slice(2, 9), slice(None)),
        (slice(None), slice(0, 20, 3)),
        (torch.tensor([4, 1, 1]), slice(3, 8)),
        (slice(0, 4), torch.tensor([0, 5])),
    ]:
        part = operator[index]
        assert isinstance(part, KernelMatrix)
        torch.testing.assert_close(part.to_dense(), dense[index], rtol=1e-12, atol=1e-12)
    rows, columns = torch.tensor([0, 3, 16, 3]), torch.tensor([0, 3, 22, 5])
    torch.testing.assert_close(operator[rows, columns], dense[rows, columns], rtol=0, atol=1e-12)
    torch.testing.assert_close(operator[3], dense[3], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(operator[..., 4], dense[..., 4], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(operator[2, 5], dense[2, 5], rtol=1e-12, atol=1e-12)


def test_diagonal_and_its_gradient(inputs):
    kernel = make_kernel()
    x1, x2 = inputs
    if x2 is not None:
        x1 = torch.cat([x1, x2[:6]])
    dense = kernel.evaluate(x1, x2)
    found = kernel(x1, x2).diagonal() if x2 is None else kernel(x1, x2)._diagonal()
    torch.testing.assert_close(found, dense.diagonal(), rtol=1e-12, atol=1e-12)
    weights = draw(23, seed=3)
    ours = torch.autograd.grad(
        found @ weights, list(kernel.parameters()), allow_unused=True, materialize_grads=True
    )
    wanted = torch.autograd.grad(
        dense.diagonal() @ weights,
        list(kernel.parameters()),
        allow_unused=True,
        materialize_grads=True,
    )
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_solve_and_logdet_with_noise(backend):
    kernel, x, right = make_kernel(), draw(23, 2), draw(23, 2, seed=1)
    dense = kernel.evaluate(x) + 0.5 * torch.eye(23)
    operator = kernel(x, backend=backend).add_diagonal(torch.tensor(0.5))
    torch.testing.assert_close(operator.solve(right), torch.linalg.solve(dense, right))
    torch.testing.assert_close(operator.logdet(), torch.logdet(dense), rtol=1e-10, atol=1e-10)


def test_a_large_solve_is_iterative_and_meets_its_tolerance(monkeypatch):
    monkeypatch.setattr("gpx.operators.dense_factorisations.DENSE_ROWS", 20)
    kernel, x, right = make_kernel(), draw(60, 2), draw(60, 2, seed=1)
    operator = kernel(x, backend="chunked").add_diagonal(torch.tensor(0.5))
    wanted = torch.linalg.solve(kernel.evaluate(x) + 0.5 * torch.eye(60), right)
    torch.testing.assert_close(operator.solve(right), wanted, rtol=1e-8, atol=1e-8)


def test_float32_and_the_exact_diagonal_in_every_chunk():
    kernel = Matern12(2, outputscale=1.5).float()
    x = (draw(23, 2) + 100.0).float()
    exact = Matern12(2, outputscale=1.5).evaluate(x.double())
    operator = kernel(x, memory_budget=SMALL // 2)
    product = operator @ torch.eye(23, dtype=torch.float32)
    assert operator.backend == "chunked"
    assert product.dtype == torch.float32
    torch.testing.assert_close(product.double(), exact, rtol=0, atol=1e-4)
    # the tile of a diagonal block has outputscale on its diagonal to the last bit
    assert (product.diagonal() == kernel.outputscale).all()


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(GPXError, match="must be positive"):
        RBF()(draw(4, 2), memory_budget=0) @ draw(4)


@pytest.mark.parametrize("alone", ["x1", "x2", "lengthscale", "outputscale"])
def test_a_tensor_that_alone_asks_for_a_gradient_gets_it(alone):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (7, 5)]
    right = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    kernel = RBF(lengthscale=0.8, outputscale=1.3).double().requires_grad_(False)
    leaves = dict(zip(("x1", "x2"), inputs, strict=True))
    leaves |= {name.split(".")[1]: p for name, p in kernel.named_parameters()}
    leaf = leaves[alone].requires_grad_()
    (want,) = torch.autograd.grad((kernel.evaluate(*inputs) @ right).sin().sum(), leaf)
    (found,) = torch.autograd.grad((kernel(*inputs) @ right).sin().sum(), leaf)
    torch.testing.assert_close(found, want)
