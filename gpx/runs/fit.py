"""``gpx.fit``: train a model on arrays from Python, as ``train.py`` does."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from omegaconf import DictConfig, OmegaConf
from torch import nn

from gpx.constructed import Constructed
from gpx.errors import ConfigError, DTypeError, GPXError
from gpx.inducing import Selector
from gpx.kernels import Kernel
from gpx.likelihoods import Likelihood
from gpx.likelihoods.base import is_classification
from gpx.means import Mean
from gpx.methods.base.model import Hyperparameters
from gpx.methods.base.objective import Objective
from gpx.methods.base.optimizer import Optimizer
from gpx.options.build import fixed_parameters
from gpx.options.composition import composed
from gpx.options.module_node import OPTIONS, chosen_modules, fixed_in
from gpx.priors import Priors
from gpx.runs.choosing.automatic import is_automatic
from gpx.runs.data import likelihood_task
from gpx.runs.fit_arguments import as_options, check_options, nodes_of_parts
from gpx.runs.folder import RunFolder
from gpx.runs.given_data import GivenData, given_data
from gpx.runs.left_out import LeftOutRows
from gpx.runs.loading import finished_predictor
from gpx.runs.prediction import ClassPrediction, Prediction
from gpx.runs.predictor import Predictor
from gpx.runs.results import coarse_weights
from gpx.runs.run import run
from gpx.sampling.seeds import global_randomness
from gpx.training.progress import Monitor, check_monitors
from gpx.warned_line import users_line

ARRAYS_FILE = "arrays.npz"
"""File of the given arrays in the run folder, so that the run can be resumed and repeated."""

WHOLE = ("objective", "optimizer")
"""Parts for which ``approx=`` sets options of its own, which those of another class lack."""


class Fitted(NamedTuple):
    """A trained model.

    Attributes:
        model: predicts; the same as ``gpx.load(folder)``.
        metrics: contents of metrics.json, for example ``test.rmse``.
        folder: run folder; None for ``keep=False``.
    """

    model: Predictor
    metrics: dict[str, Any]
    folder: Path | None

    def __repr__(self) -> str:
        error = "test.accuracy" if "test.accuracy" in self.metrics else "test.rmse"
        shown = (error, "test.mnlp", "train.evidence")
        values = [f"{name} {self.metrics[name]:.4g}" for name in shown if name in self.metrics]
        folder = None if self.folder is None else str(self.folder)
        return f"Fitted({self.model!r}, {', '.join(values)}, folder={folder!r})"

    @property
    def hyperparameters(self) -> dict[str, NDArray[np.float64]]:
        """Learned hyperparameters by name; see ``Predictor.hyperparameters``."""
        return self.model.hyperparameters

    def predict(self, inputs: ArrayLike) -> Prediction:
        """Mean, standard deviation and 95 % interval; see ``Predictor.predict``."""
        return self.model.predict(inputs)

    def latent(self, inputs: ArrayLike) -> Prediction:
        """The same for the latent function, without noise; see ``Predictor.latent``."""
        return self.model.latent(inputs)

    def covariance(self, inputs: ArrayLike, *, targets: bool = False) -> NDArray[np.float64]:
        """Joint covariance at the inputs; see ``Predictor.covariance``."""
        return self.model.covariance(inputs, targets=targets)

    def leave_one_out(self) -> LeftOutRows:
        """Each training row as the others predict it; see ``Predictor.leave_one_out``."""
        return self.model.leave_one_out()

    def predict_classes(self, inputs: ArrayLike) -> ClassPrediction:
        """Most probable label, and probabilities; see ``Predictor.predict_classes``."""
        return self.model.predict_classes(inputs)

    def condition(
        self, inputs: ArrayLike, targets: ArrayLike, noise: ArrayLike | None = None
    ) -> Predictor:
        """The model given further rows, without training; see ``Predictor.condition``."""
        return self.model.condition(inputs, targets, noise)

    def sample(
        self,
        inputs: ArrayLike,
        num: int = 1,
        *,
        targets: bool = False,
        seed: int = 0,
        jointly: bool | None = None,
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
    selector: Selector | str | None = None,
    objective: Objective | str | None = None,
    optimizer: Optimizer | str | None = None,
    backbone: nn.Module | str | None = None,
    prior: Priors | str | None = None,
    folder: str | Path | None = None,
    quiet: bool = False,
    keep: bool = True,
    monitors: Sequence[Monitor] = (),
    **choices: str | float | Sequence[str],
) -> Fitted:
    """Train a model on arrays.

    The run is the same as ``python train.py data=npz ...``, with the same defaults, options and
    run folder. The folder also holds the arrays, so that ``gpx.runs.resume(folder)`` works::

        fitted = gpx.fit(x, y, "trainer.device=cuda", approx="sgpr", kernel="matern32")
        mean, std, lower, upper = fitted.predict(x_new)

    Args:
        x (n, d): inputs in their own units (gpx standardises them); (n,) for one input. NumPy
            arrays, torch tensors on any device, data frames or lists. ``predict`` takes the columns
            of a data frame by the names they have here. Columns of texts and dates become inputs as
            in ``gpx.data.CSVFile``, and options of columns are those of ``data=npz``. Of a data
            frame, missing values are filled in and columns that cannot be inputs left out, with
            notes; of arrays and lists both are errors (``data.missing=``, ``data.unusable=``).
        y (n,): numbers, counts or class labels (numbers or texts), depending on the likelihood
            (texts choose one of classes, where neither it nor ``approx`` is given); (n, p) for p
            outputs. With several outputs NaN marks a missing target (``approx=coregional``,
            ``independent``, or ``svgp`` with ``likelihood=gaussian_outputs`` or
            ``mixed_outputs``).
        options: as on the command line, ``group=choice`` or ``name=value``; if one is given twice,
            the last is used. Without ``approx=`` the method is chosen by the data, and
            ``model.choice`` of the metrics says which and why.
        test: inputs and targets that test metrics are computed on. None: a tenth of the rows is
            held out for that and not trained on (``data.split``, ``data.test_fraction``; 0: none).
        noise (n,): known noise variance of each row, in the squared unit of y, added to the learned
            noise variance; with p targets also (n, p), one for each cell, and any number where a
            target is missing (``approx=independent``, ``coregional``).
        weights (n,): how many observations each row stands for, for targets of any kind. Noise and
            weights are taken by ``approx=exact``, ``fully_bayesian``, ``sod``, ``vecchia``,
            ``sgpr``, ``fully_bayesian_sgpr``, ``fitc``, ``fic``, ``sor``, ``dtc`` and, with
            other likelihoods, too, by ``svgp``, ``swsgp``, ``vnngp`` and networks; rows of
            ``test=`` have no known noise and weight one.
        kernel, mean, likelihood: modules of gpx or of one's own, or texts as in the options of
            these names::

                gpx.fit(x, y, kernel=Matern32() + Periodic(period=0.5), likelihood=Gaussian(0.01))

            Training starts from their values, in units of the standardised inputs and target, and
            keeps those that ``gpx.constraints.fix`` fixed; the modules themselves are not changed.
            config.yaml holds their classes and arguments; classes of one's own are loaded by
            ``gpx.load(folder, trust=("my_package",))``. With ``keep=False`` nothing is recorded,
            and they may be what no config can hold: a kernel that is used twice (``k ** 2``), a
            parameter that two share, a network inside.
        selector: of inducing points, an object of ``gpx.inducing`` or of one's own with its
            arguments as attributes, or a text as in ``selector=``. ``Given(points)`` has its points
            in units of the standardised inputs: subtract the mean of the rows trained on, and
            divide by their standard deviation.
        objective: an objective of gpx or of one's own, or a text as in ``objective=``. An argument
            ``num_data`` becomes the number of rows trained on. A run folder can record it if its
            arguments are numbers, texts, lists and modules and its state is that of a new one.
        optimizer: an optimiser, or a text as in ``optimizer=``. A run folder can record it if its
            arguments are numbers, texts, lists and mappings; the run has one of its own.
        backbone: of ``approx=dkl``, ``svdkl`` and others with a network: a module (with
            ``keep=False``, as a config holds no weights), or a text as in ``approx.backbone=``. A
            class is named in a text: ``"approx.backbone={_target_: package.Net}"``.
        prior: of hyperparameters, as ``gpx.priors.Priors({"lengthscale": Gamma(3.0, 6.0)})`` in
            units of the standardised inputs and target, or a text as in ``prior=``. A run folder
            can record priors of ``gpx.priors`` and of one's own that keep their arguments as
            attributes; distributions of torch are taken with ``keep=False``.
        folder: run folder, new or empty; None: a new one in ``outputs``.
        quiet: print nothing (``trainer.quiet=true``); warnings are still issued by Python.
        keep: False: leave no run folder behind, so that nothing is drawn (``trainer.figures`` and
            ``trainer.tensorboard`` are off unless asked for); the result still predicts and can be
            pickled.
        monitors: objects that receive progress and test metrics during training and may end it
            (``gpx.training.Monitor``). The run folder does not record them: give them to
            ``gpx.runs.resume(folder, monitors=...)``, too.
        choices: options whose names have no dot: ``approx="sgpr"`` is ``"approx=sgpr"``, ``seed=1``
            is ``"seed=1"``, ``fixed=["kernel.period"]`` is ``"fixed=[kernel.period]"``.

    The global random states of torch, NumPy and Python are left unchanged.

    Returns:
        the trained model, its metrics and its folder.

    Raises:
        ShapeError: shapes of the arrays do not match.
        DTypeError: arrays that do not hold real numbers.
        ConfigError: an unknown option, a folder that cannot be used, or a module that a run folder
            cannot record (``gpx.options.module_node``).
        GPXError: everything else that ``train.py`` refuses.
        Interrupted: after Ctrl-C, with a checkpoint in the folder.
    """
    if not keep and folder is not None:
        raise ConfigError(
            f"keep=False and folder={folder} contradict each other: leave one of them out"
        )
    check_monitors(monitors)
    given = given_data(x, y, test=test, noise=noise, weights=weights)
    options = (*options, *as_options(choices, options, list(inspect.signature(fit).parameters)))
    check_options(options)
    every = {
        "kernel": kernel,
        "mean": mean,
        "likelihood": likelihood,
        "selector": selector,
        "objective": objective,
        "optimizer": optimizer,
        "backbone": backbone,
        "prior": prior,
    }
    parts = {name: part for name, part in every.items() if part is not None}
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # what is made here is trained
        modules = nodes_of_parts(parts, options, keep, stack)
        fixed = [
            name
            for n, part in parts.items()
            if n in Hyperparameters._fields and isinstance(part, Constructed)
            for name in fixed_in(part, n, modules[n])
        ]
        texts = {OPTIONS.get(n, n): part for n, part in parts.items() if isinstance(part, str)}
        options = (*options, *(f"{name}={text}" for name, text in texts.items()))
        if quiet:
            options = (*options, "trainer.quiet=true")
        if keep:
            started = datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
            target = RunFolder(Path("outputs", "arrays", started) if folder is None else folder)
            return _trained(given, y, options, modules, fixed, target, monitors)
        options = ("trainer.figures=false", "trainer.tensorboard=false", *options)
        target = RunFolder(stack.enter_context(TemporaryDirectory(prefix="gpx-")))
        fitted = _trained(given, y, options, modules, fixed, target, monitors)
        return fitted._replace(folder=None)


def _trained(
    given: GivenData,
    y: ArrayLike,
    options: Sequence[str],
    modules: Mapping[str, dict[str, Any]],
    fixed: Sequence[str],
    target: RunFolder,
    monitors: Sequence[Monitor],
) -> Fitted:
    """Train in a run folder; the end of ``fit``.

    Args:
        given: the converted arrays.
        y: the targets as the caller gave them.
        options: as on the command line.
        modules: config nodes by group.
        fixed: names of their parameters that are fixed, as in the option of that name.
        target: run folder, new or empty.
        monitors: receive progress.
    """
    if target.path.exists() and not target.path.is_dir():
        raise ConfigError(f"folder={target.path} is a file: choose another folder=")
    if target.path.exists() and any(target.path.iterdir()):
        raise ConfigError(
            f"{target.path} is not empty: choose another folder=, or continue a stopped run with "
            f"gpx.runs.resume({str(target.path)!r})"
        )
    path = target.path.resolve() / ARRAYS_FILE

    def compose(before: Sequence[str], after: Sequence[str]) -> DictConfig:
        groups = {name: node for name, node in modules.items() if name not in OPTIONS}
        with chosen_modules(groups) as chosen:
            made = composed(["data=npz", *given.defaults(), *before, *options, *chosen, *after])
        for name, node in modules.items():
            if name in OPTIONS:
                OmegaConf.update(made, OPTIONS[name], node, merge=False)
            elif name in WHOLE:
                made[name] = node
        named = [f"{part}.{name}" for part, name in fixed_parameters(made)]
        made.fixed = list(dict.fromkeys([*named, *fixed])) or None
        return made

    config = compose([], [])
    open_choice = is_automatic(config)  # of the likelihood as well
    if given.has_text_targets and not (open_choice or is_classification(likelihood_task(config))):
        names = list(map(repr, np.unique(given.arrays["y"]).tolist()))
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        raise DTypeError(
            f"targets must be an array of real numbers, and these are texts ({shown}); for classes "
            f"choose likelihood={'bernoulli' if len(names) < 3 else 'softmax'}"
        )
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
        metrics = run(config, target, compose, monitors=monitors)
    except BaseException as error:
        if isinstance(error, GPXError):  # the caller knows nothing of the file
            error.args = (str(error).replace(str(path), "the data set"), *error.args[1:])
        if not target.holds_a_run():  # refused before anything was trained
            with suppress(OSError):
                path.unlink()
            for parent in made:
                with suppress(OSError):  # not created yet, or another run is in it
                    parent.rmdir()
        raise
    for line in coarse_weights(metrics):
        warnings.warn(line, stacklevel=users_line())
    with global_randomness(config.seed):
        model = finished_predictor(target, target.read_own_config(), str(config.trainer.device))
    return Fitted(model, metrics, target.path)
