"""Pretraining of a backbone with a linear output layer, before a Gaussian process replaces it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from gpx.errors import DidNotConverge
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.row_noise import RowNoise
from gpx.methods.base.batch import Batch
from gpx.methods.base.start import StartWatch
from gpx.methods.deep.elbo import SampledELBO
from gpx.methods.deep.model import NetworkModel
from gpx.methods.deep.network import Network
from gpx.methods.deep.weights import DroppedWeights

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
        generator.set_state(earlier["generator"].cpu())

    def state() -> dict[str, Any]:
        return {
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimiser.state_dict(),
            "generator": generator.get_state(),
        }

    with torch.enable_grad():
        while step < steps:
            chosen = torch.randint(len(x), (rows,), generator=generator, device=x.device)
            found = objective.evidence_of(model, Batch.of(model, x, y, chosen), generator=generator)
            loss = -found.value / len(x)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            step += 1
            watch.step(step, steps, loss.detach(), state)
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
