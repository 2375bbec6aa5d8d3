"""The command line of ``gpx diagnose``: a run folder in, how far to trust it out."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import Tensor

from gpx.commands.mistakes import mistakes_in_one_line
from gpx.commands.named_values import read_options
from gpx.data import Dataset, read_rows
from gpx.data.columns.coding import Coding
from gpx.diagnostics.report import Report
from gpx.errors import CheckpointError, ConfigError
from gpx.installation import command
from gpx.options.build import build
from gpx.options.config import CONFIGS
from gpx.options.names import option_names
from gpx.runs.calibration_report import calibration_report
from gpx.runs.certification import (
    CertifyOptions,
    certify_run,
    chosen_points,
    require_certifiable,
    write_report,
)
from gpx.runs.data import hold_out, load_run_data
from gpx.runs.folder import RunFolder
from gpx.runs.loading import finished_predictor
from gpx.runs.predictor import Predictor
from gpx.runs.trust import require_known_server, trusted_packages
from gpx.runs.watching.console import warnings_as_lines
from gpx.training.device import resolve_device

USAGE = """\
How far a trained model can be trusted. Of every run: how calibrated its predictions of the test
points are, before and after calibrate=. Of runs of approx=sgpr, cglb, svgp or exact with
likelihood=gaussian also what is certain: bounds on the evidence, and on how far predictions are
from exact inference, with a verdict in plain words.

    {command} run=outputs/...
    {command} run=outputs/... elsewhere=others.csv
    {command} run=outputs/... points=new.csv threshold=440

Writes calibration.json and figures/calibration.png (of classes reliability.png) into the run
folder; with a certificate also diagnostics.md, diagnostics.json and figures/diagnostics.png.

OPTIONS
  run=FOLDER      run folder of a finished run
  elsewhere=FILE  table of inputs of another kind: whether predictions are less certain there
  points=FILE     table of inputs to certify, columns as in training, with or without a header line;
                  default: 50 of the test points
  threshold=X     also certify the probability of the target being at least X (its own unit)
  probability=P   and decide, per point, whether that probability is at least P
  level=0.95      probability of the intervals of the target
  products=auto   true: use the whole kernel matrix, n^2 per step, sharp; false: n M^2 and coarse;
                  auto: by the number of training points
  device=cpu      cpu | cuda | auto
  trust=PACKAGE   build classes of this package of yours too (several: a,b), where the run has some;
                  without it, only classes of gpx
"""
CERTIFICATE = ("points", "threshold", "probability", "level", "products")
"""Options that ask for a certificate, which not every run can have."""
FILES = ("points", "elsewhere")
OPTIONS = ("run", "elsewhere", *CERTIFICATE, "device", "trust")
NUMBERS = {"level": "level", "threshold": "threshold", "probability": "least"}
"""Options that are numbers, and what a certificate calls them."""
PRODUCTS = {"auto": None, "true": True, "false": False}


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``gpx diagnose``; mistakes give one line and exit status 2."""
    warnings_as_lines()
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or any(a in ("--help", "-h") for a in arguments):
        print(USAGE.format(command=command("diagnose")))
        return
    with mistakes_in_one_line():
        options = read_options(arguments, OPTIONS, required=("run",), script=command("diagnose"))
        folder = RunFolder(options["run"])
        asked = CertifyOptions(
            products=_products(options.get("products", "auto")),
            **{
                argument: _number(options[name], name)
                for name, argument in NUMBERS.items()
                if name in options
            },
        )
        trust = trusted_packages(options["trust"]) if "trust" in options else ()
        device = options.get("device", "cpu")
        resolve_device(device, "device")  # here, where device= is no option of the run's config
        config = folder.read_config(trust)
        with option_names(config, CONFIGS):
            predictor = finished_predictor(folder, config, device)
            given = {name: _inputs(predictor, options[name]) for name in FILES if name in options}
            data = _training_data(config, folder)
            report, reason = _certificate(
                predictor,
                config,
                data,
                given.get("points"),
                asked,
                needed=any(option in options for option in CERTIFICATE),
            )
            calibration = None
            if data.num_test or report is None or "elsewhere" in options:
                calibration = calibration_report(predictor, data, given.get("elsewhere"))
        if calibration is not None:
            calibration.write(folder)
        if report is not None:
            write_report(report, folder)
    if calibration is None:
        print("there are no test rows to say how calibrated predictions are")
    else:
        print("\n".join(calibration.lines()))
        for name in calibration.figures:
            print(f"figure: {folder.figures / name}.png", file=sys.stderr)
    if report is None:
        print(f"no certificate: {reason}")
    else:
        print(report.sentence())
        print(f"page: {folder.path / 'diagnostics.md'}", file=sys.stderr)


def _certificate(
    predictor: Predictor,
    config: DictConfig,
    data: Dataset,
    points: Tensor | None,
    asked: CertifyOptions,
    *,
    needed: bool,
) -> tuple[Report | None, str]:
    """The certificate at points (t, d), by default of the test rows; or None, and why none.

    Raises:
        ConfigError: there is none, and it is ``needed``.
    """
    try:
        require_certifiable(config)
        if data.sample is not None:
            raise ConfigError(
                "a run on rows in files (data=stream) cannot be certified: a certificate needs all "
                "of them at once; compare its test metrics with those of a run on a part of them"
            )
        points = chosen_points(data) if points is None else points
        return certify_run(predictor, config, data, points, asked), ""
    except ConfigError as error:
        if needed:
            raise
        return None, str(error)


def _inputs(predictor: Predictor, path: str) -> Tensor:
    """Rows of a table as standardised inputs of the model."""
    columns = predictor.coding or Coding.of_numbers(predictor.columns)
    rows = read_rows(Path(path), columns)
    return predictor.scaler.transform_inputs(torch.from_numpy(predictor.coded(rows.frame)))


def _products(text: str) -> bool | None:
    if text not in PRODUCTS:
        raise ConfigError(f"products={text}: choose one of {', '.join(PRODUCTS)}")
    return PRODUCTS[text]


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{name}={text}: expected a number")
    return value


def _training_data(config: DictConfig, folder: RunFolder) -> Dataset:
    """The rows the run was trained and tested on, read again and known to be the same.

    Raises:
        CheckpointError: the data have changed since.
    """
    if config.get("data") is None:
        raise CheckpointError(f"{folder.config} names no data, so nothing can be said about it")
    require_known_server(config, folder.config)
    data = load_run_data(config)
    if folder.read_environment() is None:
        raise CheckpointError(
            f"{folder.environment} is missing, which says what data the run was trained on: "
            "restore it"
        )
    folder.require_same_data({"data_checksums": dict(data.checksums)})
    calibration = build(config, "calibrate")
    return hold_out(data, calibration, config.seed)[0]
