"""Deep kernel learning: a sparse Gaussian process on the features of a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gpx.inducing import Selector, require_selector
from gpx.inference.variational import GAUSSIAN, row_scale
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.means.base import Mean
from gpx.methods.base.start import StartWatch
from gpx.methods.deep.draws import is_random
from gpx.methods.deep.feature_body import FeatureNetwork, feature_body
from gpx.methods.deep.feature_model import FeatureModel, few_rows
from gpx.methods.deep.inducing_layer import InducingLayer
from gpx.methods.deep.posterior import NetworkPosterior
from gpx.tensor_checks import check_at_least


class DKL(FeatureModel):
    """Sparse variational GP on the features of a network, both trained together.

    f = GP(c(x)) with q(u) over inducing points in the space of the features c; the p latent
    functions of a likelihood share kernel and points. With a convolutional backbone it is GPDNN,
    and the backbone may be a network of your own: ``backbone=nn.Sequential(...)``. With ``keep``
    below 1 the network has Monte Carlo dropout.

    Args:
        kernel, mean: of the features; the kernel is resized to their number.
        likelihood: any.
        num_inputs: d.
        num_data: n if known; limits the number of inducing points to n.
        backbone, hidden, num_features, image_shape, blocks, keep: see ``feature_body``.
        num_inducing: M.
        selector: places the inducing points among the features; None: ``KMeans``.
        pretrain_steps: steps of Adam for the backbone with a linear output layer, before the
            Gaussian process replaces that layer; without them the Gaussian process often stays at
            its prior.
        warm_start, refit: with a Gaussian likelihood, as in ``SVGP``: start q(u) at its optimum,
            and predict with the optimal q(u); ``refit`` needs ``keep=1``.
        jitter: as in ``SVGP``.
        predict_samples: number of masks that a prediction averages, with dropout.
        seed: of the masks in predictions.

    Raises:
        ConfigError: options out of range.

    Cost: the network's, and O(M^3 + p M^2 B) per step. Source: Wilson, Hu, Salakhutdinov and Xing,
    "Deep kernel learning", AISTATS 2016; Bradshaw, Matthews and Ghahramani, "Adversarial examples,
    uncertainty, and transfer testing robustness in Gaussian process hybrid deep networks", 2017.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        num_inputs: int,
        num_data: int | None = None,
        backbone: FeatureNetwork = "dense",
        hidden: Sequence[int] = (64, 64),
        num_features: int = 8,
        image_shape: Sequence[int] | None = None,
        blocks: int = 5,
        keep: float = 1.0,
        num_inducing: int = 128,
        selector: Selector | None = None,
        pretrain_steps: int = 1000,
        warm_start: bool = True,
        refit: bool = True,
        jitter: float = 1e-6,
        predict_samples: int = 50,
        seed: int = 0,
    ) -> None:
        check_at_least(1, num_inducing=num_inducing, num_data=num_data)
        body = feature_body(
            backbone,
            num_inputs,
            hidden=hidden,
            num_features=num_features,
            image_shape=image_shape,
            blocks=blocks,
            keep=keep,
        )
        size = num_inducing if num_data is None else min(num_inducing, num_data)
        head = InducingLayer(
            kernel, body.size, likelihood.num_latents, size, mean=mean, jitter=jitter
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
        self.selector = None if selector is None else require_selector(selector)
        self.warm_start, self.refit = warm_start, refit

    @property
    def layer(self) -> InducingLayer:
        """The Gaussian process."""
        assert isinstance(self.network.head, InducingLayer)
        return self.network.head

    def initialise_watched(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator, watch: StartWatch
    ) -> None:
        """Pretrain the backbone, place inducing points among its features, start q(u)."""
        super().initialise_watched(x, y, generator=generator, watch=watch)
        few = few_rows(x, generator)
        features = torch.cat(list(self.body.features(few, generator)))
        self.layer.place(features, generator=generator, selector=self.selector)
        if self.warm_start and isinstance(self.likelihood, GAUSSIAN):
            parts = self._parts(x, y, generator)
            self.layer.fit(parts, len(x), self.likelihood, noise=self.row_noise is None)

    def _parts(
        self, x: Tensor, y: Tensor, generator: torch.Generator | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Features, targets and ``row_scale`` of all rows, in blocks."""
        assert isinstance(self.likelihood, GAUSSIAN)
        scale = row_scale(self.row_noise, self.likelihood)
        features = self.body.features(x, generator)
        start = 0
        for rows in features:
            own = slice(start, start + len(rows))
            yield rows, y[own], None if scale is None else scale[own]
            start += len(rows)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> NetworkPosterior:
        """The posterior process of q(u), or of the optimal q(u) with ``refit``."""
        posterior = super().condition(x, y)
        if self.refit and isinstance(self.likelihood, GAUSSIAN) and not is_random(self.body):
            layer = posterior.network.head
            assert isinstance(layer, InducingLayer)
            layer.fit(self._parts(x, y, None), len(x), self.likelihood, noise=False)
        return posterior
