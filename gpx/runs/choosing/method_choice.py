"""The rule of ``approx=auto``: facts of a run in, a method and the reason out.

The first method in ``METHODS`` that can be trained on the data, and fits memory and time, is
chosen. A new method is one more entry, at its place in the order of accuracy. The limits were
measured in ``experiments/auto``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpx.data import Task
from gpx.data.source import Form

EXACT_ROWS = {"cpu": 2_000, "cuda": 10_000}
"""Most rows for exact inference: with more, neighbours are faster. Not measured on CUDA, where it
is the limit of ``approx.solver=auto`` for factorisation."""
AVERAGED_ROWS = 200
"""Most rows for averaging over hyperparameters, which takes four to sixty seconds. With so few rows
intervals at a point estimate are often much too short (``experiments/auto/few_rows.py``)."""
FEW_ROWS = 300
"""Rows up to which it predicts better (``experiments/priors``), so that it is named."""
CHAIN_STEPS = 400
"""Steps that the chains of ``approx=fully_bayesian`` take."""
JOINT_ROWS = {"cpu": 4_000, "cuda": 10_000}
"""Most equivalent rows (``Facts.joint_rows``) for exact inference of several targets. The limit is
higher as the alternative, inducing points, is slower than neighbours."""
NEIGHBOUR_ROWS = 500_000
"""Most rows for neighbours and experts: training takes about ten minutes."""
INDUCING_ROWS = 200_000
"""Most rows for full passes of 512 inducing points: training takes tens of minutes."""
PROPAGATION_ROWS = 1_000
"""Most rows for expectation propagation: a minute of one core. Of classes that a function separates
Laplace's approximation makes far too little (``docs/methods/classification/laplace.md``)."""
ORDERED_ROWS = 600
"""Most rows for the variational Gaussian approximation of ordered classes: half a minute of one
core. It predicts as expectation propagation does, whose moments take a quadrature here."""
LAPLACE_ROWS = 1_500
"""Most rows for Laplace's approximation: with more, inducing points are faster."""


@dataclass(frozen=True)
class Facts:
    """Facts of a run that the choice depends on.

    Attributes:
        num_train, num_inputs, num_outputs: n, d and the number of targets of a row.
        task: kind of target.
        form: how the data are given: rows of a table, cells of a grid, images, or rows in files.
        gaussian: whether the noise is Gaussian, with one target per row.
        gaussian_outputs: whether the noise is Gaussian, with several targets per row.
        observed: number of targets present, if some of several are missing; None if none are.
        suits_laplace: whether the likelihood is one for Laplace's approximation.
        local_kernel: whether correlations fall to zero with distance (``Kernel.local``).
        row_noise: whether rows have their own noise or weight (``data.noise=``, ``data.weights=``).
        samples: whether hyperparameters may be sampled: no optimiser is named, or Markov chains
            are, none of them is fixed, steps suffice for chains, in float64, and the kernel's
            hyperparameters have a posterior that chains explore in that time.
        factors: for a grid, whether the kernel is a product of kernels over its axes.
        device: "cpu" or "cuda".
        memory: bytes that kernel matrices may take.
        budget: seconds that training may take; None: no limit.
    """

    num_train: int
    num_inputs: int
    num_outputs: int = 1
    task: Task = "regression"
    form: Form = "table"
    gaussian: bool = True
    gaussian_outputs: bool = False
    observed: int | None = None
    suits_laplace: bool = True
    local_kernel: bool = True
    row_noise: bool = False
    samples: bool = True
    factors: bool = False
    device: str = "cpu"
    memory: int = 4 * 2**30
    budget: float | None = None

    @property
    def exact_rows(self) -> int:
        """``EXACT_ROWS`` of the device."""
        return EXACT_ROWS.get(self.device, EXACT_ROWS["cpu"])

    @property
    def joint_rows(self) -> float:
        """Rows of one target for which exact inference would cost the same as for these data.

        That factorises p matrices n x n, or a single one of all targets if some are missing or have
        noise of their own.
        """
        if self.observed is not None:
            return self.observed
        if self.row_noise:
            return self.num_train * self.num_outputs
        return self.separate_rows

    @property
    def separate_rows(self) -> float:
        """The same where each of p targets is modelled by itself, with about as many cells each."""
        cells = self.num_train * self.num_outputs if self.observed is None else self.observed
        return float(cells / self.num_outputs ** (2 / 3))


