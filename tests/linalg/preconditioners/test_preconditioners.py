"""Every preconditioner against the dense matrix it stands for, and what it is worth in CG steps."""

import pytest
import scipy.linalg
import torch
from draws import draw

from gpx.errors import ConfigError, DTypeError, NotPositiveDefinite, ShapeError
from gpx.linalg import (
    GridLowRankPlusNoise,
    Jacobi,
    LowRankPlusNoise,
    RelativeResidual,
    chan,
    circulant_preconditioner,
    conjugate_gradients,
    missing_grid_preconditioner,
    nystrom_preconditioner,
    observed_grid_preconditioner,
    pivoted_cholesky,
)

NOISE = 0.02


def greedy(rows, diagonal, rank, noise):
    """Greedy pivots of the noise-free kernel matrix, plus noise: below the kernel."""
    found = pivoted_cholesky(rows, diagonal, rank)
    return LowRankPlusNoise(found.factor, noise, below_kernel=True)


def rbf(a, b, lengthscale=0.8):
    return torch.exp(-0.5 * torch.cdist(a, b).square() / lengthscale**2)


def eye(n):
    return torch.eye(n, dtype=torch.float64)


def grid(sizes=(7, 6), lengthscale=0.4):
    """Factors' eigenpairs, the full covariance, observed and missing multi-indices."""
    factors = []
    for m in sizes:
        points = torch.linspace(0, 1, m, dtype=torch.float64).unsqueeze(-1)
        factors.append(rbf(points, points, lengthscale))
    pairs = [torch.linalg.eigh(f) for f in factors]
    full = torch.kron(*factors)
    index = torch.cartesian_prod(*(torch.arange(m) for m in sizes))
    gone = torch.rand(len(index), generator=torch.Generator().manual_seed(3)) < 0.4
    return [q for _, q in pairs], [v for v, _ in pairs], full, index, gone


def cases():
    x = draw(40, 2)
    k = rbf(x, x)
    varying = NOISE * (1 + torch.rand(40, generator=torch.Generator().manual_seed(2)).double())
    z = x[:8]
    nystrom = rbf(x, z) @ torch.linalg.solve(rbf(z, z), rbf(z, x))
    yield "nystrom", nystrom_preconditioner(rbf(z, z), rbf(z, x), NOISE), nystrom + NOISE * eye(40)
    yield (
        "nystrom, varying noise",
        nystrom_preconditioner(rbf(z, z), rbf(z, x), varying),
        nystrom + varying.diag(),
    )
    found = greedy(lambda i: k[i], k.diagonal(), 40, NOISE)
    yield "complete pivoted Cholesky", found, k + NOISE * eye(40)
    yield "no rank", LowRankPlusNoise(k.new_empty(0, 40), NOISE), NOISE * eye(40)
    yield "jacobi", Jacobi(varying), varying.diag()
    column = torch.exp(-torch.arange(40.0, dtype=torch.float64) / 5.0)
    for size in (39, 40):
        near = torch.tensor(scipy.linalg.circulant(chan(column[:size])))
        yield f"circulant of {size}", circulant_preconditioner(column[:size]), near
    levels = torch.outer(column[:5], column[:7])
    near = torch.kron(*[torch.tensor(scipy.linalg.circulant(chan(column[:m]))) for m in (5, 7)])
    yield "circulant of two levels", circulant_preconditioner(levels, levels=2), near
    vectors, values, _, index, gone = grid()
    rank = 12
    flat_values, flat_vectors = torch.kron(*values), torch.kron(*vectors)
    order = flat_values.argsort(descending=True)
    top = flat_vectors[~gone][:, order[:rank]]
    yield (
        "observed grid",
        observed_grid_preconditioner(vectors, values, index[~gone], rank, NOISE),
        top @ torch.diag(flat_values[order[:rank]]) @ top.mT + NOISE * eye(len(top)),
    )
    flat = torch.arange(len(index))[~gone]
    yield (
        "observed grid, kronecker",
        observed_grid_preconditioner(vectors, values, flat, rank, NOISE, form="kronecker"),
        top @ torch.diag(flat_values[order[:rank]]) @ top.mT + NOISE * eye(len(top)),
    )
    # eigenvalues here are floored; five of the smallest of a rough kernel are well above the floor
    vectors, values, _, index, gone = grid(lengthscale=0.12)
    flat_values, flat_vectors = torch.kron(*values), torch.kron(*vectors)
    order = flat_values.argsort()
    inverse = 1 / (flat_values[order[:5]] + NOISE)
    zeta = 0.5 * inverse.min()
    bottom = flat_vectors[gone][:, order[:5]]
    yield (
        "missing grid",
        missing_grid_preconditioner(vectors, values, index[gone], 5, NOISE),
        bottom @ torch.diag(inverse - zeta) @ bottom.mT + zeta * eye(len(bottom)),
    )
    yield (
        "missing grid, kronecker",
        missing_grid_preconditioner(vectors, values, index[gone], 5, NOISE, form="kronecker"),
        bottom @ torch.diag(inverse - zeta) @ bottom.mT + zeta * eye(len(bottom)),
    )


