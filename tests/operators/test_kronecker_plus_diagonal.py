"""Kronecker plus noise: kept decompositions, closed-form gradients, general diagonals."""

import pytest
import torch
from draws import draw, spd
from linear_operator.operators import LinearOperator

from gpx.errors import DTypeError, NotPositiveDefinite, ShapeError
from gpx.operators import Kronecker, KroneckerPlusDiagonal


@pytest.fixture
def decompositions(monkeypatch):
    calls = []
    original = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda f: (calls.append(1), original(f))[1])
    return calls


def test_the_decomposition_is_kept_until_a_tensor_changes(decompositions):
    factors, noise = [spd(3), spd(4, 1)], torch.tensor([0.3], dtype=torch.float64)
    operator = KroneckerPlusDiagonal(Kronecker(*factors), noise)
    right = draw(12, 2)
    operator.solve(right)
    operator.logdet()
    operator.inv_quad_logdet(right, logdet=True)
    assert len(decompositions) == 2
    noise += 1.0
    found = operator.solve(right)
    assert len(decompositions) == 4
    torch.testing.assert_close(found, torch.linalg.solve(operator.to_dense(), right))


class OwnSparse(LinearOperator):
    """A symmetric matrix held as a sparse tensor."""

    def __init__(self, matrix):
        super().__init__(matrix)
        self.matrix = matrix

    def _matmul(self, right):
        return torch.sparse.mm(self.matrix, right)

    def _size(self):
        return self.matrix.shape

    def _transpose_nonbatch(self):
        return self


def test_a_factor_may_hold_a_sparse_tensor():
    whole, right = spd(4), draw(12, 2)
    sparse, noise = OwnSparse(whole.to_sparse()), torch.tensor([0.3], dtype=torch.float64)
    found = KroneckerPlusDiagonal(Kronecker(sparse, spd(3, 1)), noise)
    dense = KroneckerPlusDiagonal(Kronecker(whole, spd(3, 1)), noise)
    torch.testing.assert_close(found.solve(right), dense.solve(right))
    sparse.matrix.mul_(2.0)  # of which a kept decomposition would know nothing
    whole.mul_(2.0)
    torch.testing.assert_close(found.solve(right), dense.solve(right))


def test_a_gradient_uses_the_kept_decomposition(decompositions):
    leaves = [spd(3).requires_grad_(), spd(4, 1).requires_grad_()]
    operator = Kronecker(*leaves).add_diagonal(torch.tensor(0.3, dtype=torch.float64))
    quad, logdet = operator.inv_quad_logdet(draw(12, 1), logdet=True)
    (quad + logdet).backward()
    assert len(decompositions) == 2


def test_repeated_eigenvalues_do_no_harm():
    """Differentiating an eigendecomposition divides by differences of eigenvalues: here zero."""
    one = torch.eye(3, dtype=torch.float64, requires_grad=True)
    two = torch.eye(4, dtype=torch.float64, requires_grad=True)
    noise = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    KroneckerPlusDiagonal(Kronecker(one, two), noise).logdet().backward()
    torch.testing.assert_close(one.grad, 4 / 1.5 * torch.eye(3).double())
    torch.testing.assert_close(two.grad, 3 / 1.5 * torch.eye(4).double())
    torch.testing.assert_close(noise.grad, torch.tensor([12 / 1.5]).double())


def test_a_diagonal_of_no_dimension_is_a_constant_one():
    product = Kronecker(spd(3), spd(4))
    found = KroneckerPlusDiagonal(product, torch.tensor(0.3, dtype=torch.float64))
    assert found.diagonal_values.shape == (1,)
    torch.testing.assert_close(found.to_dense(), product.to_dense() + 0.3 * torch.eye(12).double())


def test_a_singular_product_with_noise_is_exact():
    """A smooth kernel has eigenvalues of rounding size; with noise nothing is clamped."""
    x = torch.linspace(0, 1, 25, dtype=torch.float64)
    factors = [torch.exp(-0.5 * ((x[:, None] - x) / s).square()) for s in (0.5, 1.0)]
    operator = Kronecker(*factors).add_diagonal(torch.tensor(1e-4, dtype=torch.float64))
    exact = torch.linalg.eigvalsh(torch.kron(*factors)) + 1e-4
    torch.testing.assert_close(operator.logdet(), exact.log().sum(), rtol=1e-10, atol=0)


