"""GRIEF at the size of the electric set: one evidence and its gradient, streamed over the data.

    python experiments/grief/electric_size.py                   # 2,000,000 points, 1,000 functions
    python experiments/grief/electric_size.py --device cuda     # the required setting
    python experiments/grief/electric_size.py --quick           # 20,000 points; writes nothing
    python experiments/grief/electric_size.py --judge           # checks and notes again

Inputs are normal, 11 as in the electric set: neither time nor memory depends on their values.
The requirement is checked by the row of scripts/gpu_hour.py; the row of the CPU has the processor
seconds of one core and the memory held besides the data.
Writes electric_size.json and RESULTS.md beside this file; rows of other devices stay.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from gpu_rows import gpu_check
from record import Checks, Rows, argument_parser, earlier, rewrite_checks, write
from torch import Tensor

from gpx.bases import GridOptions
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import GRIEF
from gpx.objectives import EigenfunctionEvidence

HERE = Path(__file__).resolve().parent
TABLE = HERE / "electric_size.json"
POINTS, FUNCTIONS, INPUTS = 2_000_000, 1_000, 11
MOST_SECONDS, MOST_BYTES = 60.0, 8e9
"""Required time and memory on a GPU."""


def problem(
    points: int, functions: int, device: str | torch.device
) -> tuple[GRIEF, Tensor, Tensor]:
    """Model and data, on the device."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(points, INPUTS, generator=draws, dtype=torch.float64).to(device)
    y = x.sum(1).sin()
    model = GRIEF(
        kernel=RBF(ard_num_dims=INPUTS, lengthscale=math.sqrt(INPUTS)),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_inputs=INPUTS,
        num_eigenfunctions=functions,
        grid=GridOptions(points_per_dim=10),
        noise_first=False,
    ).to(device, torch.float64)
    few = slice(2_000)  # the grid covers all inputs, so a few rows are enough
    model.initialise(x[few], y[few], generator=torch.Generator(device).manual_seed(1))
    return model, x, y


def held(device: str | torch.device) -> int:
    """Largest number of bytes held until now: on the device, or by this process."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measured(points: int, functions: int, device: str | torch.device) -> dict[str, Any]:
    """One evidence with its gradient, after a small one that compiles and warms up."""
    gpu = torch.device(device).type == "cuda"
    model, x, y = problem(points, functions, device)
    objective = EigenfunctionEvidence()
    objective(model, x[:5_000], y[:5_000]).backward()
    model.zero_grad()
    if gpu:
        torch.cuda.synchronize(device)
    before = held(device)
    started = time.perf_counter() if gpu else time.process_time()
    loss = objective(model, x, y)
    loss.backward()
    if gpu:
        torch.cuda.synchronize(device)
    seconds = (time.perf_counter() if gpu else time.process_time()) - started
    name = torch.cuda.get_device_name(device) if gpu else "one core"
    return {
        "device": name,
        "n": points,
        "d": INPUTS,
        "p": functions,
        "log10 m": model.basis.log10_grid_size,
        "evidence / point": -float(loss.detach()),
        "seconds": seconds,
        "clock": "the wall" if gpu else "the processor",
        "data, MiB": (x.nbytes + y.nbytes) / 2**20,
        "working memory, MiB": (held(device) - before) / 2**20,
        "total memory, MiB": held(device) / 2**20,
    }


def main() -> None:
    parser = argument_parser(__doc__, quick="a hundredth of the points")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--judge", action="store_true", help="checks and notes again")
    options = parser.parse_args()
    if options.judge:
        rewrite_checks(HERE, "electric_size", NOTES, judged(earlier(TABLE)))
        return
    torch.set_num_threads(1)
    row = measured(POINTS // 100 if options.quick else POINTS, FUNCTIONS, options.device)
    if options.quick:
        print(row)
        return
    rows = [row, *(each for each in earlier(TABLE) if each["device"] != row["device"])]
    write(HERE, "electric_size", "Two million points", NOTES, rows, judged(rows))


NOTES = [
    f"Evidence and gradient for {POINTS:,} points, {FUNCTIONS:,} functions and {INPUTS} inputs",
    "(as in the electric set), float64, streamed. The requirement is for a GPU. All",
    "points are evaluated on one core of the CPU as well; nothing is extrapolated. Total",
    "memory: peak of the process, or of the GPU's tensors.",
]


def judged(rows: Rows) -> Checks:
    """Checks of the rows, and of the row that the GPU has in experiments/gpu/hour."""
    return {
        **gpu_check(
            f"GRIEF, evidence and gradient, n = {POINTS:,}",
            f"on a GPU in less than {MOST_SECONDS:.0f} s, with less than 8 GB",
        ),
        "less than 8 GB on every device, with data and libraries": (
            max(each["total memory, MiB"] for each in rows) * 2**20 < MOST_BYTES
        ),
    }


if __name__ == "__main__":
    main()
