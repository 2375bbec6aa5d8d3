"""Composition of options into a config, and one-line explanations of mistakes in them."""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, OverrideType, QuotedString
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gpx.errors import ConfigError
from gpx.options.choices import with_choices_made
from gpx.options.config import CONFIGS
from gpx.options.kept_configs import kept_or_composed
from gpx.options.kernel_expression import EXAMPLE, with_kernel_expressions
from gpx.options.old import CHOICES, GROUPS, new_name, solver_owners

FLAGS = frozenset(
    {"help", "hydra-help", "version", "cfg", "resolve", "package", "run", "multirun", "info"}
    | {"shell-completion", "config-path", "config-name", "config-dir", "experimental-rerun"}
)
"""The flags of Hydra, which begin with two dashes."""
COMPOSING = threading.RLock()
"""Held by the thread that composes: Hydra's state and store of nodes are those of the process."""
FOLDER_NAMES = frozenset(
    {"run_dir", "rundir", "run_folder", "folder", "dir", "out", "out_dir", "outdir", "output"}
    | {"output_dir", "output_folder", "outputs", "log_dir", "logdir", "save_dir", "workdir"}
)
"""What others call the run folder."""
MAX_LISTED = 6
"""Most choices that are listed for an option."""


def composed(overrides: Sequence[str]) -> DictConfig:
    """The config of a run, from options as on the command line.

    Args:
        overrides: ``group=choice`` and ``name=value``.

    Raises:
        ConfigError: an option does not exist or cannot be read, or there are no configs.
    """
    if not (CONFIGS / "train.yaml").is_file():
        raise ConfigError(
            f"there are no configs in {CONFIGS}: reinstall gpx with pip install gpx-torch, "
            "or from its repository with pip install -e ."
        )
    with COMPOSING:
        try:
            overrides = with_kernel_expressions(overrides, [CONFIGS])
            check_choices(overrides)
            made = _of_kept_choices(overrides)
            return with_choices_made(_of_hydra(overrides) if made is None else made)
        except (HydraException, OmegaConfBaseException) as error:  # explained by composing again
            raise ConfigError(explain(error, overrides)) from error


def _of_hydra(overrides: Sequence[str]) -> DictConfig:
    with _composing():
        return compose("train", overrides=list(overrides))


def _of_kept_choices(overrides: Sequence[str]) -> DictConfig | None:
    """The config of choices of groups, perhaps kept from before, with values set as Hydra does.

    None where Hydra has to compose it as a whole: to say what is wrong with an option, and for
    options other than ``group=choice`` and ``name=value``.
    """
    choices, values = [], []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        name, value = override.key_or_group, override.value()
        if override.type is not OverrideType.CHANGE or override.is_sweep_override():
            return None
        if (CONFIGS / name).is_dir() and isinstance(value, (str, QuotedString)):
            choices.append(override.input_line or "")
        elif override.package is None and not (CONFIGS / name).is_dir():
            values.append((name, value))
        else:
            return None
    made = kept_or_composed(CONFIGS, choices, lambda: _of_hydra(choices))
    try:
        for name, value in values:
            OmegaConf.update(made, name, value, merge=True)
    except (OmegaConfBaseException, TypeError, ValueError):
        return None
    return made


@contextmanager
def _composing() -> Iterator[None]:
    """Initialise Hydra for the configs; afterwards a running Hydra application is restored."""
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = running


def check_choices(arguments: Sequence[str]) -> None:
    """Refuse choices of groups for which Hydra gives no helpful error.

    These are ``kernel=null`` and ``kernel=1``, and lists: of ``kernel=[rbf,periodic]`` Hydra would
    silently use the last.

    Raises:
        ConfigError: one of these.
        OverrideParseException: an argument cannot be read as an option.
    """
    options = [a for a in arguments if "=" in a and not a.startswith("-")]
    for override in OverridesParser.create().parse_overrides(options):
        group = override.key_or_group
        if not (CONFIGS / group).is_dir() or override.is_delete():
            continue
        value = override.value()
        for choice in value.list if isinstance(value, ChoiceSweep) else [value]:
            if not isinstance(choice, (str, QuotedString, Glob)):
                raise ConfigError(_explain_choice(group, choice))


