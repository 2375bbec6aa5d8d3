"""
A million basis functions
=========================

Random features are generated when they are needed, by a counter-based generator: a stochastic step
takes the same time for ten thousand and for a million of them. Only the cost of predictions, which
use all features, grows.
"""

import tempfile

import numpy as np

import gpx

rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, size=(1500, 2))
y = np.sin(4 * x[:, 0]) * np.sin(3 * x[:, 1]) + 0.1 * rng.normal(size=len(x))

for num_basis in (10_000, 1_000_000):
    fitted = gpx.fit(
        x,
        y,
        "approx=qsgp",
        "approx.covariance=mean_field",
        f"approx.num_basis={num_basis}",
        "init=constants",
        # what makes a pass over all of them before the first step: none of it, or on few rows
        "approx.warm_start=false",
        "approx.block_solves=0",
        "approx.diagonal_rows=100",
        "objective.support_rows=0",
        "optimizer=qsgp",
        "trainer.max_steps=50",
        "trainer.eval_every=0",
        "trainer.baselines=false",
        "trainer.figures=false",
        folder=tempfile.mkdtemp(),
    )
    seconds = fitted.metrics["train.seconds"]
    print(f"{num_basis:9,d} basis functions: 50 steps in {seconds:.2f} s")

# %%
# Fifty steps are not enough to fit the data. The default optimiser instead solves for blocks of
# weights exactly, and converges after some sweeps over the blocks:

fitted = gpx.fit(
    x,
    y,
    "approx=qsgp",
    "approx.num_basis=4000",
    "approx.block_columns=1000",
    "init=subset",
    "trainer.figures=false",
    folder=tempfile.mkdtemp(),
)
print(f"RMSE {fitted.metrics['test.rmse']:.3f} where the noise is {0.1 / y.std():.3f}")
