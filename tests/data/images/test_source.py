from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from gpx.data import MNIST, Digits, ImageFiles, load
from gpx.data.images.source import balanced_rows
from gpx.errors import ConfigError, DataError


def test_digits_come_with_the_package() -> None:
    data = load(Digits(), task="multiclass")
    assert (data.num_train + data.num_test, data.num_inputs, data.num_classes) == (1797, 64, 10)
    assert float(data.train_x.min()) == 0.0
    assert float(data.train_x.max()) == 1.0  # divided by their range, not standardised
    counts = np.bincount(np.concatenate([data.train_y, data.test_y]).astype(int))
    np.testing.assert_array_equal(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])


def test_they_are_those_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_digits(return_X_y=True)
    table = Digits().table()
    np.testing.assert_array_equal(table.x, x)
    np.testing.assert_array_equal(table.y, y)


@pytest.mark.parametrize("size", [10, 57, 1000])
def test_subsets_are_balanced_and_grow(size: int) -> None:
    source, whole = Digits(train_size=size), Digits()
    table = source.table()
    train, test = source.split_rows(table)
    assert len(train) == size
    counts = np.bincount(table.y[train].astype(int))
    assert counts.max() - counts.min() <= 1
    assert set(train) <= set(whole.split_rows(table)[0])
    np.testing.assert_array_equal(test, whole.split_rows(table)[1])
    more, _ = Digits(train_size=size + 20).split_rows(table)
    assert set(train) <= set(more)
    other, _ = Digits(train_size=size, split_seed=1).split_rows(table)
    assert set(other) != set(train)


def test_a_class_with_too_few_images_is_named() -> None:
    with pytest.raises(DataError, match=r"needs 179.7 images of each of 10 .* choose train_size"):
        Digits(train_size=1797, test_fraction=0.5).split_rows(Digits().table())
    classes = np.repeat([0.0, 1.0], [50, 3])
    with pytest.raises(DataError, match=r"and class 1 has 3 in the training part.*from 2 to 6"):
        balanced_rows(classes, np.arange(53), 10, 0, "here")
    assert len(balanced_rows(classes, np.arange(53), 6, 0, "here")) == 6


def test_noise_is_in_units_of_the_range_of_pixels() -> None:
    clean, noisy = Digits().table(), Digits(noise=0.5).table()
    gap = (noisy.x - clean.x) / 16.0
    # 115,008 normals: the standard error of their deviation is 0.001, so 5 of them
    assert abs(gap.std() - 0.5) < 0.0053
    assert np.array_equal(noisy.x, Digits(noise=0.5).table().x)


def test_options_out_of_range() -> None:
    with pytest.raises(ConfigError, match="train_size=1 must be at least 2"):
        Digits(train_size=1)
    with pytest.raises(ConfigError, match=r"noise=-0\.1"):
        Digits(noise=-0.1)
    with pytest.raises(ConfigError, match="pixel_range=0 must be positive"):
        ImageFiles("x.npz", pixel_range=0)


def write_idx(path: Path, values: np.ndarray, *, zipped: bool = False) -> None:
    sizes = b"".join(int(n).to_bytes(4, "big") for n in values.shape)
    data = bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if zipped else data)


def folder(path: Path, side: int = 4) -> Path:
    for stem, count, width in (("train", 12, 4), ("t10k", 6, side)):
        pixels = np.arange(count * 4 * width).reshape(count, 4, width) % 256
        write_idx(path / f"{stem}-images-idx3-ubyte.gz", pixels, zipped=True)
        write_idx(path / f"{stem}-labels-idx1-ubyte", np.arange(count) % 3)
    return path


def test_a_folder_of_idx_files(tmp_path: Path) -> None:
    data = load(ImageFiles(str(folder(tmp_path))), task="multiclass")
    assert (data.num_train, data.num_test, data.num_inputs, data.num_classes) == (12, 6, 16, 3)
    assert float(data.train_x[0, 5]) == pytest.approx(5 / 255)
    assert len(data.checksums) == 4
    small = load(ImageFiles(str(tmp_path), train_size=6), task="multiclass")
    assert np.bincount(small.train_y.int()).tolist() == [2, 2, 2]


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="images of different sizes: 4 x 4 and 4 x 5"):
        ImageFiles(str(folder(tmp_path, 5))).table()
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="has no t10k-labels-idx1-ubyte"):
        ImageFiles(str(tmp_path)).table()
    with pytest.raises(DataError, match="does not exist; path= is a folder of pictures"):
        ImageFiles("nowhere", root=str(tmp_path)).table()


def test_archives(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).uniform(0, 255, (8, 5, 4, 3))
    labels = np.arange(8) % 2
    file = tmp_path / "a.npz"
    np.savez(file, x_train=colours, y_train=labels, x_test=colours[:4], y_test=labels[:4])
    table = ImageFiles(str(file)).table()
    assert table.x.shape == (12, 60)
    # channel after channel
    np.testing.assert_array_equal(table.x[1].reshape(3, 5, 4), np.moveaxis(colours[1], -1, 0))
    assert table.input_names[0] == "pixel0_0_0"
    np.savez(file, x=colours[..., 0], y=labels)
    assert ImageFiles(str(file), test_fraction=0.5).table().x.shape == (8, 20)
    np.savez(file, x=colours, y=labels[:3])
    with pytest.raises(DataError, match=r"images of shape \(8, 3, 5, 4\) and labels of shape \(3,"):
        ImageFiles(str(file)).table()
    np.savez(file, y=labels)
    with pytest.raises(DataError, match="has no array 'x'"):
        ImageFiles(str(file)).table()
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(DataError, match=r"a.npz is not a NumPy archive or is damaged"):
        ImageFiles(str(file)).table()


def test_the_range_of_pixels_follows_from_them(tmp_path: Path) -> None:
    file, labels = tmp_path / "a.npz", np.arange(8) % 2
    for top, unit in ((1.0, 1.0), (255.0, 255.0), (16.0, 255.0)):
        pixels = top * np.linspace(0.0, 1.0, 32).reshape(8, 2, 2)
        np.savez(file, x=pixels, y=labels)
        assert ImageFiles(str(file)).table().input_unit == unit
        assert ImageFiles(str(file), pixel_range=16.0).table().input_unit == 16.0


def test_a_class_without_training_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    pixels = np.zeros((6, 2, 2))
    np.savez(file, x_train=pixels, y_train=np.arange(6) % 2, x_test=pixels, y_test=np.arange(6) % 3)
    source = ImageFiles(str(file))
    with pytest.raises(DataError, match="class 2 has no training rows in split 0"):
        source.split_rows(source.table())


def test_mnist_has_ten_digits() -> None:
    try:
        data = load(MNIST("test", train_size=100), task="multiclass")
    except DataError:
        pytest.skip("the files of MNIST are not at hand")
    assert (data.num_train, data.num_inputs, data.num_classes) == (100, 784, 10)
    assert np.bincount(data.train_y.int()).tolist() == [10] * 10
