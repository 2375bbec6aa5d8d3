"""Tables in the files that their archives publish: Abalone, kin8nm and a power plant."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpx.cache_folder import cache_folder
from gpx.data.columns.numbers import Floats
from gpx.data.folders import candidate_folders, checksums, find
from gpx.data.sets.download import download
from gpx.data.sets.uci import Pinned
from gpx.data.sets.workbook import first_sheet
from gpx.data.source import DataSource
from gpx.data.table import Table
from gpx.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

SEXES = {"M": "0", "F": "1", "I": "-1"}
"""Of Abalone: male, female, infant."""


def _plain(path: Path) -> Floats:
    """Numbers separated by commas; a first line that holds names is left out."""
    with path.open(encoding="utf-8") as file:
        lines = [line for line in file if line.strip()]
    first = lines[0].split(",")[0].strip() if lines else ""
    try:
        float(first)
    except ValueError:
        lines = lines[1:]
    return np.loadtxt(lines, delimiter=",", ndmin=2)


def _abalone(path: Path) -> Floats:
    """The same with M, F or I in the first column."""
    rows = [line.strip().split(",") for line in path.read_text("utf-8").splitlines()]
    kept = [[SEXES[row[0]], *row[1:]] for row in rows if row[0] in SEXES]
    return np.array(kept, dtype=np.float64)


class OriginalSet(NamedTuple):
    """One of the tables.

    Attributes:
        n: rows.
        columns: names of the inputs, and of the target.
        files: names under which the file is looked for; the first is that of the archive's.
        url: of the archive's file.
        pinned: its size and checksum.
        read: from a file to its numbers.
        archive: where a reader finds it.
        notes: peculiarities of the set.
    """

    n: int
    columns: tuple[str, ...]
    files: tuple[str, ...]
    url: str
    pinned: Pinned
    read: Callable[[Path], Floats]
    archive: str
    notes: str = ""


ORIGINAL_SETS: dict[str, OriginalSet] = {
    "abalone": OriginalSet(
        4177,
        (
            *("sex", "length", "diameter", "height", "whole_weight", "shucked_weight"),
            *("viscera_weight", "shell_weight", "rings"),
        ),
        ("abalone.data", "abalone.csv"),
        "https://archive.ics.uci.edu/ml/machine-learning-databases/abalone/abalone.data",
        Pinned(191_873, "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f"),
        _abalone,
        "UCI data set 1, Abalone",
        "sex is 0 (male), 1 (female) or -1 (infant); the target takes 28 values, so a Gaussian "
        "MNLP rewards spiky noise",
    ),
    "kin8nm": OriginalSet(
        8192,
        (*(f"theta{joint}" for joint in range(1, 9)), "y"),
        ("dataset_2175_kin8nm.arff", "kin8nm.csv"),
        "https://www.openml.org/data/get_csv/3626/dataset_2175_kin8nm.arff",
        Pinned(1_130_529, "7b9bf0301ac936d88122557a151e1ba8f1ebc278fcf46d9f3c6d462debdbc8ad"),
        _plain,
        "OpenML data set 189, kin8nm, as CSV",
        "simulated: distance of the hand of an arm of eight links from a point",
    ),
    "powerplant": OriginalSet(
        9568,
        ("AT", "V", "AP", "RH", "PE"),
        ("CCPP.zip", "Folds5x2_pp.xlsx"),
        "https://archive.ics.uci.edu/ml/machine-learning-databases/00294/CCPP.zip",
        Pinned(3_674_852, "cc7b2a4977c0a44e8221c91d9a7e5746b3c68186cff7e5c61c70af6432b98c7a"),
        first_sheet,
        "UCI data set 294, Combined Cycle Power Plant",
        "41 rows repeat another one; the other sheets of the workbook are the same rows",
    ),
}


class OriginalTable(DataSource):
    """A table in the file that its archive publishes.

    The file is looked for in ``root``, $GPX_DATA and the cache folder (as ``<name>/`` and
    ``uci/<name>/``), and otherwise downloaded to the cache, with a check of size and SHA-256.
    Rows are divided into random folds.

    Args:
        name: one of ``ORIGINAL_SETS``.
        split, test_fraction, root, split_seed: as for every source.
    """

    def __init__(
        self,
        name: str,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        if name not in ORIGINAL_SETS:
            raise ConfigError(f"there is no data set {name!r}; known: {', '.join(ORIGINAL_SETS)}")
        self.name = name
        self.known = ORIGINAL_SETS[name]

    def table(self) -> Table:
        """All rows; downloads a missing file.

        Raises:
            DataError: the file cannot be downloaded, is damaged, or has another size than expected.
        """
        known, file = self.known, self._file()
        try:
            values = known.read(file)
        except ValueError as error:
            raise DataError(f"{file} is damaged ({error}); delete it and fetch it again") from error
        expected = (known.n, len(known.columns))
        if values.shape != expected:
            raise DataError(
                f"{file} holds numbers of shape {values.shape}, expected {expected[0]} rows of "
                f"{expected[1]} columns; fetch it again ({known.archive}: {known.url})"
            )
        return Table(
            name=self.name,
            x=np.ascontiguousarray(values[:, :-1]),
            y=values[:, -1].copy(),
            input_names=known.columns[:-1],
            target_name=known.columns[-1],
            notes=known.notes,
            origin=str(file),
            checksums=checksums([file]),
        )

    def fetch(self, folder: Path) -> list[Path]:
        """Download the file into ``folder/<name>`` if it is missing.

        Returns:
            the file.

        Raises:
            DataError: the file cannot be downloaded or is damaged.
        """
        target = folder / self.name
        return [find([target], *self.known.files) or self._download(target)]

    def _file(self) -> Path:
        folders = candidate_folders(self.root, "uci", self.name)
        found = find(folders, *self.known.files)
        return found or self._download(cache_folder() / "uci" / self.name)

    def _download(self, folder: Path) -> Path:
        known = self.known
        target = folder / known.files[0]
        logger.info("data set %s is not on this machine, downloading", self.name)
        try:
            download(known.url, target, size=known.pinned.size, sha256=known.pinned.sha256)
        except DataError as error:
            raise DataError(
                f"data set {self.name} is not on this machine and could not be downloaded: "
                f"{error}; put {' or '.join(known.files)} ({known.archive}: {known.url}) into "
                f"{folder}, or point root= or $GPX_DATA at a folder that holds {self.name}/ or "
                f"uci/{self.name}/"
            ) from error
        return target
