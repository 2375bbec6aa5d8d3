"""Images with a class each: handwritten digits that come with the package, IDX files, archives."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpx.data.folders import sha256
from gpx.data.images.idx import read_idx
from gpx.data.images.mnist import PARTS, MNISTParity
from gpx.data.images.pixels import channels_first, pixel_names
from gpx.data.source import DataSource, Rows, check_seed
from gpx.data.table import Floats, Mask, Table
from gpx.data.tables.npz_file import read_array
from gpx.errors import ConfigError, DataError, ShapeError
from gpx.tensor_checks import check_at_least, check_not_negative

DIGITS = Path(__file__).with_name("digits.csv.gz")
DIGITS_SIDE, DIGITS_RANGE = 8, 16.0
BYTE_RANGE = 255.0


def balanced_rows(classes: Floats, rows: Rows, size: int, seed: int, where: str) -> Rows:
    """``size`` of ``rows``, as many of each class as of any other, give or take one; ascending.

    Args:
        classes (n,): of all rows.
        rows (r,): to choose from.
        size: how many.
        seed: of the choice; the smaller of two choices of one seed is part of the larger.
        where: what the rows are of, for messages.

    Raises:
        DataError: a class has too few rows for that.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    found, inverse = np.unique(classes[rows], return_inverse=True)
    order, offset = rng.permutation(len(rows)), rng.permutation(len(found))
    rank = np.empty(len(rows), dtype=np.int64)
    for number in range(len(found)):
        own = order[inverse[order] == number]
        rank[own] = np.arange(len(own)) * len(found) + offset[number]
    chosen = np.argsort(rank)[:size]
    if size > len(rows) or size < len(found) or rank[chosen].max() >= size:
        counts = np.bincount(inverse)
        least = int(counts.argmin())
        raise DataError(
            f"{where}: train_size={size} asks for {size / len(found):.4g} images of each of "
            f"{len(found)} classes, of which class {found[least]:g} has {counts[least]} in the "
            f"training part; choose train_size= from {len(found)} to "
            f"{int(counts.min()) * len(found)}"
        )
    return np.sort(rows[chosen])


