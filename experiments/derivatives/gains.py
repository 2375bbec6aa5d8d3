"""What derivatives gain: values alone, with derivatives, and as many values as both together.

    python experiments/derivatives/gains.py
    python experiments/derivatives/gains.py --table     # the table of the cells measured so far

Four functions of the literature with gradients by autograd: Branin's (two inputs), the
Mueller-Brown potential of chemistry, which molecular forces are derivatives of (two), water flow
through a borehole (eight) and the weight of a wing (ten), in their usual boxes. n rows of a Latin
hypercube and 1,000 random test rows; noise of a hundredth of the standard deviation of values and
of each derivative. A cell is one call of ``gpx.fit`` with kernel=rbf; means over five draws.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import qmc
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cells import Cells
from record import tally, write

import gpx

Array = NDArray[np.float64]
HERE = Path(__file__).resolve().parent
CELLS = HERE / "gains_cells.jsonl"
DRAWS, TESTED, NOISE = 5, 1000, 0.01
QUIET = (
    *("kernel=rbf", "data.test_fraction=0", "trainer.eval_every=0", "trainer.num_threads=1"),
    "trainer.baselines=false",
)


def branin(x: Tensor) -> Tensor:
    """Branin's function, two inputs."""
    a, b = x.unbind(1)
    bend = b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6
    return bend**2 + 10 * (1 - 1 / (8 * np.pi)) * a.cos() + 10


def mueller_brown(x: Tensor) -> Tensor:
    """Energies of Mueller and Brown 1979, cut off smoothly far above the wells."""
    a, b = x.unbind(1)
    parts = (
        *((-200.0, -1.0, 0.0, -10.0, 1.0, 0.0), (-100.0, -1.0, 0.0, -10.0, 0.0, 0.5)),
        *((-170.0, -6.5, 11.0, -6.5, -0.5, 1.5), (15.0, 0.7, 0.6, 0.7, -1.0, 1.0)),
    )
    total = torch.zeros_like(a)
    for height, aa, ab, bb, left, low in parts:
        u, v = a - left, b - low
        total = total + height * (aa * u * u + ab * u * v + bb * v * v).exp()
    return 100.0 * (total / 100.0).tanh()


def borehole(x: Tensor) -> Tensor:
    """Flow of water through a borehole, eight inputs (Morris, Mitchell and Ylvisaker 1993)."""
    rw, r, tu, hu, tl, hl, length, kw = x.unbind(1)
    log = (r / rw).log()
    return 2 * np.pi * tu * (hu - hl) / (log * (1 + 2 * length * tu / (log * rw**2 * kw) + tu / tl))


def wing(x: Tensor) -> Tensor:
    """Weight of the wing of a light aircraft, ten inputs (Forrester et al. 2008)."""
    sw, wfw, a, sweep, q, taper, tc, nz, wdg, wp = x.unbind(1)
    cos = (sweep * np.pi / 180).cos()
    return (
        0.036 * sw**0.758 * wfw**0.0035 * (a / cos**2) ** 0.6 * q**0.006 * taper**0.04
        * (100 * tc / cos) ** -0.3 * (nz * wdg) ** 0.49 + sw * wp
    )  # fmt: skip


Box = list[tuple[float, float]]
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Box, tuple[int, ...]]] = {
    "Branin": (branin, [(-5, 10), (0, 15)], (10, 20)),
    "Mueller-Brown": (mueller_brown, [(-1.5, 1.2), (-0.2, 2.0)], (20, 40)),
    "borehole": (
        borehole,
        [
            *((0.05, 0.15), (100, 50000), (63070, 115600), (990, 1110)),
            *((63.1, 116), (700, 820), (1120, 1680), (9855, 12045)),
        ],
        (20, 40),
    ),
    "wing weight": (
        wing,
        [
            *((150, 200), (220, 300), (6, 10), (-10, 10), (16, 45)),
            *((0.5, 1), (0.08, 0.18), (2.5, 6), (1700, 2500), (0.025, 0.08)),
        ],
        (20, 40),
    ),
}
"""Name -> function, box and numbers of rows."""
METHODS = ("values", "values and derivatives", "one value, derivatives", "as many values")


