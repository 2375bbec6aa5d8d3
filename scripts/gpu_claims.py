"""Performance targets of gpx on one H200, checked against rows of ``gpu_hour.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]
Rows = Mapping[str, Row]
"""Name -> row."""

PRODUCT = "product, n = 100,000, 16 columns, {}"
STEP = "SVGP-512, 1,024 rows, float32, replayed"
GRID = "grid of 50,653,000 cells, a fifth missing: solve"


def _figure(rows: Rows, name: str, key: str = "value") -> float | None:
    """A number of a row; None if it is missing."""
    found = rows.get(name, {}).get(key)
    return float(found) if isinstance(found, int | float) else None


def _at_most(name: str, limit: float, key: str = "value") -> Callable[[Rows], bool | None]:
    def judge(rows: Rows) -> bool | None:
        found = _figure(rows, name, key)
        return None if found is None else found <= limit

    return judge


def _passed(name: str) -> Callable[[Rows], bool | None]:
    return lambda rows: rows.get(name, {}).get("passed")


def _product(rows: Rows) -> bool | None:
    own, peer = (_figure(rows, PRODUCT.format(name)) for name in ("triton", "keops"))
    return None if own is None or peer is None else 3.0 * own <= peer


def _step_beside_peer(rows: Rows) -> bool | None:
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
    """A line for each claim: pass, FAIL or not run."""
    words = {True: "pass", False: "FAIL", None: "not run"}
    return [f"- {words[judge(rows)]}: {claim}" for claim, judge in CLAIMS.items()]
