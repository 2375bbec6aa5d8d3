"""MNIST (digits, or their parity), read from the original IDX files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpx.data.folders import candidate_folders, checksums, find
from gpx.data.images.idx import read_idx
from gpx.data.images.pixels import pixel_names
from gpx.data.images.source import ImageSource
from gpx.data.source import DataSource
from gpx.data.table import Table
from gpx.errors import DataError
from gpx.tensor_checks import check_one_of

SUBSETS = ("auto", "all", "test")
SIDE = 28
PIXEL_RANGE = 255.0


class Part(NamedTuple):
    """One part of MNIST: names of its files, and number of images of each digit."""

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


class MNIST(ImageSource):
    """The ten digits of MNIST: 784 pixels, divided by 255 and not standardised.

    Files are looked for in ``root``, $GPX_DATA and the cache folder, as ``mnist/``, ``mnist10k/``
    and the same under ``extra/``, gzipped or not; nothing is downloaded.

    Args:
        subset: ``all``: 60,000 training and 10,000 test images, the published split (split 0);
            ``test``: only the 10,000 test images, divided into folds, a reduced problem; ``auto``:
            ``all`` if the training files are found, otherwise ``test``, with a note.
        train_size, noise, split, test_fraction, root, split_seed: of ``ImageSource``.

    Raises:
        ConfigError: an unknown ``subset``.
    """

    def __init__(
        self,
        subset: str = "auto",
        train_size: int | None = None,
        noise: float = 0.0,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(train_size, noise, split, test_fraction, root, split_seed)
        check_one_of(SUBSETS, subset=subset)
        self.subset = subset

    def images(self) -> Table:
        """All rows; raises DataError if files are missing or damaged."""
        return _digits("mnist", "subset", self.subset, self.root)


class MNISTParity(DataSource):
    """Even (0) or odd (1) digits of MNIST.

    Args:
        images: ``all``, ``test`` or ``auto``, as ``subset`` of ``MNIST``.
        split, test_fraction, root, split_seed: as for every source.

    Raises:
        ConfigError: an unknown value of ``images``.
    """

    def __init__(
        self,
        images: str = "auto",
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        check_one_of(SUBSETS, images=images)
        self.images = images

    def table(self) -> Table:
        """All rows; raises DataError if files are missing or damaged."""
        table = _digits("mnist_parity", "images", self.images, self.root)
        notes = f"parity of the digit; {table.notes}"
        return replace(table, y=table.y % 2.0, target_name="odd", notes=notes)


def _digits(name: str, option: str, subset: str, root: str | None) -> Table:
    """Images and their digits.

    Args:
        name: of the data set.
        option, subset: name and value of the option that selects images.
        root: folder to look in first.

    Raises:
        DataError: files are missing, damaged, or do not hold the digits of MNIST.
    """
    folders = [f for own in ("mnist", "mnist10k") for f in candidate_folders(root, "extra", own)]
    parts = ["test"] if subset == "test" else ["train", "test"]
    if subset == "auto" and not _files(folders, "train"):
        parts = ["test"]
    pixels, digits = [], []
    used: list[Path] = []
    for part in parts:
        files = _files(folders, part)
        if not files:
            wanted = f"{PARTS[part].images[-1]} and {PARTS[part].labels[-1]}"
            hint = f"; {option}=test needs the test images only" if part == "train" else ""
            raise DataError(
                f"data set {name}: {wanted} (or without .gz) are in none of "
                f"{', '.join(map(str, folders))}; put them into one of these, or point "
                f"root= or $GPX_DATA at a folder that holds mnist/{hint}"
            )
        rows, labels = _read(part, *files)
        pixels.append(rows)
        digits.append(labels)
        used += files
    masks, notes = None, "pixels / 255, neither centred nor standardised"
    if len(parts) == 2:
        masks = np.repeat([False, True], [len(p) for p in pixels])[:, None]
    else:
        notes += "; reduced: only the 10,000 test images, divided by split="
    return Table(
        name=name,
        x=np.concatenate(pixels).astype(np.float64),
        y=np.concatenate(digits).astype(np.float64),
        input_names=pixel_names((SIDE, SIDE)),
        target_name="digit",
        test_masks=masks,
        notes=notes,
        origin=str(used[0].parent),
        checksums=checksums(used),
        input_unit=PIXEL_RANGE,
    )


def _files(folders: list[Path], part: str) -> tuple[Path, Path] | None:
    """Files of images and labels of one part; None unless both are in the same folder."""
    for folder in folders:
        images, labels = find([folder], *PARTS[part].images), find([folder], *PARTS[part].labels)
        if images and labels:
            return images, labels
    return None


def _read(part: str, images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (n, 784) and digits (n,) of one part, with a check of the number of each digit."""
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
