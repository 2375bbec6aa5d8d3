"""Step time of convolutional networks with Gaussian process heads against the plain network.

    python scripts/bench_networks.py --threads 1
    python scripts/bench_networks.py --backbone lenet_mnist --side 28 --rounds 10

One step is loss, gradient and Adam on a batch of random images, the dense layer as wide as the
random features. A prediction averages ``DRAWS`` draws of the network for the same images; beside it
is the time of as many passes through the whole network, of which layers before the first mask are
the same. Everything alternates, so that other load hits all of it; times are medians of processor
time (for several threads or a GPU, of wall-clock time).
"""

from __future__ import annotations

from typing import Any

import torch
from tables import show
from timing import Work, command_line, fair_in_turns
from torch import Tensor

from gpx.likelihoods import Softmax
from gpx.methods.deep import NetworkModel, draws_of
from gpx.models import CNN, CNNGP
from gpx.objectives import SampledELBO

NUM_DATA, CLASSES, DRAWS = 60_000, 10, 10
NETWORKS: dict[str, tuple[type[NetworkModel], dict[str, Any]]] = {
    "cnn": (CNN, {}),
    "cnn_mcd": (CNN, {"dropout": True}),
    "cnn_rf": (CNNGP, {}),
    "cnn_sorf": (CNNGP, {"frequencies": "learned_signs"}),
    "cnn_sorf, fixed": (CNNGP, {"frequencies": "fixed_signs"}),
}


def works(
    name: str, x: Tensor, y: Tensor, backbone: str, features: int | None
) -> tuple[Work, Work, Work]:
    """A step; a prediction; passes through the whole network in its place."""
    network, options = NETWORKS[name]
    model = network(
        likelihood=Softmax(CLASSES),
        num_inputs=x.shape[1],
        backbone=backbone,
        num_features=features,
        predict_samples=DRAWS,
        **options,
    ).to(x)
    draws = torch.Generator(x.device).manual_seed(0)
    model.initialise(x, y, generator=draws)
    objective = SampledELBO(NUM_DATA)
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        (-objective.evidence(model, x, y, generator=draws).value / NUM_DATA).backward()
        optimiser.step()

    posterior, likelihood = model.new_posterior(), model.likelihood

    def predict() -> None:
        posterior.predictive(x, likelihood)

    @torch.no_grad()
    def passes() -> None:
        for number in range(posterior.draws_needed):
            with draws_of(posterior.network, torch.Generator().manual_seed(number), shared=True):
                posterior.network(x).softmax(1)

    return step, predict, passes


def main() -> None:
    parser = command_line(__doc__, threads=1)
    parser.add_argument("--backbone", default="lenet_small")
    parser.add_argument("--side", type=int, default=8, help="pixels of an image, each way")
    parser.add_argument("--features", type=int, default=None, help="null: as many as the network's")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(given.batch, given.side**2, generator=draws).to(given.device)
    y = torch.randint(CLASSES, (given.batch,), generator=draws).to(x)
    made = {name: works(name, x, y, given.backbone, given.features) for name in NETWORKS}
    turns = {(name, kind): work for name, of in made.items() for kind, work in enumerate(of)}
    found = fair_in_turns(turns, given.rounds, given.device, warm=2)
    rows = [
        {
            "network": name,
            "ms a step": 1e3 * found[name, 0],
            "over the plain one": found[name, 0] / found["cnn", 0],
            "ms a prediction": 1e3 * found[name, 1],
            "whole passes, over it": found[name, 2] / found[name, 1],
        }
        for name in NETWORKS
    ]
    show(rows, f"{given.backbone}, {given.side} x {given.side} pixels, {given.device}")


if __name__ == "__main__":
    main()
