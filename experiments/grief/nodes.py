"""Time of GRIEF's evidence and gradient over the nodes of an axis: 10 to 100 at a fixed rank.

    python experiments/grief/nodes.py            # a few minutes on one core
    python experiments/grief/nodes.py --quick    # a tenth of the points, nothing written

10,000 normal points in 10 dimensions, 200 eigenfunctions. 100 nodes an axis are 10^20
inducing points, 10 nodes 10^10; only the eigenproblems of the axes may take longer. Timings are
interleaved, and the least time of each grid counts. Writes nodes.json and RESULTS.md.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from record import argument_parser, write
from torch import Tensor

from gpx.bases import GridOptions
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import GRIEF
from gpx.objectives import EigenfunctionEvidence

HERE = Path(__file__).resolve().parent
POINTS, INPUTS, FUNCTIONS = 10_000, 10, 200
NODES = (10, 30, 100)
MOST = 1.2
"""Largest allowed ratio of the times without the eigenproblems."""


def problem(nodes: int, points: int) -> tuple[GRIEF, Tensor, Tensor]:
    """Model and data; every grid sees the same points."""
    x = torch.randn(points, INPUTS, generator=torch.Generator().manual_seed(0))
    y = x.sum(1).sin()
    model = GRIEF(
        kernel=RBF(ard_num_dims=INPUTS, lengthscale=math.sqrt(INPUTS)),
        mean=Zero(),
        likelihood=Gaussian(0.01),
        num_inputs=INPUTS,
        num_eigenfunctions=FUNCTIONS,
        grid=GridOptions(points_per_dim=nodes),
        noise_first=False,
    )
    model.initialise(x, y, generator=torch.Generator().manual_seed(1))
    return model, x, y


def turn(model: GRIEF, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Processor seconds of evidence and gradient, and of the eigenproblems with theirs."""
    model.zero_grad()
    start = time.process_time()
    EigenfunctionEvidence()(model, x, y).backward()
    middle = time.process_time()
    values, vectors = model.basis.eigenpairs()
    (values.sum() + vectors.sum()).backward()
    return middle - start, time.process_time() - middle


def main() -> None:
    parser = argument_parser(__doc__, quick="a tenth of the points")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    points = POINTS // 10 if options.quick else POINTS
    problems = {nodes: problem(nodes, points) for nodes in NODES}
    seen: dict[int, list[tuple[float, float]]] = {nodes: [] for nodes in NODES}
    for _ in range(options.turns):
        for nodes, (model, x, y) in problems.items():
            seen[nodes].append(turn(model, x, y))
    rows = []
    for nodes, (model, _, _) in problems.items():
        rows.append(
            {
                "nodes": nodes,
                "log10 m": round(model.basis.log10_grid_size),
                "seconds": min(whole for whole, _ in seen[nodes]),
                "eigenproblems, s": min(part for _, part in seen[nodes]),
                "rest, s": min(whole - part for whole, part in seen[nodes]),
            }
        )
    least = rows[0]["rest, s"]
    ratios = {row["nodes"]: row["rest, s"] / least for row in rows[1:]}
    write(
        None if options.quick else HERE,
        "nodes",
        "Time over the nodes of an axis",
        [
            f"Evidence and gradient, {points:,} points in {INPUTS} dimensions, {FUNCTIONS}",
            f"functions, one thread; smallest processor time of {options.turns} repetitions. "
            "'Rest':",
            "without the eigenproblems of the axes and their gradient, which are timed separately.",
        ],
        rows,
        {
            f"{nodes} instead of {NODES[0]} nodes: the rest takes at most {MOST} times as long "
            f"({ratio:.2f})": ratio <= MOST
            for nodes, ratio in ratios.items()
        },
    )


if __name__ == "__main__":
    main()
