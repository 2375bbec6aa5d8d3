"""One picture for every method: the same few rows for all, so that pictures can be compared.

Regression: 240 rows of one input with a gap, beside the exact Gaussian process. Classes: two moons.
Images: handwritten digits with noise. ``drawn("sgpr", folder)`` trains, draws and keeps the picture
until this file or the method's config changes.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import make_moons

import gpx
from gpx.data import load as load_data
from gpx.data.images.files import Digits
from gpx.options.config import CONFIGS

matplotlib.use("Agg")

QUICK = ("trainer.figures=false", "trainer.baselines=false", "trainer.tensorboard=false")
POINTS = "approx.num_inducing=10"
FEW = ("trainer.max_steps=400", "trainer.batch_size=100")
EXPERTS = ("approx.num_experts=4",)
BASIS = ("approx.num_basis=100",)
REGRESSION = {
    "exact": ("trainer.max_steps=40",),
    "sgpr": (POINTS, "trainer.max_steps=60"),
    "svgp": (POINTS, *FEW),
    "cglb": (POINTS, "trainer.max_steps=40"),
    "sod": ("approx.num_points=40", "trainer.max_steps=40"),
    "sor": (POINTS, "trainer.max_steps=40"),
    "dtc": (POINTS, "trainer.max_steps=40"),
    "fitc": (POINTS, "trainer.max_steps=60"),
    "fic": (POINTS, "trainer.max_steps=60"),
    "pitc": (POINTS, "trainer.max_steps=40"),
    "pic": (POINTS, "trainer.max_steps=40"),
    "vecchia": ("approx.num_neighbours=5", "approx.block_size=1", "trainer.max_steps=40"),
    "vnngp": ("approx.num_neighbours=5", "trainer.max_steps=100", "trainer.batch_size=100"),
    "swsgp": ("approx.num_inducing=80", "approx.num_neighbours=16", *FEW),
    "committee": (*EXPERTS, "trainer.max_steps=40"),
    "local_experts": (*EXPERTS, "trainer.max_steps=40"),
    "transductive": (*EXPERTS, "approx.num_neighbours=20", "trainer.max_steps=40"),
    "mixture_of_experts": (*EXPERTS, "trainer.max_steps=5"),
    "qsgp": ("approx.num_basis=2000", "approx.block_columns=500"),
    "qsgp_inducing": (),
    "qsrvm": ("trainer.max_steps=1",),
    "ssgp": ("approx.num_basis=40",),
    "vssgp": ("approx.num_basis=40", "trainer.max_steps=60"),
    "grief": ("approx.num_eigenfunctions=20", "approx.grid.points_per_dim=60"),
    "reweighted": (
        "approx.num_basis=40",
        "approx.basis.grid.points_per_dim=60",
        "optimizer.burn_in=200",
        "optimizer.iterations=500",
    ),
    "fully_bayesian": (),
    "fully_bayesian_sgpr": (POINTS,),
    "ski": ("approx.grid_size=100", "trainer.max_steps=40"),
    "direct": (*BASIS, "trainer.max_steps=300"),
    "direct_mixture": (*BASIS, "trainer.max_steps=60"),
    "direct_network": ("approx.hidden=[3,3]", "trainer.max_steps=200"),
    "deep_rf": ("approx.num_features=50", "trainer.max_steps=500", "trainer.batch_size=100"),
    "deep_svgp": (POINTS, *FEW),
    "dkl": (POINTS, *FEW, "approx.hidden=[32]", "approx.pretrain_steps=300"),
    "svdkl": (*FEW, "approx.num_features=4"),
}
CLASSES = {
    "laplace": (),
    "ep": (),
    "vgp": (),
    "elliptical_slice": (
        *("optimizer.chains=2", "optimizer.burn_in=30", "optimizer.iterations=60"),
        "optimizer.thin=2",
    ),
    "direct_logistic": (*BASIS, "trainer.max_steps=300"),
}
OUTPUTS: dict[str, tuple[str, ...]] = {
    "coregional": ("trainer.max_steps=60",),
    "independent": ("trainer.max_steps=60",),
}
SLOPES: dict[str, tuple[str, ...]] = {"derivatives": ("trainer.max_steps=60",)}
MASKS = ("approx.keep=0.9", "approx.predict_samples=10", "trainer.max_steps=250")
PRETRAINED = ("approx.pretrain_steps=100", "objective.num_samples=2")
IMAGES = {
    "cnn": (),
    "cnn_mcd": MASKS,
    "cnn_rf": MASKS,
    "cnn_sorf": MASKS,
    "cnn_deep_rf": MASKS,
    "gpdnn": ("approx.num_inducing=30", "optimizer.groups.variational.lr=0.005", *PRETRAINED),
    "conv_gp": ("approx.num_inducing=30",),
}
ELSEWHERE = {
    "grid": (
        "../experiments/grids/elevation.png",
        "An elevation model with holes: 139,000 cells, half of them held out; 6.1 m of error where "
        "linear interpolation has 7.9 m (`experiments/grids`).",
    ),
}
"""Pictures of a study, for methods that a single input does not show."""


class Drawn(NamedTuple):
    """A picture and what is said of it, in Markdown."""

    alt: str
    caption: str


def drawn(method: str, folder: Path, *more: str) -> Drawn:
    """Draw ``method`` into ``folder``/``method``.png, unless the picture there is up to date.

    Args:
        method: one of configs/approx, but for auto.
        folder: made where there is none.
        more: further options, such as fewer steps.
    """
    folder.mkdir(exist_ok=True)
    picture, told = folder / f"{method}.png", folder / f"{method}.json"
    if method in ELSEWHERE:
        path, caption = ELSEWHERE[method]
        picture.write_bytes((Path(__file__).parent / path).read_bytes())
        return Drawn(method, caption)
    sources = (Path(__file__), CONFIGS / "approx" / f"{method}.yaml")
    if not told.exists() or told.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        kind = next(kind for kind in KINDS if method in kind.options)
        begun = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few steps are too few for some, which say so
            figure, found = kind.draw(method, (*kind.options[method], *more))
        seconds = time.process_time() - begun
        figure.savefig(picture, dpi=90)
        options = "".join(f', "{option}"' for option in kind.options[method])
        caption = f'{kind.what} `gpx.fit(x, y, "approx={method}"{options})`: {found} '
        caption += (
            f"Training and picture took {seconds:.1f} s of one core when this page was built."
        )
        told.write_text(json.dumps(caption))
    return Drawn(f"predictions of {method}", json.loads(told.read_text()))


def truth(x: np.ndarray) -> np.ndarray:
    """The function behind the rows."""
    return np.sin(12.0 * x) + 0.66 * np.cos(25.0 * x)


@cache
def one_input() -> tuple[np.ndarray, np.ndarray]:
    """240 rows on [0, 1] but for a gap; noise of standard deviation 0.3."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 1.0, 300))
    x = x[(x < 0.55) | (x > 0.75)]
    return x[:, None], truth(x) + 0.3 * rng.normal(size=x.shape)


