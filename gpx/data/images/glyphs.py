"""Random images of the letters A to J, to test classifiers of digits on unknown inputs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional

from gpx.data.images.pixels import pixel_names
from gpx.data.images.source import ImageSource
from gpx.data.table import Table
from gpx.tensor_checks import check_at_least

LETTERS = {
    "A": ("..##..", ".####.", "##..##", "##..##", "######", "##..##", "##..##", "##..##"),
    "B": ("#####.", "##..##", "##..##", "#####.", "##..##", "##..##", "##..##", "#####."),
    "C": (".####.", "##..##", "##....", "##....", "##....", "##....", "##..##", ".####."),
    "D": ("####..", "##.##.", "##..##", "##..##", "##..##", "##..##", "##.##.", "####.."),
    "E": ("######", "##....", "##....", "#####.", "##....", "##....", "##....", "######"),
    "F": ("######", "##....", "##....", "#####.", "##....", "##....", "##....", "##...."),
    "G": (".####.", "##..##", "##....", "##....", "##.###", "##..##", "##..##", ".#####"),
    "H": ("##..##", "##..##", "##..##", "######", "##..##", "##..##", "##..##", "##..##"),
    "I": ("######", "..##..", "..##..", "..##..", "..##..", "..##..", "..##..", "######"),
    "J": ("..####", "....##", "....##", "....##", "....##", "##..##", "##..##", ".####."),
}
"""Bitmaps of 8 rows and 6 columns; strokes are two pixels wide."""
MARGIN = 4
"""Pixels of background around a bitmap."""
UPSAMPLING = 8
"""Points per pixel of a bitmap when it is blurred."""
BLUR = 0.5
"""Standard deviation of the blur, in pixels of a bitmap."""
CHUNK = 256
"""Letters drawn at a time."""


class Glyphs(ImageSource):
    """Letters A to J with random position, size and thickness of strokes.

    Pixels are between 0 and 1, and numbers of images of different letters differ by at most one.
    They test how certain a network trained on digits is of letters.

    Args:
        num_images: number of images.
        side: height and width in pixels: 8 as ``Digits``, 28 as ``MNIST``.
        train_size, noise, split, test_fraction, root, split_seed: of ``ImageSource``;
            ``split_seed`` is also that of the letters.

    Raises:
        ConfigError: fewer images than letters, or images too small to hold one.
    """

    name = "glyphs"

    def __init__(
        self,
        num_images: int = 2000,
        side: int = 8,
        train_size: int | None = None,
        noise: float = 0.0,
        split: int = 0,
        test_fraction: float = 0.1,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(train_size, noise, split, test_fraction, root, split_seed)
        check_at_least(len(LETTERS), num_images=num_images)
        check_at_least(4, side=side)
        self.num_images, self.side = num_images, side

    def images(self) -> Table:
        """All letters."""
        rng = np.random.Generator(np.random.PCG64([self.split_seed, 2]))
        classes = rng.permutation(np.arange(self.num_images) % len(LETTERS))
        # size and shift as shares of the image, and the brightness at which ink begins
        size = rng.uniform(0.7, 0.95, self.num_images)
        shift = rng.uniform(-0.08, 0.08, (self.num_images, 2))
        level = rng.uniform(0.3, 0.7, self.num_images)
        shapes = _blurred()
        drawn = []
        for rows in np.split(np.arange(self.num_images), range(CHUNK, self.num_images, CHUNK)):
            places = (torch.from_numpy(v[rows]) for v in (size, shift, level))
            drawn.append(_drawn(shapes[torch.from_numpy(classes[rows])], self.side, *places))
        return Table(
            name=self.name,
            x=torch.cat(drawn).flatten(1).numpy(),
            y=classes.astype(np.float64),
            input_names=pixel_names((self.side, self.side)),
            target_name="letter",
            notes=f"letters A to J, {self.side} x {self.side} pixels between 0 and 1",
            input_unit=1.0,
        )


def _blurred() -> torch.Tensor:
    """All bitmaps, blurred and centred in squares of their height plus two margins."""
    maps = torch.tensor(
        [[[c == "#" for c in row] for row in rows] for rows in LETTERS.values()],
        dtype=torch.float64,
    )
    sideways = (maps.shape[1] - maps.shape[2]) // 2 + MARGIN
    square = functional.pad(maps, (sideways, sideways, MARGIN, MARGIN))
    fine = square.repeat_interleave(UPSAMPLING, 1).repeat_interleave(UPSAMPLING, 2).unsqueeze(1)
    reach = math.ceil(3 * BLUR * UPSAMPLING)
    places = torch.arange(-reach, reach + 1, dtype=torch.float64) / (BLUR * UPSAMPLING)
    weights = torch.exp(-0.5 * places.square())
    weights = weights / weights.sum()
    fine = functional.conv2d(fine, weights.view(1, 1, 1, -1), padding=(0, reach))
    return functional.conv2d(fine, weights.view(1, 1, -1, 1), padding=(reach, 0))[:, 0]


def _drawn(
    shapes: torch.Tensor,
    side: int,
    size: torch.Tensor,
    shift: torch.Tensor,
    level: torch.Tensor,
) -> torch.Tensor:
    """Images (n, side, side) of blurred bitmaps, with size (n,), shift (n, 2) and level (n,)."""
    rows = len(next(iter(LETTERS.values())))
    # maps coordinates of the image in [-1, 1] to those of the square, which includes the margins
    stretch = rows / (rows + 2 * MARGIN) / size
    place = torch.zeros(len(shapes), 2, 3, dtype=torch.float64)
    place[:, 0, 0] = place[:, 1, 1] = stretch
    place[:, :, 2] = -2.0 * shift * stretch.unsqueeze(1)
    grid = functional.affine_grid(place, [len(shapes), 1, side, side], align_corners=False)
    found = functional.grid_sample(shapes.unsqueeze(1), grid, mode="bilinear", align_corners=False)[
        :, 0
    ]
    # brightness rises from 0 to 1 around the level
    return ((found - level.view(-1, 1, 1)) * 2.0 + 0.5).clamp(0.0, 1.0)
