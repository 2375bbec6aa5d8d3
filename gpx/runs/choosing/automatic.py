"""``approx=auto``: load the data, choose a method, and compose the config again with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig

from gpx.data import Dataset, DataSource
from gpx.data.labels import TextTargets
from gpx.errors import ConfigError, GPXError
from gpx.kernels import Categorical, Constant, Kernel, Linear, Product, Scale, Stationary, Sum
from gpx.kernels.over_axes import checked_groups
from gpx.likelihoods import Gaussian, GaussianOutputs, Likelihood
from gpx.likelihoods.base import is_classification
from gpx.linalg import budget_in_bytes, memory_for_all, total_memory
from gpx.methods.grid.factors import split_kernel
from gpx.options.build import build, check_parts, target_of
from gpx.options.config import TrainerConfig
from gpx.runs.choosing.kernel_choice import with_kernel_chosen
from gpx.runs.choosing.kernel_options import kernel_is_open
from gpx.runs.choosing.kernel_prior import set_prior, takes_priors
from gpx.runs.choosing.method_choice import CHAIN_STEPS, Choice, Facts, choose
from gpx.runs.data import (
    describe_rows,
    hold_out,
    likelihood_task,
    load_run_data,
    with_facts,
)
from gpx.training import HamiltonianChains

Compose = Callable[[Sequence[str], Sequence[str]], DictConfig]
"""Composes the config of a run, with options before and after those that the user gave."""

KERNEL_SHARE = 0.25
"""Choosing a kernel may take this share of ``trainer.budget``, in addition to training."""

METHOD_GROUPS = {
    "objective": "approx=exact objective=iterative_mll",
    "basis": "approx=qsgp basis=orthogonal",
    "family": "approx=svgp family=mean_field",
    "strategy": "approx=svgp strategy=unwhitened",
    "inducing": "approx=sgpr inducing=auto",
    "selector": "approx=sgpr selector=greedy",
    "partition": "approx=committee partition=random",
    "projection": "approx=ski projection=unit",
    "inference": "approx=reweighted inference=type2",
    "features": "approx=sgpr inducing=eigenfunctions",
}
"""Config groups that only some methods have, each with an example of such a method."""


def is_automatic(config: DictConfig) -> bool:
    """Whether a composed config has ``approx=auto``."""
    node = config.get("approx")
    return isinstance(node, DictConfig) and node.get("choose") == "auto"


def require_no_method_options(config: DictConfig) -> None:
    """Raise ConfigError for an option of a method beside ``approx=auto``."""
    given = [str(name) for name in config.approx if name != "choose"]
    if config.get("objective") is not None:
        given.insert(0, "objective")
    for name in given:
        example = METHOD_GROUPS.get(name)
        shown = f"{name}=" if example else f"approx.{name}"
        raise ConfigError(
            f"{shown} belongs to certain methods, and approx=auto (the default) chooses the "
            f"method: name one with approx=, for example {example or 'approx=svgp'}"
        )


def with_open_choices_made(
    config: DictConfig,
    options: TrainerConfig,
    device: torch.device,
    compose: Compose | None,
    folders: Sequence[Path],
    say: Callable[[str], None],
) -> tuple[DictConfig, Dataset]:
    """The config with method and kernel chosen, the reasons in its ``facts``, and the data.

    Rows that ``calibrate=`` holds out are not used for either choice.

    Args:
        config: composed with ``approx=auto``, ``kernel=auto`` or both.
        options: of the trainer.
        device: of the run.
        compose: composes the config again with further options; needed for ``approx=auto``.
        folders: of config groups, in which kernels are found.
        say: takes lines for the user.

    Raises:
        GPXError: options of a method beside ``approx=auto``, a kernel that cannot be chosen, or
            invalid data.
    """
    method_open = is_automatic(config)
    if method_open and compose is None:
        raise ConfigError("approx=auto cannot be used here: name a method with approx=")
    if method_open:
        require_no_method_options(config)
    source: DataSource = build(config, "data")
    before: list[str] = []  # defaults that depend on the data; options of the user override them
    if method_open and compose is not None and source.form == "images":
        before = ["likelihood=softmax"]
        config = _like(config, compose(before, []))
    try:
        data = load_run_data(config, source)
    except TextTargets as error:
        if not method_open or compose is None or not error.likelihood:
            raise
        before = [f"likelihood={error.likelihood}"]
        config = _like(config, compose(before, []))
        if not is_classification(likelihood_task(config)):  # the user named another
            raise
        data = load_run_data(config, source)
        say(f"likelihood={error.likelihood}: the target holds {len(error.classes)} texts")
    if method_open and compose is not None and source.form == "table" and data.num_outputs > 1:
        before = ["likelihood=gaussian_outputs"]
        config = _like(config, compose(before, []))
    trained, kept = hold_out(data, build(config, "calibrate"), config.seed)
    say(describe_rows(trained, 0 if kept is None else len(kept[1])))
    # methods for images bring their own kernel
    kernel_open = kernel_is_open(config) and source.form != "images"
    asked_init = config.get("init")
    if kernel_open:
        if config.data.get("categories") == "kernel":
            raise ConfigError(
                "data.categories=kernel cannot be used with kernel=auto: name a kernel"
            )
        grid = source.form == "grid"
        seconds = math.inf if options.budget is None else KERNEL_SHARE * options.budget
        config = with_kernel_chosen(config, trained, grid, folders, seconds, say)
    if not method_open or compose is None:
        _require_kernel(config)
        return config, data
    chosen = choose(facts_of(config, options, device, source, trained))
    if kernel_open:  # options of kernel=auto may have been given
        before = [*before, "kernel=auto"]
    made = _like(config, compose(before, [f"approx={chosen.name}"]))
    made.facts.choice = describe(chosen)
    if kernel_open:
        made.kernel, made.likelihood = config.kernel, config.likelihood
        if made.init == asked_init:
            made.init = config.init
        made.facts.kernel_choice = config.facts.kernel_choice
        found = config.get("prior")
        if found is not None and made.get("prior") is None and takes_priors(made):
            set_prior(made, found)
    _require_kernel(made)
    return made, data


def _require_kernel(config: DictConfig) -> None:
    """Raise ConfigError if ``kernel=auto`` is left, which images leave, and the model takes one."""
    if kernel_is_open(config) and "kernel" in check_parts(config):
        raise ConfigError(
            "kernel=auto compares kernels of tables and grids, and the data are images: name a "
            "kernel, for example kernel=rbf or kernel=arc_cosine"
        )


def describe(choice: Choice) -> str:
    """The choice and its reason, for the user and metrics.json."""
    return f"approx={choice.name}, chosen by approx=auto: {choice.reason}"


def facts_of(
    config: DictConfig,
    options: TrainerConfig,
    device: torch.device,
    source: DataSource,
    data: Dataset,
) -> Facts:
    """The facts that the choice of a method depends on."""
    likelihood = target_of(config.likelihood, "likelihood")
    kind = likelihood if isinstance(likelihood, type) else Likelihood
    kernel = _kernel(config, data)
    return Facts(
        num_train=data.num_train,
        num_inputs=data.num_inputs,
        num_outputs=data.num_outputs,
        task=data.task,
        form=source.form,
        gaussian=issubclass(kind, Gaussian) and data.num_outputs == 1,
        gaussian_outputs=issubclass(kind, GaussianOutputs) and data.num_outputs > 1,
        observed=data.train_y.numel() - data.missing_targets if data.missing_targets else None,
        suits_laplace=issubclass(kind, Likelihood) and kind.suits_laplace(),
        local_kernel=kernel is not None and kernel.local,
        row_noise=data.train_noise is not None,
        samples=_may_sample(config, options) and kernel is not None and _is_sampled_soon(kernel),
        factors=kernel is not None and source.form == "grid" and _factors(kernel, config, data),
        device=device.type,
        memory=budget_in_bytes(options.memory_budget, memory_for_all(device), total_memory(device)),
        budget=options.budget,
    )


def _may_sample(config: DictConfig, options: TrainerConfig) -> bool:
    """``Facts.samples``."""
    optimizer = config.get("optimizer")
    chains = optimizer is None or target_of(optimizer, "optimizer") is HamiltonianChains
    enough = options.max_steps >= CHAIN_STEPS and options.dtype == "float64"
    return chains and enough and not config.get("fixed") and not options.certify


def _is_sampled_soon(kernel: Kernel) -> bool:
    """Whether chains over the kernel's hyperparameters usually converge, in ten seconds or so.

    Posteriors of periods, frequencies and places of change have many maxima.
    """
    if isinstance(kernel, (Sum, Product)):
        return all(map(_is_sampled_soon, kernel.parts))
    if isinstance(kernel, Scale):
        return _is_sampled_soon(kernel.kernel)
    smooth = isinstance(kernel, Stationary) and kernel.local
    return smooth or isinstance(kernel, (Linear, Constant, Categorical))


def _kernel(config: DictConfig, data: Dataset) -> Kernel | None:
    """The kernel of the run; None if it is still to be chosen or cannot be built alone."""
    if kernel_is_open(config):
        return None
    made = build(with_facts(config, data), "kernel")
    return made if isinstance(made, Kernel) else None


def _factors(kernel: Kernel, config: DictConfig, data: Dataset) -> bool:
    """Whether the kernel is a product of kernels over the axes of a grid."""
    axes = config.data.get("axes")
    groups = [[i] for i in range(data.num_inputs)] if axes is None else checked_groups(axes)
    try:
        split_kernel(kernel, groups)
    except GPXError:
        return False
    return True


def _like(config: DictConfig, made: DictConfig) -> DictConfig:
    """``made`` with the ``data`` of ``config``, which may have changed since composition."""
    made.data = config.data
    return made
