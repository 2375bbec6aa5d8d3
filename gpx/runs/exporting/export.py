"""``gpx.export``: a trained model as a file that predicts without gpx."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Literal, get_args, overload

import torch

from gpx.atomic_file import atomic_file
from gpx.errors import ConfigError
from gpx.runs.exporting.int4 import Int4Predictor, int4_predictor
from gpx.runs.exporting.onnx_program import onnx_program
from gpx.runs.exporting.torch_program import torch_program
from gpx.runs.fit import Fitted
from gpx.runs.loading import load
from gpx.runs.predictor import Predictor

Format = Literal["int4", "torch", "onnx"]
ENDINGS = {
    "int4": ("writes C", ".c"),
    "torch": ("writes a program of torch.export", ".pt2"),
    "onnx": ("writes an ONNX program", ".onnx"),
}
"""What each format writes, and the ending of its file."""


@overload
def export(
    model: str | Path | Predictor | Fitted,
    output: str | Path,
    *,
    format: Literal["int4"],
    samples: int = ...,
    seed: int = ...,
    trust: Sequence[str] | str = ...,
) -> Int4Predictor: ...


@overload
def export(
    model: str | Path | Predictor | Fitted,
    output: str | Path,
    *,
    format: None = ...,
    samples: int = ...,
    seed: int = ...,
    trust: Sequence[str] | str = ...,
) -> Int4Predictor | torch.export.ExportedProgram | torch.onnx.ONNXProgram: ...


@overload
def export(
    model: str | Path | Predictor | Fitted,
    output: str | Path,
    *,
    format: Literal["torch"],
    samples: int = ...,
    seed: int = ...,
    trust: Sequence[str] | str = ...,
) -> torch.export.ExportedProgram: ...


@overload
def export(
    model: str | Path | Predictor | Fitted,
    output: str | Path,
    *,
    format: Literal["onnx"],
    samples: int = ...,
    seed: int = ...,
    trust: Sequence[str] | str = ...,
) -> torch.onnx.ONNXProgram: ...


def export(
    model: str | Path | Predictor | Fitted,
    output: str | Path,
    *,
    format: Format | None = None,
    samples: int = 16,
    seed: int = 0,
    trust: Sequence[str] | str = (),
) -> Int4Predictor | torch.export.ExportedProgram | torch.onnx.ONNXProgram:
    """Write a trained model as a file that predicts without gpx.

    ``format="int4"`` is for discrete weights (``approx=direct``, ``direct_mixture``,
    ``direct_logistic`` and ``direct_network``): C and a NumPy archive beside it. ``output`` holds
    tables and ``void gpx_predict(const float *x, float *mean, float *variance)`` in plain C99 that
    includes and links nothing; the archive of the same name and the ending ``.npz`` is read by
    ``Int4Predictor.load``, whose predictions the function reproduces::

        predictor = gpx.export("outputs/...", "model.c", samples=16)
        predictor.size(), predictor.predict(inputs)

    Tables have the functions of Fourier bases, of grids, of the Laplacian and of stationary kernels
    at centres. Of another basis, such as one of your own, C has the weights alone:
    ``gpx_predict_features`` takes the values of the functions ``predictor.form.columns``, which in
    gpx are ``posterior.basis(x)[:, columns]`` at standardised x. Of two classes the mean is the
    probability of the second.

    ``format="torch"`` is for posteriors with inducing points, weights of basis functions,
    structured interpolation, nearest rows or all the data: a program that needs torch alone, from
    inputs (n, d), float64, to the mean and the standard deviation of a new observation, both in the
    data's own units, for any n >= 1; its memory grows with n::

        gpx.export("outputs/...", "model.pt2", format="torch")
        mean, std = torch.export.load("model.pt2").module()(x)

    ``format="onnx"`` is the same for any runtime that reads ONNX, with triangular factors inverted,
    which ONNX cannot solve with (``pip install 'gpx-torch[onnx]'``)::

        gpx.export("outputs/...", "model.onnx", format="onnx")
        mean, std = onnxruntime.InferenceSession("model.onnx").run(None, {"x": x})

    Args:
        model: a run folder, or what ``gpx.load`` or ``gpx.fit`` gave.
        output: path of the file.
        format: see above; None: the one that ``output`` has the ending of, ``.c``, ``.pt2`` or
            ``.onnx``.
        samples, seed: of int4, as for ``int4_predictor``.
        trust: as for ``gpx.load``.

    Raises:
        ConfigError: another format, ``output`` has not its ending, or as for ``int4_predictor``,
            ``torch_program`` and ``onnx_program``.
        BackendUnavailable: as for ``onnx_program``.
        CheckpointError: as for ``gpx.load``.
    """
    if format is None:
        format = _format_of(output)
    path = output_path(output, format)
    if isinstance(model, Fitted):
        model = model.model
    predictor = model if isinstance(model, Predictor) else load(model, trust=trust)
    if format == "torch":
        program = torch_program(predictor)
        content = BytesIO()  # torch's archive writer ends the process where a disk is full
        with warnings.catch_warnings():
            # a state that is a part of a larger array is written with all of that
            warnings.filterwarnings("ignore", message="No complete tensor found")
            torch.export.save(program, content)
        with atomic_file(path) as file:
            file.write(content.getbuffer())
        return program
    if format == "onnx":
        written = onnx_program(predictor)
        with atomic_file(path) as file:
            file.write(written.model_proto.SerializeToString())
        return written
    found = int4_predictor(predictor, samples=samples, seed=seed)
    found.save(path.with_suffix(".npz"))
    with atomic_file(path) as file:
        file.write(found.c_source().encode())
    return found


def _format_of(output: str | Path) -> Format:
    """The format whose files have the ending of ``output``."""
    for name in get_args(Format):
        if Path(output).suffix == ENDINGS[name][1]:
            found: Format = name
            return found
    endings = ", ".join(f"{ending} ({name})" for name, (_, ending) in ENDINGS.items())
    raise ConfigError(f"output={output}: its ending says the format, one of {endings}")


def output_path(output: str | Path, format: Format) -> Path:
    """The file of a format; raises ConfigError for another format, or a name without its ending."""
    if format not in get_args(Format):
        raise ConfigError(f"format={format}: expected {' or '.join(get_args(Format))}")
    path, (what, ending) = Path(output).expanduser(), ENDINGS[format]
    if path.suffix != ending:
        raise ConfigError(
            f"output={output}: format={format} {what}, name it with the ending {ending}"
        )
    return path
