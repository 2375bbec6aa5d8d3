"""``gpx.export``: write a trained model as a file that predicts without gpx."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Literal, get_args, overload

import torch

from gpx.atomic_file import write_atomically
from gpx.errors import ConfigError
from gpx.runs.exporting.int4 import Int4Predictor, int4_predictor
from gpx.runs.exporting.onnx_program import onnx_program
from gpx.runs.exporting.torch_program import torch_program
from gpx.runs.fit import Fitted
from gpx.runs.loading import load
from gpx.runs.predictor import Predictor
from gpx.tensor_checks import check_one_of

Format = Literal["int4", "torch", "onnx"]
ENDINGS = {
    "int4": ("writes C", ".c"),
    "torch": ("writes a program of torch.export", ".pt2"),
    "onnx": ("writes an ONNX program", ".onnx"),
}
"""Description and file ending of each format."""


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

    ``format="int4"`` is for models of discrete weights (``approx=direct``, ``direct_mixture``,
    ``direct_logistic`` and ``direct_network``). ``output`` becomes a C99 file with tables and
    ``void gpx_predict(const float *x, float *mean, float *variance)``, which needs no header and no
    library. A NumPy archive of the same name with the ending ``.npz`` is written beside it;
    ``Int4Predictor.load`` reads it and gives the same predictions::

        predictor = gpx.export("outputs/...", "model.c", samples=16)
        predictor.size(), predictor.predict(inputs)

    The basis functions are in the tables for Fourier bases, grids, the Laplacian and stationary
    kernels at centres. For other bases, such as one of your own, the C file holds only weights, and
    ``gpx_predict_features`` takes values of the functions ``predictor.form.columns``, in gpx
    ``posterior.basis(x)[:, columns]`` at standardised x. For two classes the mean is the
    probability of the second.

    ``format="torch"`` is for posteriors with inducing points, weights of basis functions,
    structured interpolation, nearest neighbours or all the data. The program needs only torch. It
    maps inputs (n, d) in float64, for any n >= 1, to mean and standard deviation of a new
    observation, in the data's own units; its memory grows with n::

        gpx.export("outputs/...", "model.pt2", format="torch")
        mean, std = torch.export.load("model.pt2").module()(x)

    ``format="onnx"`` is the same for any runtime of ONNX (``pip install 'gpx-torch[onnx]'``).
    Triangular factors are inverted, as ONNX has no triangular solve::

        gpx.export("outputs/...", "model.onnx", format="onnx")
        mean, std = onnxruntime.InferenceSession("model.onnx").run(None, {"x": x})

    Args:
        model: a run folder, or the result of ``gpx.load`` or ``gpx.fit``.
        output: path of the file.
        format: see above; None: by the ending of ``output``, ``.c``, ``.pt2`` or ``.onnx``.
        samples, seed: for int4, see ``int4_predictor``.
        trust: as for ``gpx.load``.

    Raises:
        ConfigError: an unknown format, ``output`` has another ending, or as for ``int4_predictor``,
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
        content = BytesIO()  # torch's archive writer aborts the process on a full disk
        with warnings.catch_warnings():
            # torch warns of tensors that are part of a larger array, which is then written
            warnings.filterwarnings("ignore", message="No complete tensor found")
            torch.export.save(program, content)
        write_atomically(path, content.getbuffer())
        return program
    if format == "onnx":
        written = onnx_program(predictor)
        write_atomically(path, written.model_proto.SerializeToString())
        return written
    found = int4_predictor(predictor, samples=samples, seed=seed)
    found.save(path.with_suffix(".npz"))
    write_atomically(path, found.c_source())
    return found


def _format_of(output: str | Path) -> Format:
    """The format with the ending of ``output``."""
    for name in get_args(Format):
        if Path(output).suffix == ENDINGS[name][1]:
            found: Format = name
            return found
    endings = ", ".join(f"{ending} ({name})" for name, (_, ending) in ENDINGS.items())
    raise ConfigError(
        f"output={output}: the ending of the file must say the format, one of {endings}"
    )


def output_path(output: str | Path, format: Format) -> Path:
    """``output`` as a path; raises ConfigError for an unknown format or another file ending."""
    check_one_of(get_args(Format), format=format)
    path, (what, ending) = Path(output).expanduser(), ENDINGS[format]
    if path.suffix != ending:
        raise ConfigError(
            f"output={output}: format={format} {what}, so the file must end in {ending}"
        )
    return path
