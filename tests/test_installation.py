"""Configs beside the package or in it; commands as their user calls them."""

import sys
from pathlib import Path

import pytest

import gpx.installation
from gpx.installation import command, config_folder, resuming


def test_a_clone_reads_the_folder_beside_the_package():
    assert config_folder() == Path(__file__).resolve().parents[1] / "configs"


def test_an_installed_package_reads_its_own(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "gpx"
    (package / "configs").mkdir(parents=True)
    (package / "configs" / "train.yaml").touch()
    beside = package.parent / "configs"  # of something else that is installed
    beside.mkdir()
    (beside / "train.yaml").touch()
    monkeypatch.setattr(gpx.installation, "__file__", str(package / "installation.py"))
    assert config_folder() == package / "configs"


@pytest.mark.parametrize(
    ("started", "said"),
    [
        ("train.py", "python train.py"),
        ("/clone/predict.py", "python train.py"),
        ("/venv/bin/gpx", "gpx train"),
        ("", "gpx train"),
    ],
)
def test_commands_are_named_as_they_are_called(started, said, monkeypatch):
    monkeypatch.setattr(sys, "argv", [started])
    assert command("train") == said
    assert resuming(Path("my runs")) == f"{said} resume='my runs'"
