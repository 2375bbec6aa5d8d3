"""The contract of objectives: modules that compute the evidence of a model for data."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast

import torch
from torch import Tensor

from gpx.constructed import Constructed
from gpx.data_sized import DataSized
from gpx.errors import ConfigError, NotAvailable, class_name
from gpx.lazy_rows import LazyRows
from gpx.likelihoods.base import Likelihood
from gpx.linalg.report import CholeskyReport, SolveReport
from gpx.linalg.trace import FixedProbes
from gpx.methods.base.batch import Batch
from gpx.methods.base.model import Model
from gpx.methods.base.model_checks import check_known_rows, check_parts, check_placed
from gpx.methods.base.required_likelihood import OTHER_MODELS
from gpx.priors import Priors
from gpx.sampling.batches import batch_order, scattered_batches
from gpx.tensor_checks import check_inputs, check_targets, guard

Kind = Literal["exact", "lower_bound", "upper_bound", "unbiased", "estimate"]
Batching = Literal["full", "minibatch"]
Facts = dict[str, bool | int | float | str]
MAX_EVIDENCE_BATCHES = 1000
"""Most batches used to estimate the final evidence when rows are read from files."""
ModelT = TypeVar("ModelT")


@dataclass(frozen=True)
class Evidence:
    """Evidence of a model for data.

    Attributes:
        value (): nats, summed over all n training points (never divided by n); differentiable.
        kind: how ``value`` relates to the log marginal likelihood. ``unbiased`` means an unbiased
            estimate of a bound or of the evidence; the objective's docstring says which.
        parts: named terms in nats, for monitoring (fit, complexity, trace, ...); detached.
        report: report of the solver or factorisation.
        facts: further plain values for metrics.json (which path was taken, at what accuracy).
            ``jitter`` is relative to the mean diagonal of the matrix, as the options are.
    """

    value: Tensor
    kind: Kind
    parts: dict[str, Tensor] = field(default_factory=dict)
    report: SolveReport | CholeskyReport | None = None
    facts: Facts = field(default_factory=dict)

    def __post_init__(self) -> None:
        # parts kept for monitoring must not keep the autograd graph of their step alive
        parts = {name: part.detach() for name, part in self.parts.items()}
        object.__setattr__(self, "parts", parts)


def _check_data(objective: Objective[Any], model: Any, x: Tensor, y: Tensor, **_: Any) -> None:
    if isinstance(model, Model):  # the trainer also takes objects that are no Model
        check_parts(model)
        objective.check(model)
        check_inputs(model, x, model.num_inputs)
        check_targets(model, x, y, model.num_outputs)
        if objective.batching == "full":  # others find that of their rows, or are given it
            check_known_rows(model, x)
    elif objective.models is not Objective.models:  # of others what it names, and no more
        objective.require_model(model)


def _check_evidence(
    objective: Objective[Any], model: Any, x: Tensor, y: Tensor, **known: Any
) -> None:
    _check_data(objective, model, x, y, **known)
    wanted = isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()
    if wanted and not objective.gradient_of_inputs:
        raise NotAvailable(
            f"{class_name(objective)}: its evidence carries no gradient with respect to x, or only "
            "a part of one; give x.detach(), or take ExactMLL(), CollapsedELBO() or SVGPELBO()"
        )
    if isinstance(model, Model):
        check_placed(model, x)  # last, as no start mends what the others refuse
    if objective.total and len(x) > objective.total:
        raise ConfigError(
            f"{class_name(objective)} was made for num_data={objective.total} rows and given "
            f"{len(x)}; num_data is the number of all training rows"
        )


class Objective(DataSized, Constructed, Generic[ModelT], ABC):
    """A loss that turns a model and data into evidence.

    Subclasses set ``batching`` and ``kind``, list the ``models`` and ``likelihoods`` they support,
    and implement ``evidence``. An entry of ``models`` is best a protocol of the attributes and
    methods used, which any model may have; a class restricts the objective to its subclasses.
    State of a stochastic estimator (control variates, support points) lives in buffers of the
    objective, so that checkpoints contain it.

    With ``batching = "minibatch"`` the evidence of a batch is an estimate of that of all n points:
    a sum over its rows counts ``self.num_data(x) / len(x)`` times. A run tells an objective n; in a
    loop of your own set ``total``.
    """

    batching: ClassVar[Batching] = "full"
    kind: ClassVar[Kind] = "exact"
    models: ClassVar[tuple[type, ...]] = (Model,)
    streams: bool = False
    """Whether the training data may be ``gpx.lazy_rows.LazyRows``, read from files in batches."""
    fixed_shapes: bool = False
    """Whether ``evidence_given`` (``evidence`` of full batches) runs the same operations on
    the same arrays at every step, so that a CUDA graph can replay it (the model must have
    ``fixed_shapes``, too). Buffers are then changed in place (a replaced buffer costs a new
    recording), all random draws come from ``step_draws``, and what ``after_step`` needs is in
    ``left``. No number may change that is not in a tensor, such as a count of calls or a rate of
    dropout: False in a subclass that overrides ``evidence``, ``evidence_of``, ``evidence_given``,
    ``loss``, ``before_step``, ``after_step`` or ``after_stall`` and does not say so itself."""
    needs_rows: ClassVar[bool] = False
    """Whether ``evidence_given`` uses the numbers of the rows, ``Batch.rows``."""
    takes_missing_targets: ClassVar[bool] = False
    """Whether single targets of a row with several may be missing (NaN)."""
    takes_row_noise: ClassVar[bool] = False
    """Whether it uses known noise variances or weights of rows (``Model.know_noise``); mini-batch
    objectives find them in the batch (``evidence_of``)."""

    gradient_of_inputs: ClassVar[bool] = True
    """Whether the evidence carries its whole gradient with respect to x, as inputs that a network
    makes need. False: x that requires a gradient is refused."""

    total: int = 0
    """n, in mini-batch objectives; 0: the rows of x, until a run sets it."""
    fixed_total: ClassVar[bool] = False
    """Whether ``total`` must be the number of training rows, as ``prepare`` checks and a run before
    it writes files; other objectives take a larger one."""
    told: bool = False
    """Whether a run set ``total``, so that the next one does so as well."""
    elbo: ClassVar[bool] = False
    """Whether it is the evidence lower bound, for which the best q(u) is known where noise is
    Gaussian. Models that predict with this q (``refit``) predict with the trained one otherwise.
    False in a subclass that overrides ``evidence``, ``evidence_of``, ``evidence_given`` or ``loss``
    and does not say so itself."""
    shared: ClassVar[Literal["batch", "evidence"] | None] = None
    """How several processes share the work (``gpx.linalg.processes``). ``batch``: the evidence of a
    batch is the mean of those of its parts, without random draws or state, and each process takes
    one part. ``evidence``: ``evidence`` divides the work itself. None: the work is not shared."""
    made_for: ClassVar[str] = ""
    """Name of a public model that it supports, for error messages."""
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Likelihood,)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        guard(cls, "prepare", _check_data)
        for method in ("evidence", "full_evidence"):
            guard(cls, method, _check_evidence)
        _require_batch(cls)
        own = vars(cls).keys()
        # what the base class says of its own evidence, and of what changes between steps
        evidence = {"evidence", "evidence_of", "evidence_given", "loss"}
        changes = {"before_step", "after_step", "after_stall"}
        for said, of in (("elbo", evidence), ("fixed_shapes", evidence | changes)):
            if own & of and said not in own:
                setattr(cls, said, False)

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
            ConfigError: the objective does not support the model (``check``).
            ShapeError, DTypeError: x is no matrix (n, d) or y not (n,), or they are in another
                precision or on another device than the model. All of this is checked for every
                subclass.
        """

    def evidence_of(
        self, model: ModelT, batch: Batch, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """``evidence`` of a mini-batch.

        Default: ``evidence`` of its inputs and targets, and with the known noise (``noise=``)
        if the batch has any. Objectives that use row numbers (``batch.rows``) override it.
        """
        known: dict[str, Any] = {} if batch.noise is None else {"noise": batch.noise}
        return self.evidence(model, batch.x, batch.y, generator=generator, **known)

    def recordable(self, model: ModelT) -> bool:
        """Whether steps with this model may be recorded as CUDA graphs: both have fixed shapes."""
        return self.fixed_shapes and bool(getattr(model, "fixed_shapes", False))

    def step_draws(
        self, model: ModelT, x: Tensor, *, generator: torch.Generator | None
    ) -> tuple[Tensor, ...]:
        """Random draws for a batch x (batch, d), of fixed shapes. Default: none."""
        return ()

    def evidence_given(self, model: ModelT, batch: Batch, drawn: tuple[Tensor, ...]) -> Evidence:
        """``evidence_of`` a batch with the draws of ``step_draws``. Default: ``evidence_of``."""
        return self.evidence_of(model, batch)

    def shared_for(self, model: ModelT, x: Tensor) -> Literal["batch", "evidence"] | None:
        """``shared``, for objectives where it depends on the model or on x (n, d)."""
        return self.shared

    @property
    def left(self) -> object:
        """Tensors that the last evaluation keeps for ``after_step``. Default: none."""
        return None

    @left.setter
    def left(self, value: object) -> None:
        """Restore the tensors of a recorded evaluation, which replays overwrite in place."""

    @classmethod
    def require_model(cls, model: object) -> None:
        """Raise ConfigError unless this class supports ``model``, whatever the options of both.

        Called before an objective is built: approx= sets options for its own objective, and if
        another one is chosen, a mismatch is reported before an unknown option.
        """
        missing = [_missing_members(model, kind) for kind in cls.models]
        if all(missing):
            wanted = f"{cls.made_for}, or a model" if cls.made_for else "a model"
            raise ConfigError(
                f"objective {cls.__name__} needs {wanted} {' or '.join(missing)}, got "
                f"{type(model).__name__}; choose another objective= or model="
            )

    def check(self, model: ModelT) -> None:
        """Raise ConfigError if this objective does not support ``model``.

        Called before every ``prepare``, ``evidence`` and ``full_evidence``, so that it must be
        cheap and must not read numbers from a device.
        """
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
                f"choose another likelihood=, {OTHER_MODELS}"
            )

    def prepare(
        self, model: ModelT, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Called once before the first step with all training data.

        Default: ``FixedProbes`` among the objective's modules draw the probes of the run.
        """
        for part in self.children():
            if isinstance(part, FixedProbes):
                part.prepare(generator)

    def before_step(self, model: ModelT, x: Tensor, y: Tensor, rows: Tensor) -> None:
        """Called before every mini-batch step, with all training data. Default: nothing.

        Args:
            x (n, d), y (n,): all training data.
            rows (batch,): row numbers of the mini-batch.
        """

    def after_step(self, model: ModelT) -> None:
        """Called after every optimiser step, to update tracked quantities. Default: nothing."""

    def after_stall(self, model: ModelT) -> bool:
        """Called when the loss no longer falls although its gradient has not vanished.

        Returns:
            True if the objective was made more accurate, so that optimisation should continue.
        """
        return False

    def for_prediction(self, model: ModelT, x: Tensor, y: Tensor) -> ModelT:
        """The model to predict with, given all training data.

        An objective that does not determine every hyperparameter (such as the scale of variances)
        sets the others in a copy, so that training can continue from ``model``.

        Default: ``model`` itself; if it would predict with the best q(u) of the evidence lower
        bound (``refit``) and was trained by something else, a copy that predicts with its own.
        """
        if self.elbo or not getattr(model, "refit", False):
            return model
        trained: Any = copy.copy(model)
        trained.refit = False
        return cast(ModelT, trained)

    def forward(
        self, model: ModelT, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """``loss`` of the evidence."""
        return self.loss(self.evidence(model, x, y, generator=generator), model, x)

    def loss(self, evidence: Evidence, model: ModelT, x: Tensor) -> Tensor:
        """The loss (): minus evidence and log prior density, in nats per training point."""
        priors: Priors | None = getattr(model, "hyperpriors", None)
        value = evidence.value
        if priors is not None:
            assert isinstance(model, Model)
            value = value + priors.log_prob(model, all_known=True).to(value)
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
        """Evidence over all training data, for metrics.json at the end of a run.

        Full-batch objectives evaluate once. Mini-batch objectives average over one pass of equal
        batches in random order (a remainder is skipped), so that an unbiased estimate stays
        unbiased; those that can stream the exact value override this. The standard error of the
        mean is among the facts. Of rows in files that are more than ``MAX_EVIDENCE_BATCHES``
        batches so many are used, each from places of its own in the files: batches of one buffer
        would be alike where rows that are near are alike, and the error too small.

        Args:
            model, x (n, d), y (n,), generator: as for ``evidence``.
            batch_size: rows per batch of a mini-batch objective.
        """
        if self.batching == "full":
            return self.evidence(model, x, y, generator=generator)
        batches: Iterable[Tensor]
        if isinstance(x, LazyRows) and x.shape[0] > MAX_EVIDENCE_BATCHES * batch_size:
            batches = scattered_batches(x, batch_size, MAX_EVIDENCE_BATCHES, generator)
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
        """Number of training points the evidence sums over: ``total``, or the rows of x (n, d)."""
        return self.total or max(1, x.shape[0])


def _require_batch(cls: type) -> None:
    """Raise ConfigError if a subclass takes x and y in ``evidence_given`` in place of a batch."""
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


def _missing_members(model: object, kind: type) -> str:
    """What ``model`` lacks of a class or protocol, in words; empty if it conforms."""
    if not getattr(kind, "_is_protocol", False):
        return "" if isinstance(model, kind) else f"that is a {kind.__name__}"
    required: dict[str, None] = {}
    for part in kind.__mro__:
        if part is not Protocol and getattr(part, "_is_protocol", False):
            required |= dict.fromkeys((*vars(part).get("__annotations__", {}), *vars(part)))
    # properties are not evaluated: some are costly, and need data
    missing = [
        name
        for name in required
        if not name.startswith("_") and not hasattr(type(model), name) and not hasattr(model, name)
    ]
    if len(missing) > 3:
        missing = [*missing[:3], f"{len(missing) - 3} more"]
    return f"with {' and '.join(missing)}" if missing else ""
