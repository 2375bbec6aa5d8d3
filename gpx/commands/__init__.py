"""The console command ``gpx``, and the scripts of a clone; each command is loaded when called."""

from __future__ import annotations

import difflib
import os
import sys
from contextlib import suppress

USAGE = """\
Gaussian processes that do not fit.

    gpx train approx=sgpr data=csv data.path=mine.csv data.target=strength
    gpx predict run=outputs/... input=new.csv output=predictions.csv

COMMANDS (gpx COMMAND --help says more of each)
  train      train a model; also: go on with a stopped run, sweep over options
  predict    predict for a table of inputs with a trained model
  diagnose   how far a trained model can be trusted, on one page
  doctor     what this machine has, and whether its numbers are right

OPTIONS
  --help, -h             this page
  --version              the version of gpx
  -sc install=bash       print what lets the shell complete commands and options (also zsh, fish):
                         eval "$(gpx -sc install=bash)"
"""
COMMANDS = ("train", "predict", "diagnose", "doctor")
USAGE_ERROR = 2
"""Exit status for anything the user can mend."""
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
    """One command, as ``gpx NAME`` and the script ``NAME.py`` call it.

    Args:
        name: one of ``COMMANDS``.
        arguments: what follows it.
    """
    if name == "train":
        _train(arguments)
    elif name == "predict":
        from gpx.commands.predict import main as predict

        predict(arguments)
    elif name == "diagnose":
        from gpx.commands.diagnose import main as diagnose

        diagnose(arguments)
    else:
        from gpx.doctor import main as doctor

        sys.exit(doctor(arguments))


def _train(arguments: list[str]) -> None:
    sys.argv[1:] = arguments  # where Hydra reads them
    if {*HELP, *COMPLETION} & set(arguments):
        with suppress(Exception):  # which the command itself puts into words
            _only_hydra()
            return
    from gpx.commands.train import main as train

    train()


def _only_hydra() -> None:
    """What Hydra answers from the configs alone: help and completion, without loading torch."""
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    from gpx.installation import command, config_folder

    OmegaConf.register_new_resolver("gpx.command", command, replace=True)
    store = ConfigStore.instance()
    store.store(group="trainer", name="schema", node={})  # the typed one belongs to the trainer
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of Hydra's own printing
    try:
        hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="train")(
            lambda config: None
        )()
    finally:
        GlobalHydra.instance().clear()


def _complete(arguments: list[str]) -> None:
    """``gpx -sc``: the shell asks about a line that starts with ``gpx COMMAND``."""
    line = os.environ.get("COMP_LINE", "")
    words = line.split()
    asked = any(argument.startswith("query=") for argument in arguments)
    if asked and (len(words) < 2 or (len(words) == 2 and not line.endswith(" "))):
        print(" ".join(COMMANDS))
    elif not asked or words[1] == "train":
        if asked:  # Hydra knows of options only
            os.environ["COMP_LINE"] = line.replace(" train", "", 1)
        _train(arguments)
