"""The line of a user's program that a warning of gpx points at."""

from __future__ import annotations

import os
import sys

import torch

INNER = tuple(f"{os.path.dirname(file)}{os.sep}" for file in (__file__, torch.__file__))
"""Folders of gpx, and of torch, whose decorators lie between functions of gpx, spelled as in
the names of files of code: ``pathlib`` would remove a dot of ``sys.path``."""


def users_line() -> int:
    """``stacklevel`` of ``warnings.warn``, in the function that calls this, for the user's line.

    It is that of the innermost call from outside gpx and torch, however many functions of these lie
    between, and 2 if there is none.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_code.co_filename.startswith(INNER):
        if frame.f_back is None:
            return 2
        frame, level = frame.f_back, level + 1
    return level