@dataclass(frozen=True)
class Choice:
    """A method (``approx=name``) and the reason for it, for the user."""

    name: str
    reason: str


@dataclass(frozen=True)
class Method:
    """One method that may be chosen.

    Attributes:
        name: of ``approx=``.
        takes: whether it can be trained on such data.
        seconds: estimated time of training on one core of a CPU (no faster estimate for a GPU).
        memory: estimated bytes.
        why: the reason to choose it, if it is the first that fits.
        row_noise: whether it takes noise per row.
    """

    name: str
    takes: Callable[[Facts], bool]
    seconds: Callable[[Facts], float]
    memory: Callable[[Facts], float]
    why: Callable[[Facts], str]
    row_noise: bool = False


def _small(facts: Facts) -> float:
    return 0.0


def _is_few(facts: Facts) -> bool:
    return facts.num_train <= FEW_ROWS and facts.budget is None and facts.num_outputs == 1


METHODS: Sequence[Method] = (
    Method(
        "grid",
        takes=lambda f: f.form == "grid" and f.gaussian and f.factors,
        seconds=lambda f: 5.0 + 5e-5 * f.num_train,
        memory=lambda f: 400.0 * f.num_train,
        why=lambda f: "the data are a grid and the kernel factors over its axes: exact inference",
    ),
    Method(
        "fully_bayesian",
        takes=lambda f: (
            f.form == "table" and f.gaussian and f.samples and f.num_train <= AVERAGED_ROWS
        ),
        seconds=lambda f: 10.0 + 0.15 * f.num_train,
        memory=lambda f: 32.0 * f.num_train**2,
        why=lambda f: (
            f"{f.num_train:,} rows leave hyperparameters open, so that predictions are averaged "
            "over them; approx=exact takes the most probable ones, in a fraction of the time"
        ),
        row_noise=True,
    ),
    Method(
        "exact",
        takes=lambda f: f.form != "stream" and f.gaussian and f.num_train <= f.exact_rows,
        seconds=lambda f: 2.0 + 2.2e-9 * f.num_train**3,
        memory=lambda f: 32.0 * f.num_train**2,
        why=lambda f: (
            f"{f.num_train:,} rows are few enough for exact inference"
            + ("; approx=fully_bayesian averages over its hyperparameters" * _is_few(f))
        ),
        row_noise=True,
    ),
    Method(
        "coregional",
        takes=lambda f: (
            f.form != "stream"
            and f.gaussian_outputs
            and f.joint_rows <= JOINT_ROWS.get(f.device, JOINT_ROWS["cpu"])
        ),
        seconds=lambda f: 2.0 + 3e-9 * f.joint_rows**3,
        memory=lambda f: 32.0 * (f.observed or f.num_train) ** 2,
        why=lambda f: (
            f"{f.num_outputs} targets of {f.num_train:,} rows"
            + ("" if f.observed is None else f", of which {f.observed:,} are present,")
            + " are few enough for joint exact inference"
        ),
        row_noise=True,
    ),
    Method(
        "independent",
        takes=lambda f: (
            f.form != "stream"
            and f.gaussian_outputs
            and f.separate_rows <= JOINT_ROWS.get(f.device, JOINT_ROWS["cpu"])
        ),
        seconds=lambda f: 2.0 + 3e-9 * f.separate_rows**3,
        memory=lambda f: 32.0 * f.num_train**2,
        why=lambda f: (
            f"{f.num_outputs} targets of {f.num_train:,} rows"
            + ("" if f.observed is None else f", of which {f.observed:,} are present,")
            + " are too many for joint exact inference, and few enough for that of each by itself"
        ),
        row_noise=True,
    ),
    Method(
        "vecchia",
        takes=lambda f: (
            f.form != "stream" and f.gaussian and f.local_kernel and f.num_train <= NEIGHBOUR_ROWS
        ),
        seconds=lambda f: 3.0 + 2e-3 * f.num_train,
        memory=lambda f: 5e8 + 2e3 * f.num_train,
        why=lambda f: (
            f"{f.num_train:,} rows: conditioning each on its nearest neighbours is nearly exact"
        ),
        row_noise=True,
    ),
    Method(
        "committee",
        takes=lambda f: (
            f.form != "stream" and f.gaussian and f.local_kernel and f.num_train <= NEIGHBOUR_ROWS
        ),
        seconds=lambda f: 3.0 + 6e-4 * f.num_train,
        memory=lambda f: 5e8 + 5e3 * f.num_train,
        why=lambda f: f"{f.num_train:,} rows, divided among exact experts of about 500",
    ),
    Method(
        "sgpr",
        takes=lambda f: f.form != "stream" and f.gaussian and f.num_train <= INDUCING_ROWS,
        seconds=lambda f: 5.0 + 1.3e-2 * f.num_train,
        memory=lambda f: 5e8,
        why=lambda f: (
            f"{f.num_train:,} rows"
            + ("" if f.local_kernel else " and a kernel that does not decay with distance")
            + ": inducing points"
        ),
        row_noise=True,
    ),
    Method(
        "cnn_rf",
        takes=lambda f: f.form == "images" and f.task == "multiclass",
        seconds=lambda f: 200.0,
        memory=_small,
        why=lambda f: (
            "images of several classes: a convolutional network with a GP on its features"
        ),
        row_noise=True,
    ),
    Method(
        "ep",
        takes=lambda f: (
            f.form != "stream"
            and f.suits_laplace
            and f.task == "binary"
            and f.num_train <= PROPAGATION_ROWS
        ),
        seconds=lambda f: 5.0 + 6e-8 * f.num_train**3,
        memory=lambda f: 64.0 * f.num_train**2,
        why=lambda f: f"{f.num_train:,} rows are few enough for expectation propagation",
    ),
    Method(
        "vgp",
        takes=lambda f: (
            f.form != "stream"
            and f.suits_laplace
            and f.task == "ordinal"
            and f.num_train <= ORDERED_ROWS
        ),
        seconds=lambda f: 2.0 + 0.01 * f.num_train + 6e-8 * f.num_train**3,
        memory=lambda f: 64.0 * f.num_train**2,
        why=lambda f: (
            f"{f.num_train:,} rows are few enough for the variational Gaussian approximation; "
            "approx=laplace takes half of the time, but of ordered classes that the inputs "
            "separate its probabilities are too even"
        ),
    ),
    Method(
        "laplace",
        takes=lambda f: (
            f.form != "stream"
            and f.task in ("binary", "ordinal", "count", "positive")
            and f.suits_laplace
            and f.num_train <= LAPLACE_ROWS
        ),
        seconds=lambda f: 2.0 + 1.1e-8 * f.num_train**3,
        memory=lambda f: 64.0 * f.num_train**2,
        why=lambda f: f"{f.num_train:,} rows are few enough for Laplace's approximation",
    ),
    Method(
        "svgp",
        takes=lambda f: True,
        seconds=lambda f: 200.0,
        memory=_small,
        why=lambda f: _why_svgp(f),
        row_noise=True,
    ),
)
"""All methods, in the order in which they are tried."""


