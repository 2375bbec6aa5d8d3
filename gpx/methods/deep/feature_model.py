"""A Gaussian process on the features of a network: what the models of that kind share."""

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

MOST_ROWS = 20_000
"""Rows whose features are clustered and standardised."""


class FeatureModel(NetworkModel):
    """A head of Gaussian processes on the standardised features of a backbone.

    A subclass gives body and head, and places what the head has among the features
    (``initialise_watched``).

    Args:
        body: the backbone.
        head: of ``body.size`` inputs.
        likelihood, num_inputs, predict_samples, seed: of ``NetworkModel``.
        pretrain_steps: of Adam, of the backbone below a linear layer, before the head takes its
            place.

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
        """Pretrain the backbone, standardise its features, and start the head among them."""
        self.initialise_watched(x, y, generator=generator, watch=Unwatched())

    def initialise_watched(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator, watch: StartWatch
    ) -> None:
        """As ``initialise``; the steps of pretraining are told."""
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
        """Those of ``NetworkModel``, with the backbone's apart as ``network``."""
        groups = super().parameter_groups()
        held = {id(p) for p in self.body.parameters()}
        rest = [p for p in groups["variational"] if id(p) not in held]
        network = [p for p in self.body.parameters() if p.requires_grad]
        return {**groups, "variational": rest, **({"network": network} if network else {})}


def few_rows(x: Tensor, generator: torch.Generator) -> Tensor:
    """x (n, d), or ``MOST_ROWS`` of its rows."""
    return x if len(x) <= MOST_ROWS else x[some_rows(x, MOST_ROWS, generator)]
