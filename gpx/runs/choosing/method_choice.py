"""Which method suits a run: facts in, a choice and its reason out.

``METHODS`` is the whole rule: the first method of the list that takes what the run has, and fits
memory and time, is chosen. A new method is one more entry, at its place in the order of accuracy.
Figures behind the limits: ``experiments/auto``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpx.data import Task
from gpx.data.source import Form

EXACT_ROWS = {"cpu": 2_000, "cuda": 10_000}
"""Rows up to which exact inference is quick. On a CPU 3,005 rows take 62 s and neighbours 15 s; on
CUDA, where nothing was measured, as many as ``approx.solver=auto`` factorises."""
JOINT_ROWS = {"cpu": 4_000, "cuda": 10_000}
"""As ``EXACT_ROWS``, of several targets (``Facts.joint_rows``), which neighbours do not take: on a
CPU 2,897 of them take 24 s and inducing points 200 s, for the same errors."""
NEIGHBOUR_ROWS = 500_000
"""Rows up to which a pass over all neighbourhoods per step stays below some ten minutes."""
INDUCING_ROWS = 200_000
"""Rows up to which full passes of 512 inducing points end in some tens of minutes."""
LAPLACE_ROWS = 1_500
"""Rows up to which Newton steps on all latent values at once are quicker than inducing points."""


@dataclass(frozen=True)
class Facts:
    """What a choice depends on.

    Attributes:
        num_train, num_inputs, num_outputs: n, d and the number of targets of a row.
        task: kind of target.
        form: how the data are given: rows of a table, cells of a grid, images, or rows in files.
        gaussian: whether the noise is Gaussian, with one target per row.
        gaussian_outputs: whether it is, with several targets that have a function each.
        observed: targets of all rows that are there, where some of several are missing; None: none
            is.
        log_concave: whether the likelihood is.
        local_kernel: whether correlations fall to zero with distance (``Kernel.local``).
        row_noise: whether the rows say how noisy or how many they are (``data.noise=``,
            ``data.weights=``).
        factors: of a grid, whether the kernel is a product of kernels over its axes.
        device: "cpu" or "cuda".
        memory: bytes that kernel matrices may take.
        budget: seconds that training may take; None: any.
    """

    num_train: int
    num_inputs: int
    num_outputs: int = 1
    task: Task = "regression"
    form: Form = "table"
    gaussian: bool = True
    gaussian_outputs: bool = False
    observed: int | None = None
    log_concave: bool = True
    local_kernel: bool = True
    row_noise: bool = False
    factors: bool = False
    device: str = "cpu"
    memory: int = 4 * 2**30
    budget: float | None = None

    @property
    def exact_rows(self) -> int:
        """Rows up to which dense factorisations are quick on this device."""
        return EXACT_ROWS.get(self.device, EXACT_ROWS["cpu"])

    @property
    def joint_rows(self) -> float:
        """Number of rows whose exact inference, of one target, costs what that of these data does.

        The factorisations are of p matrices n x n, or of one of all targets where some are missing.
        """
        if self.observed is not None:
            return self.observed
        return float(self.num_train * self.num_outputs ** (1 / 3))


@dataclass(frozen=True)
class Choice:
    """A method, ``approx=name``, and why, for people."""

    name: str
    reason: str


@dataclass(frozen=True)
class Method:
    """One method that may be chosen.

    Attributes:
        name: of ``approx=``.
        takes: whether it can be trained on what the run has, at this size.
        seconds: about what training takes on one core of a CPU; a GPU is taken for no faster.
        memory: bytes that it holds, about.
        why: the reason to choose it, where it is the first that fits; takes the facts.
        row_noise: whether it takes noise by row.
    """

    name: str
    takes: Callable[[Facts], bool]
    seconds: Callable[[Facts], float]
    memory: Callable[[Facts], float]
    why: Callable[[Facts], str]
    row_noise: bool = False


def _small(facts: Facts) -> float:
    return 0.0


METHODS: Sequence[Method] = (
    Method(
        "grid",
        takes=lambda f: f.form == "grid" and f.gaussian and f.factors,
        seconds=lambda f: 5.0 + 5e-5 * f.num_train,
        memory=lambda f: 400.0 * f.num_train,
        why=lambda f: "the data are a grid and the kernel factors over its axes: exact inference",
    ),
    Method(
        "exact",
        takes=lambda f: f.form != "stream" and f.gaussian and f.num_train <= f.exact_rows,
        seconds=lambda f: 2.0 + 2.2e-9 * f.num_train**3,
        memory=lambda f: 32.0 * f.num_train**2,
        why=lambda f: f"{f.num_train:,} rows are few enough for exact inference",
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
            + ("" if f.observed is None else f", of which {f.observed:,} are there,")
            + " are few enough for exact inference of all of them together"
        ),
    ),
    Method(
        "vecchia",
        takes=lambda f: (
            f.form != "stream" and f.gaussian and f.local_kernel and f.num_train <= NEIGHBOUR_ROWS
        ),
        seconds=lambda f: 3.0 + 2e-3 * f.num_train,
        memory=lambda f: 5e8 + 2e3 * f.num_train,
        why=lambda f: (
            f"{f.num_train:,} rows, each given the nearest: near exact, at a cost linear in n"
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
        why=lambda f: f"{f.num_train:,} rows in exact experts of about 500",
    ),
    Method(
        "sgpr",
        takes=lambda f: f.form != "stream" and f.gaussian and f.num_train <= INDUCING_ROWS,
        seconds=lambda f: 5.0 + 1.3e-2 * f.num_train,
        memory=lambda f: 5e8,
        why=lambda f: (
            f"{f.num_train:,} rows"
            + ("" if f.local_kernel else " and a kernel that does not fall with distance")
            + ": inducing points"
        ),
        row_noise=True,
    ),
    Method(
        "cnn_rf",
        takes=lambda f: f.form == "images" and f.task == "multiclass",
        seconds=lambda f: 200.0,
        memory=_small,
        why=lambda f: "images of several classes: a convolutional network with a GP for a head",
        row_noise=True,
    ),
    Method(
        "laplace",
        takes=lambda f: (
            f.form != "stream"
            and f.task in ("binary", "ordinal", "count")
            and f.log_concave
            and f.num_train <= LAPLACE_ROWS
        ),
        seconds=lambda f: 2.0 + 1.1e-8 * f.num_train**3,
        memory=lambda f: 64.0 * f.num_train**2,
        why=lambda f: f"{f.num_train:,} rows are few enough for Laplace's method on all of them",
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
"""In the order in which they are tried."""


def _why_svgp(facts: Facts) -> str:
    if facts.form == "stream":
        return "rows in files are read in mini-batches"
    if facts.num_outputs > 1:
        return f"{facts.num_outputs} targets per row"
    if not facts.gaussian:
        return "the likelihood is not Gaussian: inducing points take any"
    return f"{facts.num_train:,} rows: inducing points and mini-batches"


def choose(facts: Facts, methods: Sequence[Method] = METHODS) -> Choice:
    """The first method that takes these facts and fits memory and time.

    Where none fits the time, the quickest of those that fit memory, and the reason says so.

    Args:
        facts: of the run.
        methods: in the order in which they are tried; the last takes anything.
    """
    able = [method for method in methods if method.takes(facts)]
    able = [m for m in able if m.row_noise or not facts.row_noise] or able
    fitting = [m for m in able if m.memory(facts) <= facts.memory] or able[-1:]
    kept = ""
    if able[0] not in fitting:
        needed = able[0].memory(facts) / 2**30
        kept = f"; approx={able[0].name} needs about {needed:.2g} GiB, above trainer.memory_budget"
    if facts.budget is None:
        return Choice(fitting[0].name, fitting[0].why(facts) + kept)
    costs = [method.seconds(facts) for method in fitting]
    told = f"trainer.budget={facts.budget:g}{kept}"
    for method, seconds in zip(fitting, costs, strict=True):
        if seconds <= facts.budget:
            return Choice(method.name, f"{method.why(facts)}; about {seconds:.0f} s, {told}")
    least = min(range(len(costs)), key=costs.__getitem__)
    return Choice(
        fitting[least].name,
        f"the quickest that fits these data, about {costs[least]:.0f} s, above {told}",
    )
