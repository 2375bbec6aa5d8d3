"""Base class of models with a Gaussian process on the features of a network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gpx.errors import DidNotConverge
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg.replayed import solve_recordings
from gpx.methods.base.batch import Batch
from gpx.methods.base.objective import Evidence
from gpx.methods.base.replayed_step import replayed_batches
from gpx.methods.base.start import StartWatch, Unwatched
from gpx.methods.deep.elbo import SampledELBO
from gpx.methods.deep.feature_body import FeatureBody
from gpx.methods.deep.model import NetworkModel
from gpx.methods.deep.network import Network
from gpx.methods.deep.output_layer import OutputLayer
from gpx.methods.deep.weights import DroppedWeights
from gpx.sampling.batches import some_rows
from gpx.sampling.seeds import continued
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
        self._draw_start(y, generator)
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


LEARNING_RATE, BATCH_SIZE = 0.001, 100
"""Of Adam."""


def pretrain(
    body: nn.Module,
    size: int,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    *,
    noise: RowNoise | None = None,
    steps: int,
    generator: torch.Generator,
    watch: StartWatch,
) -> None:
    """Train ``body`` with a linear output layer by Adam; layer and likelihood are then discarded.

    Gaussian processes on untrained features often collapse to the prior.

    Args:
        body: x (n, d) -> (n, size).
        size: outputs of the body.
        likelihood: of the targets; copied.
        x (n, d), y (n,): all training data.
        noise: known noise of each row; None: unknown.
        steps: of Adam.
        generator: for batches and masks, on the data's device.
        watch: is told every step.

    Raises:
        DidNotConverge: the last loss is NaN or infinite.
    """
    head = DroppedWeights(size, likelihood.num_latents, 1.0, bias=True, penalty=False).to(x)
    head.draw_start(generator)
    model = NetworkModel(
        Network(body, head), copy.deepcopy(likelihood), num_inputs=x.shape[1], predict_samples=1
    )
    model.row_noise = noise
    objective = SampledELBO(len(x))
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    rows = min(BATCH_SIZE, len(x))
    step, earlier, loss = 0, watch.earlier(), x.new_zeros(())
    if earlier is not None:
        step = earlier["step"]
        model.load_state_dict(earlier["model"])
        optimiser.load_state_dict(earlier["optimizer"])
        continued(generator, earlier["generator"])

    def state() -> dict[str, Any]:
        return {
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimiser.state_dict(),
            "generator": generator.get_state(),
        }

    def loss_of(evidence: Evidence, inputs: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        return -evidence.value / len(x), {}

    def evaluated(batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        found, parts = loss_of(objective.evidence_of(model, batch, generator=generator), batch.x)
        optimiser.zero_grad(set_to_none=True)
        found.backward()
        return found.detach(), parts

    evaluate: Callable[[Batch], tuple[Tensor, Mapping[str, Tensor]]] = evaluated
    record = solve_recordings().record
    if x.is_cuda and record is not None and objective.recordable(model):
        every = list(model.parameters())
        evaluate = replayed_batches(objective, model, every, loss_of, generator, record)

    with torch.enable_grad():
        while step < steps:
            chosen = torch.randint(len(x), (rows,), generator=generator, device=x.device)
            loss, _ = evaluate(Batch.of(model, x, y, chosen))
            optimiser.step()
            step += 1
            watch.step(step, steps, loss, state)
            if step < steps and watch.spent():
                watch.cut_short(f"pretraining of the backbone, after {step} of {steps} steps,")
                break
    if not bool(loss.isfinite()):
        raise DidNotConverge(
            f"pretraining of the backbone for {steps} steps ended with a loss that is not finite; "
            "look for NaN or infinite values in the data, or use pretrain_steps=0"
        )
    for parameter in model.parameters():
        parameter.grad = None
