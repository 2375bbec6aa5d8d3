"""
Trusting a result
=================

There are two questions. How far is the approximate *inference* from exact inference at the same
hyperparameters? Upper and lower bounds answer this. Are the *predictions* calibrated: do 95 %
intervals contain 95 % of new data? Held-out rows answer this.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
import torch

import gpx
from gpx.diagnostics import evidence_bounds
from gpx.kernels import RBF
from gpx.models import AuxiliarySolver

generator = torch.Generator().manual_seed(0)
x = torch.rand(600, 2, generator=generator, dtype=torch.float64) * 4
y = torch.sin(3 * x[:, 0]) * x[:, 1] + 0.2 * torch.randn(
    600, generator=generator, dtype=torch.float64
)
y = (y - y.mean()) / y.std()
kernel, noise = RBF(lengthscale=0.6).double(), torch.tensor(0.05, dtype=torch.float64)

# %%
# The log marginal likelihood between a lower and an upper bound, for growing numbers of inducing
# points. No n x n array is made.

sizes, brackets = [10, 20, 40, 80, 160], []
for size in sizes:
    bounds = evidence_bounds(kernel, x, x[:size], y, noise, AuxiliarySolver(epsilon=1e-3))
    brackets.append((bounds.collapsed, bounds.cg_lower, bounds.upper))
    print(
        f"M = {size:3d}: SGPR's bound {bounds.collapsed:9.1f}, "
        f"CG lower bound {bounds.cg_lower:8.1f}, upper bound {bounds.upper:8.1f}"
    )

plt.figure(figsize=(7, 3))
for column, label in enumerate(["collapsed ELBO", "CG lower bound", "upper bound"]):
    plt.plot(sizes, [b[column] for b in brackets], "o-", label=label)
plt.yscale("symlog")
plt.xlabel("inducing points")
plt.ylabel("nats")
plt.legend()
plt.tight_layout()

# %%
# Calibration: the covariance of q(w) of ``approx=qsgp`` is block-diagonal, which makes its
# intervals too wide. ``calibrate=variance`` rescales them with held-out rows; the uncalibrated
# metrics are reported, too.

rng = np.random.default_rng(1)
inputs = rng.uniform(-2, 2, size=(1500, 3))
signal = np.sin(3 * inputs[:, 0]) * np.cos(2 * inputs[:, 1]) + 0.5 * np.tanh(3 * inputs[:, 2])
targets = signal + 0.1 * rng.normal(size=len(inputs))
fitted = gpx.fit(
    inputs,
    targets,
    "approx=qsgp",
    "approx.num_basis=10000",
    "approx.block_columns=500",
    "calibrate=variance",
    "trainer.figures=false",
    "trainer.baselines=false",
    folder=tempfile.mkdtemp(),
)
for name in ("coverage_95", "mnlp"):
    before, after = (fitted.metrics[f"{part}.{name}"] for part in ("uncalibrated", "test"))
    print(f"{name:12s} before {before:.3f}, after {after:.3f}")
