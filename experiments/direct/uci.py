"""Discrete weights on the UCI regression sets (tables 7.1 and 7.2).

    python experiments/direct/uci.py --data servo yacht --splits 0 1 2
    python experiments/direct/uci.py --method mixture --splits 0      # mixtures
    python experiments/direct/uci.py --method reparam --splits 0      # the comparator
    python experiments/direct/uci.py --method plain --splits 0        # L-BFGS without restarts
    python experiments/direct/uci.py --method annealed --splits 0     # the default of approx=direct
    python experiments/direct/uci.py --start whole_set --method plain # as published, see below
    python experiments/direct/uci.py --start whole_set --method mixture_around  # table 7.2
    python experiments/direct/uci.py --start whole_set --method mixture_sampled # last of 7.1
    python experiments/direct/uci.py --start whole_set --method mixture_around --perturbation 1
    python experiments/direct/uci.py --start parsimonious             # another start of the kernel
    python experiments/direct/uci.py --quick                     # two sets, one fold
    python experiments/direct/uci.py --table                     # only write the tables again

Protocol (Evans thesis, section 7.6): published 10-fold splits, squared exponential with one
lengthscale per input from an exact GP on min(n, 1000) rows and kept, 2000 random Fourier features,
15 values to three prior deviations, noise variance of that fit, L-BFGS for 1000 evaluations. As
published (``--start whole_set --method plain``, see ``../whole_set.py``) the kernel is one for all
folds and the deviation of the function its signal variance. Otherwise the kernel is fitted to the
rows of the fold, and in the same row are the exact posterior of Gaussian weights on the same
functions, SGPR, a linear and a nearest-neighbour model. Table 7.2 has a mixture of five with a
bounded entropy, REPARAM is in ``reparam.py``. Neither the rate of the sampled mixtures nor the
perturbation at which mixtures start is published; of the folds that were run with several, the
tables show the one with the largest bound. Folds that have a row are not repeated.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from published import PUBLISHED, PUBLISHED_LARGE
from record import COMMIT, argument_parser
from reparam import reparam_means
from row_files import add_line
from uci_tables import FOLDS, FUNCTIONS, PLAIN, STARTS, key_of, read, table
from whole_set import FTOL, scaler_of, whole_set_kernel

from gpx.bases.sufficient_statistics import FittedWeights
from gpx.constants import LOG_TWO_PI
from gpx.data import Dataset
from gpx.data import load as load_data
from gpx.errors import GPXError
from gpx.models import Direct, DirectMixture, Model
from gpx.objectives import DirectMixtureELBO, DirectSampledELBO
from gpx.options.build import build, build_model
from gpx.options.composition import composed
from gpx.runs import RunFolder, load, run
from gpx.training import LBFGSB
from gpx.training.checkpoint import load_checkpoint

MANY = 15
"""Inputs beyond which lengthscales start at the square root of their number, not at one."""

METHODS = (
    "mean_field",
    "mixture",
    "mixture_around",
    "mixture_sampled",
    "reparam",
    "plain",
    "annealed",
)

AROUND = ("mixture_around", "mixture_sampled")
"""Mixtures that start at perturbations of a mean field."""

QUIET = ["trainer.eval_every=0", "trainer.figures=false", "trainer.tensorboard=false"]


Means = Callable[[Direct, torch.Tensor, torch.Tensor], torch.Tensor]
"""Model, inputs and targets -> means of the weights."""

AT_PRIOR = "approx.anneal=0"
"""The published start of q."""

MIXTURE_STEPS = 200
"""Evaluations of the bound of a mixture."""

DRAWS, SAMPLED_STEPS = 3000, 150
"""Of the sampled entropy a step, as published; steps of Adam, whose rate falls a hundredfold."""


def common_options(name: str, split: int, start: str) -> list[str]:
    """Options of every method on a fold."""
    inputs = (PUBLISHED | PUBLISHED_LARGE)[name][1]
    # in many dimensions a lengthscale of one leaves the kernel matrix diagonal, without a gradient
    lengthscale = round(math.sqrt(inputs), 2) if inputs > MANY else 1.0
    chosen = [f"data={name}", f"data.split={split}", *QUIET]
    if start.startswith("whole_set"):
        found = whole_set_kernel(name).options(scaler_of(name, split), start == "whole_set")
        return [*chosen, *found, f"optimizer.ftol={FTOL}"]
    chosen.append(f"kernel.lengthscale={lengthscale}")
    if start == "noisy":  # the exact GP starts with noise variance one
        return [*chosen, "init=subset", "likelihood.noise_variance=1"]
    return [*chosen, f"init={start}"]


def fold(
    name: str,
    split: int,
    functions: int,
    method: str,
    start: str,
    perturbation: float,
    rate: float,
) -> dict[str, Any]:
    """Train and test one fold.

    Args:
        perturbation: standard deviation of the logits of mixtures about the mean field.
        rate: of Adam, at the first step of a mixture by sampled entropies.
    """
    common = common_options(name, split, start)
    row: dict[str, Any] = {
        "data": name,
        "split": split,
        "functions": functions,
        "method": method,
        "start": start,
    }
    if method in AROUND:
        row["perturbation"] = perturbation
    if method == "mixture_sampled":
        row["rate"] = rate
    kinds = {
        "mean_field": mean_field,
        "mixture": mixture,
        "mixture_around": partial(mixture_around, perturbation=perturbation),
        "mixture_sampled": partial(mixture_sampled, perturbation=perturbation, rate=rate),
        "reparam": reparam,
        "plain": partial(searched, search=[AT_PRIOR, "approx.restarts=0"]),
        "annealed": partial(searched, search=[]),
    }
    made = kinds[method]
    with tempfile.TemporaryDirectory() as place:
        row |= made(common, name, functions, Path(place))
    return row | {"num_threads": torch.get_num_threads(), "commit": COMMIT}


def mean_field(common: list[str], name: str, functions: int, place: Path) -> dict[str, Any]:
    """Independent weights by L-BFGS, and the baselines of the same row."""
    config = composed([*common, "approx=direct", AT_PRIOR, f"approx.num_basis={functions}"])
    folder = RunFolder(place / "run")
    began = time.process_time()
    metrics = run(config, folder)
    seconds = time.process_time() - began
    gaussian = gaussian_rmse(folder)
    inducing = min(200, (PUBLISHED | PUBLISHED_LARGE)[name][0] // 2)
    sparse = [f"approx.num_inducing={inducing}", "trainer.max_steps=60"]
    other = composed([*common, "approx=sgpr", *sparse, "trainer.baselines=false"])
    try:
        sgpr = run(other, RunFolder(place / "sgpr"))["test.rmse_original"]
    except GPXError as error:  # a baseline failed; the row is kept
        print(f"{name}: SGPR: {error}")
        sgpr = None
    return facts(metrics, seconds) | {
        "gaussian": gaussian,
        "sgpr": sgpr,
        "linear": metrics["baseline.linear.rmse_original"],
        "neighbours": metrics["baseline.5-nn.rmse_original"],
        "trivial": metrics["baseline.mean.rmse_original"],
    }


def facts(metrics: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Columns of every search."""
    return {
        "rmse": metrics["test.rmse_original"],
        "mnlp": metrics["test.mnlp"],
        "sparsity": 100.0 * metrics["predict.sparsity"],
        "bound": metrics["train.evidence"],
        "sweep_gain": metrics.get("train.sweep_gain"),
        "evaluations": metrics["train.steps"],
        "optimisation": metrics["train.seconds"],
        "seconds": seconds,
    }


