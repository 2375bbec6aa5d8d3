"""Which commit a run says it was made from."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from claimed_cuda import claimed_cuda

from gpx.runs import environment
from gpx.runs.environment import environment_record, source_commit


@pytest.fixture
def repository(tmp_path):
    """A repository with a module, an option file and a table."""
    for name in ("gpx/model.py", "configs/model.yaml", "experiments/study/rows.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("1\n")
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_clean_tree_gives_forty_digits(repository):
    found = source_commit(repository)
    assert len(found) == 40
    assert int(found, 16) > 0


@pytest.mark.parametrize("name", ["experiments/study/rows.json", "notes.txt", "tests/a.py"])
def test_tables_notes_and_tests_leave_it_clean(repository, name):
    before = source_commit(repository)
    (repository / name).parent.mkdir(exist_ok=True)
    (repository / name).write_text("2\n")
    assert source_commit(repository) == before


@pytest.mark.parametrize(
    "name",
    ["gpx/model.py", "gpx/added.py", "configs/model.yaml", "experiments/study/run.py", "train.py"],
)
def test_changed_or_added_code_is_dirty(repository, name):
    before = source_commit(repository)
    (repository / name).write_text("2\n")
    assert source_commit(repository) == f"{before}-dirty"
    assert source_commit(repository / "gpx") == f"{before}-dirty"


def test_a_look_at_the_commit_writes_nothing(repository):
    """A look that is cut short would leave its lock, and whoever commits would be refused."""
    index, table = repository / ".git" / "index", repository / "gpx" / "model.py"
    os.utime(table, (0, 0))
    before = index.read_bytes()
    assert len(source_commit(repository)) == 40
    assert index.read_bytes() == before


def test_outside_a_repository_nothing_is_known(tmp_path):
    assert source_commit(tmp_path) is None


def test_a_gpus_driver_memory_and_precision_are_recorded(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 580.65.06\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    with claimed_cuda():
        found = environment_record(torch.device("cuda"), 0, {})
    assert found["gpu"]["memory_bytes"] == 2**33
    assert found["gpu"]["capability"] == "9.0"
    assert found["gpu"]["driver"] == "580.65.06"
    assert found["gpu"]["deterministic"] == torch.are_deterministic_algorithms_enabled()
    assert found["matmul"]["float32_matmul_precision"] == torch.get_float32_matmul_precision()
    assert found["matmul"]["allow_tf32"] == torch.backends.cuda.matmul.allow_tf32
    assert found["matmul"]["tf32_override"] == "1"


def test_without_a_gpu_or_its_program_there_is_no_driver(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert environment_record(torch.device("cpu"), 0, {})["gpu"] is None
    with claimed_cuda():
        assert environment_record(torch.device("cuda"), 0, {})["gpu"]["driver"] is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system has no other figure")
def test_peak_memory_is_of_the_process_not_of_its_parent():
    """What getrusage says begins at the peak of the process that started this one."""
    child = "import torch; from gpx.runs import environment as e"
    child += "; print(e.peak_memory_mib(torch.device('cpu')))"
    parent = "import subprocess, sys; held = b'1' * (1 << 30); del held; "
    parent += f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    done = subprocess.check_output([sys.executable, "-c", parent], text=True)
    assert 20.0 < float(done) < 1024.0


def test_peak_memory_is_unknown_where_the_system_does_not_tell_it(monkeypatch):
    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    monkeypatch.setattr(Path, "read_text", missing)
    spec = importlib.util.spec_from_file_location("environment_elsewhere", environment.__file__)
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    assert math.isnan(elsewhere.peak_memory_mib(torch.device("cpu")))
