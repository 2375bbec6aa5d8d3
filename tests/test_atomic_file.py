import errno
import os

import pytest

from gpx.atomic_file import atomic_file, write_atomically


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


def test_a_disk_that_is_full_or_read_only_names_the_file_that_was_asked_for(
    tmp_path, limited_files, monkeypatch
):
    target = tmp_path / "file"

    def refuses(self, mode):
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path / ".file.tmp"))

    too_large = pytest.raises(OSError, match="too large")
    with limited_files(1000), too_large as full, atomic_file(target) as file:
        file.write(bytes(5000))
    assert full.value.filename == str(target)
    monkeypatch.setattr("gpx.atomic_file.Path.open", refuses)
    with pytest.raises(OSError, match="Read-only") as refused, atomic_file(target):
        pass
    assert refused.value.filename == str(target)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002])
def test_the_umask_decides_who_can_read_a_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        with atomic_file(tmp_path / "ours") as file:
            file.write(b"one")
        (tmp_path / "plain").write_bytes(b"one")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode for name in ("ours", "plain")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("content", ["a\nb\u00e4", b"\x00\xff", memoryview(b"view")])
def test_whole_contents_are_written_as_they_are(content, tmp_path):
    write_atomically(tmp_path / "file", content)
    want = content.encode() if isinstance(content, str) else bytes(content)
    assert (tmp_path / "file").read_bytes() == want
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
