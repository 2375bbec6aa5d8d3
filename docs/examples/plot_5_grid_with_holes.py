"""
A grid with holes
=================

On a Cartesian grid the covariance is a Kronecker product, also where most cells are missing: here
half of an image of 60 x 80 cells, with a block of it.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np

import gpx

rng = np.random.default_rng(0)
rows, columns = np.meshgrid(np.linspace(0, 3, 60), np.linspace(0, 4, 80), indexing="ij")
field = np.sin(3 * rows) * np.cos(2 * columns) + 0.3 * rows
observed = rng.random(field.shape) < 0.5
observed[20:32, 30:48] = False
x = np.stack([rows[observed], columns[observed]], axis=1)
y = field[observed] + 0.05 * rng.normal(size=observed.sum())

fitted = gpx.fit(
    x,
    y,
    "approx=grid",
    "kernel=rbf",
    "trainer.max_steps=20",
    "trainer.figures=false",
    folder=tempfile.mkdtemp(),
)
print({k: round(v, 4) for k, v in fitted.metrics.items() if k in ("test.rmse", "test.mnlp")})

# %%
everything = np.stack([rows.ravel(), columns.ravel()], axis=1)
mean, std, *_ = fitted.predict(everything)
figure, axes = plt.subplots(1, 3, figsize=(10, 3))
shown = {
    "observed": np.where(observed, field, np.nan),
    "mean": mean.reshape(field.shape),
    "standard deviation": std.reshape(field.shape),
}
for axis, (title, values) in zip(axes, shown.items(), strict=True):
    image = axis.imshow(values, aspect="auto")
    axis.set_title(title)
    figure.colorbar(image)
figure.tight_layout()