def require_no_dashes(arguments: Sequence[str]) -> None:
    """Refuse options written with dashes, such as ``--kernel=rbf`` or ``--max_steps 3``.

    Raises:
        ConfigError: an argument begins with two dashes and is not a flag of Hydra.
    """
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name in FLAGS:
            continue
        if name in known_names():
            raise ConfigError(
                f"{argument}: options have no dashes; write {name}={value or 'VALUE'}"
            )
        raise ConfigError(f"{argument}: options have no dashes; also, {_explain_unknown(name, ())}")


def _explain_choice(group: str, choice: object) -> str:
    files = (CONFIGS / group).glob("*.yaml")
    listed = ", ".join(sorted(path.stem for path in files)[:20])
    if choice is None:
        return (
            f"{group}=null is not possible; leave it out for the default, or choose one of: "
            f"{listed}"
        )
    if not isinstance(choice, list):
        return f"there is no {group}={choice}; valid are: {listed}"
    text = f"{group}=[{','.join(map(str, choice))}] is a list, and {group}= takes one choice"
    if group == "kernel":
        text += f"; write a sum or product of kernels as an expression, for example {EXAMPLE}"
    else:
        text += f", one of: {listed}"
    return text + f" (to run each of them: -m {group}={','.join(map(str, choice))})"


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """One line that explains an error of Hydra or OmegaConf, with the nearest valid names.

    Args:
        error: raised by composition.
        overrides: the options; the choices of groups among them determine which options exist.
    """
    if isinstance(error, MissingConfigException):
        return _explain_missing(error)
    if isinstance(error, OverrideParseException):
        table = _table_hint(error.override)
        if table:
            return f"{error.override!r} is not an option; {table}"
        return (
            f"cannot read the option {error.override!r}: write name=value (lists as [a,b]; values "
            "with special characters in quotes, \"name='...'\")"
        )
    text = str(error)
    if text.startswith("Ambiguous value for argument"):
        return f"{text.splitlines()[0]}: add -m to sweep over several values"
    cause = error.__cause__
    if isinstance(error, ConfigCompositionException):
        unknown_group = re.search(r"Could not override '([^']+)'", text)
        unknown_key = re.search(r"Key '([^']+)' is not in struct", f"{text}\n{cause}")
        if unknown_group or unknown_key:
            name = (unknown_group or unknown_key).group(1)  # type: ignore[union-attr]
            return _explain_unknown(_full_key(text, cause) or name, overrides)
    lines = [line.strip() for line in f"{cause or text}".splitlines() if line.strip()]
    key = _full_key(text, cause)
    if "Cannot merge" in lines[0]:  # {...} instead of [...], or the other way round
        wanted = "a list" if "ListConfig with" in lines[0] else "options by name"
        return f"{key}: expected {wanted}"
    if "is not a ListConfig" in lines[0]:
        return f"{key}: expected a list, in brackets: {key}=[...]"
    if "does not support deletion" in lines[0]:
        return f"~{key}: options cannot be deleted; leave this out to use the default"
    return f"{key}: {lines[0]}" if key else lines[0]


def _full_key(text: str, cause: BaseException | None) -> str | None:
    match = re.search(r"full_key: (\S+)", f"{text}\n{cause}")
    return match.group(1) if match else None


def _table_hint(text: str) -> str:
    """How to give a table, if ``text`` is the name of a file of one; otherwise empty."""
    form = Path(text).suffix[1:]
    if form not in ("csv", "npz", "parquet"):
        return ""
    return f"for a table of your own write data={form} data.path={text}"


def _explain_missing(error: MissingConfigException) -> str:
    missing = error.missing_cfg_file or ""
    group, _, option = missing.rpartition("/")
    while "/" in group and not (CONFIGS / group).is_dir():  # data=tables/mine.csv
        group, _, above = group.rpartition("/")
        option = f"{above}/{option}"
    if group.endswith("/"):  # data=/tables/mine.csv
        group, option = group.rstrip("/"), f"/{option}"
    options = list(error.options or [])
    if group == "data" and _table_hint(option):
        return f"there is no data={option}; {_table_hint(option)}"
    if not group or not options:
        return str(error).splitlines()[0]
    if f"{group}={option}" in CHOICES:
        return f"{group}={option} has been renamed: use {CHOICES[f'{group}={option}']}"
    return f"there is no {group}={option}; {_suggest(option.lower(), options)}"  # RBF: rbf


