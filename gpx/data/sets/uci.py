"""The UCI regression benchmark with its ten published splits."""

from __future__ import annotations

import csv
import logging
import os
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpx.cache_folder import cache_folder
from gpx.data.columns.numbers import numbered_names
from gpx.data.folders import candidate_folders, checksums, find
from gpx.data.sets.download import download
from gpx.data.sets.packed import packed_numbers
from gpx.data.source import DataSource, Rows, require_rows
from gpx.data.table import Table
from gpx.errors import ConfigError, DataError

MASK_FILE = "test_mask.csv.gz"
REVISION = "f0737523712fe66a1640e4b980b927e8490b58eb"
"""Of https://github.com/treforevans/uci_datasets (MIT licence); its files have the checksums of
``uci_sets.csv``."""


class Pinned(NamedTuple):
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


class UCISet(NamedTuple):
    """One data set of the collection.

    Attributes:
        n, d: rows and inputs.
        mask: file of the ten published test masks.
        data: file of the numbers; None for the five largest sets, whose checksums are not known,
            and which are not downloaded.
        parts: names of the files of rows, in order.
        aliases: names used in papers.
        notes: peculiarities of the set.
    """

    n: int
    d: int
    mask: Pinned
    data: Pinned | None = None
    parts: tuple[str, ...] = ("data.csv.gz",)
    aliases: tuple[str, ...] = ()
    notes: str = ""

    @property
    def files(self) -> dict[str, Pinned | None]:
        """Size and checksum of every file of the set, the masks last."""
        return {**dict.fromkeys(self.parts, self.data), MASK_FILE: self.mask}


def _read(file: Path) -> dict[str, UCISet]:
    with file.open(encoding="utf-8", newline="") as lines:
        return {row["name"]: _known(row) for row in csv.DictReader(lines)}


def _known(row: dict[str, str]) -> UCISet:
    mask, data = (
        Pinned(int(row[f"{kind}_size"]), row[f"{kind}_sha256"]) if row[f"{kind}_size"] else None
        for kind in ("mask", "data")
    )
    assert mask is not None  # of every set
    parts, aliases = (tuple(row[column].split()) for column in ("parts", "aliases"))
    return UCISet(int(row["n"]), int(row["d"]), mask, data, parts, aliases, row["notes"])


UCI_SETS: dict[str, UCISet] = _read(Path(__file__).with_name("uci_sets.csv"))

ALIASES: dict[str, str] = {a: name for name, known in UCI_SETS.items() for a in known.aliases}
"""Names in the collection by names used in papers."""


logger = logging.getLogger(__name__)

COLLECTION = f"https://raw.githubusercontent.com/treforevans/uci_datasets/{REVISION}/uci_datasets"
"""Address of the collection; files are ``<COLLECTION>/<name>/<file>``."""

URL_VARIABLE = "GPX_DATA_URL"
"""Environment variable with the address of a mirror."""


def resolve_name(name: str) -> str:
    """Name of a set in the collection, from that name or one used in papers.

    Raises:
        ConfigError: the set is unknown; names the nearest.
    """
    plain = str(name).strip().lower()
    plain = ALIASES.get(plain, plain)
    if plain in UCI_SETS:
        return plain
    near = get_close_matches(plain, [*UCI_SETS, *ALIASES], n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(UCI_SETS)}"
    raise ConfigError(f"there is no UCI data set {name!r}; {hint}")


