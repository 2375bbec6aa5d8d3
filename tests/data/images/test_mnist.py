from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from gpx.data import MNIST, MNISTParity, load
from gpx.data.images import mnist
from gpx.errors import ConfigError, DataError

SMALL = {"train": (6, 7, 6, 6, 6, 5, 6, 6, 6, 6), "test": (1, 1, 1, 1, 1, 1, 1, 1, 1, 1)}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """MNIST with 60 and 10 images, and nothing but ``root`` to look in."""
    monkeypatch.setattr(
        mnist, "PARTS", {k: v._replace(digits=SMALL[k]) for k, v in mnist.PARTS.items()}
    )


def idx(values: np.ndarray) -> bytes:
    sizes = b"".join(int(n).to_bytes(4, "big") for n in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def write(folder: Path, part: str, *, zipped: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.repeat(np.arange(10), SMALL[part])
    images = np.zeros((len(labels), 28, 28))
    images[:, 0, 0] = labels * 25
    for values, names in ((images, mnist.PARTS[part].images), (labels, mnist.PARTS[part].labels)):
        data = idx(values)
        (folder / names[int(zipped)]).write_bytes(gzip.compress(data) if zipped else data)


@pytest.mark.parametrize("zipped", [False, True])
def test_all_images_in_the_published_split(small: None, tmp_path: Path, zipped: bool) -> None:
    for part in SMALL:
        write(tmp_path / "mnist", part, zipped=zipped)
    data = load(MNISTParity(root=str(tmp_path)), task="binary")
    assert (data.num_train, data.num_test, data.num_inputs) == (60, 10, 784)
    digits = np.repeat(np.arange(10), SMALL["train"])
    np.testing.assert_array_equal(data.train_y.numpy(), np.where(digits % 2, 1.0, -1.0))
    np.testing.assert_allclose(data.train_x[:, 0].numpy(), digits * 25 / 255)  # not standardised
    np.testing.assert_allclose(data.scaler.original_inputs(data.train_x)[:, 0], digits * 25)
    assert len(data.checksums) == 4


def test_reduced_to_the_test_images(small: None, tmp_path: Path) -> None:
    write(tmp_path / "extra" / "mnist10k", "test", zipped=True)
    data = load(MNISTParity(root=str(tmp_path), test_fraction=0.2), task="binary")
    assert (data.num_train, data.num_test) == (8, 2)
    assert "reduced: only the 10,000 test images" in data.notes
    for source, option in ((MNISTParity, "images"), (MNIST, "subset")):
        with pytest.raises(DataError, match=rf"train-images-idx3-ubyte.gz .* {option}=test needs"):
            source("all", root=str(tmp_path)).table()


def test_damaged_files_are_named(small: None, tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    source = MNISTParity("test", root=str(tmp_path))
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.gz and .* are in none of"):
        source.table()
    write(folder, "test", zipped=False)
    images, labels = (folder / n for n in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"))
    whole = images.read_bytes()
    images.write_bytes(whole[:-5])
    with pytest.raises(DataError, match="holds 7851 bytes and its header asks for 7856"):
        source.table()
    images.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="begins with 3c68746d, expected 00000803"):
        source.table()
    images.write_bytes(gzip.compress(whole)[:-9])
    with pytest.raises(DataError, match="is a damaged gzip file"):
        source.table()
    images.write_bytes(idx(np.zeros((3, 28, 28))))
    with pytest.raises(DataError, match="holds images 3 x 28 x 28, expected 10 x 28 x 28"):
        source.table()
    images.write_bytes(whole)
    labels.write_bytes(idx(np.zeros(10)))
    with pytest.raises(DataError, match=r"10 labels with \(10, 0, .* of each digit"):
        source.table()


def test_unknown_choice() -> None:
    with pytest.raises(ConfigError, match=r"images=some: expected one of auto, all, test"):
        MNISTParity("some")
    with pytest.raises(ConfigError, match=r"subset=some: expected one of auto, all, test"):
        MNIST("some")


@pytest.mark.skipif(
    not os.environ.get("GPX_DATA")
    or not (Path(os.environ["GPX_DATA"]) / "extra" / "mnist10k").is_dir(),
    reason="the MNIST test images are not on this machine (set GPX_DATA to their folder)",
)
def test_the_real_files() -> None:
    table = MNISTParity("test").table()
    assert table.x.shape == (10_000, 784)
    assert table.y.sum() == 5074  # odd digits among the test images