CASES = list(cases())


@pytest.mark.parametrize(("name", "q", "dense"), CASES, ids=[c[0] for c in CASES])
def test_it_is_the_dense_matrix(name, q, dense):
    n = dense.shape[0]
    block, tolerance = draw(n, 3, seed=5), {"rtol": 1e-9, "atol": 1e-10}
    assert tuple(q.shape) == (n, n)
    assert (q.dtype, q.device.type) == (torch.float64, "cpu")
    torch.testing.assert_close(q.matmul(block), dense @ block, **tolerance)
    torch.testing.assert_close(
        q.solve(block), torch.linalg.solve(dense, block), rtol=1e-8, atol=1e-8
    )
    torch.testing.assert_close(q(block[:, 0]), q.solve(block)[:, 0], **tolerance)
    torch.testing.assert_close(q.logdet(), torch.logdet(dense), **tolerance)
    root, inverse_root = q.root_matmul(eye(n)), q.inverse_root_matmul(eye(n))
    torch.testing.assert_close(root @ root.mT, dense, **tolerance)
    torch.testing.assert_close(inverse_root @ root, eye(n), rtol=0, atol=1e-9)
    transposed = q.inverse_root_matmul(eye(n), transpose=True)
    torch.testing.assert_close(transposed, inverse_root.mT, **tolerance)
    torch.testing.assert_close(q.root_matmul(block[:, 0]), root @ block[:, 0], **tolerance)


def test_certified_ones_are_below_the_kernel_and_the_spectrum_starts_at_one():
    x = draw(50, 2)
    k = rbf(x, x)
    for rank in (1, 5, 20):
        for q in (
            greedy(lambda i: k[i], k.diagonal(), rank, NOISE),
            nystrom_preconditioner(k[:rank, :rank], k[:rank], NOISE),
        ):
            assert q.below_kernel
            gap = k + NOISE * eye(50) - q.matmul(eye(50))
            assert float(torch.linalg.eigvalsh(gap).min()) > -1e-12
            half = q.inverse_root_matmul(eye(50))
            whitened = half @ (k + NOISE * eye(50)) @ half.mT
            assert float(torch.linalg.eigvalsh(whitened).min()) > 1 - 1e-9
    vectors, values, full, index, gone = grid()
    q = observed_grid_preconditioner(vectors, values, index[~gone], 9, NOISE)
    n = int((~gone).sum())
    exact = full[~gone][:, ~gone] + NOISE * eye(n)
    assert float(torch.linalg.eigvalsh(exact - q.matmul(eye(n))).min()) > -1e-10


def test_more_rank_fewer_steps_and_the_full_grid_is_exact():
    vectors, values, full, index, gone = grid((12, 10), lengthscale=0.2)
    exact = full[~gone][:, ~gone]
    exact = exact + 1e-4 * eye(len(exact))
    rhs = draw(len(exact), 2)
    stop = RelativeResidual(1e-6)
    plain = conjugate_gradients(exact.matmul, rhs, stop=stop)
    steps, conditions = [plain.report.iterations], []
    for rank in (10, 30, 120):
        q = observed_grid_preconditioner(vectors, values, index[~gone], rank, 1e-4)
        found = conjugate_gradients(exact.matmul, rhs, preconditioner=q, stop=stop)
        steps.append(found.report.iterations)
        half = q.inverse_root_matmul(eye(len(exact)))
        conditions.append(float(torch.linalg.cond(half @ exact @ half.mT)))
        torch.testing.assert_close(exact @ found.solution, rhs, rtol=0, atol=1e-4)
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] <= 2 < 5 * steps[-1] < steps[0]
    assert conditions == sorted(conditions, reverse=True)


