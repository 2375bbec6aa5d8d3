"""Block Lanczos: the relation A S = S T + N E^T, brackets at every step, deflation, ends."""

import pytest
import torch
from draws import draw
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import DidNotConverge, NotPositiveDefinite, ShapeError
from gpx.linalg import (
    BlockLanczos,
    RelativeResidual,
    block_gauss,
    block_radau,
    conjugate_gradients,
    gauss,
    gauss_radau,
    lanczos,
)


def with_condition(n, condition, seed):
    q, _ = torch.linalg.qr(draw(n, n, seed=seed))
    values = torch.logspace(0, 1, n, condition, dtype=torch.float64)
    return (q * values) @ q.mT, values, q


def check_relation(process, matrix, start):
    s, n = process.basis.mT, process.candidates
    both = torch.cat([s, n], 1)
    eye = torch.eye(both.shape[1], dtype=torch.float64)
    scale = float(matrix.abs().max())
    torch.testing.assert_close(both.mT @ both, eye, rtol=0, atol=1e-10)
    image = s @ process.projected + n @ process.couplings.mT
    torch.testing.assert_close(matrix @ s, image, rtol=0, atol=1e-9 * scale)
    c = process.coefficients
    torch.testing.assert_close(s[:, : c.shape[0]] @ c, start, rtol=0, atol=1e-10)


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(2, 40),
    columns=st.integers(1, 5),
    condition=st.floats(1.5, 1e4),
    alone=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
def test_relation_and_brackets_hold_at_every_step(n, columns, condition, alone, seed):
    matrix, values, modes = with_condition(n, condition, seed)
    start = draw(n, columns, seed=seed + 1)
    weights = (modes.mT @ start).square()
    exact = {torch.log: values.log() @ weights, torch.reciprocal: values.reciprocal() @ weights}
    process = BlockLanczos(matrix.matmul, start, n)
    directions = [None, None] + [True] * alone + [None] * n
    last = torch.inf
    for direction in directions:
        if direction is not None and not process.exhausted:
            direction = process.couplings.sum(0)
        if not process.extend(direction):
            break
        check_relation(process, matrix, start)
        extended = block_radau(process.projected, process.couplings, 1.0)
        for function, truth in exact.items():
            rules = [
                block_gauss(function, t, process.coefficients)
                for t in (process.projected, extended)
            ]
            above, below = rules if function is torch.log else rules[::-1]
            slack = 1e-9 * (1.0 + truth.abs())
            assert bool((above >= truth - slack).all())
            assert bool((below <= truth + slack).all())
            if function is torch.log:
                assert float((above - below).sum()) <= last + float(slack.sum())
                last = float((above - below).sum())
    if process.size == n:  # the whole space: exact
        assert process.exhausted
        assert last <= 1e-8 * float(weights.sum())


def test_one_start_is_the_ordinary_process():
    matrix, _, _ = with_condition(40, 100.0, 0)
    start = draw(40, 1)
    usual = lanczos(matrix.matmul, start, 12)
    process = BlockLanczos(matrix.matmul, start, 12)
    while process.extend():
        pass
    assert process.size == process.multiplied == 12
    scale = usual.norms.square()
    want = scale * gauss(torch.log, usual.alphas, usual.betas)
    got = block_gauss(torch.log, process.projected, process.coefficients)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=0)
    want = scale * gauss_radau(torch.log, usual.alphas, usual.betas, 1.0)
    extended = block_radau(process.projected, process.couplings, 1.0)
    got = block_gauss(torch.log, extended, process.coefficients)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=0)


def test_the_node_is_an_eigenvalue_of_the_extended_matrix():
    matrix, _, _ = with_condition(40, 100.0, 0)
    process = BlockLanczos(matrix.matmul, draw(40, 3), 40)
    for _ in range(4):
        process.extend()
    extended = block_radau(process.projected, process.couplings, 0.7)
    found = torch.linalg.eigvalsh(extended)[:3]  # once per candidate
    torch.testing.assert_close(found, torch.full_like(found, 0.7), rtol=1e-9, atol=0)


def test_a_shared_space_is_tighter_than_separate_ones():
    matrix, _, _ = with_condition(60, 1e3, 1)
    start = draw(60, 4, seed=2)
    process = BlockLanczos(matrix.matmul, start, 60)
    for _ in range(6):
        process.extend()
    usual = lanczos(matrix.matmul, start, 6)
    above = block_gauss(torch.log, process.projected, process.coefficients)
    assert bool((above < usual.norms.square() * gauss(torch.log, usual.alphas, usual.betas)).all())


def test_one_start_alone_goes_on_from_what_is_known():
    """The residual's direction: conjugate gradients deflated by the space of the others."""
    matrix, _, _ = with_condition(200, 300.0, 1)
    start = draw(200, 4, seed=2)
    process, steps, residual = BlockLanczos(matrix.matmul, start, 200), 0, None
    while residual is None or float(residual.norm()) > 1e-6 * float(start[:, 0].norm()):
        assert process.extend(residual if steps >= 10 else None)
        steps += 1
        right = torch.zeros(process.size, dtype=torch.float64)
        right[:4] = process.coefficients[:, 0]
        solution = torch.linalg.solve(process.projected, right)
        residual = process.couplings.mT @ solution
    got = matrix @ (process.basis.mT @ solution)
    assert float((got - start[:, 0]).norm()) <= 1.1e-6 * float(start[:, 0].norm())
    plain = conjugate_gradients(matrix.matmul, start[:, 0], stop=RelativeResidual(1e-6))
    assert steps < 0.9 * plain.report.iterations


def test_low_rank_plus_identity_and_repeated_starts_are_deflated():
    factor = draw(50, 4)
    matrix = factor @ factor.mT + torch.eye(50, dtype=torch.float64)
    start = draw(50, 3, seed=1)
    start = torch.cat([start, start[:, :1], torch.zeros(50, 1, dtype=torch.float64)], 1)
    process = BlockLanczos(matrix.matmul, start, 50)
    while process.extend():
        pass
    assert process.exhausted
    assert process.size == process.multiplied <= 3 + 4
    check_relation(process, matrix, start)
    values, modes = torch.linalg.eigh(matrix)
    want = values.log() @ (modes.mT @ start).square()
    got = block_gauss(torch.log, process.projected, process.coefficients)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_a_node_above_the_spectrum_and_values_that_are_not_finite():
    matrix, _, _ = with_condition(20, 10.0, 0)
    process = BlockLanczos(matrix.matmul, draw(20, 2), 20)
    for _ in range(8):
        process.extend()
    with pytest.raises(NotPositiveDefinite, match="is not below the Ritz value 1"):
        block_radau(process.projected, process.couplings, 1.5)
    with pytest.raises(NotPositiveDefinite, match="not finite at all Ritz values"):
        block_gauss(torch.log, -process.projected, process.coefficients)
    with pytest.raises(DidNotConverge, match="NaN or infinite values within 2 vectors"):
        BlockLanczos((matrix * torch.nan).matmul, draw(20, 2), 20).extend()
    with pytest.raises(DidNotConverge, match="start vector"):
        BlockLanczos(matrix.matmul, draw(20, 2) * torch.inf, 20)
    for start in (draw(20), draw(20, 0), draw(0, 2)):
        with pytest.raises(ShapeError, match="room for at least one"):
            BlockLanczos(matrix.matmul, start, 20)
