"""Images of random fields, whose class probabilities are known exactly."""

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

SMOOTHNESS = 8.0
"""Side of an image divided by the standard deviation of the filter that smooths its fields."""
RANK = 32
"""Rank of the variation within a class."""
PIXEL_NOISE = 0.2
NUM_DRAWS = 20_000
"""Number of images by which the error of the best classifier is estimated."""


class Fields(ImageSource):
    """x = a mu_c + U z + 0.2 e: a smooth random field for each class, plus variation.

    They are smooth colour images of the size of CIFAR, without a download. The 32 columns of U are
    smooth fields; mu_c is a draw of U z, independent of the size of the set; z and e are standard
    normal, and classes are equally probable. The contrast a is chosen for the given error of the
    best classifier. ``probabilities`` are the predictions of that classifier, which the calibration
    of a network can be compared with.

    Args:
        num_images: number of images.
        num_classes: C.
        side, channels: of the images.
        bayes_error: error rate of the best classifier, below 1 - 1 / C.
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
                f"{1.0 - 1.0 / num_classes:.4g}, the error of guessing"
            )
        self.name = f"fields{num_classes}"
        self.num_images, self.shape = num_images, (channels, side, side)
        rng = np.random.Generator(np.random.PCG64([3, num_classes, side, channels]))
        size = channels * side * side

        fields = gaussian_filter(
            rng.standard_normal((RANK, *self.shape)),
            (0, 0, side / SMOOTHNESS, side / SMOOTHNESS),
            mode="wrap",
        ).reshape(RANK, size)
        self._ways = fields / (fields.std() * np.sqrt(RANK))
        # means lie in the span of U: otherwise they could be as faint as the noise of a pixel, and
        # no network would find them
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
        """Exact P(class | x) (n, C) of images x (n, d) as in ``table``.

        Raises:
            ShapeError: images of another size.
        """
        size = int(np.prod(self.shape))
        if x.ndim != 2 or x.shape[1] != size:
            raise ShapeError(f"images have shape {x.shape}; expected (n, {size})")
        logits = torch.from_numpy(x @ self._directions.T + self._offsets)
        return torch.softmax(logits, 1).numpy()


def _contrast(gram: Floats, error: float) -> float:
    """Factor on means with Gram matrix ``gram`` (C, C) for that error of the best classifier."""
    rng = np.random.Generator(np.random.PCG64(5))
    classes = rng.integers(len(gram), size=NUM_DRAWS)
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(values.clip(0.0))
    noise = rng.standard_normal((NUM_DRAWS, len(gram))) @ root.T
    centre = gram[classes] - 0.5 * gram.diagonal()

    def error_rate(contrast: float) -> float:
        chosen = (contrast * centre + noise).argmax(1)  # logits over the contrast
        return float((chosen != classes).mean())

    low, high = 1e-6, 1e3
    for _ in range(50):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if error_rate(middle) > error else (low, middle)
    return high
