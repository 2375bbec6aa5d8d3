"""The command line of ``gpx predict``: predict a table of inputs, or export the model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast, get_args

import torch

from gpx.commands.mistakes import answered
from gpx.commands.named_values import asked_rows, asked_run, asked_trust, read_options
from gpx.data import write_predictions, write_table
from gpx.data.columns.column import texts_of
from gpx.data.columns.frame import plain_values
from gpx.data.tables.prediction_input import NewRows
from gpx.errors import ConfigError
from gpx.installation import command
from gpx.options.names import option_names
from gpx.runs.exporting.export import Format, export, output_path
from gpx.runs.exporting.onnx_program import require_packages
from gpx.runs.exporting.torch_program import require_numbers
from gpx.runs.loading import finished_predictor, load
from gpx.runs.predictor import Predictor

USAGE = """\
Predict with a trained model.

    {command} run=outputs/... input=new.csv output=predictions.csv

Export a model of discrete weights (approx=direct, direct_mixture, direct_logistic, direct_network)
as a C function with 4-bit weights that needs no library:

    {command} run=outputs/... format=int4 output=model.c

Export a model with inducing points, basis functions, interpolation or all its data as a program
that needs only torch; then mean, std = torch.export.load("model.pt2").module()(x):

    {command} run=outputs/... format=torch output=model.pt2

OPTIONS
  run=FOLDER      run folder of a finished run
  input=FILE      table of inputs (text, .npz or .parquet), columns as in training, with or without
                  a header line; with a header, columns may be in any order and further ones are
                  ignored; the column of data.id= is copied to the output, and noise variances of
                  data.noise= are added to those of the predictions; for images also a folder of
                  pictures, which are read in the order of their names
  output=FILE     text file (.csv) to write, one row per input row: mean, standard deviation and
                  95 % interval of each target, in the data's own units; for classes the most
                  probable label and the probability of each class
  device=cpu      cpu | cuda | auto
  format=int4     export the model as C, and as a NumPy archive beside it
  format=torch    export the model as a program of torch.export
  format=onnx     export the model as an ONNX program: x -> mean, standard deviation
  samples=16      with format=int4: number of draws of the weights
  seed=0          with format=int4: seed of these draws
  trust=PACKAGE   also accept classes of this package (several: a,b), beside those of gpx
"""
OPTIONS = ("run", "input", "output", "device", "trust")
EXPORT_OPTIONS = ("run", "output", "format", "samples", "seed", "trust")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``gpx predict``."""
    answered("predict", USAGE, _predict, arguments)


def _predict(arguments: list[str]) -> None:
    """Write a table of predictions, or export the model."""
    if any(a.startswith("format=") for a in arguments):
        _export(arguments)
        return
    options = read_options(arguments, OPTIONS, required=OPTIONS[:3], script=command("predict"))
    source, output = Path(options["input"]).expanduser(), Path(options["output"]).expanduser()
    if output.exists() and source.exists() and output.samefile(source):
        raise ConfigError(
            f"output={output} would overwrite the file of input=: choose another name"
        )
    if output.suffix.lower() in (".npy", ".npz", ".parquet", ".xlsx"):
        raise ConfigError(
            f"output={output}: predictions are written as comma-separated text; choose a name that "
            "ends in .csv or .csv.gz"
        )
    _require_folder(output)
    folder, config, device = asked_run(options)
    try:
        with option_names(config):
            predictor = finished_predictor(folder, config, device)
            rows = asked_rows(options, "input", predictor.table_coding)
            _write_predictions(output, predictor, rows)
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"device={device} is out of memory: split {source} into several files, or predict with "
            "device=cpu"
        ) from None
    print(f"{len(rows.frame)} predictions written to {options['output']}", file=sys.stderr)


def _require_folder(output: Path) -> None:
    """Raise ConfigError if the folder of ``output`` does not exist."""
    if not output.parent.is_dir():
        raise ConfigError(f"output={output}: there is no folder {output.parent}; create it first")


def _write_predictions(output: Path, predictor: Predictor, rows: NewRows) -> None:
    """Write the table: the column of data.id= first, then numbers or classes."""
    before = {}
    if predictor.coding is not None and rows.identifiers is not None:
        before[str(predictor.coding.identifier)] = rows.identifiers
    if not predictor.labels:
        predicted = predictor.predict(rows.frame, rows.noise)
        write_predictions(output, *predicted, predictor.target_names, before)
        return
    label, probability = predictor.predict_classes(rows.frame)
    labels, written = (texts_of(plain_values(each, "label")) for each in (predictor.labels, label))
    names = [*before, "label", *(f"probability_{value}" for value in labels)]
    write_table(output, names, [*before.values(), written, *probability.T])


def _export(arguments: list[str]) -> None:
    """Export the model (``format=``), and print its size."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if name in OPTIONS and name not in EXPORT_OPTIONS:
            raise ConfigError(
                f"{name}= cannot be used with format=, which exports the model instead of "
                "predicting: leave it out"
            )
    options = read_options(
        arguments, EXPORT_OPTIONS, required=("run", "output"), script=command("predict")
    )
    if options["format"] not in get_args(Format):
        raise ConfigError(
            f"format={options['format']}: expected int4, torch or onnx; leave it out to predict"
        )
    _require_folder(Path(options["output"]).expanduser())
    trust = asked_trust(options)
    run, output = options["run"], options["output"]
    counts = {name: _count(options, name) for name in ("samples", "seed") if name in options}
    if options["format"] != "int4":
        for name in counts:
            raise ConfigError(f"{name}= belongs to format=int4: leave it out")
        output_path(output, cast(Format, options["format"]))
        if options["format"] == "onnx":
            require_packages()
        model = load(run, trust=trust)
        require_numbers(model, options["format"])
        print(
            f"{output}: tracing the model, which takes seconds, or minutes for a large network",
            file=sys.stderr,
        )
        export(model, output)  # whose ending is that of the format
        what = "program of torch.export" if options["format"] == "torch" else "ONNX program"
        written = Path(output).expanduser().stat().st_size
        print(f"{output}: {what}, {written} bytes", file=sys.stderr)
        return
    samples, seed = counts.get("samples", 16), counts.get("seed", 0)
    size = export(run, output, format="int4", samples=samples, seed=seed, trust=trust).size()
    print(
        f"{output}: {size.functions} of {size.num_basis} functions, {size.total_bytes} bytes, of "
        f"which {size.weight_bytes} are weights (in float32 {size.float_total_bytes}, of which "
        f"{size.float_weight_bytes}), {size.multiply_adds} integer multiply-adds per prediction "
        f"(in float32 {size.float_multiply_adds}); only the mean in float32, without a variance: "
        f"{size.mean_bytes} bytes, {size.mean_multiply_adds} multiply-adds",
        file=sys.stderr,
    )


def _count(options: dict[str, str], name: str) -> int:
    if not options[name].isdecimal():
        raise ConfigError(f"{name}={options[name]}: expected a whole number")
    return int(options[name])