def fitted(method: str, x: np.ndarray, y: np.ndarray, *options: str) -> gpx.runs.Fitted:
    """Trained on all rows; nothing is kept or printed."""
    fixed = (f"approx={method}", "data.test_fraction=0", *QUICK)
    return gpx.fit(x, y, *fixed, *options, quiet=True, keep=False)


GRID = np.linspace(-0.2, 1.2, 400)
KNOWN = (GRID > 0.0) & (GRID < 1.0) & ~((GRID > 0.55) & (GRID < 0.75))


@cache
def exact() -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of y under the exact process, on the grid."""
    mean, std, *_ = fitted("exact", *one_input(), "kernel=rbf").predict(GRID[:, None])
    return mean, std


def regression(method: str, options: tuple[str, ...]) -> tuple[Figure, str]:
    """Mean and band of a method over those of the exact process."""
    x, y = one_input()
    reference, spread = exact()
    found = fitted(method, x, y, "kernel=rbf", *options)
    mean, _, lower, upper = found.predict(GRID[:, None])
    figure = Figure(figsize=(7.0, 2.8), layout="constrained")
    axes = figure.subplots()
    axes.plot(x[:, 0], y, ".", color="0.7", markersize=3)
    axes.fill_between(GRID, lower, upper, alpha=0.25, linewidth=0, label="95 % of new values")
    axes.plot(GRID, mean, label=f"approx={method}")
    for end in (-1.96, 0.0, 1.96):
        label = "exact process" if end == 0.0 else None
        axes.plot(GRID, reference + end * spread, "k--", linewidth=0.7, label=label)
    inducing = found.model.posterior.inducing_variables()
    if inducing is not None and inducing[0].shape[1] == 1:
        places = found.model.scaler.original_inputs(inducing[0].double().cpu())[:, 0].numpy()
        axes.plot(places, np.full(len(places), -3.4), "k|", markersize=6)
    axes.set(ylim=(-3.6, 3.6), xlim=(GRID[0], GRID[-1]))
    axes.legend(loc="upper left", fontsize=8, frameon=False, ncols=3)
    error, best = (rms(m[KNOWN] - truth(GRID[KNOWN])) for m in (mean, reference))
    return figure, (
        f"root mean square error to the function, among the rows, {error:.3f} "
        f"(exact process {best:.3f})."
    )


def classes(method: str, options: tuple[str, ...]) -> tuple[Figure, str]:
    """Probability of the second class over two inputs."""
    x, labels = make_moons(150, noise=0.25, random_state=0)
    found = fitted(method, x, labels, *options)
    first, second = np.linspace(-2.5, 3.5, 90), np.linspace(-2.0, 2.5, 70)
    inputs = np.stack(np.meshgrid(first, second), axis=-1).reshape(-1, 2)
    probability = found.predict_classes(inputs).probability[:, 1].reshape(70, 90)
    figure = Figure(figsize=(6.0, 3.2), layout="constrained")
    axes = figure.subplots()
    levels = np.linspace(0.0, 1.0, 11)
    shown = axes.contourf(first, second, probability, levels, cmap="RdBu_r", alpha=0.8)
    figure.colorbar(shown, label="P(class 1)")
    for label, colour in ((0, "navy"), (1, "darkred")):
        axes.plot(*x[labels == label].T, ".", color=colour, markersize=4)
    inside = found.predict_classes(x)
    right = np.mean(inside.label == labels)
    corner = found.predict_classes(np.array([[-2.5, -2.0]])).probability[0].max()
    return figure, (
        f"{100 * right:.0f} % of the training rows are told right; in the lower left corner, far "
        f"from all of them, the likelier class has probability {corner:.2f}."
    )


def outputs(method: str, options: tuple[str, ...]) -> tuple[Figure, str]:
    """Two outputs, the second one noisy: what it gains from the first."""
    draws = np.random.default_rng(0)
    x = draws.uniform(0.0, 1.0, (80, 1))
    second = truth(GRID) * -0.8
    y = np.stack([truth(x[:, 0]), -0.8 * truth(x[:, 0])], 1)
    y += draws.normal(size=y.shape) * np.array([0.1, 1.0])
    mean, _, lower, upper = fitted(method, x, y, "kernel=rbf", *options).predict(GRID[:, None])
    alone = fitted("exact", x, y[:, 1], "kernel=rbf", *options).predict(GRID[:, None]).mean
    figure = Figure(figsize=(7.0, 2.8), layout="constrained")
    for place, axes in enumerate(figure.subplots(1, 2, sharey=True)):
        axes.plot(x[:, 0], y[:, place], ".", color="0.7", markersize=3)
        band = lower[:, place], upper[:, place]
        axes.fill_between(GRID, *band, alpha=0.25, linewidth=0, label="95 % of new values")
        axes.plot(GRID, mean[:, place], label=f"approx={method}")
        if place:
            axes.plot(GRID, alone, "k--", linewidth=0.7, label="this output alone")
        axes.set(xlim=(0.0, 1.0), ylim=(-3.6, 4.6))
        axes.legend(loc="upper left", fontsize=8, frameon=False)
    inside = (GRID > 0.0) & (GRID < 1.0)
    error, lone = (rms((m - second)[inside]) for m in (mean[:, 1], alone))
    return figure, (
        f"root mean square error to the second function {error:.3f}, from its own rows alone "
        f"{lone:.3f}."
    )


def slopes(method: str, options: tuple[str, ...]) -> tuple[Figure, str]:
    """A function of which values and slopes are known in few places, against values alone."""
    x = np.linspace(0.02, 0.98, 9)
    own = np.random.default_rng(0).normal(size=(9, 2)) * np.array([0.02, 0.2])
    y = np.stack([truth(x), 12.0 * np.cos(12.0 * x) - 16.5 * np.sin(25.0 * x)], 1) + own
    found = fitted(method, x[:, None], y, "kernel=rbf", *options)
    mean, _, lower, upper = found.predict(GRID[:, None])
    alone = fitted("exact", x, y[:, 0], "kernel=rbf", *options).predict(GRID[:, None]).mean
    figure = Figure(figsize=(7.0, 2.8), layout="constrained")
    axes = figure.subplots()
    axes.plot(GRID, truth(GRID), color="0.7", linewidth=3, label="function")
    axes.plot(GRID, mean[:, 0], label=f"approx={method}")
    axes.fill_between(GRID, lower[:, 0], upper[:, 0], alpha=0.25, linewidth=0)
    axes.plot(GRID, alone, "k--", linewidth=0.7, label="values alone")
    for at, (value, slope) in zip(x, y, strict=True):
        axes.plot([at - 0.012, at + 0.012], value + np.array([-0.012, 0.012]) * slope, "C3")
    axes.set(xlim=(0.0, 1.0), ylim=(-2.5, 3.2))
    axes.legend(loc="upper left", fontsize=8, frameon=False, ncols=3)
    inside = (GRID > 0.0) & (GRID < 1.0)
    error, lone = (rms((m - truth(GRID))[inside]) for m in (mean[:, 0], alone))
    return figure, (
        f"root mean square error to the function {error:.3f}, from values alone {lone:.3f}."
    )


@cache
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """400 noisy digits to train on, and test digits."""
    data = load_data(Digits(train_size=400, noise=0.3, test_fraction=0.3), task="multiclass")
    arrays = (data.train_x, data.train_y, data.test_x, data.test_y)
    original = data.scaler.original_inputs
    x, y, test_x, test_y = arrays
    return original(x).numpy(), y.numpy(), original(test_x).numpy(), test_y.numpy()


def images(method: str, options: tuple[str, ...]) -> tuple[Figure, str]:
    """Accuracy over confidence on test digits, and how confident predictions are."""
    x, y, test_x, test_y = digits()
    found = fitted(method, x, y, "trainer.max_steps=150", *options)
    predicted = found.predict_classes(test_x)
    confidence = predicted.probability.max(1)
    right = predicted.label == test_y
    edges = np.linspace(0.0, 1.0, 11)
    which = np.clip(np.digitize(confidence, edges) - 1, 0, 9)
    figure = Figure(figsize=(7.0, 2.8), layout="constrained")
    left, beside = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    filled = [k for k in range(10) if (which == k).sum() >= 5]
    means = [[v[which == k].mean() for k in filled] for v in (confidence, right)]
    left.plot(*means, "o-")
    left.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    beside.hist(confidence, edges, color="C0", alpha=0.7)
    beside.set(xlabel="confidence", ylabel="test images")
    gap = confidence.mean() - right.mean()
    return figure, (
        f"{100 * (1 - right.mean()):.0f} % of {len(right)} test images are told wrong; mean "
        f"confidence less accuracy {gap:+.2f}."
    )


def rms(values: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(values**2)))


class Kind(NamedTuple):
    """What is drawn, of which methods, and what it shows."""

    options: dict[str, tuple[str, ...]]
    draw: Callable[..., tuple[Figure, str]]
    what: str


KINDS = (
    Kind(
        REGRESSION,
        regression,
        "Rows of one input with a gap between 0.55 and 0.75; dashed the exact process, ticks "
        "inducing points where there are any.",
    ),
    Kind(CLASSES, classes, "Two classes in two inputs, 150 rows."),
    Kind(
        OUTPUTS,
        outputs,
        "Two outputs of one input, 80 rows, the second with ten times the noise of the first.",
    ),
    Kind(
        SLOPES,
        slopes,
        "A function of which nine values and slopes (red) are known, with noise of standard "
        "deviation 0.02 and 0.2.",
    ),
    Kind(
        IMAGES,
        images,
        "Digits of 8 x 8 pixels with noise, 400 training images and few steps: accuracy over "
        "confidence, and how confident predictions are.",
    ),
)

if __name__ == "__main__":
    for name in (*REGRESSION, *CLASSES, *OUTPUTS, *SLOPES, *IMAGES, *ELSEWHERE):
        print(name, drawn(name, Path(__file__).parent / "_method_figures").caption)
