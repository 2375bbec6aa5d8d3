"""What an evidence objective is: a plain function of tensors inside, a thin module around it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from gpx.data_sized import DataSized
from gpx.errors import ConfigError, class_name
from gpx.lazy_rows import LazyRows
from gpx.likelihoods.base import Likelihood
from gpx.linalg.report import CholeskyReport, SolveReport
from gpx.linalg.trace import FixedProbes
from gpx.methods.base.batch import Batch
from gpx.methods.base.model import Model, check_parts
from gpx.priors import Priors
from gpx.sampling.batches import batch_order, scattered_batches
from gpx.tensor_checks import check_inputs, check_targets, guard

Kind = Literal["exact", "lower_bound", "upper_bound", "unbiased", "estimate"]
Batching = Literal["full", "minibatch"]
Facts = dict[str, bool | int | float | str]
MOST_BATCHES = 1000
"""Batches of rows in files that an estimate of the final evidence takes."""
ModelT = TypeVar("ModelT")


@dataclass(frozen=True)
class Evidence:
    """Evidence of a model for data.

    Attributes:
        value (): nats, summed over all n training points (never divided by n); differentiable.
        kind: what ``value`` is with respect to the log marginal likelihood. ``unbiased`` means an
            unbiased estimate of a bound or of the evidence, as the objective's docstring says.
        parts: named terms in nats, for monitoring (fit, complexity, trace, ...); held detached.
        report: what the solver or factorisation did.
        facts: further plain values for metrics.json (which path was taken, at what accuracy).
    """

    value: Tensor
    kind: Kind
    parts: dict[str, Tensor] = field(default_factory=dict)
    report: SolveReport | CholeskyReport | None = None
    facts: Facts = field(default_factory=dict)

    def __post_init__(self) -> None:
        # a part that is kept for monitoring must not keep the graph of its step alive
        parts = {name: part.detach() for name, part in self.parts.items()}
        object.__setattr__(self, "parts", parts)


def _check_data(objective: Objective[Any], model: Any, x: Tensor, y: Tensor, **_: Any) -> None:
    if isinstance(model, Model):  # the trainer, too, takes stand-ins for one
        check_parts(model)
        check_inputs(model, x, model.num_inputs)
        check_targets(model, x, y, model.num_outputs)


class Objective(DataSized, Generic[ModelT], ABC):
    """A loss that turns a model and data into evidence.

    Subclasses set ``batching`` and ``kind``, list the ``models`` and ``likelihoods`` they fit, and
    write ``evidence``. What they ask of a model is best said by a protocol with the attributes and
    methods that they use, which any model may have; a class in its place takes its kind alone.
    State of a stochastic estimator (control variates, support points) lives in buffers of the
    objective, so that checkpoints carry it.
    """

    batching: ClassVar[Batching] = "full"
    kind: ClassVar[Kind] = "exact"
    models: ClassVar[tuple[type, ...]] = (Model,)
    streams: bool = False
    """Whether all training data may be ``gpx.lazy_rows.LazyRows``, read from files in batches."""
    fixed_shapes: bool = False
    """Whether ``evidence_given`` is the same operations on the same arrays at every step, with a
    model that says so, too: so that a GPU may replay them from a recording. Buffers are changed in
    place (one that is replaced costs a new recording); all that is drawn comes from
    ``step_draws``, and what ``after_step`` goes on with is in ``left``."""
    takes_missing_targets: ClassVar[bool] = False
    """Whether some of several targets of a row may be missing, NaN."""
    takes_row_noise: ClassVar[bool] = False
    """Whether it counts in what a model knows of the noise of each row (``Model.know_noise``); one
    of mini-batches finds it in the batch (``evidence_of``)."""

    shared: ClassVar[Literal["batch", "evidence"] | None] = None
    """How several processes share the work (``gpx.linalg.processes``): ``batch``: the evidence of a
    batch is the mean of those of its parts, without draws and without state, so that each process
    takes a part; ``evidence``: ``evidence`` divides it itself; None: not at all."""
    made_for: ClassVar[str] = ""
    """A public model that has what it asks for, for people."""
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Likelihood,)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method in ("prepare", "evidence", "full_evidence"):
            guard(cls, method, _check_data)
        _require_batch(cls)

    @abstractmethod
    def evidence(
        self, model: ModelT, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Evidence in nats, summed over all training points.

        Args:
            model: one of ``self.models``.
            x (n, d): all training inputs (``batching == "full"``) or a mini-batch.
            y (n,), or (n, p) for a model of p outputs: targets in the same order.
            generator: source of randomness on the data's device; stochastic objectives need it.

        Raises:
            ShapeError, DTypeError: x is no matrix (n, d) or y not (n,), or they are in another
                precision or on another device than the model (checked for every subclass).
        """

    def evidence_of(
        self, model: ModelT, batch: Batch, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """``evidence`` of a mini-batch that carries what is known of its rows.

        Default: what its inputs and targets give. Those that ask which rows they are
        (``batch.rows``), or count in their noise and weights (``batch.noise``), say more.
        """
        return self.evidence(model, batch.x, batch.y, generator=generator)

    def step_draws(
        self, model: ModelT, x: Tensor, *, generator: torch.Generator | None
    ) -> tuple[Tensor, ...]:
        """What ``evidence`` draws for a batch x (batch, d), of fixed shapes. Default: nothing."""
        return ()

    def evidence_given(self, model: ModelT, batch: Batch, drawn: tuple[Tensor, ...]) -> Evidence:
        """``evidence_of`` a batch for what ``step_draws`` gave. Default: ``evidence_of``."""
        return self.evidence_of(model, batch)

    def shared_for(self, model: ModelT, x: Tensor) -> Literal["batch", "evidence"] | None:
        """``shared`` for this model on x (n, d), where that decides. Default: ``shared``."""
        return self.shared

    @property
    def left(self) -> object:
        """What the last evaluation left for ``after_step``, beside buffers. Default: nothing."""
        return None

    @left.setter
    def left(self, value: object) -> None:
        """Put back what a recorded evaluation left, which its replays fill anew."""

    @classmethod
    def require_model(cls, model: object) -> None:
        """Raise ConfigError unless ``model`` is of a kind this class takes, whatever its options.

        Options that approx= sets are for its own objective: where another is chosen, this is the
        sentence to read before any on an option that the other does not have.
        """
        lacking = [_lacking(model, kind) for kind in cls.models]
        if all(lacking):
            wanted = f"{cls.made_for}, or a model" if cls.made_for else "a model"
            raise ConfigError(
                f"objective {cls.__name__} needs {wanted} {' or '.join(lacking)}, "
                f"got {type(model).__name__}; choose another objective= or model="
            )

    def check(self, model: ModelT) -> None:
        """Raise ConfigError, in one sentence, when this objective does not fit ``model``."""
        self.require_model(model)
        likelihood: Any = getattr(model, "likelihood", None)
        if isinstance(model, Model) and likelihood.num_outputs != model.num_outputs:
            raise ConfigError(
                f"{type(model).__name__} models one output and its likelihood has "
                f"{likelihood.num_outputs}; choose another likelihood=, or model=CoregionalGP() or "
                "model=SVGP(), which take several"
            )
        if not isinstance(likelihood, self.likelihoods):
            wanted = " or ".join(m.__name__ for m in self.likelihoods)
            # torch renames the class of a module that has parametrised attributes
            found = class_name(likelihood)
            raise ConfigError(
                f"objective {type(self).__name__} needs the {wanted} likelihood, got {found}; "
                "choose another likelihood=, or model=SVGP(), which takes any"
            )

    def prepare(
        self, model: ModelT, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Called once before the first step with all training data.

        Default: ``FixedProbes`` among the objective's modules choose the probes of the run.
        """
        for part in self.children():
            if isinstance(part, FixedProbes):
                part.prepare(generator)

    def before_step(self, model: ModelT, x: Tensor, y: Tensor, rows: Tensor) -> None:
        """Called before every mini-batch step, with all training data. Default: nothing.

        Args:
            x (n, d), y (n,): all training data.
            rows (batch,): those of the mini-batch that ``evidence`` will be given.
        """

    def after_step(self, model: ModelT) -> None:
        """Called after every optimiser step (to update tracked quantities). Default: nothing."""

    def after_stall(self, model: ModelT) -> bool:
        """Called when the loss no longer falls although its gradient has not vanished.

        Returns:
            whether the objective became smoother, so that it is worth while to go on.
        """
        return False

    def for_prediction(self, model: ModelT, x: Tensor, y: Tensor) -> ModelT:
        """The model to predict with, given all training data; by default ``model`` itself.

        What this objective leaves open (the scale of variances, where it knows none) is set in a
        copy, so that training can go on from ``model``.
        """
        return model

    def forward(
        self, model: ModelT, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """``loss`` of the evidence."""
        return self.loss(self.evidence(model, x, y, generator=generator), model, x)

    def loss(self, evidence: Evidence, model: ModelT, x: Tensor) -> Tensor:
        """What is minimised (): minus the evidence, and the log density of the model's priors where
        it has some, in nats per training point."""
        priors: Priors | None = getattr(model, "hyperpriors", None)
        value = evidence.value
        if priors is not None:
            assert isinstance(model, Model)
            value = value + priors.log_prob(model).to(value)
        return value / -self.num_data(x)

    @torch.no_grad()
    def full_evidence(
        self,
        model: ModelT,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Evidence over all training data, for the record at the end of a run.

        Full-batch objectives evaluate once. Mini-batch ones average over one pass of equal batches
        in random order (a remainder is skipped), which keeps an unbiased estimate unbiased;
        objectives that can stream the exact value override this. The standard error of the mean is
        among the facts. Of rows in files that are more than a thousand batches so many are taken,
        each from places of its own, so that the error is right where near rows are alike.

        Args:
            model, x (n, d), y (n,), generator: as for ``evidence``.
            batch_size: rows per batch of a mini-batch objective.
        """
        if self.batching == "full":
            return self.evidence(model, x, y, generator=generator)
        batches: Iterable[Tensor]
        if isinstance(x, LazyRows) and x.shape[0] > MOST_BATCHES * batch_size:
            batches = scattered_batches(x, batch_size, MOST_BATCHES, generator)
        else:
            seed = int(torch.randint(2**62, (), generator=generator, device=x.device))
            order = batch_order(x, batch_size, seed)
            batches = map(order.rows, range(order.per_epoch))
        values = []
        for rows in batches:
            batch = Batch.of(model, x, y, rows)
            values.append(self.evidence_of(model, batch, generator=generator).value)
        found = torch.stack(values)
        facts: Facts = {"evidence_batches": len(found)}
        if len(found) > 1:
            facts["evidence_standard_error"] = float(found.std() / len(found) ** 0.5)
        return Evidence(found.mean(), "estimate", facts=facts)

    def num_data(self, x: Tensor) -> int:
        """Number of training points the evidence sums over; mini-batch objectives override it."""
        return x.shape[0]


def _require_batch(cls: type) -> None:
    """Raise ConfigError where a class writes ``evidence_given`` for x and y in two arguments."""
    own = vars(cls).get("evidence_given")
    if own is None:
        return
    try:
        inspect.signature(own).bind("self", "model", "batch", "drawn")
    except TypeError as error:
        raise ConfigError(
            f"{cls.__name__}.evidence_given{inspect.signature(own)} is called with a model, a "
            "batch and what was drawn: take (model, batch, drawn), where batch.x and batch.y are "
            "what x and y were"
        ) from error


def _lacking(model: object, kind: type) -> str:
    """What ``model`` would have to be or have to be of this kind, in words; empty where it is."""
    if not getattr(kind, "_is_protocol", False):
        return "" if isinstance(model, kind) else f"that is a {kind.__name__}"
    asked: dict[str, None] = {}
    for part in kind.__mro__:
        if part is not Protocol and getattr(part, "_is_protocol", False):
            asked |= dict.fromkeys((*vars(part).get("__annotations__", {}), *vars(part)))
    # properties are not evaluated: some are costly, and need data
    missing = [
        name
        for name in asked
        if not name.startswith("_") and not hasattr(type(model), name) and not hasattr(model, name)
    ]
    if len(missing) > 3:
        missing = [*missing[:3], f"{len(missing) - 3} more"]
    return f"with {' and '.join(missing)}" if missing else ""
