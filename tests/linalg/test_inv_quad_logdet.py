"""Both terms of the log density and their gradients: dense, iterative, through operators."""

import itertools

import golden_g1 as g1
import pytest
import torch
from linear_operator.operators import DenseLinearOperator

from gpx.errors import (
    ConfigError,
    DidNotConverge,
    DTypeError,
    NotPositiveDefinite,
    ShapeError,
)
from gpx.kernels import RBF
from gpx.linalg import (
    RelativeResidual,
    inv_quad_logdet,
    logdet_quadrature,
    nystrom_preconditioner,
)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_golden_fixture_both_ways():
    dense = inv_quad_logdet(g1.K, g1.y, method="cholesky", ladder=(0.0,))
    assert float(dense.inv_quad) == pytest.approx(g1.INV_QUAD, rel=1e-7)
    assert float(dense.logdet) == pytest.approx(g1.LOGDET, rel=1e-9)
    assert dense.report.jitter == 0.0
    # the dense way has no error and its bracket is the value
    assert float(dense.logdet_error) == 0.0
    assert dense.logdet_bracket == (dense.logdet.detach(), dense.logdet.detach())
    q = nystrom_preconditioner(g1.K_zz, g1.K_zx, g1.NOISE)
    found = inv_quad_logdet(
        g1.K,
        g1.y,
        method="iterative",
        preconditioner=q,
        probes=100,
        generator=torch.Generator().manual_seed(0),
    )
    assert float(found.inv_quad) == pytest.approx(g1.INV_QUAD, rel=1e-7)
    assert 0 < float(found.logdet_error) < 0.3
    assert abs(float(found.logdet) - g1.LOGDET) < 4 * float(found.logdet_error)
    assert float(found.logdet_bracket[0]) <= float(found.logdet_bracket[1])
    assert found.report.converged


def test_gradcheck_of_the_dense_way():
    def terms(root, rhs, ladder):
        found = inv_quad_logdet(
            root @ root.mT + torch.eye(5, dtype=torch.float64),
            rhs,
            method="cholesky",
            ladder=ladder,
        )
        return found.inv_quad, found.logdet

    root, rhs = randn(5, 5).requires_grad_(), randn(5, 2, seed=1).requires_grad_()
    for ladder in ((0.0,), (0.3,)):  # with jitter, too: it scales with the diagonal
        assert torch.autograd.gradcheck(terms, (root, rhs, ladder))


