"""Reads the ``name=value`` options of commands, and the run that they name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig

from gpx.data import read_rows
from gpx.data.columns.coding import Coding
from gpx.data.images.pixels import pixel_shape
from gpx.data.tables.prediction_input import NewRows
from gpx.errors import ConfigError
from gpx.runs.folder import RunFolder
from gpx.runs.trust import trusted_packages
from gpx.training.device import resolve_device


def asked_run(options: Mapping[str, str]) -> tuple[RunFolder, DictConfig, str]:
    """Folder and config of the run that ``run=`` names, and the device of ``device=``.

    Raises:
        ConfigError, CheckpointError: there is no such device, run or trusted class.
    """
    device = options.get("device", "cpu")
    resolve_device(device, "device")  # here, as later messages name options of the run
    folder = RunFolder(options["run"])
    return folder, folder.read_config(asked_trust(options)), device


def asked_rows(options: Mapping[str, str], name: str, coding: Coding) -> NewRows:
    """The rows of the table that the option ``name`` names, as ``read_rows`` of ``coding``.

    Raises:
        ConfigError: it is a folder, and the rows are no images.
    """
    path = Path(options[name]).expanduser()
    if path.is_dir() and pixel_shape(coding.names) is None:
        raise ConfigError(f"{name}={options[name]} is a folder, expected a file")
    return read_rows(path, coding)


def asked_trust(options: Mapping[str, str]) -> tuple[str, ...]:
    """The packages of ``trust=``."""
    return trusted_packages(options["trust"]) if "trust" in options else ()


def read_options(
    arguments: Sequence[str], known: Sequence[str], *, required: Sequence[str], script: str
) -> dict[str, str]:
    """Options by name.

    Args:
        arguments: ``name=value``, one each; quotes around a whole value, which ``train.py`` needs
            where there are spaces, are left out.
        known, required: names that may be given, and those that must be.
        script: command whose ``--help`` messages refer to.

    Raises:
        ConfigError: an option is unknown, missing, without a value or given twice.
    """
    options: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if value[:1] in ("'", '"') and value.count(value[0]) == 2 and value[-1] == value[0]:
            value = value[1:-1]
        if name in known and not value:
            raise ConfigError(f"{name}= has no value; write {name}=... ({script} --help)")
        if not equals or name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}=?" if near else f"valid are: {', '.join(known)}"
            raise ConfigError(f"cannot read {argument!r}; {hint} ({script} --help)")
        if name in options:
            raise ConfigError(f"{name}= is given twice: {name}={options[name]} and {argument}")
        options[name] = value
    for name in required:
        if name not in options:
            raise ConfigError(f"{name}= is missing ({script} --help)")
    return options
