"""The convolutional Gaussian process: SVGP with inducing patches of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpx.constraints import is_trained
from gpx.errors import ConfigError
from gpx.inducing import Selector
from gpx.inducing.patches import MAX_PATCHES, Patches
from gpx.inference.variational import WhitenedGaussian
from gpx.kernels.base import Kernel
from gpx.kernels.convolutional import Convolutional, shape_of_images
from gpx.kernels.for_inputs import for_inputs
from gpx.kernels.stationary import Stationary
from gpx.likelihoods import Likelihood
from gpx.means.base import Mean
from gpx.methods.base.model import Hyperparameters
from gpx.methods.sparse.svgp import SVGP
from gpx.tensor_checks import check_at_least

MEDIAN_PATCHES = 500
"""Patches from which the median distance is computed."""


class ConvGP(SVGP):
    """Sparse variational GP of images under a convolutional kernel: f(x) = sum_p w_p g(x[p]).

    The p latent functions share kernel and inducing patches. No neural network is involved.

    Args:
        kernel: of g, stationary, on the pixels of a patch; its lengthscales start at the median
            distance between training patches.
        mean, likelihood, selector, family, warm_start, refit, jitter: of ``SVGP``.
        num_inputs: d, pixels of an image.
        image_shape: (height, width) or (channels, height, width); None: square, of one or
            three channels.
        patch_size: (height, width) of a patch; one number for both.
        weighted: whether to learn a weight w_p for each position of the patch.
        num_data: number of training images if known; caps M.
        num_inducing: M, of patches; at most as many as the training images have that differ.

    Raises:
        ConfigError: an unsuitable kernel, image shape or patch size.

    Cost: O(n M P + n P^2 + n M^2 + M^3) a step for images of P patches. Source: van der Wilk,
    Rasmussen and Hensman, "Convolutional Gaussian processes", NeurIPS 2017.
    """

    kernel: Convolutional
    streams = False

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        num_inputs: int,
        image_shape: Sequence[int] | None = None,
        patch_size: int | Sequence[int] = 5,
        weighted: bool = True,
        num_inducing: int = 100,
        num_data: int | None = None,
        selector: Selector | None = None,
        family: WhitenedGaussian | None = None,
        warm_start: bool = True,
        refit: bool = True,
        jitter: float = 1e-6,
    ) -> None:
        check_at_least(1, num_data=num_data)
        shape = shape_of_images(num_inputs, image_shape)
        sides = (patch_size, patch_size) if isinstance(patch_size, int) else tuple(patch_size)
        if len(sides) != 2:
            raise ConfigError(f"patch_size={list(sides)}: expected one number, or [height, width]")
        patch_kernel = for_inputs(kernel, shape.channels * sides[0] * sides[1])
        images = Convolutional(patch_kernel, shape, sides, weighted=weighted)
        super().__init__(
            kernel=images,
            mean=mean,
            likelihood=likelihood,
            num_inputs=num_inputs,
            num_inducing=num_inducing,
            num_data=None if num_data is None else num_data * images.num_patches,
            selector=selector,
            features=Patches(),
            family=family,
            warm_start=warm_start,
            refit=refit,
            jitter=jitter,
        )

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: M, if more patches were asked for than there are."""
        size = self.inducing.shape[0]
        settled = super().settle(x)
        if "num_inducing" not in settled or self.selector.fixed_number == size:
            return settled
        if self._asked is None:
            return {"num_inducing": (size, "half the patches of the training images, at most 512")}
        why = f"one per patch of the training images; {self._asked:,} would be more"
        return {"num_inducing": (size, why)}

    def hyperparameters(self) -> Hyperparameters | None:
        """None: initialisation with a dense kernel matrix of images would be too expensive."""
        return None

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Start lengthscales, if trained, at the median distance of patches; then as ``SVGP``."""
        if x.shape[1] == self._num_inputs and is_trained(self.kernel.patch_kernel, "lengthscale"):
            self._start_lengthscales(x, generator)
        super().initialise(x, y, generator=generator)

    @torch.no_grad()
    def _start_lengthscales(self, x: Tensor, generator: torch.Generator) -> None:
        kernel = self.kernel.patch_kernel
        assert isinstance(kernel, Stationary)
        images = max(1, MAX_PATCHES // self.kernel.num_patches)
        order = torch.randperm(len(x), generator=generator, device=x.device)[:images]
        found = torch.unique(self.kernel.patches(x[order]).flatten(0, 1), dim=0)
        few = found[
            torch.randperm(len(found), generator=generator, device=x.device)[:MEDIAN_PATCHES]
        ]
        if len(few) > 1:
            distance = torch.pdist(few).median()
            kernel.lengthscale = distance.expand_as(kernel.lengthscale).clone()
