"""Models of nearest neighbours: steps and predictions against SVGP's, and Vecchia's evidence.

    python scripts/bench_nearest.py            # all three tables
    python scripts/bench_nearest.py --quick    # smaller sizes
    python scripts/bench_nearest.py --device cuda

Random data with the shapes of the published table (Tran thesis, table 4.1), and the test images of
MNIST if they are in $GPX_DATA: bounds let an exact search skip most images, but not random points.
Times are medians of interleaved runs after a warm-up, in processor time of one thread (wall-clock
time for several threads or a GPU). They include the search for neighbours, except in the column
"fixed Z", where it is done before. Test points are 1,000 predicted together, or 20 predicted one
after another; SVGP predicts from a cached inverse factor of K_zz, SWSGP from a prepared search.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tables import show
from timing import Work, command_line, fair, fair_in_turns, spent
from torch import Tensor

from gpx.data.images.mnist import MNIST
from gpx.errors import DataError
from gpx.kernels import Matern52
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.methods.base.batch import Batch
from gpx.models import SVGP, SWSGP, Model, Posterior, Vecchia
from gpx.objectives import SVGPELBO, SWSGPObjective, VecchiaMLL

BATCH = 64
IMAGES = "MNIST images"
TURN = 20
"""Number of test points predicted one after another."""


def problem(n: int, d: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=draws)
    y = x[:, :3].sin().sum(1) + 0.1 * torch.randn(n, generator=draws)
    return x.to(device), y.to(device)


def images(n: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """n random test images of MNIST, scaled by the standard deviation of all pixels, and labels."""
    table = MNIST(subset="test").images()
    chosen = torch.randperm(len(table.x), generator=torch.Generator().manual_seed(0))[:n]
    x, y = (torch.as_tensor(t).float()[chosen] for t in (table.x, table.y))
    return ((x - x.mean(0)) / x.std()).to(device), ((y - y.mean()) / y.std()).to(device)


def problem_of(name: str, n: int, d: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Data of a row of the table: images, or random numbers."""
    return images(n, device) if name == IMAGES else problem(n, d, device)


def with_images(shapes: list[tuple[str, int, int, int]]) -> list[tuple[str, int, int, int]]:
    """Shapes; without that of the images if these are missing."""
    try:
        MNIST(subset="test").images()
    except DataError as error:
        print(f"{IMAGES} left out: {error}")
        return [shape for shape in shapes if shape[0] != IMAGES]
    return shapes


def parts(d: int) -> dict[str, torch.nn.Module]:
    return {
        "kernel": Matern52(d, lengthscale=2.0 * d**0.5),
        "mean": Constant(),
        "likelihood": Gaussian(0.05),
    }


def milliseconds(work: dict[str, Work], repeats: int, device: str) -> dict[str, float]:
    """Median times; each function is called once right before, so that caches hold its data."""
    found = fair_in_turns(work, repeats, device, warm=2, primed=True)
    return {name: 1e3 * seconds for name, seconds in found.items()}


def stepper(model: Model, objective: SVGPELBO | SWSGPObjective, x: Tensor, y: Tensor) -> Work:
    draws = torch.Generator(x.device).manual_seed(1)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        rows = torch.randint(len(x), (BATCH,), generator=draws, device=x.device)
        optimiser.zero_grad()
        (-objective.evidence_of(model, Batch.of(model, x, y, rows)).value).backward()
        optimiser.step()

    return step


def one_by_one(posterior: Posterior, x: Tensor) -> None:
    """Predict every row on its own, as for separate requests."""
    for row in x.split(1):
        posterior.predict(row)


