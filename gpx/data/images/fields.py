"""Images made of random fields, whose class probabilities are known exactly."""

from __future__ import annotations

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from gpx.data.columns.numbers import Floats
from gpx.data.images.pixels import pixel_names
from gpx.data.images.source import ImageSource
from gpx.data.table import Table
from gpx.errors import ConfigError, ShapeError
from gpx.tensor_checks import check_at_least

SMOOTH = 8.0
"""The side of an image over the standard deviation of the filter that smooths its fields."""
RANK = 32
"""Of the variation within a class: it has the size of a pixel, and the smoothness of the means."""
PIXEL_NOISE = 0.2
DRAWS = 20_000
"""Of images, to find the error of the best classifier."""


class Fields(ImageSource):
    """x = a mu_c + U z + 0.2 e: a smooth random field for each class, and variation about it.

    Smooth colour images as large as those of CIFAR that need no download. The 32 columns of U are
    smooth fields, and mu_c a draw of U z, the same for every size of set; z and e are standard
    normals, and classes are equally probable. The contrast a is such that the best classifier errs
    as often as asked, and ``probabilities`` are what that classifier predicts: what a network's
    calibration is to be measured against.

    Args:
        num_images: how many.
        num_classes: C.
        side, channels: of the images.
        bayes_error: share of images that the best classifier takes for another class, below
            1 - 1 / C.
        train_size, split, test_fraction, root, split_seed: of ``ImageSource``; ``split_seed`` is
            also that of the images.

    Raises:
        ConfigError: sizes or an error out of range.
    """

    def __init__(
        self,
        num_images: int = 5000,
        num_classes: int = 10,
        side: int = 32,
        channels: int = 3,
        bayes_error: float = 0.1,
        train_size: int | None = None,
        split: int = 0,
        test_fraction: float = 0.2,
        root: str | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(train_size, 0.0, split, test_fraction, root, split_seed)
        check_at_least(2, num_classes=num_classes, side=side)
        check_at_least(1, channels=channels)
        check_at_least(num_classes, num_images=num_images)
        if not 1e-3 <= bayes_error < 1.0 - 1.0 / num_classes:
            raise ConfigError(
                f"bayes_error={bayes_error} must be from 0.001 to below "
                f"{1.0 - 1.0 / num_classes:.4g}, which guessing has"
            )
        self.name = f"fields{num_classes}"
        self.num_images, self.shape = num_images, (channels, side, side)
        rng = np.random.Generator(np.random.PCG64([3, num_classes, side, channels]))
        size = channels * side * side

        fields = gaussian_filter(
            rng.standard_normal((RANK, *self.shape)),
            (0, 0, side / SMOOTH, side / SMOOTH),
            mode="wrap",
        ).reshape(RANK, size)
        self._ways = fields / (fields.std() * np.sqrt(RANK))
        # classes differ where images of one class differ, too: else a mean as faint as the noise of
        # a pixel would do, which no network finds
        means = rng.standard_normal((num_classes, RANK)) @ self._ways
        # S^-1 mu by Woodbury's identity, S = U U^T + 0.04 I the covariance of a class
        inner = PIXEL_NOISE**2 * np.eye(RANK) + self._ways @ self._ways.T
        explained = np.linalg.solve(inner, self._ways @ means.T)
        directions = (means - explained.T @ self._ways) / PIXEL_NOISE**2
        gram = directions @ means.T
        contrast = _contrast(gram, bayes_error)
        self._means, self._directions = contrast * means, contrast * directions
        self._offsets = -0.5 * contrast**2 * gram.diagonal()

    def images(self) -> Table:
        """All images."""
        rng = np.random.Generator(np.random.PCG64([self.split_seed, 4]))
        classes = rng.permutation(np.arange(self.num_images) % len(self._means))
        x = self._means[classes]
        x += rng.standard_normal((self.num_images, RANK)) @ self._ways
        x += PIXEL_NOISE * rng.standard_normal(x.shape)
        return Table(
            name=self.name,
            x=x,
            y=classes.astype(np.float64),
            input_names=pixel_names(self.shape),
            target_name="class",
            notes=f"{' x '.join(map(str, self.shape))} pixels of smooth random fields, as drawn",
            input_unit=1.0,
        )

    def probabilities(self, x: Floats) -> Floats:
        """P(class | x) (n, C), exact, of images x (n, d) as in ``table``.

        Raises:
            ShapeError: images of another size.
        """
        size = int(np.prod(self.shape))
        if x.ndim != 2 or x.shape[1] != size:
            raise ShapeError(f"images of shape {x.shape} have no such law; expected (n, {size})")
        logits = torch.from_numpy(x @ self._directions.T + self._offsets)
        return torch.softmax(logits, 1).numpy()


def _contrast(gram: Floats, error: float) -> float:
    """The factor on means of Gram matrix ``gram`` (C, C) at which the best classifier so errs."""
    rng = np.random.Generator(np.random.PCG64(5))
    classes = rng.integers(len(gram), size=DRAWS)
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(values.clip(0.0))
    noise = rng.standard_normal((DRAWS, len(gram))) @ root.T
    centre = gram[classes] - 0.5 * gram.diagonal()

    def errs(contrast: float) -> float:
        chosen = (contrast * centre + noise).argmax(1)  # logits over the contrast
        return float((chosen != classes).mean())

    low, high = 1e-6, 1e3
    for _ in range(50):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if errs(middle) > error else (low, middle)
    return high
