"""An exported predictor compiled by gcc, as a machine without Python would run it."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")

FLAGS = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-nostdlib", "-ffp-contract=off"]


def by_c(source, inputs, function="gpx_predict"):
    """Means and variances (2, n) of the C function at inputs (n, d)."""
    library = source.with_suffix(".so")
    command = ["gcc", *FLAGS, "-shared", "-fPIC", "-o", library, source]
    subprocess.run(command, check=True)
    predict = getattr(ctypes.CDLL(str(library)), function)
    pointer = ctypes.POINTER(ctypes.c_float)
    found = np.empty((len(inputs), 2), np.float32)
    for row, out in zip(np.ascontiguousarray(inputs, np.float32), found, strict=True):
        mean, variance = ctypes.c_float(), ctypes.c_float()
        predict(row.ctypes.data_as(pointer), ctypes.byref(mean), ctypes.byref(variance))
        out[:] = mean.value, variance.value
    return found.T
