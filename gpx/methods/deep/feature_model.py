"""Base class of models with a Gaussian process on the features of a network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpx.likelihoods.base import Likelihood
from gpx.methods.base.start import StartWatch, Unwatched
from gpx.methods.deep.feature_body import FeatureBody
from gpx.methods.deep.model import NetworkModel
from gpx.methods.deep.network import Network
from gpx.methods.deep.output_layer import OutputLayer
from gpx.methods.deep.pretraining import pretrain
from gpx.sampling.batches import some_rows
from gpx.tensor_checks import check_at_least

MAX_START_ROWS = 20_000
"""Most rows whose features are used to standardise and to place inducing points."""


class FeatureModel(NetworkModel):
    """A head of Gaussian processes on the standardised features of a backbone.

    Subclasses pass body and head, and initialise the head in ``initialise_watched``.

    Args:
        body: the backbone.
        head: a layer with ``body.size`` inputs.
        likelihood, num_inputs, predict_samples, seed: as in ``NetworkModel``.
        pretrain_steps: steps of Adam for the backbone with a linear output layer, before the head
            replaces that layer.

    Raises:
        ConfigError: a negative number of steps.
    """

    def __init__(
        self,
        body: FeatureBody,
        head: OutputLayer,
        likelihood: Likelihood,
        *,
        num_inputs: int,
        pretrain_steps: int,
        predict_samples: int,
        seed: int,
    ) -> None:
        check_at_least(0, pretrain_steps=pretrain_steps)
        super().__init__(
            Network(body, head),
            likelihood,
            num_inputs=num_inputs,
            predict_samples=predict_samples,
            seed=seed,
        )
        self.pretrain_steps = pretrain_steps

    @property
    def body(self) -> FeatureBody:
        """The backbone."""
        assert isinstance(self.network.body, FeatureBody)
        return self.network.body

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Pretrain the backbone, standardise its features, and initialise the head."""
        self.initialise_watched(x, y, generator=generator, watch=Unwatched())

    def initialise_watched(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator, watch: StartWatch
    ) -> None:
        """As ``initialise``; reports the steps of pretraining to ``watch``."""
        super().initialise(x, y, generator=generator)
        body = self.body
        if self.pretrain_steps and any(p.requires_grad for p in body.parameters()):
            pretrain(
                body,
                body.size,
                self.likelihood,
                x,
                y,
                noise=self.row_noise,
                steps=self.pretrain_steps,
                generator=generator,
                watch=watch,
            )
        body.measure(few_rows(x, generator), generator)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """As in ``NetworkModel``, with the parameters of the backbone as ``network``."""
        groups = super().parameter_groups()
        of_body = {id(p) for p in self.body.parameters()}
        rest = [p for p in groups["variational"] if id(p) not in of_body]
        network = [p for p in self.body.parameters() if p.requires_grad]
        return {**groups, "variational": rest, **({"network": network} if network else {})}


def few_rows(x: Tensor, generator: torch.Generator) -> Tensor:
    """x (n, d), or ``MAX_START_ROWS`` random rows of it."""
    return x if len(x) <= MAX_START_ROWS else x[some_rows(x, MAX_START_ROWS, generator)]
