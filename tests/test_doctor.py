"""The pre-flight check: it passes on a healthy machine and fails on a broken one."""

from __future__ import annotations

import pytest
import torch

from gpx import doctor


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_self_tests_meet_dense_algebra(dtype):
    errors = doctor.self_tests(torch.device("cpu"), dtype)
    assert len(errors) == 6
    assert max(errors.values()) <= doctor.TOLERANCES[dtype]


def test_a_healthy_machine_passes(capsys):
    assert doctor.main([]) == 0
    said = capsys.readouterr().out
    assert "all checks passed" in said
    assert f"torch {torch.__version__}" in said
    assert "FAIL" not in said


def test_wrong_numbers_fail_and_are_named(monkeypatch, capsys):
    right = doctor.self_tests

    def broken(device, dtype):
        return right(device, dtype) | {"conjugate gradients": 0.5}

    monkeypatch.setattr(doctor, "self_tests", broken)
    assert doctor.main([]) == 1
    assert "conjugate gradients (5.0e-01)" in capsys.readouterr().out


def test_numbers_that_are_not_finite_fail(monkeypatch):
    monkeypatch.setattr(doctor, "self_tests", lambda device, dtype: {"one": float("nan")})
    assert not doctor.examine(False, say=lambda line: None)


def test_a_device_that_raises_fails_and_the_rest_goes_on(monkeypatch):
    def lost(device, dtype):
        raise RuntimeError("device lost")

    monkeypatch.setattr(doctor, "self_tests", lost)
    lines: list[str] = []
    assert not doctor.examine(False, say=lines.append)
    assert sum("device lost" in line for line in lines) == 2 * len(doctor.devices())
    assert any("KeOps" in line for line in lines)


def test_a_data_folder_that_is_not_there_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("GPX_DATA", str(tmp_path / "nowhere"))
    assert any("which is not a folder" in f.text for f in doctor.machine())


@pytest.mark.keops
def test_keops_compiles():
    pytest.importorskip("pykeops")
    assert all(finding.passed for finding in doctor.extras(compile_keops=True))