def test_general_diagonal_converges_whatever_the_kronecker_product():
    """The preconditioned condition number is at most max D / min D, here 4."""
    sizes = (50, 50)
    x = torch.linspace(0, 1, 50, dtype=torch.float64)
    factors = [torch.exp(-0.5 * ((x[:, None] - x) / 0.3).square()) for _ in sizes]
    generator = torch.Generator().manual_seed(0)
    noise = 1e-3 * (1 + 3 * torch.rand(2500, generator=generator, dtype=torch.float64))
    operator = KroneckerPlusDiagonal(Kronecker(*factors), noise)
    count, product = [], operator._product
    operator._product = lambda v: (count.append(1), product(v))[1]
    right = draw(2500, 1)
    solution = operator.solve(right)
    residual = (operator.kronecker @ solution + noise[:, None] * solution - right).norm()
    assert residual <= 2e-10 * right.norm()
    # CG with condition 4 gains a factor 3 per step: 1e-10 takes 22 and a check
    assert len(count) <= 30


def test_errors():
    with pytest.raises(ShapeError, match="square factors"):
        KroneckerPlusDiagonal(Kronecker(draw(2, 3)), torch.ones(1).double())
    with pytest.raises(ShapeError, match=r"expected \(..., 1\) or \(..., 6\)"):
        KroneckerPlusDiagonal(Kronecker(spd(2), spd(3)), torch.ones(5).double())
    with pytest.raises(DTypeError, match="float32"):
        KroneckerPlusDiagonal(Kronecker(spd(2)), torch.ones(1))
    operator = Kronecker(spd(2), -spd(3)).add_diagonal(torch.tensor(0.1, dtype=torch.float64))
    for call in (operator.logdet, lambda: operator.solve(draw(6))):
        with pytest.raises(NotPositiveDefinite, match=r"eigenvalues from -\d.*raise the noise"):
            call()


def test_an_empty_grid_and_eigenvalues_out_of_range():
    empty = KroneckerPlusDiagonal(
        Kronecker(torch.ones(0, 0, dtype=torch.float64)), torch.ones(1, dtype=torch.float64)
    )
    assert empty.logdet().item() == 0.0
    huge = 1e200 * torch.eye(2, dtype=torch.float64)
    with pytest.raises(NotPositiveDefinite, match="not finite"):
        KroneckerPlusDiagonal(Kronecker(huge, huge), torch.ones(1, dtype=torch.float64)).logdet()


@pytest.mark.parametrize("smooth", [True, False])
def test_solves_in_float32_lose_nothing_to_the_condition_number(smooth):
    """Eigenvalues from 0.1 to thousands; a rotation in float32 loses 1e-5 for a constant."""
    axis = torch.linspace(0.0, 1.0, 24, dtype=torch.float64)
    square = (axis[:, None] - axis).square()
    factors = [torch.exp(-0.5 * square / s**2).float() for s in (0.2, 0.3, 0.4)]
    size = 24**3
    generator = torch.Generator().manual_seed(0)
    right = torch.ones(size, 1) if smooth else torch.randn(size, 1, generator=generator)
    noise = torch.tensor([0.1])
    found = KroneckerPlusDiagonal(Kronecker(*factors), noise).solve(right)
    wide = Kronecker(*[f.double() for f in factors])
    want = KroneckerPlusDiagonal(wide, noise.double()).solve(right.double())
    assert found.dtype == torch.float32
    assert float((found - want).norm() / want.norm()) < 2.0 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("columns", [(), (2,)])
def test_bilinear_derivatives_equal_autograd(columns):
    roots = [draw(m, m, seed=m) for m in (3, 4, 2, 5)]
    factors = [r @ r.mT for r in roots]
    left, right = draw(120, *columns, seed=1), draw(120, *columns, seed=2)
    leaves = [f.clone().requires_grad_() for f in factors]
    whole = leaves[0]
    for f in leaves[1:]:
        whole = torch.kron(whole, f)
    want = torch.autograd.grad((left * (whole @ right)).sum(), leaves)
    noise = torch.tensor([0.3], dtype=torch.float64)
    *found, slope = KroneckerPlusDiagonal(Kronecker(*factors), noise)._bilinear_derivative(
        left, right
    )
    for ours, exact in zip(found, want, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(slope, (left * right).sum().reshape(1))
