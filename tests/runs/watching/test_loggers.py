"""Monitors beside TensorBoard, against packages that record what they are told."""

import json
import sys
import types

import pytest
from matplotlib.figure import Figure

from gpx.errors import ConfigError
from gpx.runs.figures.picture import png
from gpx.runs.watching.loggers import LOGGERS, open_logger, require_loggers
from gpx.training.progress import Progress

RUN = types.SimpleNamespace(
    info=types.SimpleNamespace(run_id="3f"), data=types.SimpleNamespace(params={"seed": "0"})
)
"""A run of MLflow."""


class Recorder(types.ModuleType):
    """A package whose every function notes its name and arguments."""

    def __init__(self, name):
        super().__init__(name)
        self.calls = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self if name == "init" else RUN

        call.update = lambda *args, **kwargs: self.calls.append((name, args, kwargs))
        return call


@pytest.mark.parametrize("name", sorted(LOGGERS))
def test_a_run_reaches_the_package_under_the_name_of_its_folder(name, tmp_path, monkeypatch):
    package = Recorder(name)
    monkeypatch.setitem(sys.modules, name, package)
    logger = LOGGERS[name](tmp_path / "2026-01-01")
    logger.text("config", "seed: 0")
    logger.progress(Progress(3, 10, -1.5, {"fit": -2.0}, {"all": 0.1}, 0.01, 1.0), None)
    logger.metrics(10, {"rmse": 0.5})
    logger.outcome({"approx": "SGPR"}, {"test.rmse": 0.5})
    logger.close()
    said = repr(package.calls)
    expected = ("2026-01-01", "evidence/per_point': -1.5", "evidence/fit': -2.0", "test/rmse")
    for text in (*expected, "'approx': 'SGPR'", "test.rmse", "seed: 0"):
        assert text in said, text
    assert package.calls[-1][0] in ("end_run", "finish")


def test_figures_reach_weights_and_biases_as_pictures(tmp_path, monkeypatch):
    package = Recorder("wandb")
    monkeypatch.setitem(sys.modules, "wandb", package)
    logger = LOGGERS["wandb"](tmp_path / "run")
    logger.figure("calibration", png(Figure(figsize=(2, 1))), 3)
    ((_, (picture,), _),) = [call for call in package.calls if call[0] == "Image"]
    assert picture.size == (300, 150)
    assert package.calls[-1][2] == {"step": 3}


def test_what_is_not_there_is_said_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"pip install 'gpx-torch\[mlflow\]'"):
        require_loggers(["mlflow"])
    with pytest.raises(ConfigError, match=r"loggers=comet: expected some of mlflow, wandb"):
        require_loggers(["comet"])
    require_loggers([])


def test_a_service_that_refuses_is_one_sentence(tmp_path, monkeypatch):
    package = Recorder("wandb")

    def init(**options):
        raise RuntimeError("no API key\nconfigured")

    package.init = init
    monkeypatch.setitem(sys.modules, "wandb", package)
    with pytest.raises(ConfigError, match="loggers=wandb cannot report this run: no API key conf"):
        open_logger("wandb", tmp_path)


@pytest.mark.parametrize("name", sorted(LOGGERS))
def test_only_a_resumed_run_continues_the_one_at_the_service(name, tmp_path, monkeypatch):
    package = Recorder(name)
    monkeypatch.setitem(sys.modules, name, package)
    key = {"mlflow": "run_id", "wandb": "id"}[name]
    found = []
    for folder in ("one/0", "one/0", "two/0"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        package.calls.clear()
        open_logger(name, tmp_path / folder)
        found.append(package.calls[0][2][key])
    first, resumed, other = found
    kept = json.loads((tmp_path / "one" / "0" / "loggers.json").read_text())
    assert resumed == kept[name]
    assert first in (None, resumed)  # MLflow gives new runs their identity
    assert other != resumed


def test_options_that_a_resumed_run_changed_are_tags_of_mlflow(tmp_path, monkeypatch):
    package = Recorder("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", package)
    open_logger("mlflow", tmp_path).outcome({"seed": 1, "approx": "SGPR"}, {"test.rmse": 0.5})
    told = {call[0]: call[1] for call in package.calls}
    assert told["log_params"] == ({"approx": "SGPR"},)
    assert told["set_tags"] == ({"seed": 1},)


def test_a_service_that_fails_later_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    package = Recorder("wandb")
    monkeypatch.setitem(sys.modules, "wandb", package)
    service = open_logger("wandb", tmp_path)

    def log(*arguments, **options):
        raise ConnectionError("server\naway")

    package.log = log
    for _ in range(2):
        service.metrics(3, {"rmse": 0.5})
        service.close()
    assert [each.getMessage() for each in caplog.records] == [
        "wandb is told no more of this run: server away"
    ]
    # or the next run of the process would report there
    assert [call[0] for call in package.calls].count("finish") == 1
