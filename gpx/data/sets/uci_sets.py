"""The UCI regression sets of the Gaussian process literature: sizes, aliases and checksums.

They are listed in ``uci_sets.csv``. Checksums are of the files in the public collection
https://github.com/treforevans/uci_datasets (MIT licence) at ``REVISION``.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

MASK_FILE = "test_mask.csv.gz"
REVISION = "f0737523712fe66a1640e4b980b927e8490b58eb"


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
