"""C files of the package, compiled for this machine at first use; None where that is impossible.

Everything that uses one has a way in torch operations as well, which is what runs without a
compiler. The library is kept in the user's cache folder under a name that holds the source, the
compiler's command line and the processor, so that it is built once.
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
"""-ffast-math is left out: infinities and NaN keep their meaning, and sums their order."""
PATIENCE_S = 120


@cache
def native_library(source: Path, defines: tuple[str, ...] = ()) -> ctypes.CDLL | None:
    """The shared library of one C file, compiled if need be; None where it cannot be.

    Args:
        source: the C file.
        defines: names for the preprocessor.

    The compiler is ``CC``, arguments included (``ccache gcc``), or ``cc``. One line is logged where
    there is none or it fails, and the answer is remembered.
    """
    compiler = _compiler()
    if compiler is None or platform.system() != "Linux":
        logger.info("no C compiler: %s runs as torch operations", source.name)
        return None
    command = [*compiler, *FLAGS, *(f"-D{name}" for name in defines)]
    try:
        return ctypes.CDLL(str(_built(source, command)))
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        logger.info(
            "%s could not be compiled and runs as torch operations: %s", source.name, reason
        )
        return None


def has_memory(array: Tensor) -> bool:
    """Whether compiled code can read ``array`` at its address: on the CPU, and no subclass.

    A tensor that torch only traces says that it is on the CPU and has no numbers there.
    """
    return array.device.type == "cpu" and type(array) in (Tensor, nn.Parameter)


def address(
    array: Tensor, count: int, dtype: torch.dtype, what: str, *, strided: bool = False
) -> int:
    """Where ``count`` numbers lie; what is read through an address nobody checks later.

    Args:
        array: of ``dtype`` on the CPU, in one piece.
        what: is calculated, for the message.
        strided: whether the code that reads it knows the stride of an array of three dimensions.

    Raises:
        ShapeError: another size or layout.
        DTypeError: another dtype or device.
    """
    kind = array.dtype == dtype and array.device.type == "cpu"
    whole = array.is_contiguous() or (strided and array.ndim > 2)
    if not (kind and whole) or array.numel() != count:
        raise (ShapeError if kind else DTypeError)(
            f"{what}: an array of shape {tuple(array.shape)}, {array.dtype} on {array.device}, "
            f"where {count} numbers of {dtype} in one piece on cpu belong; the arrays of a call "
            "must fit each other"
        )
    return array.data_ptr()


def _compiler() -> list[str] | None:
    """Command of the C compiler; None where there is no such program."""
    try:
        words = shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError:  # a quote that is not closed
        return None
    program = shutil.which(words[0])
    return None if program is None else [program, *words[1:]]


def _built(source: Path, command: list[str]) -> Path:
    """The library's file; built beside it and moved into place, so that processes may race."""
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
                timeout=PATIENCE_S,
            )
            Path(unfinished).replace(target)
        finally:
            Path(unfinished).unlink(missing_ok=True)
    return target


def _private_folder() -> Path:
    """The cache folder, made if need be.

    Raises:
        OSError: it cannot be written to, belongs to somebody else, or there is no home.
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
