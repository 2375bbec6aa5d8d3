"""One side on a CPU: the recurrence of many sides, to rounding, at half the operations a step."""

import math
import sys

import pytest
import torch
from launches import Launches

from gpx.errors import DidNotConverge, NotPositiveDefinite
from gpx.linalg import EvidenceBound, LowRankPlusNoise, RelativeResidual, conjugate_gradients
from gpx.linalg.cg_iteration import CGIteration
from gpx.linalg.cg_one_side import Numbers, OneSide

SOLVER = sys.modules["gpx.linalg.conjugate_gradients"]
"""The module, whose name in its package is the function's."""


def problem(dtype=torch.float64, n=120, shape=None, seed=0):
    """K = C^T C + D, one right-hand side, Q."""
    draw = torch.Generator().manual_seed(seed)
    root = torch.randn(8, n, generator=draw, dtype=torch.float64)
    matrix = root.mT @ root + torch.linspace(1.0, 90.0, n, dtype=torch.float64).diag()
    rhs = torch.randn(n, generator=draw, dtype=torch.float64).to(dtype)
    q = LowRankPlusNoise(root.to(dtype), 1.0, below_kernel=True)
    return matrix.to(dtype), rhs.view(shape or (n, 1)), q


@pytest.fixture
def made(monkeypatch):
    """Which classes of iterations were begun."""
    begun, begin = [], CGIteration.begin

    def watched(self):
        begun.append(type(self))
        begin(self)

    monkeypatch.setattr(CGIteration, "begin", watched)
    return begun


def both(monkeypatch, *arguments, **options):
    """Results of the recurrence with numbers, and with tensors."""
    found = conjugate_gradients(*arguments, **options)
    with monkeypatch.context() as patch:
        patch.setattr(SOLVER, "OneSide", CGIteration)
        return found, conjugate_gradients(*arguments, **options)


CASES = {
    "plain": {},
    "preconditioned": {"q": True},
    "a bound": {"q": True, "stop": EvidenceBound(1e-8)},
    "a vector": {"shape": (120,), "q": True},
    "a batch of one": {"shape": (1, 120, 1)},
    "warm start": {"x0": 0.3, "q": True},
    "refreshed": {"refresh_every": 5},
    "restarted": {"refresh_every": 7, "restart": True, "q": True},
    "float32 products": {"product_dtype": torch.float32, "stop": RelativeResidual(1e-8)},
    "cut short": {"max_iterations": 6, "on_failure": "return", "q": True},
    "unverified": {"verify": False, "keep_preconditioned": True, "q": True},
    "stagnation": {"stop": RelativeResidual(1e-17), "on_failure": "return"},
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_the_host_make_the_same_solve(name, monkeypatch, made):
    options = {"stop": RelativeResidual(1e-9), **CASES[name]}
    matrix, rhs, q = problem(shape=options.pop("shape", None))
    if options.pop("q", False):
        options["preconditioner"] = q
    if "x0" in options:
        options["x0"] = options["x0"] * rhs
    found, expected = both(monkeypatch, matrix, rhs, **options)
    assert made == [OneSide, CGIteration]
    assert found.report.converged == expected.report.converged
    assert found.report.reason.split(":")[0] == expected.report.reason.split(":")[0]
    torch.testing.assert_close(found.solution, expected.solution, rtol=1e-7, atol=1e-9)
    if name == "stagnation":  # at rounding the paths part
        return
    assert found.report.iterations == expected.report.iterations
    assert found.products == expected.products
    assert found.undisturbed == expected.undisturbed
    for field in ("history", "iterations", "converged", "step_sizes", "ratios", "preconditioned"):
        one, other = getattr(found, field), getattr(expected, field)
        if other is None:
            assert one is None
            continue
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-9)


def test_float32_reaches_what_tensors_reach(monkeypatch):
    matrix, rhs, q = problem(torch.float32)
    options = {"preconditioner": q, "stop": RelativeResidual(1e-5)}
    found, expected = both(monkeypatch, matrix, rhs, **options)
    for result in (found, expected):
        assert result.report.converged
        assert result.step_sizes.dtype == torch.float32
    torch.testing.assert_close(found.solution, expected.solution, rtol=1e-4, atol=1e-6)


FAILURES = {
    "indefinite": (lambda k, b: (k - 40.0 * torch.eye(len(k), dtype=k.dtype), b), {}),
    "infinite": (lambda k, b: (k * math.inf, b), {}),
    "not a number": (lambda k, b: (k, b * math.nan), {}),
    "a preconditioner below zero": (lambda k, b: (k, b), {"preconditioner": lambda r: -r}),
    "too few steps": (lambda k, b: (k, b), {"max_iterations": 2}),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_is_wrong_is_named_as_with_many_sides(name, monkeypatch):
    change, options = FAILURES[name]
    matrix, rhs, _ = problem()
    matrix, rhs = change(matrix, rhs)
    told = []
    for kind in (OneSide, CGIteration):
        monkeypatch.setattr(SOLVER, "OneSide", kind)
        with pytest.raises((DidNotConverge, NotPositiveDefinite)) as found:
            conjugate_gradients(matrix, rhs, **options)
        told.append((type(found.value), str(found.value)[:60]))
    assert told[0] == told[1]


@pytest.mark.parametrize(("preconditioned", "most"), [(False, 11), (True, 20)])
def test_a_step_calls_few_operations(preconditioned, most):
    matrix, rhs, q = problem()

    def called(steps):
        with Launches() as counted:
            conjugate_gradients(
                matrix,
                rhs,
                preconditioner=q if preconditioned else None,
                stop=RelativeResidual(1e-30),
                max_iterations=steps,
                on_failure="return",
                verify=False,
            )
        return counted.counts.total()

    assert called(9) - called(8) <= most


def test_many_sides_and_rare_looks_are_left_to_tensors(made):
    matrix, rhs, _ = problem()
    conjugate_gradients(matrix, rhs, check_every=5)
    conjugate_gradients(matrix, rhs.expand(-1, 2))
    assert made == [CGIteration, CGIteration]


def test_numbers_are_stacked_in_the_shape_and_precision_of_their_kind():
    kept = Numbers(torch.zeros(1, 1, dtype=torch.float32))
    for number in (1.0, torch.tensor([[2.0]]), 3.0):
        kept.append(number)
    kept.truncate(2)
    assert len(kept) == 2
    expected = torch.tensor([1.0, 2.0]).view(2, 1, 1)
    torch.testing.assert_close(kept.stacked(), expected, rtol=0.0, atol=0.0)
    truths = Numbers(torch.ones(1, dtype=torch.bool))
    truths.append(1.0)
    assert truths.stacked().dtype == torch.bool


@pytest.mark.parametrize("sides", [1, 2])
def test_a_step_that_float32_cannot_hold_is_said(sides):
    matrix = 1e-39 * (torch.eye(20) + 0.1)
    with pytest.raises(DidNotConverge, match="NaN or infinite values"):
        conjugate_gradients(matrix, torch.arange(1.0, 21.0)[:, None].expand(20, sides))