def values_and_slopes(name: str, x: Array) -> Array:
    """f and its derivatives (n, d + 1)."""
    at = torch.from_numpy(x).requires_grad_()
    value = FUNCTIONS[name][0](at)
    (slopes,) = torch.autograd.grad(value.sum(), at)
    return np.column_stack([value.detach().numpy(), slopes.numpy()])


def measure(name: str, n: int, method: str, draw: int) -> dict[str, Any]:
    """One cell: errors over the standard deviation of the function."""
    box = np.array(FUNCTIONS[name][1], dtype=float)
    d = len(box)
    rng = np.random.default_rng(draw)
    lattice = qmc.LatinHypercube(d, seed=rng)
    many = method == "as many values"
    rows = qmc.scale(lattice.random(n * (d + 1) if many else n), box[:, 0], box[:, 1])
    test = rng.uniform(box[:, 0], box[:, 1], (TESTED, d))
    want = values_and_slopes(name, test)
    spread = want.std(0)
    y = values_and_slopes(name, rows)
    y += NOISE * spread * rng.normal(size=y.shape)
    if method == "one value, derivatives":
        y[1:, 0] = np.nan
    alone = method in ("values", "as many values")
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = gpx.fit(
            *(rows, y[:, 0] if alone else y),
            *(f"approx={'exact' if alone else 'derivatives'}", *QUIET),
            quiet=True,
            keep=False,
        )
    seconds = time.process_time() - started
    found = fitted.predict(test)
    mean, std = (part if alone else part[:, 0] for part in (found.mean, found.std))
    error = (mean - want[:, 0]) / spread[0]
    seen = (want[:, 0] + NOISE * spread[0] * rng.normal(size=TESTED) - mean) / std
    density = 0.5 * np.log(2 * np.pi) + np.log(std / spread[0]) + 0.5 * seen**2
    return {
        **{"function": name, "d": d, "n": n, "method": method, "draw": draw},
        **{"rmse": float(np.sqrt((error**2).mean())), "mnlp": float(density.mean())},
        "coverage": float((np.abs(seen) < 1.96).mean()),
        "seconds": seconds,
    }


def table(cells: Cells) -> None:
    """gains.json and RESULTS.md from the cells."""
    rows, better, ahead = [], [], []
    for name, (_, box, sizes) in FUNCTIONS.items():
        for n in sizes:
            row: dict[str, Any] = {"function": name, "d": len(box), "n": n}
            errors, kept = {}, []
            for method in METHODS:
                own = [
                    c
                    for c in cells.rows
                    if (c["function"], c["n"], c["method"]) == (name, n, method)
                ]
                if not own:
                    continue
                kept += own
                mean = {
                    k: float(np.mean([c[k] for c in own]))
                    for k in ("rmse", "mnlp", "coverage", "seconds")
                }
                errors[method] = mean["rmse"]
                row[method] = (
                    f"{mean['rmse']:.4f} / {mean['mnlp']:.2f} / {100 * mean['coverage']:.0f} / "
                    f"{mean['seconds']:.1f}"
                )
            if len(errors) < len(METHODS):
                continue
            rows.append(row | {"commit": tally(kept)})
            both = errors["values and derivatives"]
            better.append(both < errors["values"])
            if len(box) > 2:
                ahead.append(both < errors["as many values"])
    write(
        HERE,
        "gains",
        "What derivatives gain",
        [
            "RMSE over the standard deviation of the function / MNLP of values with noise, of",
            "standardised values / coverage of 95 % intervals, per cent / processor seconds of one",
            "thread; means over five draws. As many values: n (d + 1) of them, the number of",
            "values and derivatives of n rows. Noise of a hundredth of the standard deviation of",
            "each. kernel=rbf, all other options as they are.",
        ],
        rows,
        {
            f"derivatives lower the error ({sum(better)} of {len(better)})":
                all(better) if better else None,
            f"of eight and ten inputs below that of as many values ({sum(ahead)} of {len(ahead)})":
                all(ahead) if ahead else None,
        },
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="only write the table")
    options = parser.parse_args()
    cells = Cells(CELLS, "function", "n", "method", "draw")
    if not options.table:
        torch.set_num_threads(1)
        for name, (_, _, sizes) in FUNCTIONS.items():
            for n in sizes:
                for method in METHODS:
                    for draw in range(DRAWS):
                        if (name, n, method, draw) not in cells:
                            cells.add(measure(name, n, method, draw))
    table(cells)


if __name__ == "__main__":
    main()