def mixture(common: list[str], name: str, functions: int, place: Path) -> dict[str, Any]:
    """Five components by L-BFGS on the bound of their entropy."""
    options = [AT_PRIOR, f"approx.num_basis={functions}", f"trainer.max_steps={MIXTURE_STEPS}"]
    began = time.process_time()
    metrics = run(composed([*common, "approx=direct_mixture", *options]), RunFolder(place / "run"))
    return facts(metrics, time.process_time() - began)


def mixture_around(
    common: list[str], name: str, functions: int, place: Path, perturbation: float
) -> dict[str, Any]:
    """Five components, which start around the mean field that one search finds, as published."""
    began = time.process_time()
    model, data = around_mean_field(common, functions, place, perturbation)
    x, y, objective = data.train_x.double(), data.train_y.double(), DirectMixtureELBO()
    seconds: list[float] = [time.perf_counter()]
    LBFGSB(ftol=FTOL).minimise(
        variational(model),
        lambda: objective(model, x, y),
        MIXTURE_STEPS,
        lambda count, loss, replayed: seconds.append(time.perf_counter()),
    )
    bound = float(objective.evidence(model, x, y).value.detach())
    return mixture_facts(model, data, bound, seconds) | {"seconds": time.process_time() - began}


def mixture_sampled(
    common: list[str], name: str, functions: int, place: Path, perturbation: float, rate: float
) -> dict[str, Any]:
    """The same start, then the sampled gradient of the entropy itself; the last bound is a mean."""
    began = time.process_time()
    model, data = around_mean_field(common, functions, place, perturbation)
    x, y = data.train_x.double(), data.train_y.double()
    objective = DirectSampledELBO(len(x), DRAWS)
    optimiser = torch.optim.Adam(variational(model), lr=rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.01 ** (1.0 / SAMPLED_STEPS))
    generator = torch.Generator().manual_seed(1)
    seconds: list[float] = [time.perf_counter()]
    for _ in range(SAMPLED_STEPS):
        optimiser.zero_grad()
        objective(model, x, y, generator=generator).backward()
        optimiser.step()
        schedule.step()
        seconds.append(time.perf_counter())
    with torch.no_grad():
        ends = [objective.evidence(model, x, y, generator=generator).value for _ in range(3)]
    bound = float(torch.stack(ends).mean())
    return mixture_facts(model, data, bound, seconds) | {"seconds": time.process_time() - began}


