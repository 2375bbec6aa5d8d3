"""C files of the package, compiled for this machine at first use; None if that is impossible.

Every user has a fallback in torch operations, for machines without a compiler. The library is
cached in the user's cache folder under a hash of the source, the compiler's command line and the
processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from gpx.cache_folder import cache_folder
from gpx.errors import DTypeError, ShapeError

logger = logging.getLogger(__name__)

FLAGS = (
    *("-O3", "-march=native", "-std=c11", "-fopenmp", "-fPIC", "-shared"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
"""Without -ffast-math, so that infinities and NaN work and sums keep their order."""
TIMEOUT_S = 120


@cache
def native_library(source: Path, defines: tuple[str, ...] = ()) -> ctypes.CDLL | None:
    """The shared library of one C file, compiled if necessary; None if that fails.

    Args:
        source: the C file.
        defines: names for the preprocessor.

    The compiler is ``CC``, which may have arguments (``ccache gcc``), or ``cc``. If there is none,
    or it fails, one line is logged; the result is cached.
    """
    compiler = _compiler()
    if compiler is None or platform.system() != "Linux":
        logger.info("no C compiler: %s runs as torch operations", source.name)
        return None
    command = [*compiler, *FLAGS, *(f"-D{name}" for name in defines)]
    try:
        return ctypes.CDLL(str(_build(source, command)))
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        logger.info(
            "%s could not be compiled and runs as torch operations: %s", source.name, reason
        )
        return None


def has_memory(array: Tensor) -> bool:
    """Whether compiled code can read ``array`` at its address: on the CPU, and not a subclass.

    A tensor that torch traces claims to be on the CPU but has no data there.
    """
    return array.device.type == "cpu" and type(array) in (Tensor, nn.Parameter)


def address(
    array: Tensor, count: int, dtype: torch.dtype, what: str, *, strided: bool = False
) -> int:
    """Address of ``count`` numbers, checked here because compiled code checks nothing.

    Args:
        array: contiguous, of ``dtype``, on the CPU.
        what: the calculation, for the message.
        strided: accept a strided array of three dimensions; the caller handles the stride.

    Raises:
        ShapeError: another size or layout.
        DTypeError: another dtype or device.
    """
    kind = array.dtype == dtype and array.device.type == "cpu"
    whole = array.is_contiguous() or (strided and array.ndim > 2)
    if not (kind and whole) or array.numel() != count:
        raise (ShapeError if kind else DTypeError)(
            f"{what}: an array of shape {tuple(array.shape)}, {array.dtype} on {array.device}, "
            f"where {count} contiguous numbers of {dtype} on cpu are expected; the arrays of a "
            "call must have matching sizes"
        )
    return array.data_ptr()


def _compiler() -> list[str] | None:
    """Command of the C compiler; None if there is no such program."""
    try:
        name, *arguments = shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError:  # an unclosed quote
        return None
    program = shutil.which(name)
    return None if program is None else [program, *arguments]


def _build(source: Path, command: list[str]) -> Path:
    """The library's file; built under another name and moved, so that processes may race."""
    text = source.read_bytes()
    key = hashlib.sha256(text + " ".join(command).encode() + _processor()).hexdigest()[:20]
    folder = _private_folder()
    target = folder / f"{source.stem}-{key}.so"
    if not target.exists():
        handle, unfinished = tempfile.mkstemp(suffix=".so", dir=folder)
        os.close(handle)
        try:
            subprocess.run(
                [*command, str(source), "-o", unfinished, "-lm"],
                check=True,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
            )
            Path(unfinished).replace(target)
        finally:
            Path(unfinished).unlink(missing_ok=True)
    return target


def _private_folder() -> Path:
    """The cache folder, created if necessary.

    Raises:
        OSError: it is not writable, belongs to another user, or there is no home folder.
    """
    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _processor() -> bytes:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor().encode()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)})).encode()
