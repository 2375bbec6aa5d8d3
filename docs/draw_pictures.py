"""Draws the pictures of the README's first screen: python docs/draw_pictures.py

CO2 at Mauna Loa needs its table in $GPX_DATA (extra/airline_passengers); the classes are made up.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

import gpx
from gpx.data import load
from gpx.data.sets.extra import ExtraTable

FOLDER = Path(__file__).parent / "pictures"
SIZE = (6.4, 3.4)
LAST_YEAR = 1959.0
"""Of the months that are trained on; the picture shows the forecast of those after it."""


def forecast() -> None:
    """All but the last two years are trained on; kernel=auto finds trend and season."""
    data = load(ExtraTable("airline_passengers", test_fraction=0), task="regression")
    t = data.scaler.original_inputs(data.train_x)[:, 0].numpy()
    y = data.scaler.original_mean(data.train_y).numpy()
    seen = t < LAST_YEAR
    options = ("approx=exact", "kernel=auto", "data.test_fraction=0", "data.target_transform=log")
    fitted = gpx.fit(t[seen, None], y[seen], *options, quiet=True, keep=False)
    when = np.linspace(1949.0, t.max() + 1.0, 800)
    mean, _, lower, upper = fitted.predict(when[:, None])
    _, axes = plt.subplots(figsize=SIZE, layout="constrained")
    axes.fill_between(when, lower, upper, alpha=0.3, lw=0, label="95 % interval")
    axes.plot(when, mean, lw=1, label="mean")
    axes.plot(t[seen], y[seen], "k.", ms=3, label="trained on")
    axes.plot(t[~seen], y[~seen], ".", color="tab:red", ms=3, label="held out")
    axes.axvline(LAST_YEAR, color="0.6", lw=0.8)
    axes.set(xlabel="year", ylabel="passengers a month (thousands)")
    axes.legend(frameon=False, loc="upper left")
    plt.savefig(FOLDER / "forecast.png", dpi=110)


def classes() -> None:
    """Two classes in two inputs by the Laplace approximation."""
    x, labels = make_moons(300, noise=0.25, random_state=0)
    options = ("approx=laplace", "likelihood=bernoulli", "data.test_fraction=0")
    fitted = gpx.fit(x, labels, *options, quiet=True, keep=False)
    first, second = np.linspace(-2.5, 3.5, 160), np.linspace(-2.0, 2.5, 120)
    inputs = np.stack(np.meshgrid(first, second), axis=-1)
    found = fitted.predict_classes(inputs.reshape(-1, 2)).probability[:, 1]
    _, axes = plt.subplots(figsize=SIZE, layout="constrained")
    levels = np.linspace(0.0, 1.0, 11)
    drawn = axes.contourf(first, second, found.reshape(120, 160), levels, cmap="RdBu_r", alpha=0.8)
    plt.colorbar(drawn, label="P(class 1)")
    for label, colour in ((0, "navy"), (1, "darkred")):
        axes.plot(*x[labels == label].T, ".", color=colour, ms=4)
    plt.savefig(FOLDER / "classes.png", dpi=110)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    forecast()
    classes()
