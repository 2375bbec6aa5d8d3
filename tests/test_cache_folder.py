"""The folder of what can be made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpx.cache_folder import cache_folder


def test_the_desktop_convention_then_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "gpx"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_folder() == tmp_path / "elsewhere" / "gpx"


def test_a_user_without_a_home_is_told(monkeypatch):
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(FileNotFoundError, match="Set XDG_CACHE_HOME or HOME"):
        cache_folder()
