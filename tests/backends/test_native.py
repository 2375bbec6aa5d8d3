"""Compiled files: built once, and absent without a word of error where there is no compiler."""

import ctypes
import os
import shutil

import pytest

from gpx.backends.native import native_library

SOURCE = "int twice(int k) { return FACTOR * k; }\n"


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native_library.cache_clear()
    path = tmp_path / "twice.c"
    path.write_text(SOURCE)
    yield path
    native_library.cache_clear()


def built(folder):
    return sorted((folder / "cache" / "gpx").glob("*.so"))


def test_builds_once_per_source_and_defines(source, tmp_path):
    library = native_library(source, ("FACTOR=2",))
    if library is None:
        pytest.skip("no C compiler")
    assert isinstance(library, ctypes.CDLL)
    assert library.twice(21) == 42
    native_library.cache_clear()
    (first,) = built(tmp_path)
    written = first.stat().st_mtime_ns
    assert native_library(source, ("FACTOR=2",)) is not None
    assert first.stat().st_mtime_ns == written
    assert native_library(source, ("FACTOR=3",)).twice(2) == 6
    assert len(built(tmp_path)) == 2


def test_a_file_that_does_not_compile_leaves_nothing_behind(source, tmp_path, caplog):
    with caplog.at_level("INFO"):
        assert native_library(source, ("FACTOR=nothing",)) is None
    assert "twice.c" in caplog.text
    assert built(tmp_path) == []


def test_no_compiler_no_cache(source, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert native_library(source, ("FACTOR=2",)) is None
    assert not (tmp_path / "cache").exists()


def test_cache_folder_that_cannot_be_written(source, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    assert native_library(source, ("FACTOR=2",)) is None


def test_compiler_with_arguments(source, tmp_path, monkeypatch):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    monkeypatch.setenv("CC", "cc -DFACTOR=5")
    assert native_library(source).twice(4) == 20
    native_library.cache_clear()
    monkeypatch.setenv("CC", "cc '")
    assert native_library(source) is None
    native_library.cache_clear()
    monkeypatch.setenv("CC", "")  # unset, for most shells
    assert native_library(source, ("FACTOR=2",)).twice(4) == 8


def test_user_without_a_home(source, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # nobody has this number
    assert native_library(source, ("FACTOR=2",)) is None