def around_mean_field(
    common: list[str], functions: int, place: Path, perturbation: float
) -> tuple[DirectMixture, Dataset]:
    """A mixture of five begun around the mean field of one search, and its data."""
    options = [*common, AT_PRIOR, f"approx.num_basis={functions}", "trainer.baselines=false"]
    alone, around = RunFolder(place / "alone"), RunFolder(place / "around")
    run(composed([*options, "approx=direct", "approx.restarts=0"]), alone)
    start = ["approx=direct_mixture", "approx.sweeps=0", "trainer.max_steps=1"]
    run(composed([*options, *start]), around)
    (mean_field, _), (model, data) = loaded(alone), loaded(around)
    assert isinstance(mean_field, Direct)
    assert isinstance(model, DirectMixture)
    assert torch.equal(mean_field.gram, model.gram)  # the same functions
    # not an option of the run above: at the prior, where it starts, perturbations of one make the
    # bound of the entropy infinite
    model.perturbation = perturbation
    model.start_around(mean_field.logits.detach(), generator=torch.Generator().manual_seed(0))
    return model, data


def variational(model: DirectMixture) -> list[torch.nn.Parameter]:
    return [p for group in model.parameter_groups().values() for p in group]


@torch.no_grad()
def mixture_facts(
    model: DirectMixture, data: Dataset, bound: float, seconds: list[float]
) -> dict[str, Any]:
    """Columns of a mixture; seconds: the clock before the first step and after each."""
    posterior = model.condition(data.train_x.double(), data.train_y.double())
    moments = posterior.predict(data.test_x.double())
    variance = moments.variance + model.likelihood.noise_variance
    square = (moments.mean - data.test_y).square()
    mnlp = 0.5 * (square / variance + variance.log() + LOG_TWO_PI).mean()
    return {
        "rmse": float(square.mean().sqrt() * data.scaler.target_scale),
        "mnlp": float(mnlp),
        "sparsity": 100.0 * model.sparsity(),
        "bound": bound,
        "evaluations": len(seconds) - 1,
        "optimisation": seconds[-1] - seconds[0],
    }


def searched(
    common: list[str], name: str, functions: int, place: Path, search: list[str]
) -> dict[str, Any]:
    """Independent weights by another search; one L-BFGS from the prior is the published one."""
    options = [f"approx.num_basis={functions}", *search, "trainer.baselines=false"]
    began = time.process_time()
    metrics = run(composed([*common, "approx=direct", *options]), RunFolder(place / "run"))
    return facts(metrics, time.process_time() - began)