def _why_svgp(facts: Facts) -> str:
    if facts.form == "stream":
        return "rows in files are read in mini-batches"
    if facts.num_outputs > 1:
        return f"{facts.num_outputs} targets per row"
    if not facts.gaussian:
        return "the likelihood is not Gaussian: inducing points work with any likelihood"
    return f"{facts.num_train:,} rows: inducing points and mini-batches"


def choose(facts: Facts, methods: Sequence[Method] = METHODS) -> Choice:
    """The first method that can be trained on the data and fits memory and time.

    If none fits the time, the fastest of those that fit memory.

    Args:
        facts: of the run.
        methods: in the order in which they are tried; the last must take any data.
    """
    able = [method for method in methods if method.takes(facts)]
    able = [m for m in able if m.row_noise or not facts.row_noise] or able
    fitting = [m for m in able if m.memory(facts) <= facts.memory] or able[-1:]
    skipped = ""
    if able[0] not in fitting:
        needed = able[0].memory(facts) / 2**30
        skipped = (
            f"; approx={able[0].name} needs about {needed:.2g} GiB, above trainer.memory_budget"
        )
    if facts.budget is None:
        return Choice(fitting[0].name, fitting[0].why(facts) + skipped)
    costs = [method.seconds(facts) for method in fitting]
    limit = f"trainer.budget={facts.budget:g}{skipped}"
    for method, seconds in zip(fitting, costs, strict=True):
        if seconds <= facts.budget:
            return Choice(
                method.name, f"{method.why(facts)}; training takes about {seconds:.0f} s, {limit}"
            )
    least = min(range(len(costs)), key=costs.__getitem__)
    return Choice(
        fitting[least].name,
        f"the fastest for these data, but training takes about {costs[least]:.0f} s, above {limit}",
    )
