"""Gauss and Gauss-Radau rules: golden values, brackets, exactness."""

import math

import golden_g1 as g1
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.linalg import (
    AbsoluteResidual,
    conjugate_gradients,
    gauss,
    gauss_radau,
    lanczos,
    nystrom_preconditioner,
    tridiagonal_of_cg,
)
from gpx.linalg.lanczos import tridiagonal

ONES = torch.ones(200, dtype=torch.float64)
ALTERNATING = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(100)
SEVENS = torch.where((7 * torch.arange(200)) % 11 < 5, 1.0, -1.0).double()


def rules(matmul, probe, steps, node):
    found = lanczos(matmul, probe, steps)
    scale = found.norms.square()
    upper = scale * gauss(torch.log, found.alphas, found.betas)
    return upper.item(), (scale * gauss_radau(torch.log, found.alphas, found.betas, node)).item()


@pytest.mark.parametrize(
    ("probe", "steps", "expected"),
    [
        (ONES, 2, (749.4551411598, 745.9471216013)),
        (ONES, 5, (748.8830729349, 748.6187774815)),
        (ONES, 10, (748.8197850724, 748.8197717443)),
        (ALTERNATING, 5, (-597.8476975811, -598.6653602890)),
        (ALTERNATING, 10, (-598.5539161736, -598.5541913550)),
    ],
)
def test_golden_values(probe, steps, expected):
    assert rules(g1.K.matmul, probe, steps, g1.NOISE) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(1, (0.0959452175, 0.0807882555)), (2, (0.0810826609, 0.0810746044))],
)
def test_golden_values_with_a_preconditioner(steps, expected):
    q = nystrom_preconditioner(g1.K_zz, g1.K_zx, g1.NOISE)

    def whitened(v):
        return q.inverse_root_matmul(g1.K @ q.inverse_root_matmul(v, transpose=True))

    assert rules(whitened, SEVENS, steps, 1.0) == pytest.approx(expected, rel=2e-7)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 40), seed=st.integers(0, 1000), condition=st.floats(1.5, 1e4))
def test_the_bracket_holds_at_every_step_and_tightens(n, seed, condition):
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    values = torch.logspace(0, torch.tensor(condition).log10().item(), n, dtype=torch.float64)
    matrix = (q * values) @ q.mT
    probe = torch.randn(n, generator=generator, dtype=torch.float64)
    exact = float(((q.mT @ probe).square() * values.log()).sum())
    slack = 1e-9 * float(probe.square().sum()) * (1 + abs(exact))
    upper_before, lower_before = torch.inf, -torch.inf
    for steps in range(1, n + 1):
        upper, lower = rules(matrix.matmul, probe, steps, 1.0 - 1e-12)
        assert lower - slack <= exact <= upper + slack
        assert upper <= upper_before + slack
        assert lower >= lower_before - slack
        upper_before, lower_before = upper, lower
    assert upper == pytest.approx(exact, abs=slack)
    assert lower == pytest.approx(exact, abs=slack)


def test_gauss_is_exact_for_polynomials_up_to_degree_2t_minus_1_and_no_further():
    matrix = torch.diag(torch.linspace(0.1, 2.0, 20, dtype=torch.float64))
    probe = torch.ones(20, dtype=torch.float64)
    found = lanczos(matrix.matmul, probe, 4)
    for degree in range(10):
        value = 20.0 * float(gauss(lambda t, k=degree: t**k, found.alphas, found.betas))
        exact = float(matrix.diagonal().pow(degree).sum())
        if degree <= 7:
            assert value == pytest.approx(exact, rel=1e-12)
        else:
            assert value != pytest.approx(exact, rel=1e-6)


def test_one_radau_node_is_the_prescribed_one():
    found = lanczos(g1.K.matmul, ONES, 6)
    nodes = []
    gauss_radau(lambda t: nodes.append(t) or t, found.alphas, found.betas, 0.05)
    assert nodes[0].shape == (1, 7)
    assert float(nodes[0].min()) == pytest.approx(0.05, abs=1e-9)


def test_after_breakdown_both_rules_are_exact():
    matrix = torch.diag(torch.tensor([2.0, 2.0, 5.0, 5.0], dtype=torch.float64))
    probe = torch.ones(4, dtype=torch.float64)
    upper, lower = rules(matrix.matmul, probe, 4, 1.0)
    assert upper == lower == pytest.approx(float(matrix.diagonal().log().sum()), rel=1e-14)


def test_columns_that_ended_early_have_the_bracket_of_their_own_steps():
    """PCG freezes each probe at its own step; what it left open must not be lost in the padding."""
    matrix = torch.diag(torch.logspace(0, 1.5, 80, dtype=torch.float64))
    probes = torch.randn(80, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probes *= torch.tensor([1.0, 0.3, 0.1, 0.03], dtype=torch.float64)
    solved = conjugate_gradients(
        matrix, probes, stop=AbsoluteResidual(0.2), on_failure="return", verify=False
    )
    steps = solved.iterations.tolist()
    assert len(set(steps)) == 4
    alphas, betas = tridiagonal_of_cg(solved)
    lower, upper = gauss_radau(torch.log, alphas, betas, 1.0), gauss(torch.log, alphas, betas)
    for column, count in enumerate(steps):
        alone = lanczos(matrix.matmul, probes[:, column], count)
        parts = alone.alphas, alone.betas
        # the coupling that leads out of a column's own T stands last
        assert float(betas[column, -1]) == pytest.approx(float(alone.betas.flatten()[-1]), rel=1e-6)
        assert float(upper[column]) == pytest.approx(float(gauss(torch.log, *parts)), rel=1e-8)
        want = float(gauss_radau(torch.log, *parts, 1.0))
        assert float(lower[column]) == pytest.approx(want, rel=1e-8)
        exact = float((probes[:, column].square() * matrix.diagonal().log()).sum())
        assert lower[column] < exact / float(alone.norms.square()) < upper[column]


def test_a_node_inside_the_spectrum_and_a_missing_coupling_are_refused():
    found = lanczos(g1.K.matmul, ONES, 8)
    with pytest.raises(NotPositiveDefinite, match="above an eigenvalue"):
        gauss_radau(torch.log, found.alphas, found.betas, 2.0)
    with pytest.raises(ConfigError, match="one coupling per step"):
        gauss_radau(torch.log, found.alphas, found.betas[:, :-1], 0.05)


def test_tridiagonal_of_batches():
    alphas, betas = torch.rand(3, 2, 4), torch.rand(3, 2, 4)
    dense = tridiagonal(alphas, betas)
    assert torch.equal(dense, dense.mT)
    assert torch.equal(dense.diagonal(dim1=-2, dim2=-1), alphas)
    assert torch.equal(dense.diagonal(1, -2, -1), betas[..., :3])
    assert bool((dense.triu(2) == 0).all())


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_brackets_at_any_scale(scale):
    """tr log(s K) = tr log K + n log s, for both rules."""
    alphas = torch.tensor([2.0, 3.0, 2.5], dtype=torch.float64)
    betas = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    offset = math.log(scale)
    found = gauss_radau(torch.log, scale * alphas, scale * betas, scale * 0.9)
    torch.testing.assert_close(found - offset, gauss_radau(torch.log, alphas, betas, 0.9))
    found = gauss(torch.log, scale * alphas, scale * betas)
    torch.testing.assert_close(found - offset, gauss(torch.log, alphas, betas))