def reparam(common: list[str], name: str, functions: int, place: Path) -> dict[str, Any]:
    """Gaussian weights by sampled gradients, on the same basis functions."""
    start = [f"approx.num_basis={functions}", "trainer.max_steps=1", "approx.restarts=0"]
    folder = RunFolder(place / "run")
    run(composed([*common, "approx=direct", *start, "trainer.baselines=false"]), folder)
    began = time.process_time()

    def means(model: Direct, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        features = (model.basis(x) * model.scale).detach()
        noise = float(model.likelihood.noise_variance)
        return reparam_means(features, y - model.mean(x).detach(), noise)

    rmse = weights_rmse(folder, means)
    return {"rmse": rmse, "seconds": time.process_time() - began}


def gaussian_rmse(folder: RunFolder) -> float:
    """Test RMSE of Gaussian weights on the same functions, whose posterior is exact."""

    def means(model: Direct, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        unit, noise = torch.ones_like(model.scale), model.likelihood.noise_variance.double()
        return FittedWeights(model.statistics, unit, noise).mean.detach()

    return weights_rmse(folder, means)


def loaded(folder: RunFolder) -> tuple[Model, Dataset]:
    """The model of a run, in double precision, and its data."""
    config = folder.read_config()
    model = build_model(config).double()
    model.load_state_dict(load_checkpoint(folder.checkpoint, torch.device("cpu"))["model"])
    return model, load_data(build(config, "data"), task="regression")


def weights_rmse(folder: RunFolder, means: Means) -> float:
    """Test RMSE on the functions of a run with other means of the weights, in units of scale."""
    model, data = loaded(folder)
    assert isinstance(model, Direct)
    weights = model.scale * means(model, data.train_x.double(), data.train_y.double())
    with torch.no_grad():
        x = data.test_x.double()
        found = model.mean(x) + model.basis(x) @ weights
        assert torch.equal(load(folder.path).scaler.target_scale, data.scaler.target_scale)
        return float((found - data.test_y).square().mean().sqrt() * data.scaler.target_scale)


def main() -> None:
    parser = argument_parser(__doc__, quick="two sets, one fold")
    sets = [*PUBLISHED, *PUBLISHED_LARGE]
    parser.add_argument("--data", nargs="*", choices=sets, default=sets)
    parser.add_argument("--splits", nargs="*", type=int, default=list(range(10)))
    parser.add_argument("--functions", type=int, default=FUNCTIONS)
    parser.add_argument("--method", choices=METHODS, default=METHODS[0])
    parser.add_argument("--start", choices=[*STARTS], default="subset")
    parser.add_argument(
        "--perturbation",
        type=float,
        default=PLAIN["perturbation"],
        help="of the logits where mixtures start (mixture_around, mixture_sampled)",
    )
    parser.add_argument(
        "--rate", type=float, default=PLAIN["rate"], help="of Adam (mixture_sampled)"
    )
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    method = options.method
    if options.perturbation != PLAIN["perturbation"] and method not in AROUND:
        parser.error(f"--method {method} has no perturbation")
    if options.rate != PLAIN["rate"] and method != "mixture_sampled":
        parser.error(f"--method {method} has no rate")
    names, splits = options.data, options.splits
    if options.quick:
        names, splits = ["challenger", "servo"], [0]
    done = set(map(key_of, read()))
    for split in [] if options.table else splits:
        for name in names:
            chosen = (
                name,
                split,
                options.functions,
                method,
                options.start,
                options.perturbation,
                options.rate,
            )
            if chosen in done:
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("default")
                    row = fold(*chosen)
            except GPXError as error:
                print(f"{name} split {split}: {error}")
                continue
            add_line(FOLDS, row, key_of)
            shown = ("data", "split", "rmse", "gaussian", "sgpr", "linear", "sparsity", "seconds")
            print({k: row.get(k) for k in shown}, flush=True)
    table()


if __name__ == "__main__":
    main()