def against_svgp(
    shapes: list[tuple[str, int, int, int]], repeats: int, device: str = "cpu"
) -> list[dict[str, Any]]:
    """Times of steps and predictions of both models, by shape."""
    rows = []
    for name, d, m, h in shapes:
        x, y = problem_of(name, 4 * m, d, device)
        own = {"num_inputs": d, "num_inducing": m, "warm_start": False}
        svgp = SVGP(**parts(d), **own, refit=False).to(device)
        local = SWSGP(**parts(d), **own, num_neighbours=h, learn_inducing=True).to(device)
        for model in (svgp, local):
            with torch.no_grad():
                model.inducing.copy_(x[:m])
        bound, objective = SVGPELBO(len(x)), SWSGPObjective(len(x))
        steps = milliseconds(
            {"svgp": stepper(svgp, bound, x, y), "swsgp": stepper(local, objective, x, y)},
            repeats,
            device,
        )
        posteriors = {"svgp": svgp.condition(x, y), "swsgp": local.condition(x, y)}
        asked = {name: partial(p.predict, x[-1000:]) for name, p in posteriors.items()}
        single = {f"{name} 1": partial(one_by_one, p, x[-TURN:]) for name, p in posteriors.items()}
        distances = partial(torch.matmul, x[-1000:], x[:m].mT.contiguous())
        tests = milliseconds(asked | {"distances": distances}, repeats, device)
        tests |= milliseconds(single, repeats, device)
        rows.append(
            {
                "shape": f"{name} ({d} inputs)",
                "M": m,
                "H": h,
                "SVGP, ms a step": steps["svgp"],
                "SWSGP, ms a step": steps["swsgp"],
                "ratio": steps["svgp"] / steps["swsgp"],
                "SVGP, ms for 1,000 test points": tests["svgp"],
                "SWSGP, ms for 1,000": tests["swsgp"],
                "ratio for 1,000": tests["svgp"] / tests["swsgp"],
                "product of 1,000 with Z alone, ms": tests["distances"],
                "SVGP, ms for one": tests["svgp 1"] / TURN,
                "SWSGP, ms for one": tests["swsgp 1"] / TURN,
                "ratio for one": tests["svgp 1"] / tests["swsgp 1"],
            }
        )
    return rows


def against_size(sizes: list[int], repeats: int, device: str = "cpu") -> list[dict[str, Any]]:
    """Times of steps with learned and with fixed Z, by M."""
    actions: dict[str, Work] = {}
    for m in sizes:
        x, y = problem(max(m, 4000), 8, device)
        for learned in (True, False):
            model = SWSGP(
                **parts(8),
                num_inputs=8,
                num_inducing=m,
                num_neighbours=32,
                warm_start=False,
                learn_inducing=learned,
                rule="kernel" if learned else "euclidean",
            ).to(device)
            with torch.no_grad():
                model.inducing.copy_(x[:m])
            objective = SWSGPObjective(len(x))
            if not learned:  # any table will do for the time of a step
                table = torch.randint(m, (len(x), 32), dtype=torch.int32)
                objective.table = table.to(device)
            actions[f"{m} {learned}"] = stepper(model, objective, x, y)
    found = milliseconds(actions, repeats, device)
    return [
        {
            "M": m,
            "H": 32,
            "learned Z, ms a step": found[f"{m} True"],
            "fixed Z, ms a step": found[f"{m} False"],
        }
        for m in sizes
    ]


def backward(objective: VecchiaMLL, model: Vecchia, x: Tensor, y: Tensor) -> None:
    objective.evidence(model, x, y).value.backward()


def vecchia(n: int, repeats: int, device: str = "cpu") -> list[dict[str, Any]]:
    """The search for neighbours, the evidence and its gradient, by neighbours and blocks."""
    x, y = (t.double() for t in problem(n, 8, device))
    rows = []
    for given, block in ((30, 1), (30, 16), (120, 1), (120, 32)):
        model, objective = Vecchia(**parts(8), num_neighbours=given, block_size=block), VecchiaMLL()
        draws = torch.Generator(device)
        search = spent(partial(model.to(x).initialise, x, y, generator=draws), device)
        value = torch.no_grad()(partial(objective.evidence, model, x, y))
        gradient = partial(backward, objective, model, x, y)
        found = milliseconds({"value": value, "gradient": gradient}, repeats, device)
        rows.append(
            {
                "n": n,
                "neighbours": given,
                "block": block,
                "groups found, s": fair([search], device),
                "evidence, s": found["value"] / 1e3,
                "with gradient, s": found["gradient"] / 1e3,
                "us per row and neighbour": 1e3 * found["gradient"] / n / given,
            }
        )
    return rows


def main() -> None:
    parser = command_line(__doc__, threads=1)
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    quick, device = options.quick, options.device
    big = 256 if quick else 1024
    shapes = [
        ("POWERPLANT", 4, 256, 4),
        ("EEG", 14, 256, 4),
        ("MNIST", 784, big, 4),
        (IMAGES, 784, big, 4),
        ("AIRLINE", 8, big, 4),
    ]
    rows = against_svgp(with_images(shapes), 10 if quick else 40, device)
    show(rows, "Steps and test points")
    sizes = [1000, 10_000] if quick else [1000, 10_000, 100_000]
    show(against_size(sizes, 10 if quick else 40, device), "Steps by the number of points")
    show(vecchia(2000 if quick else 20_000, 1 if quick else 3, device), "Evidence of Vecchia")


if __name__ == "__main__":
    main()
