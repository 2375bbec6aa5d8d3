"""The command line of predict.py: a table of inputs in, a table of predictions out."""

from __future__ import annotations

import sys
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from gpx.data import read_inputs, write_predictions, write_table
from gpx.errors import ConfigError, GPXError
from gpx.training.config import CONFIGS
from gpx.training.console import print_error, warnings_as_lines
from gpx.training.option_names import option_names
from gpx.training.options import read_options
from gpx.training.predictor import finished_predictor
from gpx.training.run_folder import RunFolder
from gpx.training.trust import trusted_packages

USAGE = """\
Predict with a trained model.

    python predict.py run=outputs/... input=new.csv output=predictions.csv

OPTIONS
  run=FOLDER      run folder of a finished run (what train.py wrote)
  input=FILE      table of inputs: columns as in training, with or without a header line;
                  with a header the order is free and other columns are ignored
  output=FILE     where to write; one row per input row: mean, standard deviation and
                  95 % interval of the target (of each, where there are several), in the
                  data's own units; for classes the most probable label and the probability
                  of each
  device=cpu      cpu | cuda | auto
  trust=PACKAGE   build classes of this package of yours too (several: a,b), where the run has some;
                  without it, only classes of gpx
"""
OPTIONS = ("run", "input", "output", "device", "trust")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``predict.py``; mistakes give one line and exit status 2."""
    warnings_as_lines()
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or any(a in ("--help", "-h") for a in arguments):
        print(USAGE)
        return
    try:
        options = read_options(arguments, OPTIONS, required=OPTIONS[:3], script="predict.py")
        source, output = Path(options["input"]).expanduser(), Path(options["output"]).expanduser()
        if output.exists() and source.exists() and output.samefile(source):
            raise ConfigError(
                f"output={output} is the file of input=, which predictions would replace: choose "
                "another name"
            )
        trust = trusted_packages(options["trust"]) if "trust" in options else ()
        folder = RunFolder(options["run"])
        config = folder.read_config(trust)
        with option_names(config, CONFIGS):
            predictor = finished_predictor(folder, config, options.get("device", "cpu"))
            inputs = read_inputs(source, predictor.input_names)
            if predictor.labels:
                label, probability = predictor.predict_classes(inputs)
                names = [f"probability_{value:g}" for value in predictor.labels]
                write_table(output, ["label", *names], [label, *probability.T])
            else:
                write_predictions(output, *predictor.predict(inputs), predictor.target_names)
    except (GPXError, OmegaConfBaseException) as error:
        print_error(error)
        sys.exit(2)
    except OSError as error:
        print_error(f"{error.filename or 'file'}: {error.strerror or error}")
        sys.exit(2)
    print(f"{len(inputs)} predictions written to {options['output']}", file=sys.stderr)
