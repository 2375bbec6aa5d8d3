"""The folder for what gpx can download or compile again: data sets, compiled files."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/gpx``, by default ``~/.cache/gpx``; it need not exist.

    Raises:
        FileNotFoundError: the user has no home folder, as in some containers.
    """
    try:
        base = os.environ.get("XDG_CACHE_HOME")
        return (Path(base) if base else Path.home() / ".cache") / "gpx"
    except RuntimeError as error:
        raise FileNotFoundError(f"{error} Set XDG_CACHE_HOME or HOME.") from error
