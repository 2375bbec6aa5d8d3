from __future__ import annotations

import hashlib
import io
import socket
import threading
from pathlib import Path

import pytest

from gpx.data.sets import download as module
from gpx.data.sets.download import download
from gpx.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 1000
SHA = hashlib.sha256(CONTENT).hexdigest()


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_good_file(mirror, tmp_path: Path) -> None:
    (mirror.folder / "a.bin").write_bytes(CONTENT)
    target = tmp_path / "deep" / "folder" / "a.bin"
    download(f"{mirror.url}/a.bin", target, size=len(CONTENT), sha256=SHA)
    assert target.read_bytes() == CONTENT
    assert files(tmp_path / "deep") == ["folder/a.bin"]


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (CONTENT[:-1], "gave 255999 bytes, expected 256000"),
        (CONTENT + b"!", "gave 256001 bytes, expected 256000"),
        (b"!" + CONTENT[1:], "has SHA-256 .* expected .* and was not kept"),
        (None, "answered 404"),
    ],
)
def test_bad_file_leaves_nothing(
    mirror, tmp_path: Path, served: bytes | None, message: str
) -> None:
    if served is not None:
        (mirror.folder / "a.bin").write_bytes(served)
    target = tmp_path / "here" / "a.bin"
    with pytest.raises(DataError, match=message):
        download(f"{mirror.url}/a.bin", target, size=len(CONTENT), sha256=SHA)
    assert files(tmp_path / "here") == []


def test_bad_file_leaves_the_old_one(mirror, tmp_path: Path) -> None:
    (mirror.folder / "a.bin").write_bytes(CONTENT[:5])
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    with pytest.raises(DataError, match="gave 5 bytes"):
        download(f"{mirror.url}/a.bin", target, size=len(CONTENT), sha256=SHA)
    assert target.read_bytes() == b"old"


def test_connection_cut_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(CONTENT)}\r\n\r\n"
                connection.sendall(head.encode() + CONTENT[:1000])

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.bin"
        with pytest.raises(DataError, match=r"gave 1000 bytes, expected 256000|cannot be reached"):
            download(url, tmp_path / "here" / "a.bin", size=len(CONTENT), sha256=SHA)
        thread.join()
    assert files(tmp_path / "here") == []


def test_nobody_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(DataError, match="cannot be reached"):
        download(f"http://127.0.0.1:{port}/a", tmp_path / "a", size=1, sha256=SHA)
    assert files(tmp_path) == []


def test_only_web_addresses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither an https nor an http address"):
        download("file:///etc/hostname", tmp_path / "a", size=1, sha256=SHA)


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write to"):
        download("http://127.0.0.1/a", tmp_path / "file" / "a", size=1, sha256=SHA)


def test_a_full_disk_is_not_the_server(
    mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mirror.folder / "a.bin").write_bytes(CONTENT)

    class Full(io.BytesIO):
        def write(self, chunk: object) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "atomic_file", lambda target: Full())
    with pytest.raises(DataError, match=r"cannot write to .*: No space left on device"):
        download(f"{mirror.url}/a.bin", tmp_path / "a.bin", size=len(CONTENT), sha256=SHA)
