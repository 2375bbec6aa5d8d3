from __future__ import annotations

import numpy as np
import pytest
import torch

from gpx.data import Glyphs, load
from gpx.data.images.glyphs import LETTERS
from gpx.errors import ConfigError


def test_letters_are_balanced_and_repeat_by_their_seed() -> None:
    table = Glyphs(num_images=57).table()
    assert table.x.shape == (57, 64)
    counts = np.bincount(table.y.astype(int), minlength=10)
    assert counts.max() - counts.min() <= 1
    assert 0.0 <= table.x.min() < 0.01
    assert 0.99 < table.x.max() <= 1.0
    assert np.array_equal(table.x, Glyphs(num_images=57).table().x)
    assert not np.array_equal(table.x, Glyphs(num_images=57, split_seed=1).table().x)


@pytest.mark.parametrize("side", [8, 28])
def test_letters_can_be_told_apart_and_stay_inside_the_image(side: int) -> None:
    data = load(Glyphs(num_images=1000, side=side), task="multiclass")
    assert data.num_classes == len(LETTERS)
    images = np.asarray(data.train_x).reshape(-1, side, side)
    edge = np.concatenate([images[:, [0, -1]].reshape(len(images), -1)])
    assert edge.mean() < 0.5 * images.mean()
    nearest = data.train_y[torch.cdist(data.test_x, data.train_x).argmin(1)]
    assert float((nearest == data.test_y).double().mean()) > 0.95


def test_options_out_of_range() -> None:
    with pytest.raises(ConfigError, match="num_images=9 must be at least 10"):
        Glyphs(num_images=9)
    with pytest.raises(ConfigError, match="side=3 must be at least 4"):
        Glyphs(side=3)
