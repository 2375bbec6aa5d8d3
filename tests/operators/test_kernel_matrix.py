"""The lazy kernel matrix against the dense one."""

import linear_operator
import pytest
import torch

from gpx.errors import GPXError
from gpx.kernels import RBF, Linear, Matern12, Matern32
from gpx.operators import KernelMatrix

WHOLE = 1 << 30
SMALL = 4 * 23 * 8 * 5  # five rows of 23 float64 columns at a time


@pytest.fixture(autouse=True)
def _double():
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(previous)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_kernel():
    return Matern32(2, [0.8, 1.3], 1.4) + Linear(None, 0.3, active_dims=[1])


@pytest.fixture(params=["square", "rectangular"])
def inputs(request):
    x = draw(23, 2)
    return (x, None) if request.param == "square" else (draw(17, 2, seed=1), x)


@pytest.mark.parametrize("budget", [WHOLE, SMALL, 1])
@pytest.mark.parametrize("shape", [(), (3,), (2, 4, 3)])
def test_products_and_transposed_products(inputs, budget, shape):
    kernel = make_kernel()
    operator, dense = kernel(*inputs, memory_budget=budget), kernel.evaluate(*inputs)
    assert operator.backend == ("dense" if budget == WHOLE else "chunked")
    *batch, columns = shape or (None,)
    right = draw(23) if columns is None else draw(*batch, 23, columns)
    left = draw(dense.shape[0]) if columns is None else draw(*batch, dense.shape[0], columns)
    torch.testing.assert_close(operator @ right, dense @ right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(operator.mT @ left, dense.mT @ left, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("budget", [WHOLE, SMALL])
def test_gradients_equal_those_of_the_dense_product(inputs, budget):
    found = []
    for lazy in (True, False):
        kernel = make_kernel()
        x1, x2 = (None if t is None else t.clone().requires_grad_() for t in inputs)
        right = draw(23, 3, seed=2).requires_grad_()
        matrix = kernel(x1, x2, memory_budget=budget) if lazy else kernel.evaluate(x1, x2)
        ((matrix @ right) ** 2).sum().backward()
        leaves = [*kernel.parameters(), x1, right] + ([] if x2 is None else [x2])
        found.append([t.grad for t in leaves])
    for ours, dense in zip(*found, strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-10, atol=1e-10)


def test_gradcheck_of_a_chunked_square_product():
    kernel = RBF(2, [0.8, 1.3], 1.4)
    names = tuple(n for n, _ in kernel.named_parameters())
    raw = [p.detach().clone().requires_grad_() for p in kernel.parameters()]

    def product(x, right, *parameters):
        operator = KernelMatrix(
            x, x, *parameters, kernel=kernel, names=names, square=True, memory_budget=4 * 7 * 8 * 2
        )
        assert operator.backend == "chunked"
        return operator @ right

    x, right = draw(7, 2).requires_grad_(), draw(7, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(product, (x, right, *raw))


def test_no_tensor_larger_than_a_chunk_is_made(monkeypatch):
    """Every kernel evaluation, forward and backward, stays within the rows of the budget."""
    kernel, sizes = RBF(2), []
    original = RBF.covariance

    def recording(self, x1, x2):
        sizes.append(x1.shape[0] * x2.shape[0])
        return original(self, x1, x2)

    monkeypatch.setattr(RBF, "covariance", recording)
    x = draw(23, 2).requires_grad_()
    operator = kernel(x, memory_budget=SMALL)
    (operator @ draw(23, 2, seed=1)).sum().backward()
    assert max(sizes) <= 5 * 23
    # a square matrix is evaluated once per off-diagonal pair: less than the whole, twice
    assert sum(sizes) < 2 * 23 * 23


def test_construction_evaluates_nothing(monkeypatch):
    def never(self, x1, x2):
        raise AssertionError("evaluated")

    monkeypatch.setattr(RBF, "covariance", never)
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


@pytest.mark.parametrize("cholesky_size", [0, 800])
def test_solve_and_logdet_with_noise(cholesky_size):
    kernel, x, right = make_kernel(), draw(23, 2), draw(23, 2, seed=1)
    dense = kernel.evaluate(x) + 0.5 * torch.eye(23)
    operator = kernel(x, memory_budget=SMALL).add_diagonal(torch.tensor(0.5))
    with (
        linear_operator.settings.max_cholesky_size(cholesky_size),
        linear_operator.settings.cg_tolerance(1e-4),
    ):
        solution = operator.solve(right)
    # the package's CG stagnates near 1e-5, on a dense operator too
    torch.testing.assert_close(solution, torch.linalg.solve(dense, right), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(operator.logdet(), torch.logdet(dense), rtol=1e-10, atol=1e-10)


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
