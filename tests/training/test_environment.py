"""Which commit a run says it was made from."""

from __future__ import annotations

import subprocess

import pytest

from gpx.training.environment import source_commit


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


def test_outside_a_repository_nothing_is_known(tmp_path):
    assert source_commit(tmp_path) is None
