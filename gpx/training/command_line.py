"""The command line of train.py: Hydra underneath, one clear line per mistake on top."""

from __future__ import annotations

import difflib
import os
import re
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gpx.errors import ConfigError, GPXError
from gpx.training.console import warnings_as_lines
from gpx.training.interrupt import Interrupted
from gpx.training.run import resume, run
from gpx.training.run_folder import RunFolder

USAGE_ERROR = 2
"""Exit status for anything the user can mend."""

_failed: list[str] = []
"""Errors of single runs of a sweep: the others go on, the exit status tells."""

# configs/hydra/launcher/joblib.yaml sets defaults of the plugin's schema, which has the same name
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/\w+' is validated against")


class RunFailed(GPXError):
    """One run of a sweep failed and has said why; Hydra brings it here when all runs are done."""


def main(config_folder: str | Path) -> None:
    """Entry point of ``train.py``.

    Args:
        config_folder: absolute path of the folder with ``train.yaml`` and the groups.
    """
    warnings_as_lines()
    arguments = _flags_first(sys.argv[1:])
    sys.argv[1:] = arguments
    _failed.clear()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of Hydra's own printing
    try:
        _refuse_null_groups(arguments, Path(config_folder))
        folder = _resume_target(arguments)
        if folder is not None:
            resume(folder)
        else:
            hydra.main(version_base="1.3", config_path=str(config_folder), config_name="train")(
                _job
            )()
    except Interrupted as stop:
        sys.exit(128 + stop.signal_number)
    except KeyboardInterrupt:  # before training, after it, or a second Ctrl-C in a long step
        print("stopped at once, without a new checkpoint", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except RunFailed as error:  # runs in other processes are not in the list
        count = f"{len(_failed)} runs" if _failed else "runs"
        _fail(f"{count} of the sweep failed, for example: {error}")
    except GPXError as error:
        _fail(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        _fail(explain(error, Path(config_folder)))
    except OSError as error:  # a full disk, a run folder that cannot be made
        _fail(f"{error.filename or 'file'}: {error.strerror or error}")
    except RuntimeError as error:
        if not str(error).startswith("Unknown plugin class"):
            raise
        _fail("this hydra/launcher= is not installed: pip install -e '.[sweep]' or '.[cluster]'")


def _flags_first(arguments: list[str]) -> list[str]:
    """Hydra wants flags (-m, --config-dir DIR) before options; people write them anywhere."""
    options = [a for a in arguments if a.startswith("~") or ("=" in a and not a.startswith("-"))]
    return [a for a in arguments if a not in options] + options


def _job(config: DictConfig) -> None:
    """One run, as Hydra calls it; composition has passed."""
    warnings_as_lines()  # a sweep may run this in processes of its own
    settings = HydraConfig.get()
    folder = _relative(RunFolder(settings.runtime.output_dir))
    try:
        if folder.holds_a_run():
            raise ConfigError(
                f"{folder.path} already holds a run: go on with resume={folder.path}, "
                "or choose another hydra.run.dir"
            )
        run(config, folder)
    except Interrupted as stop:  # SystemExit passes through Hydra, and ends a sweep too
        sys.exit(128 + stop.signal_number)
    except KeyboardInterrupt:
        _remove_if_empty(folder.path)
        raise
    except GPXError as error:
        _remove_if_empty(folder.path)
        if settings.mode is not RunMode.MULTIRUN:
            _fail(str(error))
        _failed.append(str(error))
        print(f"error in {' '.join(settings.overrides.task)}: {error}", file=sys.stderr)
        raise RunFailed(str(error)) from error


def _relative(folder: RunFolder) -> RunFolder:
    """Paths people can paste."""
    try:
        return RunFolder(folder.path.relative_to(Path.cwd()))
    except ValueError:
        return folder


def _remove_if_empty(path: Path) -> None:
    """Hydra makes the run folder before the run; a run that never started leaves none behind."""
    here = Path.cwd()
    for candidate in (path.resolve(), *path.resolve().parents):
        if candidate == here or here not in candidate.parents:
            return
        try:
            candidate.rmdir()
        except OSError:
            return


def _resume_target(arguments: list[str]) -> str | None:
    """Folder of ``resume=FOLDER``; raises ConfigError when it is mixed with other options."""
    wanted = [
        a for a in arguments if a.startswith("resume=") and a not in ("resume=", "resume=null")
    ]
    if not wanted:
        return None
    others = [a for a in arguments if a not in wanted]
    if len(wanted) > 1 or others:
        raise ConfigError(
            f"resume= goes on with the run's own config and takes no other option "
            f"(got {' '.join(others) or ' '.join(wanted)}); start a new run to change options"
        )
    return wanted[0].removeprefix("resume=").strip("'\"")


def _refuse_null_groups(arguments: list[str], config_folder: Path) -> None:
    """Hydra cannot choose nothing (``experiment=null``) and answers with a bare ValueError."""
    for argument in arguments:
        group, _, choices = argument.partition("=")
        if "null" in choices.split(",") and (config_folder / group).is_dir():
            options = sorted(path.stem for path in (config_folder / group).glob("*.yaml"))
            raise ConfigError(
                f"{group}=null chooses nothing; leave it out for the default, "
                f"or choose one of: {', '.join(options[:20])}"
            )


def _fail(text: str) -> None:
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(USAGE_ERROR)


# -- composition errors in one line ---------------------------------------------------------------


def explain(error: Exception, config_folder: Path) -> str:
    """One line for an error of Hydra or OmegaConf, with the nearest valid names.

    Args:
        error: what composition raised.
        config_folder: folder of the config groups.
    """
    if isinstance(error, MissingConfigException):
        return _explain_missing(error, config_folder)
    if isinstance(error, OverrideParseException):
        return (
            f"cannot read the option {error.override!r}: write name=value (lists as [a,b]; other "
            "than plain letters in quotes, \"name='...'\")"
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
            return _explain_unknown(_full_key(text, cause) or name, config_folder)
    lines = [line.strip() for line in f"{cause or text}".splitlines() if line.strip()]
    key = _full_key(text, cause)
    return f"{key}: {lines[0]}" if key else lines[0]


def _full_key(text: str, cause: BaseException | None) -> str | None:
    match = re.search(r"full_key: (\S+)", f"{text}\n{cause}")
    return match.group(1) if match else None


def _explain_missing(error: MissingConfigException, config_folder: Path) -> str:
    missing = error.missing_cfg_file or ""
    group, _, option = missing.rpartition("/")
    options = list(error.options or [])
    if not group or not options:
        return str(error).splitlines()[0]
    return f"there is no {group}={option}; {_suggest(option, options)}"


def _explain_unknown(name: str, config_folder: Path) -> str:
    valid = known_names(config_folder)
    if name in valid:
        return f"{name} is an option of other choices of {name.partition('.')[0]}=, not of this one"
    # a misspelled group is likelier to be near a group; a dotted option near its own siblings
    return f"there is no option {name}; {_suggest(name, valid)}"


def _suggest(name: str, valid: list[str]) -> str:
    near = difflib.get_close_matches(name, valid, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    prefix = name.rpartition(".")[0]
    siblings = [v for v in valid if prefix and v.startswith(prefix + ".")] or valid
    return f"valid are: {', '.join(sorted(siblings)[:20])}"


def known_names(config_folder: Path) -> list[str]:
    """Groups, and dotted options of the default config and of every option of every group."""
    names: set[str] = set()
    for path in sorted(config_folder.rglob("*.yaml")):
        relative = path.relative_to(config_folder)
        text = path.read_text()
        content: Any = OmegaConf.load(path)
        if not isinstance(content, DictConfig):
            continue
        package = (
            "" if len(relative.parts) == 1 or "@package _global_" in text else relative.parts[0]
        )
        if len(relative.parts) > 1:
            names.add("/".join(relative.parts[:-1]))
        names.update(_leaves(content, package))
    return sorted(names)


def _leaves(node: DictConfig, prefix: str) -> list[str]:
    found: list[str] = []
    for key in map(str, node):
        if key in ("defaults", "hydra", "_target_"):
            continue
        name = f"{prefix}.{key}" if prefix else key
        found.append(name)
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none():
            found.extend(_leaves(child, name))
    return found
