"""Golden problem G3 of certified bounds: the first 1,000 rows of elevators.

Inputs and target (last column) standardised with the population standard deviations of these rows;
Matern 3/2, one lengthscale, unit variance; greedy inducing points, no jitter. Needs the data set.
"""

import os
from pathlib import Path

import numpy as np
import torch

FILE = Path(os.environ.get("GPX_DATA", "")) / "uci" / "elevators" / "data.csv.gz"
AVAILABLE = "GPX_DATA" in os.environ and FILE.exists()

# name: lengthscale, noise variance, log marginal likelihood, first greedy points,
#       {M: (trace error, steps of preconditioned CG to 1 and 1e-3 nats)}, steps of plain CG
SETTINGS = {
    "init": (
        1.0,
        1.0,
        -1444.28684,
        [0, 238, 304, 737, 853, 805],
        {50: (948.767, 7, 12), 400: (555.037, 4, 8)},
        (6, 11),
    ),
    "long": (
        4.0,
        0.1,
        -793.00731,
        [0, 811, 853, 238, 304, 805],
        {50: (429.922, 16, 26), 200: (176.213, 8, 14), 400: (69.125, 5, 9)},
        (34, 56),
    ),
}


def load():
    rows = np.loadtxt(FILE, delimiter=",", max_rows=1000)
    rows = (rows - rows.mean(0)) / np.where(rows.std(0) > 0.0, rows.std(0), 1.0)
    table = torch.from_numpy(rows)
    return table[:, :-1].contiguous(), table[:, -1].contiguous()
