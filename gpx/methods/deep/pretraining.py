"""A network trained with a linear output layer before a Gaussian process takes its place."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from gpx.likelihoods.base import Likelihood
from gpx.methods.deep.elbo import SampledELBO
from gpx.methods.deep.model import Network, NetworkModel
from gpx.methods.deep.weights import DroppedWeights

RATE = 0.001
"""Of Adam."""


def pretrain(
    body: nn.Module,
    size: int,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch_size: int = 100,
    generator: torch.Generator,
) -> None:
    """Train ``body`` below a linear layer of its own by Adam; likelihood and layer are forgotten.

    Args:
        body: x (n, d) -> (n, size).
        size: outputs of the body.
        likelihood: of the targets; copied.
        x (n, d), y (n,): all training data.
        steps, batch_size: of Adam at its default rate.
        generator: of batches and masks, on the data's device.

    Gaussian processes on features that nothing has trained collapse to the prior.
    """
    head = DroppedWeights(size, likelihood.num_latents, 1.0, bias=True, penalty=False).to(x)
    head.draw_start(generator)
    model = NetworkModel(
        Network(body, head), copy.deepcopy(likelihood), num_inputs=x.shape[1], predict_samples=1
    )
    objective = SampledELBO(len(x))
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    rows = min(batch_size, len(x))
    with torch.enable_grad():
        for _ in range(steps):
            chosen = torch.randint(len(x), (rows,), generator=generator, device=x.device)
            found = objective.evidence(model, x[chosen], y[chosen], generator=generator)
            optimiser.zero_grad(set_to_none=True)
            (-found.value / len(x)).backward()
            optimiser.step()
    for parameter in model.parameters():
        parameter.grad = None
