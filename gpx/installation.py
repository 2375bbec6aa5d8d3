"""Where this gpx keeps its configs, and how its commands are called: from a clone or installed."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPTS = ("train.py", "predict.py", "diagnose.py")
"""Scripts of a clone, each of which is also a command: ``gpx train``."""


def config_folder() -> Path:
    """The folder with ``train.yaml`` and the config groups.

    ``configs`` inside the package, where a wheel puts it; otherwise beside the package, as in a
    clone or an editable installation.
    """
    package = Path(__file__).resolve().parent
    inside = package / "configs"
    return inside if (inside / "train.yaml").is_file() else package.parent / "configs"


def command(name: str) -> str:
    """How to call ``train``, ``predict`` or ``diagnose``, as the user of this process does.

    Returns:
        ``python train.py`` in a process of one of the scripts, else ``gpx train``.
    """
    if Path(sys.argv[0]).name in SCRIPTS:
        return f"python {name}.py"
    return f"gpx {name}"
