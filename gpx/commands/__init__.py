"""The console command ``gpx``, also called by the scripts of a clone; commands load when called."""

from __future__ import annotations

import difflib
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

USAGE = """\
Gaussian processes that do not fit.

    gpx train approx=sgpr data=csv data.path=mine.csv data.target=strength
    gpx predict run=outputs/... input=new.csv output=predictions.csv

COMMANDS (gpx COMMAND --help shows the options of each)
  train      train a model, continue a stopped run, or sweep over options
  predict    predict a table of inputs with a trained model, or export the model
  diagnose   check the calibration of a trained model, and bound its approximation error
  compare    one table of several runs, or of a sweep
  doctor     check this machine: packages, devices and numerics

OPTIONS
  --help, -h             show this page
  --version              show the version of gpx
  -sc install=bash       set up completion of commands and options in the shell (also zsh, fish):
                         eval "$(gpx -sc install=bash)"
"""
COMMANDS = ("train", "predict", "diagnose", "compare", "doctor")
USAGE_ERROR = 2
"""Exit status for mistakes of the user."""
HELP = ("--help", "-h")
COMPLETION = ("-sc", "--shell-completion")


def main() -> None:
    """Entry point of ``gpx`` and of ``python -m gpx``."""
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else "--help"
    if name in COMMANDS:
        call(name, arguments[1:])
    elif name in HELP:
        print(USAGE, end="")
    elif name == "--version":
        import gpx

        print(f"gpx {gpx.__version__}")
    elif name in COMPLETION:
        _complete(arguments)
    else:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        if near:
            hint = f"did you mean gpx {near[0]}?"
        elif "=" in name:
            hint = f"options come after a command, for example gpx train {name}"
        else:
            hint = f"commands are: {', '.join(COMMANDS)}"
        print(f"error: there is no command {name!r}; {hint} (gpx --help)", file=sys.stderr)
        sys.exit(USAGE_ERROR)


def call(name: str, arguments: list[str]) -> None:
    """Run a command, for ``gpx NAME`` and the script ``NAME.py``.

    Args:
        name: one of ``COMMANDS``.
        arguments: of the command.
    """
    if name == "train":
        _train(arguments)
        return
    module = "gpx.doctor" if name == "doctor" else f"gpx.commands.{name}"
    with _nothing_collected():
        main = importlib.import_module(module).main
    if status := main(arguments):
        sys.exit(status)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Inside, no garbage is looked for: imports leave none, and it is a tenth of a start."""
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()


def _train(arguments: list[str]) -> None:
    sys.argv[1:] = arguments  # where Hydra reads them
    if {*HELP, *COMPLETION} & set(arguments):
        with suppress(Exception):  # the command itself explains errors
            _hydra_only()
            return
    with _nothing_collected():
        from gpx.commands.train import main as train
    train()


def _hydra_only() -> None:
    """Let Hydra answer help and completion from the configs, without loading torch."""
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    from gpx.installation import command, config_folder

    OmegaConf.register_new_resolver("gpx.command", command, replace=True)
    store = ConfigStore.instance()
    typed = store.repo.get("trainer", {}).get("schema.yaml")
    store.store(group="trainer", name="schema", node={})  # without types
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of Hydra's own printing
    try:
        hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="train")(
            lambda config: None
        )()
    finally:
        GlobalHydra.instance().clear()
        if typed is not None:  # a caller of this process composes configs with types
            store.repo["trainer"]["schema.yaml"] = typed


def _complete(arguments: list[str]) -> None:
    """``gpx -sc``: complete a line of the shell that starts with ``gpx``."""
    line = os.environ.get("COMP_LINE", "")
    words = line.split()
    asked = any(argument.startswith("query=") for argument in arguments)
    if asked and (len(words) < 2 or (len(words) == 2 and not line.endswith(" "))):
        print(" ".join(COMMANDS))
    elif not asked or words[1] == "train":
        if asked:  # Hydra does not know the command
            os.environ["COMP_LINE"] = line.replace(" train", "", 1)
        _train(arguments)
