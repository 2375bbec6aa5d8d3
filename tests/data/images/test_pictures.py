"""Folders of pictures, one folder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from prediction_inputs import read_inputs

from gpx.data import ImageFiles, load
from gpx.data.images.pixels import pixel_names
from gpx.errors import DataError

DRAWS = np.random.default_rng(0)


def pictures(folder: Path, count: int = 12, shape: tuple[int, ...] = (6, 5), first: int = 0):
    """``count`` pictures as PNG files, and their pixels."""
    folder.mkdir(parents=True)
    pixels = DRAWS.integers(0, 256, (count, *shape), dtype=np.uint8)
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(folder / f"{first + number:03}.png")
    return pixels


def test_every_folder_is_a_class_in_the_order_of_their_names(tmp_path: Path) -> None:
    dogs, cats = pictures(tmp_path / "dog"), pictures(tmp_path / "cat", 9)
    (tmp_path / "cat" / "readme.txt").write_text("no picture")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "cat" / "._000.png").write_bytes(b"attributes that macOS puts beside a file")
    table = ImageFiles(str(tmp_path)).table()
    assert table.class_names == ("cat", "dog")
    np.testing.assert_array_equal(table.y, [0.0] * 9 + [1.0] * 12)
    np.testing.assert_array_equal(table.x, np.concatenate([cats, dogs]).reshape(21, 30))
    assert table.input_names[:6] == (*(f"pixel0_{k}" for k in range(5)), "pixel1_0")
    assert table.test_masks is None
    data = load(ImageFiles(str(tmp_path)), task="binary")
    assert data.labels == ("cat", "dog")
    assert float(data.train_x.max()) <= 1.0


def test_parts_for_training_and_for_tests(tmp_path: Path) -> None:
    for part, count in (("train", 7), ("test", 3)):
        for name in "ab":
            pictures(tmp_path / part / name, count)
    table = ImageFiles(str(tmp_path)).table()
    assert table.test_masks is not None
    np.testing.assert_array_equal(table.test_masks[:, 0], [False] * 14 + [True] * 6)


def test_grey_pictures_among_coloured_ones_become_coloured(tmp_path: Path) -> None:
    grey, coloured = pictures(tmp_path / "grey", 2), pictures(tmp_path / "red", 2, (6, 5, 3))
    seen = pictures(tmp_path / "seen through", 2, (6, 5, 4))  # with opacity, which is left out
    x = ImageFiles(str(tmp_path)).table().x.reshape(6, 3, 6, 5)
    for channel in range(3):
        np.testing.assert_array_equal(x[:2, channel], grey)
        np.testing.assert_array_equal(x[2:4, channel], coloured[..., channel])
        np.testing.assert_array_equal(x[4:, channel], seen[..., channel])


def test_a_record_is_of_names_and_contents(tmp_path: Path) -> None:
    pictures(tmp_path / "set" / "a", 3), pictures(tmp_path / "set" / "b", 3)
    source = ImageFiles("set", root=str(tmp_path))
    before = source.table().checksums
    assert list(before) == ["set"]
    assert source.table().checksums == before
    (tmp_path / "set" / "a" / "000.png").rename(tmp_path / "set" / "b" / "100.png")
    assert source.table().checksums != before


def test_pictures_to_predict(tmp_path: Path) -> None:
    coloured = pictures(tmp_path / "in" / "more", 2, (6, 5, 3))
    grey = pictures(tmp_path / "in" / "again", 1)
    names = pixel_names((3, 6, 5))
    (tmp_path / "in" / "more" / "._000.png").write_bytes(b"no picture")
    pictures(tmp_path / "in" / ".cache", 1)
    x = read_inputs(tmp_path / "in", names).reshape(3, 3, 6, 5)
    np.testing.assert_array_equal(x[0], np.repeat(grey, 3, 0))
    np.testing.assert_array_equal(x[1:], np.moveaxis(coloured, -1, 1))
    with pytest.raises(DataError, match=r"more/000\.png is in colour"):
        read_inputs(tmp_path / "in", pixel_names((6, 5)))
    with pytest.raises(DataError, match="images of 5 x 5 pixels with 3 channels"):
        read_inputs(tmp_path / "in", pixel_names((3, 5, 5)))
    one_channel = read_inputs(tmp_path / "in" / "again", pixel_names((1, 6, 5)))
    np.testing.assert_array_equal(one_channel, grey.reshape(1, -1))
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none has no pictures"):
        read_inputs(tmp_path / "none", names)
    with pytest.raises(DataError, match="is a folder, expected a file"):
        read_inputs(tmp_path / "in", ["a", "b"])


def broken(folder: Path) -> None:
    (folder / "a" / "000.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")


def cut_short(folder: Path) -> None:
    file = folder / "a" / "000.png"
    file.write_bytes(file.read_bytes()[:-30])


def of_too_many_pixels(folder: Path) -> None:
    file = folder / "a" / "000.bmp"
    Image.fromarray(np.zeros((6, 5), np.uint8)).save(file)
    content = bytearray(file.read_bytes())
    content[18:26] = np.array([20_000, 20_000], "<i4").tobytes()  # width and height
    file.write_bytes(content)


def of_another_depth(folder: Path) -> None:
    Image.fromarray(np.zeros((6, 5), np.uint16)).save(folder / "b" / "000.png")


def without_a_class(folder: Path) -> None:
    (folder / "aa").mkdir()


def of_another_size(folder: Path) -> None:
    Image.fromarray(np.zeros((6, 6), np.uint8)).save(folder / "b" / "000.png")


def without_tests(folder: Path) -> None:
    pictures(folder / "train" / "a")


def with_an_empty_part(folder: Path) -> None:
    without_tests(folder)
    (folder / "test" / "a").mkdir(parents=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (broken, "a/000.png cannot be read as a picture"),
        (cut_short, "a/000.png cannot be read as a picture"),
        (of_too_many_pixels, "a/000.bmp cannot be read as a picture"),
        (of_another_depth, "a/000.png of 8 bits and b/000.png of 16; bring them to one depth"),
        (without_a_class, "class 'aa' has no pictures; remove its folder"),
        (of_another_size, "a/000.png of 6 x 5 and b/000.png of 6 x 6 pixels; bring them to one"),
        (without_tests, "has a folder train and none of test"),
        (with_an_empty_part, "test has no pictures; expected a folder for each class"),
    ],
)
def test_pictures_that_do_not_fit(tmp_path: Path, spoil, message: str) -> None:
    for name in "ab":
        pictures(tmp_path / name, 3)
    spoil(tmp_path)
    with pytest.raises(DataError, match=message):
        ImageFiles(str(tmp_path)).table()