class ImageSource(DataSource):
    """Images as rows of pixels, row by row and channel after channel, divided by their range.

    A subclass writes ``images``.

    Args:
        train_size: a class-balanced subset of the training part; None takes all of it.
        noise: standard deviation of normal noise that is added to every pixel, where 1 is the range
            of the pixels; the same for every size and split.
        split, test_fraction, root, split_seed: as for every source; ``split_seed`` is also that of
            the subset and of the noise.

    Raises:
        ConfigError: a subset of fewer than two, or negative noise.
    """

    form = "images"

    def __init__(
        self,
        train_size: int | None = None,
        noise: float = 0.0,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        check_seed("split_seed", split_seed)
        check_at_least(2, train_size=train_size)
        check_not_negative(noise=noise)
        self.train_size, self.noise = train_size, noise

    def images(self) -> Table:
        """All images, without noise."""
        raise NotImplementedError

    def table(self) -> Table:
        """All images; raises DataError where they cannot be had."""
        table = self.images()
        if not self.noise:
            return table
        rng = np.random.Generator(np.random.PCG64([self.split_seed, 1]))
        unit = table.input_unit or 1.0
        return dataclasses.replace(
            table, x=table.x + self.noise * unit * rng.standard_normal(table.x.shape)
        )

    def split_rows(self, table: Table) -> tuple[Rows, Rows]:
        """As for every source; of the training rows the subset.

        Raises:
            DataError: also where a class has no training rows, or too few for the subset.
        """
        train, test = super().split_rows(table)
        missing = np.setdiff1d(table.y, table.y[train])
        if len(missing):
            raise DataError(
                f"{table.where}: class {missing[0]:g} has no training rows in split {self.split}, "
                "so nothing can be learned about it; choose another split= or add images of it"
            )
        if self.train_size is not None:
            train = balanced_rows(table.y, train, self.train_size, self.split_seed, table.where)
        return train, test


class Digits(ImageSource):
    """1,797 handwritten digits of 8 x 8 pixels with values 0 to 16, part of the package.

    The test part of the optical recognition set of E. Alpaydin and C. Kaynak (UCI, CC BY 4.0), in
    the file that scikit-learn ships. Options: ``ImageSource``.
    """

    name = "digits"

    def images(self) -> Table:
        """All rows."""
        with gzip.open(DIGITS, "rt", encoding="ascii") as file:
            numbers = np.loadtxt(file, delimiter=",")
        return Table(
            name=self.name,
            x=np.ascontiguousarray(numbers[:, :-1]),
            y=numbers[:, -1].copy(),
            input_names=pixel_names((DIGITS_SIDE, DIGITS_SIDE)),
            target_name="digit",
            notes="8 x 8 pixels / 16, neither centred nor standardised",
            origin=str(DIGITS),
            checksums={DIGITS.name: sha256(DIGITS)},
            input_unit=DIGITS_RANGE,
        )


class MNIST(ImageSource):
    """The ten digits of MNIST; files, folders and ``subset`` as for ``MNISTParity`` (``images``).

    Args:
        subset: ``all``, ``test`` or ``auto``.
        train_size, noise, split, test_fraction, root, split_seed: of ``ImageSource``.
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
        self.files = _MNISTDigits(subset, root=root)  # type: ignore[arg-type]

    def images(self) -> Table:
        """All rows; raises DataError where files are missing or damaged."""
        return self.files.table()


class _MNISTDigits(MNISTParity):
    """MNIST with the digit as target."""

    name = "mnist"
    target_name = "digit"
    about = "pixels / 255, neither centred nor standardised"

    def coded(self, digits: NDArray[np.uint8]) -> Floats:
        """The digits themselves."""
        return digits.astype(np.float64)


class _Part(NamedTuple):
    pixels: Floats
    classes: Floats


class ImageFiles(ImageSource):
    """Images of your own: a folder of IDX files by MNIST's names, or a NumPy archive.

    An archive has arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or ``x`` and ``y``,
    which are cut into folds; x (n, h, w), (n, h, w, c) or (n, c, h, w) with one or three channels.
    A folder has ``train-images-idx3-ubyte`` and ``train-labels-idx1-ubyte``, and the same with
    ``t10k`` for the published test part, gzipped or not; other sets that come in this form
    (Fashion-MNIST, KMNIST, NOT-MNIST) will do.

    Args:
        path: folder or .npz file; a relative one is looked for in ``root`` where that is given.
        pixel_range: what pixels are divided by; None: 255, or 1 where no pixel is above 1.
        train_size, noise, split, test_fraction, root, split_seed: of ``ImageSource``.
    """

    def __init__(
        self,
        path: str,
        pixel_range: float | None = None,
        train_size: int | None = None,
        noise: float = 0.0,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(train_size, noise, split, test_fraction, root, split_seed)
        if pixel_range is not None and not pixel_range > 0.0:
            raise ConfigError(f"pixel_range={pixel_range} must be above 0")
        self.path, self.pixel_range = path, pixel_range

    def images(self) -> Table:
        """All rows.

        Raises:
            DataError: files or arrays are missing or damaged, or images and labels of different
                numbers or sizes.
        """
        path = Path(self.root or ".", self.path).expanduser()
        if not path.exists():
            raise DataError(f"{path} does not exist; path= is a folder of IDX files or a .npz file")
        parts, used = _folder(path) if path.is_dir() else (_archive(path), [path])
        shapes = {part.pixels.shape[1:] for part in parts}
        if len(shapes) != 1:
            raise DataError(
                f"{path} has images of different sizes: "
                f"{' and '.join(' x '.join(map(str, s)) for s in sorted(shapes))}; "
                "bring them to one size first"
            )
        masks: Mask | None = None
        if len(parts) == 2:
            masks = np.repeat([False, True], [len(part.pixels) for part in parts])[:, None]
        pixels = np.concatenate([part.pixels for part in parts])
        unit = self.pixel_range
        if unit is None:
            unit = BYTE_RANGE if pixels.max() > 1.0 else 1.0
        return Table(
            name=path.name.removesuffix(".npz"),
            x=pixels.reshape(len(pixels), -1),
            y=np.concatenate([part.classes for part in parts]),
            input_names=pixel_names(pixels.shape[1:]),
            target_name="class",
            test_masks=masks,
            notes=f"{' x '.join(map(str, pixels.shape[1:]))} pixels / {unit:g}",
            origin=str(path),
            checksums={file.name: sha256(file) for file in used},
            input_unit=unit,
        )


def _checked(pixels: Floats, classes: Floats, where: str) -> _Part:
    """One part, channels first; raises DataError unless there is one class for every image."""
    try:
        pixels = channels_first(pixels)
    except ShapeError as error:
        raise DataError(f"{where} has {error}") from error
    if not pixels.size or classes.shape != (len(pixels),):
        raise DataError(
            f"{where} has images of shape {pixels.shape} and labels of shape {classes.shape}; "
            "expected some images, and one label for each of them"
        )
    return _Part(np.ascontiguousarray(pixels, np.float64), classes.astype(np.float64))


def _archive(path: Path) -> list[_Part]:
    with np.load(path, allow_pickle=False) as archive:
        names = archive.files
    published = "x_train" in names
    wanted = ("x_train", "y_train", "x_test", "y_test") if published else ("x", "y")
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataError(
            f"{path} has no array {missing[0]!r}, it has {', '.join(names) or 'none'}; an archive "
            "of images has x and y, or x_train, y_train, x_test and y_test"
        )
    ends = ("_train", "_test") if published else ("",)
    return [
        _checked(
            read_array(path, f"x{end}", "path"), read_array(path, f"y{end}", "path"), str(path)
        )
        for end in ends
    ]


def _folder(path: Path) -> tuple[list[_Part], list[Path]]:
    parts, used = [], []
    for part in PARTS.values():
        images = next((path / n for n in part.images if (path / n).is_file()), None)
        labels = next((path / n for n in part.labels if (path / n).is_file()), None)
        if images is None or labels is None:
            raise DataError(
                f"{path} has no {part.images[0] if images is None else part.labels[0]} (gzipped "
                "or not); a folder of images has the four IDX files by MNIST's names"
            )
        pixels, classes = read_idx(images, 3), read_idx(labels, 1)
        parts.append(_checked(pixels.astype(np.float64), classes.astype(np.float64), str(images)))
        used += [images, labels]
    return parts, used
