"""MNIST digits with the parity of the digit as label, read from the original IDX files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from gpx.data.folders import candidate_folders, find, sha256
from gpx.data.images.idx import read_idx
from gpx.data.source import DataSource
from gpx.data.table import Table
from gpx.errors import ConfigError, DataError

Images = Literal["auto", "all", "test"]
SIDE = 28
PIXEL_RANGE = 255.0


class Part(NamedTuple):
    """One half of MNIST: the names its files go by and how many images of each digit it has."""

    images: tuple[str, ...]
    labels: tuple[str, ...]
    digits: tuple[int, ...]


def _names(stem: str, kind: str) -> tuple[str, ...]:
    return tuple(f"{stem}-{kind}{end}" for end in ("", ".gz"))


PARTS = {
    "train": Part(
        _names("train-images", "idx3-ubyte"),
        _names("train-labels", "idx1-ubyte"),
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    ),
    "test": Part(
        _names("t10k-images", "idx3-ubyte"),
        _names("t10k-labels", "idx1-ubyte"),
        (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
}


class MNISTParity(DataSource):
    """Even (0) or odd (1) digits from 784 pixels, divided by 255 and not standardised.

    Looked for in ``root``, $GPX_DATA and the cache folder, each as ``mnist/``, ``mnist10k/`` and
    the same under ``extra/``; files gzipped or not, nothing is downloaded.

    Args:
        images: ``all``: 60,000 training and 10,000 test images, the published split (split 0);
            ``test``: the 10,000 test images alone, cut into folds as any table, a reduced problem;
            ``auto``: ``all`` where the training files are found, else ``test``, which the notes
            then say.
        split, test_fraction, root, split_seed: as for every source.

    Raises:
        ConfigError: another word for ``images``.
    """

    name = "mnist_parity"
    target_name = "odd"
    about = "parity of the digit; pixels / 255, neither centred nor standardised"

    def __init__(
        self,
        images: Images = "auto",
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        if images not in get_args(Images):
            raise ConfigError(f"images={images}: expected one of {', '.join(get_args(Images))}")
        self.images = images

    def table(self) -> Table:
        """All rows.

        Raises:
            DataError: files not found, damaged, or with other digits than MNIST has.
        """
        parts = ["test"] if self.images == "test" else ["train", "test"]
        if self.images == "auto" and not self._files("train"):
            parts = ["test"]
        pixels, digits = [], []
        used: list[Path] = []
        for part in parts:
            files = self._files(part)
            if not files:
                raise DataError(self._missing(part))
            rows, labels = _read(part, *files)
            pixels.append(rows)
            digits.append(labels)
            used += files
        masks, notes = None, self.about
        if len(parts) == 2:
            masks = np.zeros((sum(len(p) for p in pixels), 1), dtype=bool)
            masks[len(pixels[0]) :] = True
        else:
            notes += "; reduced: the 10,000 test images only, divided by split="
        return Table(
            name=self.name,
            x=np.concatenate(pixels).astype(np.float64),
            y=self.coded(np.concatenate(digits)),
            input_names=tuple(f"pixel{r}_{c}" for r in range(SIDE) for c in range(SIDE)),
            target_name=self.target_name,
            test_masks=masks,
            notes=notes,
            origin=str(used[0].parent),
            checksums={file.name: sha256(file) for file in used},
            input_unit=PIXEL_RANGE,
        )

    def coded(self, digits: NDArray[np.uint8]) -> NDArray[np.float64]:
        """The target of each digit (n,)."""
        return (digits % 2).astype(np.float64)

    def _folders(self) -> list[Path]:
        return [
            folder
            for name in ("mnist", "mnist10k")
            for folder in candidate_folders(self.root, "extra", name)
        ]

    def _files(self, part: str) -> tuple[Path, Path] | None:
        """Images and labels of one part; None unless both are in one folder."""
        for folder in self._folders():
            images = next((f for n in PARTS[part].images if (f := find([folder], n))), None)
            labels = next((f for n in PARTS[part].labels if (f := find([folder], n))), None)
            if images and labels:
                return images, labels
        return None

    def _missing(self, part: str) -> str:
        wanted = f"{PARTS[part].images[-1]} and {PARTS[part].labels[-1]}"
        hint = "; images=test needs the test images only" if part == "train" else ""
        return (
            f"data set {self.name}: {wanted} (or without .gz) are in none of "
            f"{', '.join(str(f) for f in self._folders())}; put them into one of these, or point "
            f"root= or $GPX_DATA at a folder that holds mnist/{hint}"
        )


def _read(part: str, images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (n, 784) and digits (n,) of one part, checked against what MNIST is known to hold."""
    pixels, digits = read_idx(images, 3), read_idx(labels, 1)
    expected = sum(PARTS[part].digits)
    if pixels.shape != (expected, SIDE, SIDE):
        raise DataError(
            f"{images} holds images {' x '.join(map(str, pixels.shape))}, expected "
            f"{expected} x {SIDE} x {SIDE}; it is not the {part} part of MNIST"
        )
    counts = tuple(int(c) for c in np.bincount(digits, minlength=10))
    if counts != PARTS[part].digits:
        raise DataError(
            f"{labels} holds {len(digits)} labels with {counts} of each digit, expected "
            f"{PARTS[part].digits}; it is not the {part} part of MNIST"
        )
    return pixels.reshape(expected, SIDE * SIDE), digits
