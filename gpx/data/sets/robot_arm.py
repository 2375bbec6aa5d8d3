"""The default data set: simulated forward kinematics of an eight-link robot arm."""

from __future__ import annotations

import numpy as np

from gpx.data.columns.numbers import Floats
from gpx.data.source import DataSource
from gpx.data.table import Table
from gpx.tensor_checks import check_at_least, check_not_negative

NUM_LINKS = 8
TARGET = (0.6, 0.1, 0.1)
"""Point to which the distance is measured, in arm lengths from the shoulder."""


class RobotArm(DataSource):
    """Distance of the hand of a robot arm from a fixed point, as a function of its joint angles.

    It resembles kin40k: eight revolute joints with angles uniform over half a turn, and a smooth,
    strongly nonlinear target with little noise. Links have equal lengths, joints turn alternately
    about the vertical and the horizontal axis, and the stretched arm has length one.

    Args:
        num_points: rows to draw.
        noise: standard deviation of the noise on the distance, in arm lengths; the default is about
            0.08 standard deviations of the target.
        seed: of angles and noise; not the seed of training.
        split, test_fraction, root, split_seed: as for every source (``root`` is not used).

    Raises:
        ConfigError: ``num_points`` below 1, ``noise`` or ``seed`` negative.
    """

    def __init__(
        self,
        num_points: int = 40_000,
        noise: float = 0.02,
        seed: int = 0,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(split, test_fraction, root, split_seed)
        check_at_least(1, num_points=num_points)
        check_not_negative(noise=noise)
        check_at_least(0, seed=seed)
        self.num_points = num_points
        self.noise = noise
        self.seed = seed

    def table(self) -> Table:
        """Draw all rows."""
        random = np.random.Generator(np.random.PCG64(self.seed))
        angles = random.uniform(-np.pi / 2, np.pi / 2, size=(self.num_points, NUM_LINKS))
        distance = np.linalg.norm(hand_position(angles) - np.array(TARGET), axis=1)
        return Table(
            name="robot_arm",
            x=angles,
            y=distance + self.noise * random.standard_normal(self.num_points),
            input_names=tuple(f"joint{i + 1}" for i in range(NUM_LINKS)),
            target_name="distance",
            notes=f"simulated; noise standard deviation {self.noise:g} arm lengths",
            origin="robot arm simulator",
        )


def hand_position(angles: Floats) -> Floats:
    """Position of the hand.

    Args:
        angles (n, 8): joint angles from the shoulder on, in radians; at zero angles the arm is
            stretched along the first axis.

    Returns:
        (n, 3), in arm lengths from the shoulder.

    Cost: O(n) per joint.
    """
    position = np.zeros((len(angles), 3))
    for joint in reversed(range(angles.shape[1])):
        position[:, 0] += 1.0 / angles.shape[1]
        across = 1 + joint % 2  # rotate in the plane of axes 0 and 1, or of axes 0 and 2
        cosine, sine = np.cos(angles[:, joint]), np.sin(angles[:, joint])
        along, side = position[:, 0].copy(), position[:, across].copy()
        position[:, 0] = cosine * along - sine * side
        position[:, across] = sine * along + cosine * side
    return position
