from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.requests.append(self.path)  # type: ignore[attr-defined]
        super().do_GET()


class Mirror:
    """A folder served over HTTP on loopback; ``requests`` lists the paths asked for."""

    def __init__(self, folder: Path, server: http.server.ThreadingHTTPServer) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.requests: list[str] = server.requests  # type: ignore[attr-defined]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    folder = tmp_path / "mirror"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.requests = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Mirror(folder, server)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data: empty cache folder, no $GPX_DATA, no mirror."""
    monkeypatch.delenv("GPX_DATA", raising=False)
    monkeypatch.delenv("GPX_DATA_URL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpx"
