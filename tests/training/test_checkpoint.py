import pickle

import pytest
import torch

from gpx.errors import CheckpointError
from gpx.training.checkpoint import load_checkpoint, save_checkpoint


def test_round_trip(tmp_path):
    path = tmp_path / "checkpoint.pt"
    state = {"step": 3, "tensors": {"a": torch.arange(4.0)}, "names": ["x", "y"]}
    save_checkpoint(path, state)
    loaded = load_checkpoint(path)
    assert loaded["step"] == 3
    assert loaded["names"] == ["x", "y"]
    assert torch.equal(loaded["tensors"]["a"], torch.arange(4.0))
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"step": 1})
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        save_checkpoint(path, {"step": 2, "unpicklable": lambda: None})
    assert load_checkpoint(path)["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "nothing.pt")


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_truncated_file_gives_one_sentence_and_stays(tmp_path, keep):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"step": 1, "x": torch.randn(100)})
    content = path.read_bytes()
    cut = content[: int(keep if keep >= 1 else keep * len(content))]
    path.write_bytes(cut)
    with pytest.raises(CheckpointError, match="truncated or was not written by gpx") as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == cut


def test_no_flipped_bit_is_taken_for_a_number(tmp_path):
    path = tmp_path / "checkpoint.pt"
    numbers = torch.arange(1000.0)
    save_checkpoint(path, {"step": 1, "x": numbers})
    content = path.read_bytes()
    first = content.index(numbers.numpy().tobytes())
    for place in (first, first + 2001, first + 3999):
        spoilt = bytearray(content)
        spoilt[place] ^= 0x10
        path.write_bytes(spoilt)
        with pytest.raises(CheckpointError, match=r"its part \S+/data/0 differs from its checksum"):
            load_checkpoint(path)
        assert path.read_bytes() == spoilt


def test_wherever_a_byte_is_spoilt_what_is_read_is_what_was_written(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"step": 1, "x": torch.arange(8.0)})
    content = path.read_bytes()
    for place in range(0, len(content), 5):
        spoilt = bytearray(content)
        spoilt[place] ^= 0x04
        path.write_bytes(spoilt)
        try:
            loaded = load_checkpoint(path)
        except CheckpointError:
            continue  # the bytes between the parts hold nothing
        assert loaded["step"] == 1
        assert torch.equal(loaded["x"], torch.arange(8.0))


def test_foreign_files(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {}}, path)
    with pytest.raises(CheckpointError, match="not a gpx checkpoint"):
        load_checkpoint(path)
    path.write_text("text")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(path)


class _Exploit:
    def __reduce__(self):
        return (exec, ("import pathlib; pathlib.Path('/nonexistent').mkdir()",))


def test_pickled_code_is_not_executed(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with path.open("wb") as file:
        pickle.dump({"format": "gpx-checkpoint-1", "x": _Exploit()}, file)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(path)
    torch.save({"format": "gpx-checkpoint-1", "x": _Exploit()}, path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(path)


def test_a_full_disk_is_an_error_of_the_system(tmp_path, limited_files):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"step": 1})
    for size in (10, 100_000):  # fails as the file is closed, and in the middle of writing
        with limited_files(1000 if size == 10 else 100_000), pytest.raises(OSError, match="large"):
            save_checkpoint(path, {"step": 2, "many": torch.zeros(size)})
    assert load_checkpoint(path)["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_checksums_are_written_where_the_process_has_turned_them_off(tmp_path):
    """Without them torch leaves others in their place, and every part would look damaged."""
    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("this torch always writes them")
    asked = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        save_checkpoint(tmp_path / "checkpoint.pt", {"x": torch.arange(4.0)})
        assert not torch.serialization.get_crc32_options()
    finally:
        torch.serialization.set_crc32_options(asked)
    assert torch.equal(load_checkpoint(tmp_path / "checkpoint.pt")["x"], torch.arange(4.0))
