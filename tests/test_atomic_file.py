import pytest

from gpx.atomic_file import atomic_file


def test_appears_whole_in_a_new_folder(tmp_path):
    target = tmp_path / "new" / "file"
    with atomic_file(target) as file:
        file.write(b"one")
        assert not target.exists()
    assert target.read_bytes() == b"one"
    assert [p.name for p in target.parent.iterdir()] == ["file"]


def test_an_exception_keeps_the_old_file_and_leaves_nothing(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def interrupted():
        with atomic_file(target) as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
