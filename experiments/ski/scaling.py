"""One evidence with its gradient over the number of rows and of grid points (E9c, E9f).

    python experiments/ski/scaling.py           # a minute of processor time
    python experiments/ski/scaling.py --quick   # m = 1,000, nothing written

One input, the full structure (Toeplitz products, gathered rows); Hultin 2017, section 4.5.2. Writes
scaling.json and RESULTS.md.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from record import Checks, Rows, earlier, rewrite_checks, write
from setting import NOISE, Data, command_line, grid_model, synthetic
from torch import Tensor

from gpx.kernels import RBF
from gpx.linalg import pivoted_cholesky
from gpx.objectives import SKIEvidence

HERE = Path(__file__).resolve().parent
ROWS = (100, 1000, 20_000, 50_000, 100_000, 200_000, 2_000_000)
POINTS = (10, 30, 100, 300, 1000, 3000, 10_000, 15_000, 30_000, 100_000)


@torch.no_grad()
def certified(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Exact log evidence by pivoted Cholesky, and a bound of its error.

    With K = F^T F + R, t = tr R and a = (F^T F + noise I)^{-1} y, log|A| is off by at most
    t / noise and y^T A^{-1} y by at most t |a|^2.
    """
    kernel = RBF(1, 1.0, 1.0).double()
    n = len(y)
    found = pivoted_cholesky(lambda i: kernel.evaluate(x[i], x), y.new_ones(n), 200, tolerance=1e-8)
    factor = found.factor
    inner = torch.eye(len(factor), dtype=y.dtype) + factor @ factor.mT / NOISE
    lower = torch.linalg.cholesky(inner)
    seen = torch.linalg.solve_triangular(lower, (factor @ y).unsqueeze(1), upper=False)
    solved = y - factor.mT @ torch.cholesky_solve((factor @ y).unsqueeze(1), lower)[:, 0] / NOISE
    quad = float((y.square().sum() - seen.square().sum() / NOISE) / NOISE)
    logdet = float(2.0 * lower.diagonal().log().sum()) + n * math.log(NOISE)
    error = float(found.residual.sum()) * (1.0 / NOISE + float(solved.square().sum()) / NOISE**2)
    return -0.5 * (quad + logdet + n * math.log(2.0 * math.pi)), 0.5 * error


def by_points(points: tuple[int, ...], n: int) -> Rows:
    """E9c: relative error of the evidence and seconds by m, without and with the missing term."""
    data = synthetic(n)
    exact, uncertain = certified(data.x, data.y)
    rows = []
    for m in points:
        model = grid_model(data.x, m)
        row: dict[str, Any] = {"n": n, "m": m, "lengthscale": float(model.kernel.lengthscale)}
        for name, options in (
            ("published form", {"logdet": "circulant", "wraps": 3, "pad": False}),
            ("with the missing term", {"logdet": "circulant", "wraps": 3}),
            ("Lanczos", {}),
        ):
            began = time.process_time()
            value = SKIEvidence(**options).evidence(model, data.x, data.y).value
            value.backward()
            row[f"seconds, {name}"] = time.process_time() - began
            row[f"error, {name}"] = float(value) / exact - 1.0
        row |= {"exact": exact, "exact within": uncertain}
        rows.append(row)
        print(row, flush=True)
    return rows


def by_rows(sizes: tuple[int, ...], points: int) -> Rows:
    """E9f: seconds of one evidence with its gradient, and of sorting rows into cells once."""
    rows = []
    for n in sizes:
        data = synthetic(n)
        warm(data, points)
        began = time.process_time()
        model = grid_model(data.x, points)
        gathered = time.process_time()
        with torch.no_grad():
            system = model.system(data.x)
        low_rank = time.process_time()
        found = SKIEvidence().evidence(model, data.x, data.y)
        found.value.backward()
        ended = time.process_time()
        rows.append(
            {
                "n": n,
                "m": points,
                "rows in place of n": len(system.weights.values),
                "rank": system.part.rank,
                "steps of the solve": found.report.iterations if found.report else None,
                "evidence": found.value.item(),
                "seconds, rows to cells (once)": gathered - began,
                "seconds, low-rank part": low_rank - gathered,
                "seconds, evidence and gradient": ended - low_rank,
                "seconds, all": ended - low_rank + gathered - began,
            }
        )
        print(rows[-1], flush=True)
    return rows