def _explain_unknown(name: str, overrides: Sequence[str]) -> str:
    owners = known_names()
    new = new_name(name)
    if new == "trainer.memory_budget":
        return f"the option {name} has been renamed: use {new}, for example {new}=2GiB"
    if name.partition(".")[0] in GROUPS:
        return f"the option {name} has been renamed: use {new}"
    solvers = solver_owners(name)
    if solvers:
        return f"there is no option {name} here; for {' and '.join(solvers)} it is now {new}"
    here, chosen = _composed_here(overrides)
    # some names that models with a basis had are still those of other models
    if new in owners and (name not in owners or "approx.basis" in here):
        return f"the option {name} has been renamed: use {new}, an option of basis="
    if name in FOLDER_NAMES:
        return (
            f"there is no option {name}; another run folder is hydra.run.dir=FOLDER on the command "
            "line and folder=FOLDER in gpx.fit"
        )
    if name in owners and (not owners[name] or (CONFIGS / name).is_dir()):
        return _explain_bare(name, overrides)
    if name in owners:
        return _explain_elsewhere(name, owners[name], chosen)
    whole = (text.partition("=")[0] for text in overrides)
    name = next((each for each in whole if each.startswith(f"{name}.")), name)  # Hydra cuts names
    text = f"there is no option {name}"
    groups = [each for each in owners if "." not in each and "/" not in each and each != "hydra"]
    head, _, rest = name.partition(".")
    if not rest:  # a misspelt group, or an option without its node
        ends = [each for each in owners if each.endswith(f".{name}")]
        if ends and not any(each.endswith(f".{name}") for each in here):
            most = max(ends, key=lambda each: len(owners[each]))
            return f"{text}; {_explain_elsewhere(most, owners[most], chosen)}"
        return f"{text}; {_suggest(name, sorted({*groups, *(here or owners)}))}"
    group = difflib.get_close_matches(head, groups, n=1, cutoff=0.65)
    if head not in groups and group:
        meant = f"{group[0]}.{rest}"
        if meant in owners and meant not in here:
            return f"{text}; {_explain_elsewhere(meant, owners[meant], chosen)}"
        return f"{text}; did you mean {meant if meant in here else group[0]}?"
    # the closest match may be an option of another choice
    near = difflib.get_close_matches(name, owners, n=1, cutoff=0.85)
    if near and owners[near[0]] and here and near[0] not in here:
        return f"{text}; {_explain_elsewhere(near[0], owners[near[0]], chosen)}"
    return f"{text}; {_suggest(name, here or sorted(owners))}"


def _explain_bare(name: str, overrides: Sequence[str]) -> str:
    """Explain why ``name`` of configs/train.yaml has no options below it."""
    given = [text.partition("=")[0].lstrip("+") for text in overrides]
    option = next((each for each in given if each.startswith(f"{name}.")), name)
    owners = [each for each in known_names().get(option, ()) if each.startswith(f"{name}=")]
    if owners:
        method = ", or approx=, which chooses one" if name in ("objective", "optimizer") else ""
        return (
            f"{_explain_elsewhere(option, owners, {})}, and no {name}= is chosen: add one of these"
            f"{method}"
        )
    choices = sorted(file.stem for file in (CONFIGS / name).glob("*.yaml"))
    if not choices:
        return f"{name} is a single value and has no options"
    text = (CONFIGS / name / f"{choices[0]}.yaml").read_text(encoding="utf-8")
    inside = OmegaConf.select(OmegaConf.create(text), f"approx.{name}")
    if f"@package approx.{name}" in text or inside is not None:
        return f"options of {name}= are written approx.{name}.NAME=..."
    listed = " or ".join(choices[:MAX_LISTED]) + (" ..." if len(choices) > MAX_LISTED else "")
    return f"{name}= has no options as long as it is not chosen: choose {listed}"


