"""A model trained on arrays, from Python: what ``train.py`` does, without the command line."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from omegaconf import DictConfig

from gpx.data.columns.frame import Frame, frame_of
from gpx.data.columns.numbers import numbered_names
from gpx.errors import ConfigError, DataError, DTypeError, GPXError, ShapeError
from gpx.sampling.seeds import global_randomness
from gpx.training.arrays import column_names, columns_by_name, real_array
from gpx.training.composition import composed
from gpx.training.loading import finished_predictor
from gpx.training.predictor import ClassPrediction, Prediction, Predictor
from gpx.training.run import run
from gpx.training.run_data import likelihood_task
from gpx.training.run_folder import RunFolder

DATA = "arrays.npz"
"""The arrays in the run folder: it can be resumed, and repeated, like any other."""

TAKEN = (
    *("data", "data.path", "data.root", "data.x", "data.y", "data.test"),
    *("data.noise", "data.weights"),
    *("data.input_names", "data.target_name", "data.target_names", "resume"),
)
"""Options that say where data come from."""

TARGETS = "targets, with classes as numbers,"
"""What targets are called in error messages."""


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

    def predict(self, inputs: ArrayLike) -> Prediction:
        """Mean, standard deviation and 95 % interval; see ``Predictor.predict``."""
        return self.model.predict(inputs)

    def latent(self, inputs: ArrayLike) -> Prediction:
        """The same without noise, of the function behind y; see ``Predictor.latent``."""
        return self.model.latent(inputs)

    def predict_classes(self, inputs: ArrayLike) -> ClassPrediction:
        """Label and probabilities; see ``Predictor.predict_classes``."""
        return self.model.predict_classes(inputs)

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
    folder: str | Path | None = None,
    quiet: bool = False,
    keep: bool = True,
) -> Fitted:
    """Train a model on arrays.

    The same run as ``python train.py data=npz ...``: the same defaults and options, the same run
    folder, which also keeps the arrays (``gpx.training.resume(folder)`` goes on with it)::

        fitted = gpx.fit(x, y, "approx=sgpr", "kernel=matern32", "trainer.device=cuda")
        mean, std, lower, upper = fitted.predict(x_new)

    Args:
        x (n, d): inputs in their own units (they are standardised inside); (n,) is one input. NumPy
            arrays, torch tensors on any device, data frames or lists. The names of a data frame's
            columns are kept: ``predict`` takes the columns of other frames by name. Columns of
            texts and dates become inputs as in ``gpx.data.CSVFile``, and options such as
            ``data.missing=mean`` are those of ``data=npz``.
        y (n,): numbers, counts or class labels (numbers or texts), as the likelihood takes them;
            (n, p) for p outputs (``approx=svgp``, ``likelihood=gaussian_outputs``), which a data
            frame names.
        options: as on the command line, ``group=choice`` or ``name=value``; of one that is given
            twice the last holds. Without ``approx=`` the method follows the data
            (``gpx.training.method_choice``); ``model.choice`` of the metrics says which, and why.
        test: inputs and targets that metrics are computed on. None: a tenth of the rows is held
            out for that (``data.split``, ``data.test_fraction``; 0: none) and the model does not
            see it.
        noise (n,): known variances of the noise of y, in its squared unit, beside the one that is
            learned for all rows; weights (n,): how many rows each one stands for. ``approx=exact``
            takes them; rows of ``test=`` have no known noise and weight one.
        folder: run folder, new or empty; None: a new one in ``outputs``.
        quiet: say nothing (``trainer.quiet=true``); warnings are warnings of Python in any case.
        keep: False: leave no run folder behind. What is returned predicts, and can be pickled.

    The global random states of torch, NumPy and Python are left as they were found.

    Returns:
        the trained model, its metrics and its folder.

    Raises:
        ShapeError: arrays that do not fit each other.
        DTypeError: arrays of something else than real numbers.
        ConfigError: an option that is none, or a folder that cannot be used.
        GPXError: everything that ``train.py`` refuses, in the same words.
        Interrupted: after Ctrl-C, with a checkpoint in the folder.
    """
    if not keep:
        if folder is not None:
            raise ConfigError(f"keep=False leaves no folder, and folder={folder} asks for one")
        with TemporaryDirectory(prefix="gpx-") as passing:
            fitted = fit(
                x,
                y,
                *options,
                test=test,
                noise=noise,
                weights=weights,
                folder=passing,
                quiet=quiet,
            )
        return fitted._replace(folder=None)
    names = _column_names(x, "inputs")
    arrays = _arrays(x, y, names)
    neutral = {"noise": 0.0, "weights": 1.0}
    for name, values in (("noise", noise), ("weights", weights)):
        if values is None:
            continue
        arrays[name] = real_array(values, name)
        if arrays[name].shape != arrays["y"].shape[:1]:
            raise ShapeError(
                f"{name}= has shape {arrays[name].shape}, expected {arrays['y'].shape[:1]}: one "
                "number for each row"
            )
    target_names = _column_names(y, "targets") if arrays["y"].ndim == 2 else None
    target_name = _series_name(y) if arrays["y"].ndim == 1 else None
    if test is not None:
        if not isinstance(test, (tuple, list)) or len(test) != 2:
            raise ShapeError("test= takes a pair (inputs, targets) of arrays")
        more_x = test[0] if names is None else columns_by_name(test[0], names, "test inputs")
        more_y = test[1]
        if target_names is not None:
            more_y = columns_by_name(more_y, target_names, "test targets")
        more = _arrays(more_x, more_y, names, mixed="x" not in arrays)
        for what, ours, theirs in (
            ("inputs", _width(arrays, "x"), _width(more, "x")),
            ("targets", _width(arrays, "y"), _width(more, "y")),
        ):
            if ours != theirs:
                raise ShapeError(f"test {what} have {theirs} columns, training {what} {ours}")
        for name in neutral.keys() & arrays.keys():
            more[name] = np.full(len(more["y"]), neutral[name])
        is_test = np.repeat([False, True], [len(arrays["y"]), len(more["y"])])
        arrays = {name: np.concatenate([arrays[name], more[name]]) for name in arrays}
        arrays["test"] = is_test
    for option in options:
        if not isinstance(option, str):
            raise ConfigError(
                f"gpx.fit takes options one by one as text, such as 'approx=sgpr', got {option!r}"
            )
        name = option.partition("=")[0].lstrip("+~")
        if name in TAKEN or name.startswith("hydra"):
            raise ConfigError(f"gpx.fit takes no {name}=: it trains on the arrays it is given")
    started = datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    if quiet:
        options = (*options, "trainer.quiet=true")
    target = RunFolder(Path("outputs", "arrays", started) if folder is None else folder)
    if target.path.exists() and not target.path.is_dir():
        raise ConfigError(f"folder={target.path} is a file: choose another folder=")
    if target.path.exists() and any(target.path.iterdir()):
        raise ConfigError(
            f"{target.path} is not empty: choose another folder=, or go on with a stopped run by "
            f"gpx.training.resume({str(target.path)!r})"
        )
    path = target.path.resolve() / DATA

    def compose(before: Sequence[str], after: Sequence[str]) -> DictConfig:
        return composed(["data=npz", *before, *options, *after])

    config = compose([], [])
    if arrays["y"].dtype.kind == "U" and likelihood_task(config) not in ("binary", "multiclass"):
        real_array(y, TARGETS)  # refuses texts
    config.data.path = str(path)
    if "x" not in arrays:
        config.data.x = _columns_in(arrays)
        names = numbered_names(len(config.data.x)) if names is None else names
    config.data.noise = "noise" if "noise" in arrays else None
    config.data.weights = "weights" if "weights" in arrays else None
    config.data.input_names = None if names is None else [_as_text(name) for name in names]
    config.data.target_name = None if target_name is None else _as_text(target_name)
    config.data.target_names = (
        None if target_names is None else [_as_text(name) for name in target_names]
    )
    config.data.test = None if test is None else "test"
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        try:
            target.path.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
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


def _column_names(values: Any, what: str) -> tuple[str, ...] | None:
    """Names of a data frame's columns, or of the one that a column of a frame is.

    Args:
        values: inputs or targets, as given.
        what: they are, for the error message.

    Raises:
        DataError: two columns of one name, by which nothing can be told apart later.
    """
    if np.ndim(values) == 1:
        name = _series_name(values)
        return None if name is None else (name,)
    names = column_names(values)
    twice = [name for name in names or () if (names or ()).count(name) > 1]
    if twice:
        raise DataError(f"{what} have two columns of the name {twice[0]!r}; rename one")
    return names


def _as_text(name: str) -> str:
    """A name that config.yaml keeps as it is; raises DataError where it would be a reference."""
    if "${" in name:
        raise DataError(
            f"the column {name!r} has ${{ in its name, which refers to options; rename it"
        )
    return name


def _series_name(values: Any) -> str | None:
    """Name of one column of a data frame; None where it has none."""
    columns = getattr(values, "columns", None)
    name = getattr(values, "name", None) if columns is None else next(iter(columns), None)
    return name if isinstance(name, str) else None


def _arrays(
    x: ArrayLike, y: ArrayLike, names: tuple[str, ...] | None, mixed: bool = False
) -> dict[str, NDArray[Any]]:
    """What goes into the archive: ``x`` (n, d) and ``y`` (n,), or (n, p) for p > 1 outputs.

    Columns of texts or dates make an array of every column: ``x1``, ``x2``, ... in the place of
    ``x``. Targets of texts are classes.

    Args:
        x, y: as given.
        names: of the columns of x.
        mixed: whether columns are kept apart in any case.

    Raises:
        DTypeError: not numbers, texts or dates.
        ShapeError: not that many of each.
    """
    made = None if mixed else _numbers(x)
    if made is None:
        frame = _columns(x, names)
        numbered = numbered_names(len(frame.names))
        made = {n: _for_archive(v) for n, v in zip(numbered, frame.columns, strict=True)}
    targets = _targets(y)
    rows = {len(array) for array in (*made.values(), targets)}
    plain = made.get("x")
    if (plain is not None and plain.ndim != 2) or targets.ndim not in (1, 2) or len(rows) > 1:
        images = ""
        if plain is not None and plain.ndim in (3, 4):
            sides = ", ".join(map(str, plain.shape[1:]))
            images = (
                f"; of images give the pixels of each as a row, x.reshape(len(x), -1), and "
                f"approx.image_shape=[{sides}], colours in front"
            )
        raise ShapeError(
            f"inputs of shape {np.shape(x)} and targets of shape {np.shape(y)}; expected (n, d) "
            f"and (n,), or (n, p) for p targets, with the same n{images}"
        )
    return {**made, "y": targets}


def _numbers(x: ArrayLike) -> dict[str, NDArray[Any]] | None:
    """The array ``x`` (n, d) of inputs; None where not all of them are numbers."""
    try:
        inputs = real_array(x, "inputs")
    except DTypeError:
        return None
    return {"x": inputs[:, None] if inputs.ndim == 1 else inputs}


def _columns(x: ArrayLike, names: tuple[str, ...] | None) -> Frame:
    """Inputs of numbers, texts and dates.

    Raises:
        DTypeError: of something else.
    """
    shape = np.shape(x) if isinstance(x, (list, tuple)) else tuple(getattr(x, "shape", ()))
    if len(shape) not in (1, 2):
        real_array(x, "inputs")  # refuses
    values = np.array(x, dtype=object)[:, None] if len(shape) == 1 else x
    width = shape[1] if len(shape) == 2 else 1
    try:
        return frame_of(values, names or numbered_names(width), "inputs")
    except DTypeError:
        real_array(x, "inputs")  # in the words for arrays
        raise


def _targets(y: ArrayLike) -> NDArray[Any]:
    """Numbers as float64, or texts of classes (n,).

    Raises:
        DTypeError: neither.
    """
    try:
        targets = real_array(y, TARGETS)
    except DTypeError as error:
        array = np.asarray(y)
        if array.dtype.kind not in "OUT" or array.ndim not in (1, 2):
            raise
        array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        if array.ndim != 1 or not all(isinstance(value, str) for value in array):
            raise error from None
        return array.astype(str)
    return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets


def _for_archive(values: NDArray[Any]) -> NDArray[Any]:
    """A column that NumPy writes without Python's objects."""
    return values.astype(str) if values.dtype.kind == "O" else values


def _width(arrays: dict[str, NDArray[Any]], name: str) -> int:
    """Columns of the inputs or of the targets."""
    if name in arrays:
        return (*arrays[name].shape, 1)[1]
    return len(_columns_in(arrays))


def _columns_in(arrays: dict[str, NDArray[Any]]) -> list[str]:
    """Names of the arrays that are columns of the inputs."""
    return [name for name in arrays if name not in ("y", "test", "noise", "weights")]
