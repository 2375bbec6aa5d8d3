"""
A first model
=============

From arrays to predictions with intervals. :func:`gpx.fit` takes the same options as ``train.py``,
holds out a tenth of the rows and returns a predictor, the metrics on the rows held out, and the
run folder.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np

import gpx

rng = np.random.default_rng(0)
x = rng.uniform(0, 10, 300)
x = x[(x < 4) | (x > 6)]  # nothing is known between 4 and 6
y = np.sin(2 * x) + 0.3 * x + 0.2 * rng.normal(size=x.shape)

fitted = gpx.fit(
    x, y, "approx=exact", "kernel=matern52", "trainer.figures=false", folder=tempfile.mkdtemp()
)

# %%
# Metrics are reported beside baselines, which show if linear regression or nearest neighbours would
# do better.

for name in ("test.rmse", "test.mnlp", "test.coverage_95", "baseline.linear.rmse"):
    print(f"{name:24s} {fitted.metrics[name]:.3f}")

# %%
# Mean, standard deviation and 95 % interval come in the data's own units. They widen where there
# are no data.

grid = np.linspace(-1, 11, 300)
mean, std, lower, upper = fitted.predict(grid[:, None])

plt.figure(figsize=(7, 3))
plt.plot(x, y, ".", color="0.6", label="data")
plt.plot(grid, mean, label="mean")
plt.fill_between(grid, lower, upper, alpha=0.25, label="95 % of new observations")
plt.legend()
plt.tight_layout()

# %%
# The run folder is self-contained: another process can predict from it without the training data.

again = gpx.load(fitted.folder)
assert np.array_equal(again.predict(grid[:, None]).mean, mean)
