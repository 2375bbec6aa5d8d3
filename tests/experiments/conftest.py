"""Scripts of experiments as modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture
def script(monkeypatch):
    """The module of a script, by folder/name, with neighbours of its own."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def forget():
        for name, module in list(sys.modules.items()):
            if str(EXPERIMENTS) in (getattr(module, "__file__", None) or ""):
                del sys.modules[name]

    def read(name):
        path = EXPERIMENTS / f"{name}.py"
        for folder in (EXPERIMENTS, path.parent):
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
        return importlib.import_module(path.stem)

    forget()
    yield read
    forget()
