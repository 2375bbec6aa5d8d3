import json

import pytest
from omegaconf import OmegaConf

from gpx.errors import CheckpointError, ConfigError
from gpx.runs.folder import RunFolder


def test_a_folder_is_a_path():
    with pytest.raises(ConfigError, match="must be text or a Path, got 3"):
        RunFolder(3)


def test_config_is_written_resolved_and_read_back(tmp_path):
    folder = RunFolder(tmp_path)
    assert not folder.holds_a_run()
    config = OmegaConf.create({"seed": 3, "approx": {"m": "${seed}"}})
    folder.write_config(config)
    assert folder.holds_a_run()
    assert folder.read_own_config() == {"seed": 3, "approx": {"m": 3}}


def test_environment_keeps_the_first_session(tmp_path):
    folder = RunFolder(tmp_path)
    folder.add_environment({"seed": 0, "device": "cpu"})
    folder.add_environment({"seed": 0, "device": "cuda"})
    folder.add_environment({"seed": 0, "device": "cpu"})
    record = json.loads(folder.environment.read_text())
    assert record["device"] == "cpu"
    assert [r["device"] for r in record["resumed"]] == ["cuda", "cpu"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "has no config.yaml"),
        ("a: [1", "cannot be read"),
        ("other: 1", "is not the config of a gpx run"),
        ("- 1", "is not the config of a gpx run"),
    ],
)
def test_folders_that_hold_no_run(tmp_path, content, expected):
    if content is not None:
        (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(CheckpointError, match=expected):
        RunFolder(tmp_path).read_config()


def test_a_config_that_is_cut_off_is_told_in_one_line(tmp_path):
    (tmp_path / "config.yaml").write_text("approx:\n  a: 1\n  b")
    with pytest.raises(CheckpointError, match=r"cannot be read: .* line 3, column 3") as told:
        RunFolder(tmp_path).read_config()
    assert "\n" not in str(told.value)


def test_a_missing_folder_names_its_neighbours(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.yaml").write_text("approx: {}")
    with pytest.raises(CheckpointError, match=r"runs beside it: .*there"):
        RunFolder(tmp_path / "their").read_config()


def test_leftovers_of_a_kill_are_removed_and_nothing_else(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_json(folder.metrics, {"a": 1})
    for name in (".checkpoint.pt.ab12.tmp", ".metrics.json.x.tmp", ".mine.tmp", "checkpoint.tmp"):
        (tmp_path / name).write_text("half")
    folder.clear_leftovers()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".mine.tmp",
        "checkpoint.tmp",
        "metrics.json",
    ]


def test_changed_data_and_a_damaged_record_are_one_sentence(tmp_path):
    folder = RunFolder(tmp_path)
    folder.add_environment({"data_checksums": {"a.csv": "1", "b.csv": "2"}})
    with pytest.raises(CheckpointError, match=r"have changed since it started \(a.csv\)"):
        folder.add_environment({"data_checksums": {"a.csv": "3", "b.csv": "2"}})
    with pytest.raises(CheckpointError, match=r"have changed since it started \(b.csv, a.csv\)"):
        folder.add_environment({"data_checksums": {"b.csv": "2", "a.csv": "1"}})  # roles swapped
    folder.add_environment({"data_checksums": {"renamed.csv": "1", "moved/b.csv": "2"}})
    folder.environment.write_text("{")
    with pytest.raises(CheckpointError, match="restore or remove it"):
        folder.add_environment({"data_checksums": {}})


def test_one_process_at_a_time(tmp_path):
    def enter(folder):
        with folder.locked():
            return True

    with RunFolder(tmp_path).locked(), pytest.raises(CheckpointError, match="another process is"):
        enter(RunFolder(tmp_path))
    assert enter(RunFolder(tmp_path))
    assert list(tmp_path.iterdir()) == []
