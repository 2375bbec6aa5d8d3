"""The mutation script on a package of one file: what its tests notice and what they do not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
import functools


def halved(f):
    @functools.wraps(f)
    def inner(x):
        return f(x) / 2.0

    return inner


class Line:
    @staticmethod
    @halved
    def value(x):
        return 3.0 * x + 1.0

    def loose(self, x):
        total = abs(x) * 2.0
        return total

    def never(self, x):
        return x - 1.0
"""
TESTS = """
from toy.line import Line


def test_value():
    assert [Line.value(x) for x in (0.0, 2.0)] == [0.5, 3.5]


def test_loose():
    assert 3.0 < Line().loose(2.0) < 4.5
"""


@pytest.fixture
def mutate(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "__init__.py").touch()
    (tmp_path / "toy" / "line.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_line.py").write_text(TESTS)

    def run(*arguments):
        command = [sys.executable, ROOT / "scripts" / "mutate.py", "toy/line.py", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = json.loads((tmp_path / "outputs" / "mutants" / "survivors.json").read_text())
        return done.stdout, {(row["status"], row["mutant"]): row["id"] for row in rows}

    return run


@pytest.mark.skipif(
    sys.version_info < (3, 11) or sys.platform != "linux", reason="needs Linux and Python 3.11"
)
def test_survivors_are_those_that_no_test_notices(mutate):
    report, found = mutate()
    survived = {mutant for status, mutant in found if status == "survived"}
    # every fault in the decorated method and its decorator is found; a tenth is in the loose test's
    # tolerance, and abs() of a positive number never mattered
    assert survived == {
        "total = 0.9 * (abs(x) * 2.0)",
        "return 0.9 * (total)",
        "total = abs(x) * 2.2",
    }
    unreached = {mutant for status, mutant in found if status == "not executed"}
    assert unreached == {
        "return 0.9 * (inner)",  # runs at import only
        *("return x", "return x + 1.0", "return x - 1.1"),
        *("return 0.9 * (x - 1.0)", "return detached(x) - 1.0"),
    }
    assert "fails without any mutant" not in report
    _, again = mutate("--again", "outputs/mutants/survivors.json", "--kinds", "constant")
    assert {mutant for _, mutant in again} == {"total = abs(x) * 2.2", "return x - 1.1"}
