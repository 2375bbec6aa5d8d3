"""Usual tests of optimisers, in the unit cube: the functions of Hartmann and of Branin."""

import numpy as np

WEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
SCALES = np.array(
    [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ]
)
CENTRES = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann6(x):
    """Values (n,) at x (n, 6)."""
    distances = (SCALES * (x[:, None] - CENTRES) ** 2).sum(-1)
    return (WEIGHTS * np.exp(-distances)).sum(-1)


def negative_branin(x):
    """Values (n,) at x (n, 2), largest at three points: -0.397887."""
    first, second = 15.0 * x[:, 0] - 5.0, 15.0 * x[:, 1]
    bend = second - 5.1 * first**2 / (4.0 * np.pi**2) + 5.0 * first / np.pi - 6.0
    return -(bend**2 + 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * np.cos(first) + 10.0)


def random_search_reaches(level, num, function=hartmann6, inputs=6, draws=400_000):
    """Probability that the best of ``num`` uniform points reaches ``level``: one of these draws is
    counted beyond those that do, so that the estimate errs upwards."""
    values = function(np.random.default_rng(0).random((draws, inputs)))
    share = ((values >= level).sum() + 1) / draws
    return 1.0 - (1.0 - share) ** num
