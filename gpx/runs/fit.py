"""A model trained on arrays, from Python: what ``train.py`` does, without the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from omegaconf import DictConfig

from gpx.constructed import Constructed
from gpx.errors import ConfigError, GPXError, class_name
from gpx.kernels import Kernel
from gpx.likelihoods import Likelihood
from gpx.likelihoods.base import is_classification
from gpx.means import Mean
from gpx.options.composition import composed
from gpx.options.module_node import chosen_modules, node_of
from gpx.runs.arrays import real_array
from gpx.runs.data import likelihood_task
from gpx.runs.folder import RunFolder
from gpx.runs.given_data import TARGETS, GivenData, given_data
from gpx.runs.loading import finished_predictor
from gpx.runs.prediction import ClassPrediction, Prediction
from gpx.runs.predictor import Predictor
from gpx.runs.run import run
from gpx.sampling.seeds import global_randomness

DATA = "arrays.npz"
"""The arrays in the run folder: it can be resumed, and repeated, like any other."""

TAKEN = (
    *("data", "data.path", "data.root", "data.x", "data.y", "data.test"),
    *("data.noise", "data.weights"),
    *("data.input_names", "data.target_name", "data.target_names", "resume"),
)
"""Options that say where data come from."""


class Fitted(NamedTuple):
    """A trained model.

    Attributes:
        model: predicts; what ``gpx.load(folder)`` reads back.
        metrics: contents of metrics.json, for example ``test.rmse``.
        folder: run folder; None where nothing was kept (``keep=False``).
    """

    model: Predictor
    metrics: dict[str, Any]
    folder: Path | None

    def __repr__(self) -> str:
        shown = ("test.rmse", "test.mnlp", "test.accuracy", "train.evidence")
        values = [f"{name} {self.metrics[name]:.4g}" for name in shown if name in self.metrics]
        return f"Fitted({self.model!r}, {', '.join(values)}, folder={str(self.folder)!r})"

    def predict(self, inputs: ArrayLike) -> Prediction:
        """Mean, standard deviation and 95 % interval; see ``Predictor.predict``."""
        return self.model.predict(inputs)

    def latent(self, inputs: ArrayLike) -> Prediction:
        """The same without noise, of the function behind y; see ``Predictor.latent``."""
        return self.model.latent(inputs)

    def predict_classes(self, inputs: ArrayLike) -> ClassPrediction:
        """Label and probabilities; see ``Predictor.predict_classes``."""
        return self.model.predict_classes(inputs)

    def condition(
        self, inputs: ArrayLike, targets: ArrayLike, noise: ArrayLike | None = None
    ) -> Predictor:
        """The model with further rows, without training; see ``Predictor.condition``."""
        return self.model.condition(inputs, targets, noise)

    def sample(
        self,
        inputs: ArrayLike,
        num: int = 1,
        *,
        targets: bool = False,
        seed: int = 0,
        jointly: bool = False,
    ) -> NDArray[Any]:
        """Draws of functions, or of targets; see ``Predictor.sample``."""
        return self.model.sample(inputs, num, targets=targets, seed=seed, jointly=jointly)


def fit(
    x: ArrayLike,
    y: ArrayLike,
    *options: str,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    noise: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    kernel: Kernel | str | None = None,
    mean: Mean | str | None = None,
    likelihood: Likelihood | str | None = None,
    folder: str | Path | None = None,
    quiet: bool = False,
    keep: bool = True,
) -> Fitted:
    """Train a model on arrays.

    The same run as ``python train.py data=npz ...``: the same defaults and options, the same run
    folder, which also keeps the arrays (``gpx.runs.resume(folder)`` goes on with it)::

        fitted = gpx.fit(x, y, "approx=sgpr", "kernel=matern32", "trainer.device=cuda")
        mean, std, lower, upper = fitted.predict(x_new)

    Args:
        x (n, d): inputs in their own units (they are standardised inside); (n,) is one input. NumPy
            arrays, torch tensors on any device, data frames or lists. The names of a data frame's
            columns are kept: ``predict`` takes the columns of other frames by name. Columns of
            texts and dates become inputs as in ``gpx.data.CSVFile``, and options such as
            ``data.missing=mean`` are those of ``data=npz``.
        y (n,): numbers, counts or class labels (numbers or texts), as the likelihood takes them;
            (n, p) for p outputs, which a data frame names; NaN where a row lacks one of several
            (``approx=coregional``, or ``svgp`` with ``likelihood=gaussian_outputs``).
        options: as on the command line, ``group=choice`` or ``name=value``; of one that is given
            twice the last holds. Without ``approx=`` the method follows the data;
            ``model.choice`` of the metrics says which, and why.
        test: inputs and targets that metrics are computed on. None: a tenth of the rows is held
            out for that (``data.split``, ``data.test_fraction``; 0: none) and the model does not
            see it.
        noise (n,): known variances of the noise of y, in its squared unit, beside the one that is
            learned for all rows; weights (n,): how many rows each one stands for, of targets of any
            kind. ``approx=exact``, ``vecchia``, ``sgpr``, ``fitc`` and, of any likelihood, ``svgp``
            and networks take them; rows of ``test=`` have no known noise and weight one.
        kernel, mean, likelihood: modules of gpx or of one's own in the place of the options of
            these names (texts are read as these are)::

                gpx.fit(x, y, kernel=Matern32() + Periodic(period=0.5), likelihood=Gaussian(0.01))

            Training starts from their values, which are in units of the standardised inputs and
            target; they are not changed themselves. config.yaml holds their classes and arguments,
            and ``gpx.load(folder, trust=("my_package",))`` builds classes of one's own from them.
        folder: run folder, new or empty; None: a new one in ``outputs``.
        quiet: say nothing (``trainer.quiet=true``); warnings are warnings of Python in any case.
        keep: False: leave no run folder behind. What is returned predicts, and can be pickled.

    The global random states of torch, NumPy and Python are left as they were found.

    Returns:
        the trained model, its metrics and its folder.

    Raises:
        ShapeError: arrays that do not fit each other.
        DTypeError: arrays of something else than real numbers.
        ConfigError: an option that is none, a folder that cannot be used, or a module that a run
            folder cannot record (``gpx.options.module_node``).
        GPXError: everything that ``train.py`` refuses, in the same words.
        Interrupted: after Ctrl-C, with a checkpoint in the folder.
    """
    if not keep and folder is not None:
        raise ConfigError(f"keep=False leaves no folder, and folder={folder} asks for one")
    given = given_data(x, y, test=test, noise=noise, weights=weights)
    for option in options:
        if isinstance(option, Constructed):
            raise ConfigError(
                f"gpx.fit takes modules by name, such as kernel=RBF(), got a {class_name(option)} "
                "among the options"
            )
        if not isinstance(option, str):
            raise ConfigError(
                f"gpx.fit takes options one by one as text, such as 'approx=sgpr', got {option!r}"
            )
        name = option.partition("=")[0].lstrip("+~")
        if name in TAKEN or name.startswith("hydra"):
            raise ConfigError(f"gpx.fit takes no {name}=: it trains on the arrays it is given")
    parts = {"kernel": kernel, "mean": mean, "likelihood": likelihood}
    modules = _modules({n: part for n, part in parts.items() if part is not None}, options, keep)
    options = (*options, *(f"{n}={part}" for n, part in parts.items() if isinstance(part, str)))
    if quiet:
        options = (*options, "trainer.quiet=true")
    if keep:
        started = datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
        target = RunFolder(Path("outputs", "arrays", started) if folder is None else folder)
        return _trained(given, y, options, modules, target)
    with TemporaryDirectory(prefix="gpx-") as passing:
        return _trained(given, y, options, modules, RunFolder(passing))._replace(folder=None)


def _modules(
    parts: Mapping[str, object], options: Sequence[str], keep: bool
) -> dict[str, dict[str, Any]]:
    """The nodes of parts that are modules; those that are texts are read as options.

    Raises:
        ConfigError: a part that an option names, too, or that no node says.
    """
    named = {option.partition("=")[0].lstrip("+~") for option in options}
    for name in sorted(named & parts.keys()):
        raise ConfigError(
            f"gpx.fit is given {name}= both as an argument and in an option: leave one of them out"
        )
    return {
        name: node_of(part, name, keep) for name, part in parts.items() if not isinstance(part, str)
    }


def _trained(
    given: GivenData,
    y: ArrayLike,
    options: Sequence[str],
    modules: Mapping[str, dict[str, Any]],
    target: RunFolder,
) -> Fitted:
    """``fit`` in a folder.

    Args:
        given: the arrays; y: the targets as they were given.
        options: as on the command line.
        modules: nodes in the place of options, by the names of their groups.
        target: new or empty.
    """
    if target.path.exists() and not target.path.is_dir():
        raise ConfigError(f"folder={target.path} is a file: choose another folder=")
    if target.path.exists() and any(target.path.iterdir()):
        raise ConfigError(
            f"{target.path} is not empty: choose another folder=, or go on with a stopped run by "
            f"gpx.runs.resume({str(target.path)!r})"
        )
    path = target.path.resolve() / DATA

    def compose(before: Sequence[str], after: Sequence[str]) -> DictConfig:
        with chosen_modules(modules) as chosen:
            return composed(["data=npz", *before, *options, *chosen, *after])

    config = compose([], [])
    if given.has_text_targets and not is_classification(likelihood_task(config)):
        real_array(y, TARGETS)  # refuses texts
    config.data.update({"path": str(path), **given.options()})
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        try:
            target.path.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                np.savez(file, allow_pickle=False, **given.arrays)
        except OSError as error:
            raise ConfigError(
                f"{error.filename or target.path}: {error.strerror or error}; choose another "
                "folder="
            ) from error
        metrics = run(config, target, compose)
    except BaseException as error:
        if isinstance(error, GPXError):  # the file is ours, the arrays are the caller's
            error.args = (str(error).replace(str(path), "the data set"), *error.args[1:])
        if not target.holds_a_run():  # refused before anything was trained
            with suppress(OSError):
                path.unlink()
            for parent in made:
                with suppress(OSError):  # never made, or another run is in it
                    parent.rmdir()
        raise
    with global_randomness(config.seed):
        model = finished_predictor(target, target.read_own_config(), str(config.trainer.device))
    return Fitted(model, metrics, target.path)
