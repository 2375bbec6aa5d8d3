"""
Bayesian optimisation
=====================

Where is an expensive function largest? A Gaussian process of the values seen so far says where it
may be. Thompson sampling draws functions from the posterior and tries the maximum of each next:
:func:`gpx.thompson.thompson_batch` gives batches of any size, since functions drawn by pathwise
conditioning can be evaluated, and differentiated, anywhere.
"""

import matplotlib.pyplot as plt
import numpy as np

import gpx
from gpx.thompson import thompson_batch

rng = np.random.default_rng(0)
OPTIONS = ("approx=exact", "kernel=matern52", "data.test_fraction=0", "trainer.figures=false")


def fit(x, y):
    """An exact GP of all values seen."""
    return gpx.fit(x, y, *OPTIONS, quiet=True, keep=False)


# %%
# One input first. Five functions agree with the data, and each has its own idea of where the
# maximum is: they explore where nothing is known, and look closer where values are large.


def toy(x):
    """Two maxima of about the same size."""
    return np.sin(3.0 * x) + 0.5 * np.cos(7.0 * x) + 0.1 * x


x = rng.uniform(0.0, 6.0, 6)
fitted = fit(x, toy(x))
best = thompson_batch(fitted, [(0.0, 6.0)], num=5, seed=1)[:, 0]

grid = np.linspace(0.0, 6.0, 400)
functions = fitted.sample(grid[:, None], 5, seed=1)  # those that the seed draws in the batch, too
plt.figure(figsize=(7, 3))
plt.plot(grid, toy(grid), "k--", label="the function")
for k, values in enumerate(functions):
    (line,) = plt.plot(grid, values, alpha=0.7)
    plt.axvline(best[k], color=line.get_color(), lw=0.7)
plt.plot(x, toy(x), "ko", label="seen")
plt.legend(loc="lower left")
plt.tight_layout()

# %%
# Now six inputs: the Hartmann function, whose largest value is 3.32. Twenty random points, then
# five batches of ten, against as many random points.

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


def hartmann(x):
    """Values (n,) at x (n, 6)."""
    distances = (SCALES * (x[:, None] - CENTRES) ** 2).sum(-1)
    return (WEIGHTS * np.exp(-distances)).sum(-1)


x = rng.random((20, 6))
y = hartmann(x)
for step in range(5):
    batch = thompson_batch(fit(x, y), [(0.0, 1.0)] * 6, num=10, seed=step)
    x, y = np.concatenate([x, batch]), np.concatenate([y, hartmann(batch)])
    print(f"{len(y)} values, the best {y.max():.3f}")

random = hartmann(rng.random((len(y), 6)))
print(f"{len(y)} random points, the best {random.max():.3f}")

plt.figure(figsize=(7, 3))
plt.step(range(1, len(y) + 1), np.maximum.accumulate(y), label="Thompson sampling")
plt.step(range(1, len(y) + 1), np.maximum.accumulate(random), label="random points")
plt.axhline(3.32237, color="0.6", lw=0.7)
plt.xlabel("values seen")
plt.ylabel("best so far")
plt.legend(loc="lower right")
plt.tight_layout()
assert y.max() > random.max()

# %%
# Expected improvement, knowledge gradients, constraints and several objectives are BoTorch's:
# ``gpx.botorch.GPXModel`` makes a trained model one of its models.
