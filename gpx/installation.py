"""The config folder and the command names, for a clone and for an installed package."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

SCRIPTS = ("train.py", "predict.py", "diagnose.py")
"""Scripts of a clone, each of which is also a command such as ``gpx train``."""


def config_folder() -> Path:
    """The folder with ``train.yaml`` and the config groups.

    ``configs`` inside the package, as in a wheel, otherwise beside the package, as in a clone or an
    editable installation.
    """
    package = Path(__file__).resolve().parent
    inside = package / "configs"
    return inside if (inside / "train.yaml").is_file() else package.parent / "configs"


def command(name: str) -> str:
    """The command line of ``train``, ``predict`` or ``diagnose``, in the form the user used.

    Returns:
        ``python train.py`` in a process of one of the scripts, otherwise ``gpx train``.
    """
    if Path(sys.argv[0]).name in SCRIPTS:
        return f"python {name}.py"
    return f"gpx {name}"


def resuming(folder: Path) -> str:
    """The command line that goes on with the run in ``folder``, quoted for a shell."""
    return f"{command('train')} resume={shlex.quote(str(folder))}"