def test_with_all_signs_and_exact_solves_the_iterative_way_is_the_dense_one():
    x = randn(7, 2)
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=7)), dtype=torch.float64).mT
    rhs = randn(7, 2, seed=1)
    outcomes = []
    for method in ("cholesky", "iterative"):
        for with_q in (False, True):
            kernel = RBF(ard_num_dims=2, lengthscale=[0.7, 1.1], outputscale=1.4).double()
            noise = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
            inputs, b = x.clone().requires_grad_(), rhs.clone().requires_grad_()
            k = kernel.evaluate(x, x).detach()
            q = nystrom_preconditioner(k[:3, :3], k[:3], 0.3) if with_q else None
            found = inv_quad_logdet(
                kernel(inputs).add_diagonal(noise),
                b,
                method=method,
                probes=signs,
                preconditioner=q,
                stop=RelativeResidual(1e-13),
                on_failure="return",
            )
            (1.7 * found.inv_quad + 0.6 * found.logdet).backward()
            outcomes.append(
                [found.inv_quad, found.logdet, noise.grad, inputs.grad, b.grad]
                + [p.grad for p in kernel.parameters()]
            )
    for other in outcomes[1:]:
        for ours, reference in zip(other, outcomes[0], strict=True):
            torch.testing.assert_close(ours, reference, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("with_q", [False, True])
def test_gradients_are_unbiased(with_q):
    kernel = RBF(lengthscale=0.7, outputscale=1.3).double()
    x, rhs = g1.x[::5, None], g1.y[::5]
    q = nystrom_preconditioner(g1.K_zz[::2, ::2], g1.K_zx[::2, ::5], g1.NOISE) if with_q else None
    parameters = list(kernel.parameters())
    generator = torch.Generator().manual_seed(0)

    def gradient(**options):
        operator = kernel(x).add_diagonal(torch.tensor(g1.NOISE).double())
        found = inv_quad_logdet(operator, rhs, **options)
        return torch.stack(torch.autograd.grad(found.logdet, parameters))

    samples = torch.stack(
        [
            gradient(method="iterative", preconditioner=q, probes=20, generator=generator)
            for _ in range(12)
        ]
    )
    error = samples.std(0) / 12**0.5
    exact = gradient(method="cholesky")
    assert bool(((samples.mean(0) - exact).abs() < 5 * error).all())  # 12 samples: a t statistic


def test_one_cg_run_and_one_bilinear_derivative():
    calls = []

    class Counting(DenseLinearOperator):
        def _matmul(self, rhs):
            calls.append(("product", rhs.shape[-1]))
            return super()._matmul(rhs)

        def _bilinear_derivative(self, left, right):
            calls.append(("derivative", left.shape[-1]))
            return super()._bilinear_derivative(left, right)

    matrix = g1.K.clone().requires_grad_()
    found = inv_quad_logdet(Counting(matrix), g1.y, method="iterative", probes=4)
    assert calls == [("product", 5)] * (found.report.iterations + 1)
    calls.clear()
    found.logdet.backward()
    assert calls == [("derivative", 5)]
    assert matrix.grad.shape == matrix.shape


def test_fixed_probes_make_it_deterministic_and_the_inverse_quadratic_a_lower_bound():
    probes = torch.where(randn(200, 3) > 0, 1.0, -1.0).double()
    options = {"method": "iterative", "probes": probes, "on_failure": "return"}
    first = inv_quad_logdet(g1.K, g1.y, **options)
    again = inv_quad_logdet(g1.K, g1.y, **options)
    assert torch.equal(first.logdet, again.logdet)
    for steps in (1, 4, 8, 16):
        rough = inv_quad_logdet(g1.K, g1.y, max_iterations=steps, **options)
        assert float(rough.inv_quad) <= g1.INV_QUAD * (1 + 1e-9)
        assert not rough.report.converged


@pytest.mark.parametrize("with_q", [False, True])
@pytest.mark.parametrize("node", [None, 0.5])
def test_the_bracket_is_that_of_quadrature_with_the_same_probes_and_node(with_q, node):
    probes = torch.where(randn(200, 3) > 0, 1.0, -1.0).double()
    q = nystrom_preconditioner(g1.K_zz, g1.K_zx, g1.NOISE) if with_q else None
    node = g1.NOISE / 2 if node and not with_q else node
    found = inv_quad_logdet(
        g1.K,
        g1.y,
        method="iterative",
        probes=probes,
        preconditioner=q,
        node=node,
        max_iterations=2,
        on_failure="return",
    )
    want = logdet_quadrature(g1.K.matmul, probes, steps=2, node=node, preconditioner=q)
    for ours, reference in zip(found.logdet_bracket, want.bracket, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-7, atol=0)
    torch.testing.assert_close(found.logdet, want.value, rtol=1e-7, atol=0)
    torch.testing.assert_close(found.logdet_error, want.standard_error, rtol=1e-7, atol=0)
    assert bool(want.bracket[0] < want.bracket[1]) == (with_q or node is not None)


def test_failures():
    indefinite = g1.K - torch.eye(200, dtype=torch.float64)
    for method in ("cholesky", "iterative"):
        with pytest.raises(NotPositiveDefinite):
            inv_quad_logdet(indefinite, g1.y, method=method)
    with pytest.raises(DidNotConverge, match="3 steps were not enough"):
        inv_quad_logdet(g1.K, g1.y, method="iterative", max_iterations=3)
    with pytest.raises(ConfigError, match="method must be"):
        inv_quad_logdet(g1.K, g1.y, method="auto")
    with pytest.raises(ShapeError, match="do not fit"):
        inv_quad_logdet(g1.K, g1.y[:5], method="cholesky")
    with pytest.raises(ShapeError, match=r"must be \(n, n\)"):
        inv_quad_logdet(g1.K[:5], g1.y, method="cholesky")


@pytest.mark.parametrize("method", ["cholesky", "iterative"])
def test_operands_that_do_not_fit_are_one_clear_error_each(method):
    matrix, b = torch.eye(5, dtype=torch.float64), randn(5)
    with pytest.raises(DTypeError, match="right-hand sides"):
        inv_quad_logdet(matrix, b.float(), method=method)
    if method == "cholesky":
        return
    for wrong in (randn(4, 3), randn(5), randn(5, 0)):
        with pytest.raises(ShapeError, match="probes"):
            inv_quad_logdet(matrix, b, method=method, probes=wrong)
    with pytest.raises(DTypeError, match="probes"):
        inv_quad_logdet(matrix, b, method=method, probes=randn(5, 2).float())
    with pytest.raises(ConfigError, match="at least one is needed"):
        inv_quad_logdet(matrix, b, method=method, max_iterations=0, on_failure="return")
