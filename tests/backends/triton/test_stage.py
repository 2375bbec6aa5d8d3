"""The comparisons of ``scripts/gpu_triton.py``, which are for a GPU, under Triton's interpreter."""

import sys
from pathlib import Path

import pytest
from triton_cases import skip_without_interpreter

skip_without_interpreter()
pytestmark = pytest.mark.triton

SCRIPTS = str(Path(__file__).resolve().parents[3] / "scripts")
sys.path.insert(0, SCRIPTS)
from gpu_triton import cases, checked  # noqa: E402

sys.path.remove(SCRIPTS)


@pytest.mark.parametrize("case", cases(), ids=lambda case: ", ".join(case[1:]))
def test_every_case_passes_here_at_tiny_sizes(case):
    row = checked((case, "cpu", True))
    assert row["passed"], row


def test_a_kernel_that_is_wrong_does_not_pass(monkeypatch):
    case = next(case for case in cases() if case[0] == "products of eigenfunctions")
    tree = sys.modules["gpx.backends.triton.tree"]
    right = tree.tree
    monkeypatch.setattr(tree, "tree", lambda *given: right(*given) * 1.001)
    assert checked((case, "cpu", True))["passed"] is False
    monkeypatch.setattr(tree, "tree", None)
    row = checked((case, "cpu", True))
    assert (row["passed"], "TypeError" in row["note"]) == (False, True)
