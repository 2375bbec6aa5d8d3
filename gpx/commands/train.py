"""The command line of ``gpx train``: runs Hydra, and prints one line for each mistake."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gpx.commands import USAGE_ERROR
from gpx.commands.mistakes import describe_file_error
from gpx.errors import ConfigError, GPXError, ProcessLost
from gpx.installation import command, resuming
from gpx.linalg.processes import sharing
from gpx.options.composition import check_choices, explain, require_no_dashes
from gpx.options.config import CONFIGS
from gpx.options.kernel_expression import with_kernel_expressions
from gpx.runs.folder import RunFolder
from gpx.runs.run import resume, run
from gpx.runs.run_table import SweepTable
from gpx.runs.trust import trusted_packages
from gpx.runs.watching.console import print_error, warnings_as_lines
from gpx.training.interrupt import Interrupted, signals_raised
from gpx.training.launched import common_path, launched_number, launched_processes

EXIT_DELAY = 10.0
"""Seconds that a process other than the first waits after an error. torchrun ends all processes
once one has ended, and the first one should print its error before."""

_failed: list[str] = []
"""Errors of runs of a sweep; the other runs go on."""

# configs/hydra/launcher/joblib.yaml sets defaults of the plugin's schema, which has the same name
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/\w+' is validated against")


class RunFailed(GPXError):
    """A run of a sweep failed and its error was printed; Hydra raises this after the last run."""


def main() -> None:
    """Entry point of ``gpx train`` and ``train.py``; options are in ``sys.argv``."""
    warnings_as_lines()
    OmegaConf.register_new_resolver("gpx.command", command, replace=True)  # in --help
    arguments = _flags_first(sys.argv[1:])
    sys.argv[1:] = arguments
    _failed.clear()
    SweepTable.folders.clear()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of Hydra's own printing
    try:
        require_no_dashes(arguments)
        arguments = with_kernel_expressions(arguments, [CONFIGS, *_own_folders(arguments)])
        sys.argv[1:] = arguments
        check_choices(arguments)
        target = _resume_target(arguments)
        with launched_processes() as processes:
            if processes.count > 1 and {"-m", "--multirun"} & set(arguments):
                raise ConfigError(
                    f"{processes.count} processes share one run and cannot share a sweep (-m): "
                    "start the runs of the sweep one by one, or the sweep in one process"
                )
            # only the first process prints and handles signals; torchrun ends the others
            with signals_raised() if processes.number == 0 else nullcontext():
                if target is not None:
                    resume(*target)
                else:
                    hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")(
                        _job
                    )()
    except Interrupted as stop:
        sys.exit(128 + stop.signal_number)
    except KeyboardInterrupt as stop:  # before training, after it, or a second Ctrl-C in it
        with suppress(OSError):  # a closed terminal
            print("stopped immediately, without a new checkpoint", file=sys.stderr, flush=True)
        sys.exit(128 + getattr(stop, "signal_number", signal.SIGINT))
    except RunFailed as error:  # runs in other processes are not in _failed
        with suppress(GPXError, OSError):
            SweepTable.show()
        count = f"{len(_failed)} run{'s' * (len(_failed) > 1)}" if _failed else "runs"
        _fail(f"{count} of the sweep failed, for example: {error}")
    except GPXError as error:
        _fail(error)
    except (HydraException, OmegaConfBaseException) as error:
        _fail(explain(error, arguments))
    except OSError as error:
        _fail(describe_file_error(error))
    except RuntimeError as error:
        if not str(error).startswith("Unknown plugin class"):
            raise
        _fail(
            "this hydra/launcher= is not installed: pip install 'gpx-torch[sweep]' for joblib, "
            "'gpx-torch[cluster]' for submitit (in a clone: pip install -e '.[sweep]')"
        )


def _flags_first(arguments: list[str]) -> list[str]:
    """Move flags (-m, --config-dir DIR) before options, as Hydra requires."""
    options = [a for a in arguments if a.startswith("~") or ("=" in a and not a.startswith("-"))]
    return [a for a in arguments if a not in options] + options


def _own_folders(arguments: list[str]) -> list[Path]:
    """Folders of config groups given by ``--config-dir FOLDER``."""
    found = []
    for flag, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, folder = flag.partition("=")
        if name in ("--config-dir", "-cd"):
            found.append(Path(folder if equals else following))
    return found


def _job(config: DictConfig) -> None:
    """One run, called by Hydra with the composed config."""
    warnings_as_lines()  # a sweep may run this in processes of its own
    settings = HydraConfig.get()
    own = Path(settings.runtime.output_dir)
    path = common_path(own)
    folder = _relative(RunFolder(path))
    if path != own:
        _remove_if_empty(own)
    try:
        if sharing().number == 0 and folder.holds_a_run():
            begun = folder.checkpoint.exists()
            raise ConfigError(
                f"{folder.path} already holds a run"
                + ("" if begun else " that ended before its first checkpoint")
                + f": continue it with: {resuming(folder.path)}; or "
                + ("" if begun else "delete it, or ")
                + "choose another hydra.run.dir"
            )
        sources = [Path(s.path) for s in settings.runtime.config_sources if s.schema == "file"]
        run(config, folder, _compose_again, sources[::-1])  # for Hydra the first has precedence
    except Interrupted as stop:  # SystemExit passes through Hydra and also ends a sweep
        sys.exit(128 + stop.signal_number)
    except KeyboardInterrupt:
        _remove_if_empty(folder.path)
        raise
    except GPXError as error:
        _remove_if_empty(folder.path)
        if settings.mode is not RunMode.MULTIRUN:
            _fail(error)
        _failed.append(str(error))
        print(f"error in {' '.join(settings.overrides.task)}: {error}", file=sys.stderr)
        raise RunFailed(str(error)) from error


def _compose_again(before: Sequence[str], after: Sequence[str]) -> DictConfig:
    """The config of the current job, composed with options before and after its own."""
    options = [*before, *HydraConfig.get().overrides.task, *after]
    try:
        return hydra.compose("train", overrides=options)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, options)) from error


def _relative(folder: RunFolder) -> RunFolder:
    """The folder relative to the current one if possible, for shorter messages."""
    try:
        return RunFolder(folder.path.relative_to(Path.cwd()))
    except ValueError:
        return folder


def _remove_if_empty(path: Path) -> None:
    """Remove the run folder that Hydra created, and empty folders above it, if it is empty."""
    here = Path.cwd()
    for candidate in (path.resolve(), *path.resolve().parents):
        if candidate == here or here not in candidate.parents:
            return
        try:
            candidate.rmdir()
        except OSError:
            return


def _resume_target(arguments: list[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]] | None:
    """Folder of ``resume=FOLDER``, packages of ``trust=``, and further options; or None.

    Raises:
        ConfigError: one of the two is given twice, ``resume=`` names nothing, or ``trust=`` comes
            without a folder.
    """
    wanted = [a for a in arguments if a.startswith("resume=") and a != "resume=null"]
    if any(not a.removeprefix("resume=").strip("'\"") for a in wanted):
        raise ConfigError(
            "resume= names no folder (a variable of the shell that is empty?): give the folder of "
            "the run to go on with, or leave resume= out to start a new run"
        )
    trust = [a for a in arguments if a.startswith("trust=")]
    if not wanted:
        if trust:
            raise ConfigError(
                f"{trust[0]} is only needed with resume=: a new run accepts all classes in its "
                "options"
            )
        return None
    for given in (wanted, trust):
        if len(given) > 1:
            raise ConfigError(f"{' '.join(given)}: give resume= and trust= only once")
    others = tuple(a for a in arguments if a not in (*wanted, *trust))
    packages = trusted_packages(trust[0].removeprefix("trust=").strip("'\"")) if trust else ()
    return wanted[0].removeprefix("resume=").strip("'\""), packages, others


def _fail(error: GPXError | str) -> None:
    number = launched_number()
    if number == 0:
        print_error(error)
    else:
        if not isinstance(error, ProcessLost):  # the error may be of this process alone
            print(f"process {number + 1} of the run: {error}", file=sys.stderr, flush=True)
        time.sleep(EXIT_DELAY)
    sys.exit(USAGE_ERROR)
