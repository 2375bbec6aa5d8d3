"""
Choosing a method
=================

One data set, one kernel, several approximations: the accuracy and the cost of each. At this size
the exact GP is the best choice; the others pay off with more rows.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np

import gpx

rng = np.random.default_rng(1)
x = rng.uniform(-2, 2, size=(800, 3))
signal = np.sin(3 * x[:, 0]) * np.cos(2 * x[:, 1]) + 0.5 * np.tanh(3 * x[:, 2])
y = signal + 0.1 * rng.normal(size=len(x))

CANDIDATES = {
    "exact": ["approx=exact", "trainer.max_steps=30"],
    "sgpr": ["approx=sgpr", "approx.num_inducing=100", "trainer.max_steps=40"],
    "vecchia": ["approx=vecchia", "approx.num_neighbours=30", "trainer.max_steps=30"],
    "committee": ["approx=committee", "approx.num_experts=4", "trainer.max_steps=30"],
    "qsgp": [
        "approx=qsgp",
        "approx.num_basis=4000",
        "approx.block_columns=1000",
        "optimizer.sweeps=2",
    ],
}

found = {}
for name, options in CANDIDATES.items():
    fitted = gpx.fit(
        x,
        y,
        *options,
        "kernel=rbf",
        "init=subset",
        "trainer.figures=false",
        "trainer.tensorboard=false",
        folder=tempfile.mkdtemp(),
    )
    found[name] = fitted.metrics

# %%
# Errors are in standardised units; MNLP is the mean negative log density of the test targets,
# lower is better.

print(f"{'':10s} {'RMSE':>7s} {'MNLP':>7s} {'seconds':>8s}  kind of the evidence")
for name, metrics in found.items():
    print(
        f"{name:10s} {metrics['test.rmse']:7.3f} {metrics['test.mnlp']:7.3f} "
        f"{metrics['train.seconds']:8.2f}  {metrics['train.evidence_kind']}"
    )

# %%
names = list(found)
figure, axes = plt.subplots(1, 2, figsize=(8, 3))
axes[0].bar(names, [found[n]["test.rmse"] for n in names])
axes[0].set_ylabel("test RMSE")
axes[1].bar(names, [found[n]["train.seconds"] for n in names])
axes[1].set_ylabel("seconds of training")
for axis in axes:
    axis.tick_params(axis="x", rotation=30)
figure.tight_layout()