class UCI(DataSource):
    """One set of the collection ``treforevans/uci_datasets``.

    Files are looked for in ``root``, $GPX_DATA and the cache folder (as ``<name>/`` and
    ``uci/<name>/``), and otherwise downloaded to the cache, with a check of size and SHA-256.

    Args:
        name: as in the collection or as in papers (pol or poletele).
        split: 0 to 9, a column of the published test masks.
        root: folder to look in first.
        base_url: mirror of the collection; default $GPX_DATA_URL, then ``COLLECTION``.
        train_fraction: None: the published splits. Otherwise split k is random, drawn from k and
            ``split_seed``, with this share of training rows, rounded down (0.67 in the comparison
            of CGLB, SGPR and iterative GPs).
        split_seed: see ``train_fraction``.

    Raises:
        ConfigError: ``train_fraction`` is not between 0 and 1.
    """

    def __init__(
        self,
        name: str,
        split: int = 0,
        root: str | None = None,
        base_url: str | None = None,
        train_fraction: float | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(split=split, root=root, split_seed=split_seed)
        if train_fraction is not None and not 0.0 < train_fraction < 1.0:
            raise ConfigError(
                f"train_fraction={train_fraction} is not between 0 and 1; None uses the published "
                "splits"
            )
        self.train_fraction = train_fraction
        self.name = resolve_name(name)
        self.known = UCI_SETS[self.name]
        chosen = base_url or os.environ.get(URL_VARIABLE) or COLLECTION
        self.base_url = chosen.rstrip("/")

    def table(self) -> Table:
        """All rows; downloads missing files.

        Raises:
            DataError: files cannot be downloaded, are damaged, or do not have the published size.
        """
        files = [self._file(file) for file in self.known.files]
        *parts, mask_file = files
        n, d = self.known.n, self.known.d
        values = np.concatenate([packed_numbers(part, d + 1) for part in parts])
        if len(values) != n:
            named = " and ".join(map(str, parts))
            raise DataError(f"{named} hold {len(values)} rows, expected {n}; fetch the files again")
        masks = packed_numbers(mask_file, 10, n)
        return Table(
            name=self.name,
            x=np.ascontiguousarray(values[:, :-1]),
            y=values[:, -1].copy(),
            input_names=numbered_names(d),
            target_name="y",
            test_masks=masks.astype(bool),
            notes=self.known.notes,
            origin=str(parts[0]),
            checksums=self._checksums(files),
        )

    def split_rows(self, table: Table) -> tuple[Rows, Rows]:
        """As in ``DataSource``, or random rows if ``train_fraction`` is given."""
        if self.train_fraction is None:
            return super().split_rows(table)
        if self.split < 0:
            raise DataError(f"split={self.split} does not exist: random splits count from 0")
        rows = len(table.y)
        draws = np.random.Generator(np.random.PCG64([self.split_seed, self.split]))
        order = draws.permutation(rows)
        size = int(self.train_fraction * rows)
        train, test = np.sort(order[:size]), np.sort(order[size:])
        require_rows(table, self.split, train, test)
        return train, test

    def fetch(self, folder: Path) -> list[Path]:
        """Download missing files of the set into ``folder/<name>``.

        Returns:
            the files.

        Raises:
            DataError: files cannot be downloaded or are damaged, or have no known checksum.
        """
        target = folder / self.name
        return [find([target], file) or self._download(file, target) for file in self.known.files]

    def _file(self, file: str) -> Path:
        folders = candidate_folders(self.root, "uci", self.name)
        return find(folders, file) or self._download(file, cache_folder() / "uci" / self.name)

    def _download(self, file: str, folder: Path) -> Path:
        pinned = self.known.files[file]
        url = f"{self.base_url}/{self.name}/{file}"
        files = " and ".join(self.known.files)
        advice = (
            f"put {files} (from {self.base_url}/{self.name}/) into {folder}, or point root= or "
            f"$GPX_DATA at a folder that holds {self.name}/ or uci/{self.name}/"
        )
        if pinned is None:
            raise DataError(
                f"data set {self.name}: {file} is not on this machine, and is not downloaded as "
                f"its checksum is not known; {advice}"
            )
        logger.info("data set %s: %s is not on this machine, downloading", self.name, file)
        try:
            download(url, folder / file, size=pinned.size, sha256=pinned.sha256)
        except DataError as error:
            raise DataError(
                f"data set {self.name}: {file} is not on this machine and could not be "
                f"downloaded: {error}; {advice}"
            ) from error
        return folder / file

    def _checksums(self, files: list[Path]) -> dict[str, str]:
        found = checksums(files)
        for file in files:
            pinned = self.known.files[file.name]
            if pinned is not None and found[file.name] != pinned.sha256:
                logger.warning(
                    "%s differs from the published file (SHA-256 %s..., expected %s...): "
                    "results are not comparable with published ones",
                    file,
                    found[file.name][:12],
                    pinned.sha256[:12],
                )
        return found
