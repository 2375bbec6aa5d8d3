"""The rows that exported models are trained on."""

import numpy as np


def table(n=60):
    """Inputs (n, 2), of which the first are years, and targets (n,) around 50."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(2000.0, 2020.0, n), rng.uniform(-1.0, 1.0, n)], 1)
    return x, 50.0 + 10.0 * np.sin(x[:, 0] / 3.0) * x[:, 1] + rng.normal(size=n)