def _explain_elsewhere(name: str, owners: Sequence[str], chosen: Mapping[str, str]) -> str:
    """Explain which choices have the option ``name``, and what was chosen instead."""
    group = owners[0].partition("=")[0]
    others = [owner.partition("=")[2] for owner in owners if owner.startswith(f"{group}=")]
    listed = ", ".join(others[:MAX_LISTED]) + (" ..." if len(others) > MAX_LISTED else "")
    text = f"{name} is an option of {group}={listed}"
    if chosen.get(group) == "auto":
        what = "kernel" if group == "kernel" else "method"
        return f"{text}, and {group}=auto (the default) chooses the {what}: name one of these"
    return text + (f", not of {group}={chosen[group]}" if group in chosen else "")


def _composed_here(overrides: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The options that exist with the choices of groups in ``overrides``, and these choices.

    Empty if the choices alone cannot be composed, so that one of them is the mistake.
    """
    groups = [text for text in overrides if (CONFIGS / text.partition("=")[0]).is_dir()]

    def whole() -> DictConfig:
        with _composing():
            return compose("train", overrides=groups, return_hydra_config=True)

    try:
        config = kept_or_composed(CONFIGS, ("with the node of Hydra", *groups), whole)
        chosen = {k: v for k, v in config.hydra.runtime.choices.items() if isinstance(v, str)}
    except (HydraException, OmegaConfBaseException):
        return [], {}
    names = [name for name in _leaves(config, "") if ".choices." not in f"{name}."]
    return sorted({*names, *(k for k in chosen if not k.startswith("hydra"))}), chosen


def _suggest(name: str, valid: list[str]) -> str:
    """Text with the nearest valid names: for a name with dots, of options of the same node."""
    prefix, _, last = name.rpartition(".")
    if prefix:
        beside = {v.rpartition(".")[2]: v for v in valid if v.rpartition(".")[0] == prefix}
        near = difflib.get_close_matches(last, beside, n=3, cutoff=0.65)
        near = [beside[k] for k in near]
        if not near and not beside:
            near = difflib.get_close_matches(name, valid, n=3, cutoff=0.5)
        listed = sorted(beside.values())
    else:
        listed = [v for v in valid if "." not in v]
        near = [v for v in valid if v.endswith(f".{name}")][:3]
        for cutoff in (0.65, 0.5):
            near = near or difflib.get_close_matches(name, listed, n=3, cutoff=cutoff)
    if near:
        return f"did you mean {' or '.join(near)}?"
    listed = listed or [v for v in valid if "." not in v]
    return f"valid are: {', '.join(listed[:20])}"


@cache
def known_names() -> dict[str, list[str]]:
    """Every group and dotted option, with the choices (``basis=orthogonal``) that have it.

    Choices of the group of the option come first, then choices of other groups that set it.
    """
    own: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for path in sorted(CONFIGS.rglob("*.yaml")):
        *folders, _ = path.relative_to(CONFIGS).parts
        content: Any = OmegaConf.load(path)
        if not isinstance(content, DictConfig):
            continue
        group = "/".join(folders)
        stated = re.search(r"^# @package (\S+)", path.read_text(), re.MULTILINE)
        package = stated.group(1) if stated else group
        if group:
            own.setdefault(group, [])
        for name in _leaves(content, "" if package == "_global_" else package):
            found = own if package != "_global_" or name.startswith(f"{group}.") else others
            found.setdefault(name, [])
            if group:
                found[name].append(f"{group}={path.stem}")
    return {name: own.get(name, []) + others.get(name, []) for name in {**own, **others}}


def _leaves(node: DictConfig, prefix: str) -> list[str]:
    """Dotted names of all nodes and options below ``node``."""
    found: list[str] = []
    for key in map(str, node):
        if key in ("defaults", "hydra", "facts", "_target_"):
            continue
        name = f"{prefix}.{key}" if prefix else key
        found.append(name)
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none():
            found.extend(_leaves(child, name))
    return found