def test_jacobi_helps_where_the_noise_varies():
    x = draw(60, 2)
    noise = torch.logspace(-2, 3, 60, dtype=torch.float64)
    k = rbf(x, x) + noise.diag()
    plain = conjugate_gradients(k.matmul, draw(60)).report.iterations
    found = conjugate_gradients(k.matmul, draw(60), preconditioner=Jacobi(k.diagonal()))
    assert found.report.iterations < 0.6 * plain


def test_float32_factors_are_inverted_by_a_float64_gram_matrix():
    x = draw(300, 1)
    k = rbf(x, x)
    q = greedy(lambda i: k[i].float(), k.diagonal().float(), 20, 1e-3)
    assert q.dtype == torch.float32
    dense = q.matmul(torch.eye(300)).double()
    assert float(q.logdet()) == pytest.approx(float(torch.logdet(dense)), rel=1e-4)
    block = draw(300, 2)
    exact = torch.linalg.solve(k + 1e-3 * eye(300), block)
    found = conjugate_gradients(
        (k + 1e-3 * eye(300)).matmul,
        block,
        preconditioner=lambda r: q.solve(r.float()).double(),
        stop=RelativeResidual(1e-8),
    )
    assert found.report.iterations < 30
    torch.testing.assert_close(found.solution, exact, rtol=1e-4, atol=1e-3)


def test_what_cannot_be_a_preconditioner_is_refused():
    with pytest.raises(NotPositiveDefinite, match="raise the noise variance"):
        LowRankPlusNoise(draw(3, 10), 0.0)
    with pytest.raises(NotPositiveDefinite, match="ranges from -1 to 1"):
        Jacobi(torch.tensor([1.0, -1.0]))
    with pytest.raises(NotPositiveDefinite, match="to inf"):
        Jacobi(torch.tensor([1.0, float("inf")]))
    with pytest.raises(ShapeError, match="noise must be a scalar"):
        LowRankPlusNoise(draw(3, 10), torch.ones(3))
    with pytest.raises(ConfigError, match="is for one matrix"):
        circulant_preconditioner(draw(2, 8))
    vectors, values, _, index, gone = grid()
    with pytest.raises(ConfigError, match="spectral shift"):
        missing_grid_preconditioner(vectors, values, index[gone], 5, NOISE, shift=1e6)
    with pytest.raises(ConfigError, match="form=sparse: expected one of dense, kronecker"):
        observed_grid_preconditioner(vectors, values, index, 5, NOISE, form="sparse")
    with pytest.raises(ShapeError, match="the grid has 42"):
        GridLowRankPlusNoise(
            vectors, torch.tensor([42]), torch.zeros(1, 2, dtype=torch.long), torch.ones(1), NOISE
        )
    with pytest.raises(ShapeError, match=r"expected \(n, 2\)"):
        observed_grid_preconditioner(vectors, values, index[:, :1], 5, NOISE)


def test_vectors_that_do_not_fit_are_one_clear_error_each():
    q = LowRankPlusNoise(draw(2, 5), 0.3)
    for use in (q.solve, q.matmul, q.root_matmul, q.inverse_root_matmul):
        for wrong in (draw(4), draw(6, 2), draw(5, 6, 1)):
            with pytest.raises(ShapeError, match="5 rows"):
                use(wrong)
        with pytest.raises(DTypeError, match="float32"):
            use(draw(5).float())
    block = draw(3, 5, 2)
    torch.testing.assert_close(q.solve(block), torch.stack([q.solve(b) for b in block]))


@pytest.mark.parametrize("noise", [0.0, float("nan"), float("inf")])
def test_noise_must_be_positive_and_finite(noise):
    with pytest.raises(NotPositiveDefinite, match="positive, finite"):
        LowRankPlusNoise(draw(2, 5), noise)


def test_interpolated_data_have_the_dense_form_only():
    vectors = [draw(20, 4), draw(20, 4, seed=1)]
    values = [torch.ones(4, dtype=torch.float64)] * 2
    observed = torch.arange(20)[:, None].expand(20, 2)
    q = observed_grid_preconditioner(vectors, values, observed, 16, 0.3)
    factor = (vectors[0].unsqueeze(-1) * vectors[1].unsqueeze(-2)).flatten(-2)
    expected = factor @ factor.mT + 0.3 * eye(20)
    torch.testing.assert_close(q.matmul(eye(20)), expected)
    with pytest.raises(ConfigError, match="form='dense'"):
        observed_grid_preconditioner(vectors, values, observed, 16, 0.3, form="kronecker")
