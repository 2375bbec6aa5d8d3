"""The command line of ``gpx diagnose``: calibration and certificate of a run."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import torch
from omegaconf import DictConfig
from torch import Tensor

from gpx.commands.mistakes import answered
from gpx.commands.named_values import asked_rows, asked_run, read_options
from gpx.data import Dataset
from gpx.diagnostics.report import Report
from gpx.errors import CheckpointError, ConfigError
from gpx.installation import command
from gpx.likelihoods.row_noise import RowNoise
from gpx.options.build import build
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
from gpx.runs.further_rows import row_noise
from gpx.runs.loading import finished_predictor
from gpx.runs.predictor import Predictor
from gpx.runs.trust import require_known_server
from gpx.tensor_checks import check_one_of

USAGE = """\
Check how far a trained model can be trusted. For every run: calibration of its predictions of the
test points, before and after calibrate=. For runs of approx=sgpr, cglb, svgp or exact with
likelihood=gaussian also a certificate: guaranteed bounds on the evidence, and on the difference of
predictions from exact inference.

    {command} run=outputs/...
    {command} run=outputs/... elsewhere=others.csv
    {command} run=outputs/... points=new.csv threshold=440

Writes calibration.json and figures/calibration.png (reliability.png for classes) into the run
folder; with a certificate also diagnostics.md, diagnostics.json and figures/diagnostics.png.

OPTIONS
  run=FOLDER      run folder of a finished run
  elsewhere=FILE  table of inputs of another kind: check that predictions there are less certain
  points=FILE     table of inputs to certify, columns as in training, with or without a header line;
                  default: 50 of the test points
  threshold=X     also certify the probability that the target is at least X (in its own unit)
  probability=P   with threshold=: decide for each point whether this probability is at least P
  level=0.95      probability of the intervals of the target
  products=auto   true: sharp bounds by products with the kernel matrix, n^2 each; false: coarse
                  bounds in n M^2; auto: by the number of training points
  device=cpu      cpu | cuda | auto
  trust=PACKAGE   also accept classes of this package (several: a,b), beside those of gpx
"""
CERTIFICATE = ("points", "threshold", "probability", "level", "products")
"""Options of the certificate; if one is given and the run cannot have a certificate, it is an
error."""
FILES = ("points", "elsewhere")
OPTIONS = ("run", "elsewhere", *CERTIFICATE, "device", "trust")
NUMBERS = {"level": "level", "threshold": "threshold", "probability": "least"}
"""Numerical options, and their names in ``CertifyOptions``."""
PRODUCTS = {"auto": None, "true": True, "false": False}


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``gpx diagnose``."""
    answered("diagnose", USAGE, _diagnose, arguments)


def _diagnose(arguments: list[str]) -> None:
    """Write the reports of a run, and print what they say."""
    options = read_options(arguments, OPTIONS, required=("run",), script=command("diagnose"))
    certify_options = CertifyOptions(
        products=_products(options.get("products", "auto")),
        **{
            argument: _number(options[name], name)
            for name, argument in NUMBERS.items()
            if name in options
        },
    )
    folder, config, device = asked_run(options)
    with option_names(config):
        predictor = finished_predictor(folder, config, device)
        given = {name: _rows(predictor, options, name) for name in FILES if name in options}
        data = _training_data(config, folder)
        report, reason = _certificate(
            predictor,
            config,
            data,
            given["points"][0] if "points" in given else None,
            certify_options,
            required=any(option in options for option in CERTIFICATE),
        )
        calibration = None
        if data.num_test or report is None or "elsewhere" in options:
            elsewhere = given.get("elsewhere", (None, None))
            calibration = calibration_report(predictor, data, *elsewhere)
    if calibration is not None:
        calibration.write(folder)
    if report is not None:
        write_report(report, folder)
    if calibration is None:
        print("calibration cannot be measured: there are no test rows")
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
    options: CertifyOptions,
    *,
    required: bool,
) -> tuple[Report | None, str]:
    """The certificate at points (t, d), by default of the test rows; or None and the reason.

    Raises:
        ConfigError: the run cannot have a certificate, and it is ``required``.
    """
    try:
        require_certifiable(config, data)
        points = chosen_points(data) if points is None else points
        return certify_run(predictor, config, data, points, options), ""
    except ConfigError as error:
        if required:
            raise
        return None, str(error)


def _rows(
    predictor: Predictor, options: Mapping[str, str], name: str
) -> tuple[Tensor, RowNoise | None]:
    """The rows of a table as standardised inputs of the model, and their known noise."""
    rows = asked_rows(options, name, predictor.table_coding)
    x = predictor.scaler.transform_inputs(torch.from_numpy(predictor.coded(rows.frame)))
    if rows.noise is None:
        return x, None
    return x, row_noise(rows.noise, x, predictor.scaler, predictor.target_transform)


def _products(text: str) -> bool | None:
    check_one_of(PRODUCTS, products=text)
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
    """Read the data of the run again.

    Raises:
        CheckpointError: the data have changed since.
    """
    if config.get("data") is None:
        raise CheckpointError(f"{folder.config} names no data, which diagnose needs")
    require_known_server(config, folder.config)
    data = load_run_data(config)
    if folder.read_environment() is None:
        raise CheckpointError(
            f"{folder.environment} is missing, which holds checksums of the data: restore it"
        )
    folder.require_same_data({"data_checksums": dict(data.checksums)})
    calibration = build(config, "calibrate")
    return hold_out(data, calibration, config.seed)[0]
