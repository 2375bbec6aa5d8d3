"""The console command: what it loads, and how it answers mistakes."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import gpx
import gpx.commands
from gpx.commands import COMMANDS, main

HEAVY = {"torch", "numpy", "scipy", "hydra", "matplotlib", "tensorboard", "gpx.training"}


AT_EXIT = "import atexit, sys; atexit.register(lambda: print('LOADED', *sys.modules))"


def loaded(code, *arguments, **environment):
    """(modules that ``code`` leaves loaded in a process of its own, what it printed before)."""
    done = subprocess.run(
        [sys.executable, "-c", f"{AT_EXIT}\n{code}", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    printed, _, modules = done.stdout.rpartition("LOADED ")
    return set(modules.split()), printed


def test_the_package_runs_as_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpx", "--version"])
    runpy.run_module("gpx", run_name="__main__")
    assert capsys.readouterr().out == f"gpx {gpx.__version__}\n"


@pytest.mark.parametrize(
    "code", ["import gpx", "import gpx.commands", "import sys, gpx.commands; gpx.commands.main()"]
)
def test_importing_gpx_and_its_help_load_nothing_heavy(code):
    modules, _ = loaded(code, "--help")
    assert "gpx" in modules
    assert not modules & HEAVY


def test_help_of_train_needs_the_configs_alone():
    modules, printed = loaded("from gpx.commands import call; call('train', ['--help'])")
    assert not modules & {"torch", "matplotlib", "tensorboard", "gpx.training"}
    assert "gpx train approx=qsgp" in printed
    assert "approx: auto, cglb, cnn" in printed


@pytest.mark.parametrize(
    ("line", "suggested"),
    [
        ("gpx tr", list(COMMANDS)),
        ("gpx train kernel=matern1", ["kernel=matern12"]),
        ("gpx train approx=sgpr trainer.max_s", ["trainer.max_steps="]),
        ("gpx doctor --k", []),
    ],
)
def test_the_shell_completes(line, suggested):
    modules, printed = loaded(
        "from gpx.commands import main; main()", "-sc", "query=bash", COMP_LINE=line
    )
    assert printed.split() == suggested
    assert "torch" not in modules


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tain"], "there is no command 'tain'; did you mean gpx train? (gpx --help)"),
        (["approx=sgpr"], "options come after a command, for example gpx train approx=sgpr"),
        (["zzz"], "commands are: train, predict, diagnose, compare, doctor"),
        (["predict", "run=x"], "input= is missing (gpx predict --help)"),
        (["diagnose", "rum=x"], "did you mean run=? (gpx diagnose --help)"),
        (["train", "aprox=exact"], "there is no option aprox; did you mean approx"),
        (["train", "aprox=exact", "--help"], "there is no option aprox; did you mean approx"),
    ],
)
def test_mistakes_are_one_line(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpx", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_version(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpx", "--version"])
    main()
    assert capsys.readouterr().out == f"gpx {gpx.__version__}\n"


@pytest.mark.parametrize("name", ["train", "predict", "diagnose"])
def test_scripts_of_a_clone_call_the_command_of_their_name(name):
    script = Path(__file__).resolve().parents[2] / f"{name}.py"
    assert f'call("{name}", sys.argv[1:])' in script.read_text()
    if name == "predict":  # how it is called is how it speaks
        done = subprocess.run(
            [sys.executable, script, "run=x"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(script.parent)},
        )
        assert "input= is missing (python predict.py --help)" in done.stderr


def test_help_keeps_the_types_of_options_for_later_runs(monkeypatch, capsys):
    from hydra.core.config_store import ConfigStore

    import gpx.options.config  # noqa: F401  it stores them

    options = ConfigStore.instance().repo["trainer"]
    typed = options["schema.yaml"]
    monkeypatch.setattr(sys, "argv", ["gpx", "train", "aprox=exact", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert options["schema.yaml"] is typed
