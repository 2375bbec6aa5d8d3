"""Download of a file of known size and SHA-256."""

from __future__ import annotations

import hashlib
import http.client
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from gpx.atomic_file import atomic_file
from gpx.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

TIMEOUT = 30.0
"""Seconds without an answer after which a download fails."""


def download(url: str, target: Path, *, size: int, sha256: str) -> None:
    """Download ``url`` to ``target``.

    A temporary file takes the name of the target only if size and checksum are correct; several
    processes may download the same file at once.

    Args:
        url: https or http.
        target: file to write; its folder is created.
        size: expected size in bytes.
        sha256: expected checksum in hexadecimal.

    Raises:
        DataError: the server cannot be reached or refuses, or size or checksum are wrong.
        ConfigError: the address is neither https nor http.
    """
    if not url.startswith(("https://", "http://")):
        raise ConfigError(f"{url} is neither an https nor an http address")
    digest, received = hashlib.sha256(), 0
    try:
        name = "/".join(url.rsplit("/", 2)[-2:])
        # disable=None: progress is only shown on a terminal
        with (
            atomic_file(target) as file,
            tqdm(total=size, unit="B", unit_scale=True, desc=name, disable=None) as bar,
        ):
            for chunk in _chunks(url, size + 1):
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                bar.update(len(chunk))
            if received != size:
                raise DataError(
                    f"{url} gave {received} bytes, expected {size}; the download is incomplete or "
                    "the file is another one, try again"
                )
            if digest.hexdigest() != sha256:
                raise DataError(
                    f"{url} has SHA-256 {digest.hexdigest()[:12]}..., expected {sha256[:12]}...; "
                    "the file is damaged or another one, and was not kept"
                )
    except OSError as error:
        raise DataError(f"cannot write to {target.parent}: {error.strerror}") from error
    logger.info("downloaded %s (%.1f KiB, checksum verified) to %s", url, size / 1024, target)


def _chunks(url: str, most: int) -> Iterator[bytes]:
    """Yield at most ``most`` bytes from a server; raises DataError if it does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            while most and (chunk := response.read(min(1 << 16, most))):
                most -= len(chunk)
                yield chunk
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"{url} answered {error.code} ({error.reason})") from error
    except (http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{url} cannot be reached ({reason})") from error
