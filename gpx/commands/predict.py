"""The command line of ``gpx predict``: a table of inputs in, a table of predictions out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast, get_args

import torch

from gpx.commands.mistakes import mistakes_in_one_line
from gpx.commands.named_values import read_options
from gpx.data import read_rows, write_predictions, write_table
from gpx.data.columns.coding import Coding
from gpx.data.tables.prediction_input import NewRows
from gpx.errors import ConfigError
from gpx.installation import command
from gpx.options.config import CONFIGS
from gpx.options.names import option_names
from gpx.runs.exporting.export import Format, export, output_path
from gpx.runs.folder import RunFolder
from gpx.runs.loading import finished_predictor
from gpx.runs.predictor import Predictor
from gpx.runs.trust import trusted_packages
from gpx.runs.watching.console import warnings_as_lines
from gpx.training.device import resolve_device

USAGE = """\
Predict with a trained model.

    {command} run=outputs/... input=new.csv output=predictions.csv

A model of discrete weights (approx=direct, direct_mixture, direct_logistic, direct_network) as a C
function that needs no library, with weights of 4 bits:

    {command} run=outputs/... format=int4 output=model.c

A model with inducing points, basis functions, interpolation or all its data as a program that torch
alone runs, mean, std = torch.export.load("model.pt2").module()(x):

    {command} run=outputs/... format=torch output=model.pt2

OPTIONS
  run=FOLDER      run folder of a finished run (what train wrote)
  input=FILE      table of inputs (text, .npz or .parquet): columns as in training, with or without
                  a header line; with a header the order is free and other columns are ignored; the
                  column of data.id=, where the table has it, is written beside the predictions, and
                  that of data.noise= adds to their variance
  output=FILE     where to write; one row per input row: mean, standard deviation and
                  95 % interval of the target (of each, where there are several), in the
                  data's own units; for classes the most probable label and the probability
                  of each
  device=cpu      cpu | cuda | auto
  format=int4     write the predictor itself, as C and as a NumPy archive beside it
  format=torch    write the predictor itself, as a program of torch.export
  format=onnx     write the predictor itself, as an ONNX program: x -> mean, standard deviation
  samples=16      with format=int4: draws of the weights
  seed=0          with format=int4: of these draws
  trust=PACKAGE   build classes of this package of yours too (several: a,b), where the run has some;
                  without it, only classes of gpx
"""
OPTIONS = ("run", "input", "output", "device", "trust")
EXPORT_OPTIONS = ("run", "output", "format", "samples", "seed", "trust")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``gpx predict``; mistakes give one line and exit status 2."""
    warnings_as_lines()
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or any(a in ("--help", "-h") for a in arguments):
        print(USAGE.format(command=command("predict")))
        return
    with mistakes_in_one_line():
        if any(a.startswith("format=") for a in arguments):
            _export(arguments)
        else:
            _predict(arguments)


def _predict(arguments: list[str]) -> None:
    """A table of predictions."""
    options = read_options(arguments, OPTIONS, required=OPTIONS[:3], script=command("predict"))
    source, output = Path(options["input"]).expanduser(), Path(options["output"]).expanduser()
    if output.exists() and source.exists() and output.samefile(source):
        raise ConfigError(
            f"output={output} is the file of input=, which predictions would replace: choose "
            "another name"
        )
    _require_folder(output)
    trust = trusted_packages(options["trust"]) if "trust" in options else ()
    folder, device = RunFolder(options["run"]), options.get("device", "cpu")
    resolve_device(device, "device")  # here, where device= is no option of the run's config
    config = folder.read_config(trust)
    try:
        with option_names(config, CONFIGS):
            predictor = finished_predictor(folder, config, device)
            rows = read_rows(source, predictor.coding or Coding.of_numbers(predictor.columns))
            _write_predictions(output, predictor, rows)
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"device={device} is out of memory: split {source} into several files, or predict with "
            "device=cpu"
        ) from None
    print(f"{len(rows.frame)} predictions written to {options['output']}", file=sys.stderr)


def _require_folder(output: Path) -> None:
    """Refuse a file in a folder that is not there, which is mistyped more often than meant."""
    if not output.parent.is_dir():
        raise ConfigError(f"output={output}: there is no folder {output.parent}; make it first")


def _write_predictions(output: Path, predictor: Predictor, rows: NewRows) -> None:
    """The table of predictions; what the rows are called first, then numbers or classes."""
    before = {}
    if predictor.coding is not None and rows.identifiers is not None:
        before[str(predictor.coding.identifier)] = rows.identifiers
    if not predictor.labels:
        predicted = predictor.predict(rows.frame, rows.noise)
        write_predictions(output, *predicted, predictor.target_names, before)
        return
    label, probability = predictor.predict_classes(rows.frame)
    labels = [value if isinstance(value, str) else f"{value:g}" for value in predictor.labels]
    names = [*before, "label", *(f"probability_{value}" for value in labels)]
    write_table(output, names, [*before.values(), label, *probability.T])


def _export(arguments: list[str]) -> None:
    """``format=``: the predictor itself, and a line on its size."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if name in OPTIONS and name not in EXPORT_OPTIONS:
            raise ConfigError(
                f"{name}= does not go with format=, which writes the model and no predictions: "
                "leave it out"
            )
    options = read_options(
        arguments, EXPORT_OPTIONS, required=("run", "output"), script=command("predict")
    )
    if options["format"] not in get_args(Format):
        raise ConfigError(
            f"format={options['format']}: expected int4, torch or onnx, or none for predictions"
        )
    _require_folder(Path(options["output"]).expanduser())
    trust = trusted_packages(options["trust"]) if "trust" in options else ()
    run, output = options["run"], options["output"]
    counts = {name: _count(options, name) for name in ("samples", "seed") if name in options}
    if options["format"] != "int4":
        for name in counts:
            raise ConfigError(f"{name}= belongs to format=int4: leave it out")
        output_path(output, cast(Format, options["format"]))
        print(
            f"{output}: tracing the predictor, which takes seconds; of a large network minutes",
            file=sys.stderr,
        )
        if options["format"] == "torch":
            export(run, output, format="torch", trust=trust)
            what = "a program of torch.export"
        else:
            export(run, output, format="onnx", trust=trust)
            what = "an ONNX program"
        written = Path(output).expanduser().stat().st_size
        print(f"{output}: {what}, {written} bytes", file=sys.stderr)
        return
    samples, seed = counts.get("samples", 16), counts.get("seed", 0)
    size = export(run, output, format="int4", samples=samples, seed=seed, trust=trust).size()
    print(
        f"{output}: {size.functions} of {size.num_basis} functions, "
        f"{size.total_bytes} bytes with {size.weight_bytes} of weights (in float32 "
        f"{size.float_total_bytes} with {size.float_weight_bytes}), {size.multiply_adds} integer "
        f"multiply-adds of weights a prediction (in float32 {size.float_multiply_adds}); the mean "
        f"alone in float32, without a variance: {size.mean_bytes} bytes, "
        f"{size.mean_multiply_adds} multiply-adds",
        file=sys.stderr,
    )


def _count(options: dict[str, str], name: str) -> int:
    if not options[name].isdecimal():
        raise ConfigError(f"{name}={options[name]}: expected a whole number")
    return int(options[name])
