from __future__ import annotations

import numpy as np
import pytest

from gpx.data import RobotArm, Toy1D, load
from gpx.data.sets.robot_arm import TARGET, hand_position
from gpx.data.sets.toy import GAP
from gpx.errors import ConfigError


def test_position_agrees_with_products_of_rotation_matrices() -> None:
    angles = np.random.default_rng(0).uniform(-np.pi, np.pi, (20, 8))
    for row, found in zip(angles, hand_position(angles), strict=True):
        frame, position = np.eye(3), np.zeros(3)
        for joint, angle in enumerate(row):
            across, turn = 1 + joint % 2, np.eye(3)
            turn[0, 0] = turn[across, across] = np.cos(angle)
            turn[across, 0], turn[0, across] = np.sin(angle), -np.sin(angle)
            frame = frame @ turn
            position = position + frame @ [1 / 8, 0, 0]
        np.testing.assert_allclose(found, position, atol=1e-14)


def test_stretched_arm_has_length_one() -> None:
    np.testing.assert_allclose(hand_position(np.zeros((1, 8))), [[1.0, 0.0, 0.0]])


def test_default_size_and_reproducible_draw() -> None:
    first, again = RobotArm().table(), RobotArm(split=4).table()
    assert first.x.shape == (40_000, 8)
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    assert not np.array_equal(first.y, RobotArm(seed=1).table().y)


def test_noise_is_a_standard_deviation() -> None:
    clean, noisy = RobotArm(noise=0.0).table(), RobotArm(noise=0.05).table()
    exact = np.linalg.norm(hand_position(clean.x) - np.array(TARGET), axis=1)
    np.testing.assert_array_equal(clean.y, exact)
    # 40,000 draws: the estimate is within 2 % unless 5.6 standard errors off
    assert np.std(noisy.y - clean.y) == pytest.approx(0.05, rel=0.02)


@pytest.mark.parametrize("source", [RobotArm, Toy1D])
def test_options_out_of_range(source: type[RobotArm] | type[Toy1D]) -> None:
    with pytest.raises(ConfigError, match=r"num_points=0 must be at least 1"):
        source(num_points=0)
    with pytest.raises(ConfigError, match=r"noise=-1 must not be negative"):
        source(noise=-1)


def test_toy_has_its_gap() -> None:
    x = Toy1D(num_points=2000).table().x
    assert x.min() >= -4
    assert x.max() <= 4
    assert not ((x > GAP[0]) & (x < GAP[1])).any()
    assert (x > GAP[1]).sum() > 300
    assert load(Toy1D(), task="regression").num_train == 180
