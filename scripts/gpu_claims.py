"""Performance targets of gpx on one H200, checked against rows of ``gpu_hour.py``.

Rows of another GPU are judged too; ``RESULTS.md`` names the GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]
Rows = Mapping[str, Row]
"""Name -> row."""

PRODUCT = "product, n = 100,000, 16 columns, {}"
STEP = "SVGP-512, 1,024 rows, float32, replayed"
GRID = "grid of 50,653,000 cells, a fifth missing: solve"
START_SECONDS = 30.0
"""Most seconds that the process of a run takes before it trains."""


def _figure(rows: Rows, name: str, key: str = "value") -> float | None:
    """A number of a row; None if it is missing."""
    found = rows.get(name, {}).get(key)
    return float(found) if isinstance(found, int | float) else None


def _failed(rows: Rows, name: str) -> bool:
    """Whether it was run and failed, or gave a wrong result."""
    return rows.get(name, {}).get("passed") is False


def _at_most(name: str, limit: float, key: str = "value") -> Callable[[Rows], bool | None]:
    def judge(rows: Rows) -> bool | None:
        if _failed(rows, name):
            return False
        found = _figure(rows, name, key)
        if found is not None:
            return found <= limit
        stopped = _figure(rows, name, "seconds_at_least")  # of the process, with its start
        return False if stopped is not None and stopped - START_SECONDS > limit else None

    return judge


def _passed(name: str) -> Callable[[Rows], bool | None]:
    return lambda rows: rows.get(name, {}).get("passed")


def _product(rows: Rows) -> bool | None:
    triton, keops = (PRODUCT.format(name) for name in ("triton", "keops"))
    if _failed(rows, triton):
        return False
    own, peer = _figure(rows, triton), _figure(rows, keops)
    alike = rows.get(triton, {}).get("card") == rows.get(keops, {}).get("card")
    return None if own is None or peer is None or not alike else 3.0 * own <= peer


def _step_beside_peer(rows: Rows) -> bool | None:
    if _failed(rows, STEP):
        return False
    own, peer = _figure(rows, STEP), _figure(rows, STEP, "peer")
    return None if own is None or peer is None else own < peer


CLAIMS: dict[str, Callable[[Rows], bool | None]] = {
    "kernel product at d = 8, n = 10^5, 16 columns at least 3 times as fast as KeOps": _product,
    "a step of SVGP-512 in at most 1 ms": _at_most(STEP, 1.0),
    "the same step ahead of GPyTorch's large-batch strategy": _step_beside_peer,
    "approx=qsgp data=kin40k in at most 20 s": _at_most("train.py approx=qsgp data=kin40k", 20.0),
    "10^5 stochastic steps of QSGP in at most 120 s": _at_most(
        "experiment=qsgp_kin40k", 120.0, "seconds"
    ),
    "exact GP, n = 36,000, float64: evidence and gradient in at most 1.5 s": _at_most(
        "exact GP, n = 36,000, float64", 1.5
    ),
    "a grid of 5 * 10^7 cells with gaps solved in the memory of 10 grid vectors": _passed(GRID),
}


def verdicts(rows: Rows) -> list[str]:
    """A line for each claim: pass, FAIL, or not run (also if stopped before it was known)."""
    words = {True: "pass", False: "FAIL", None: "not run"}
    return [f"- {words[judge(rows)]}: {claim}" for claim, judge in CLAIMS.items()]