def warm(data: Data, points: int) -> None:
    """Evaluate once before timing, because the first evaluation of a process is slower."""
    few = Data(data.x[:100], data.y[:100], data.test_x, data.test_y)
    SKIEvidence().evidence(grid_model(few.x, points), few.x, few.y).value.backward()


def slope(rows: Rows, first: int, last: int, key: str) -> float:
    """Slope of log seconds over log n between two numbers of rows."""
    at = {r["n"]: r[key] for r in rows}
    return math.log(at[last] / at[first]) / math.log(last / first)


def notes(steps: Rows) -> list[str]:
    """Settings, and why the time grows so little with n."""
    whole, step = "seconds, all", "seconds, evidence and gradient"
    at = {r["n"]: r for r in steps}
    few, many, most = at[100], at[200_000], at[2_000_000]
    return [
        "SE kernel, lengthscale and signal variance 1 (lengthscale equal to the grid spacing where "
        "that is larger), noise variance 0.001, seed 0, grid over the training inputs. Processor "
        "seconds of one evidence with its gradient on one thread of a shared machine. The "
        "exact evidence at n = 15,000 is by pivoted Cholesky, whose error is at most 'exact "
        "within' nats.",
        "Why the slope of E9f is below 0.7: most of the time depends on the "
        f"grid, not on the rows. Of the {many[whole]:.2f} s at n = 200,000, {few[whole]:.2f} s are "
        "needed at n = 100 too (FFTs of 100,000 points and the low-rank part). The preconditioned "
        "solve takes one or two steps; the prototype's solve without preconditioner takes 184 at n "
        "= 5,000, each over all rows. Rows are summarised to at most 4 per cell: 2,000,000 rows "
        f"become {most['rows in place of n']:,}, and their evidence takes "
        f"{most[step] / many[step]:.1f} times as long. Only sorting rows into cells grows as n, "
        f"once per data set ({most['seconds, rows to cells (once)']:.1f} s).",
    ]


def judged(grids: Rows, steps: Rows) -> Checks:
    """Checks of the rows: statement -> whether it holds."""
    n = grids[0]["n"]
    fewer = [abs(r["error, published form"]) for r in grids if 100 <= r["m"] < n]
    more = [abs(r["error, published form"]) for r in grids if r["m"] >= n]
    resolved = [abs(r["error, with the missing term"]) for r in grids if r["m"] >= 100]
    lanczos = [abs(r["error, Lanczos"]) for r in grids if r["m"] >= 2 * n]
    whole, step = "seconds, all", "seconds, evidence and gradient"
    slopes = {key: slope(steps, 20_000, 200_000, key) for key in (whole, step)}
    largest = next(r for r in steps if r["n"] == 200_000)
    return {
        "E9c: the error of the published form falls with every larger m until m >= n": all(
            a > b for a, b in zip(fewer, [*fewer[1:], more[0]], strict=True)
        ),
        f"E9c: it stays below 0.3 % for m >= n (largest {max(more):.2%})": max(more) < 3e-3,
        "with the missing term the error is below 0.3 % from m = 100 on (largest "
        f"{max(resolved):.2%})": (max(resolved) < 3e-3),
        f"Lanczos quadrature: error below 1e-4 at m >= 2 n (largest {max(lanczos):.1e})": max(
            lanczos
        )
        < 1e-4,
        f"E9f: m = 100,000 and n = 200,000 take at most a few seconds ({largest[whole]:.1f})": (
            largest[whole] < 10.0
        ),
        f"E9f: slope of log seconds over log n from 20,000 to 200,000 rows at most 1.3 "
        f"({slopes[whole]:.2f}; evidence alone {slopes[step]:.2f})": slopes[whole] <= 1.3,
        f"E9f: the same slope at least 0.7 ({slopes[whole]:.2f})": slopes[whole] >= 0.7,
    }


def main() -> None:
    arguments = command_line(__doc__, judge=True)
    if arguments.judge:
        rows = earlier(HERE / "scaling.json")
        grids, steps = rows.values()
        rewrite_checks(HERE, "scaling", notes(steps), judged(grids, steps))
        return
    if arguments.quick:
        by_points((50, 500), 500)
        by_rows((100, 2000), 1000)
        return
    grids, steps = by_points(POINTS, 15_000), by_rows(ROWS, 100_000)
    write(
        HERE,
        "scaling",
        "Time and error over grid points and rows (E9c, E9f)",
        notes(steps),
        {"Grid points (E9c)": grids, "Rows (E9f)": steps},
        judged(grids, steps),
    )


if __name__ == "__main__":
    main()
