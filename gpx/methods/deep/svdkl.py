"""Stochastic variational deep kernel learning: additive processes on a network's features."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.mixed_outputs import MixedOutputs
from gpx.methods.deep.additive_grid import AdditiveGridLayer
from gpx.methods.deep.feature_body import FeatureNetwork, feature_body
from gpx.methods.deep.feature_model import FeatureModel


class SVDKL(FeatureModel):
    """Gaussian processes of one network feature each, on grids, mixed into the latent functions.

    Args:
        kernel: of every feature, squashed to (-1, 1); stationary, resized to their number.
        likelihood: any but ``MixedOutputs``, which takes independent functions.
        num_inputs: d.
        backbone, hidden, num_features, image_shape, blocks, keep: see ``feature_body``; a
            convolutional network gets a linear layer of ``num_features`` outputs.
        grid_size: points of each grid.
        pretrain_steps: steps of Adam for the backbone with a linear output layer, before the grids
            replace that layer.
        jitter: see ``AdditiveGridLayer``.
        predict_samples: number of draws that a prediction averages, for several classes or with
            ``keep`` below 1.
        seed: of the draws in predictions.

    Raises:
        ConfigError: options out of range.

    Cost: the network's, and O(J G^3 + n J G^2) per step for J features and G points.
    Source: Wilson, Hu, Salakhutdinov and Xing, "Stochastic variational deep kernel learning",
    NeurIPS 2016.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        likelihood: Likelihood,
        num_inputs: int,
        backbone: FeatureNetwork = "dense",
        hidden: Sequence[int] = (64, 64),
        num_features: int = 16,
        image_shape: Sequence[int] | None = None,
        blocks: int = 5,
        keep: float = 1.0,
        grid_size: int = 64,
        pretrain_steps: int = 1000,
        jitter: float = 1e-6,
        predict_samples: int = 50,
        seed: int = 0,
    ) -> None:
        body = feature_body(
            backbone,
            num_inputs,
            hidden=hidden,
            num_features=num_features,
            image_shape=image_shape,
            blocks=blocks,
            keep=keep,
            narrow=True,
        )
        head = AdditiveGridLayer(
            kernel, body.size, likelihood.num_latents, grid_size, jitter=jitter
        )
        super().__init__(
            body,
            head,
            likelihood,
            num_inputs=num_inputs,
            pretrain_steps=pretrain_steps,
            predict_samples=predict_samples,
            seed=seed,
        )

    def check(self, x: Tensor) -> None:
        """As in ``Model``; also that the likelihood does not mix functions that are dependent."""
        # not in the constructor, so that runs trained before this was refused can be loaded
        if isinstance(self.likelihood, MixedOutputs):
            raise ConfigError(
                "SVDKL mixes the functions of its features itself, so that MixedOutputs would mix "
                "dependent functions: take likelihood=GaussianOutputs()"
            )
        super().check(x)
