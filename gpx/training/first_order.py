"""First-order optimisers for stochastic objectives, with settings per role of parameters."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gpx.bounds import limits_within
from gpx.errors import ConfigError, class_name
from gpx.methods.base.batch import Batch
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.base.optimizer import NOTHING_TRAINED, Optimizer, Session
from gpx.methods.base.replayed_step import replayed_batches, worth_recording
from gpx.sampling.batches import BatchOrder, batch_order
from gpx.training.algorithms import algorithm_class
from gpx.training.bounds import checked_bounds
from gpx.training.natural_gradient import NaturalGradient, owners_with_steps
from gpx.training.restored_state import restore_state
from gpx.training.role_settings import (
    ROLES,
    checked_groups,
    checked_schedule,
    otherwise,
    require_dense,
    require_number,
    require_sparse,
    schedule_factor,
)
from gpx.training.settling import Settling
from gpx.training.shared_evaluation import Evaluate, shared_evaluation

logger = logging.getLogger(__name__)


class FirstOrder(Optimizer):
    """One torch optimiser per role of parameters (``Model.parameter_groups``).

    Args:
        groups: role -> {algorithm: adam | adagrad | sgd | sparse_adam | natural, lr: initial rate,
            freeze_steps: steps before the role is trained}; further entries are options of torch's
            class. With ``natural``, otherwise: {algorithm, lr} of families of q(u) that have no
            natural steps, or of which a part is fixed, and of objectives that are no evidence lower
            bound (``Objective.elbo``); beside it lr may be None, which is 0.1 for natural steps and
            the rate of ``otherwise`` for another algorithm. ``algorithm`` may also be the dotted
            name of any subclass of ``torch.optim.Optimizer`` that steps without
            a closure (``torch.optim.AdamW``, or one of one's own). A role of the model without
            settings is an error. Settings for a role that the model lacks are ignored if the role
            is one of ``ROLES``, otherwise an error.
        schedule: {name: constant | exponential | cosine, final: last rate / first rate, warmup:
            steps over which the rate of a role rises linearly, from its first step on}.
        settled: training ends early once a tenth of the steps gains less than this many nats per
            data point (``gpx.training.settling``). Unless the schedule is constant, another tenth
            of the steps follows, in which the rates run through the rest of the schedule. None:
            all steps are taken.
        bounds: (name, lowest, largest) of positive parameters, in natural units, as in
            ``[("kernel.lengthscale", 0.1, 10.0)]``. The start keeps them, and what a step moves
            beyond one is set to it. Two equal numbers hold the parameter at that value.

    The learning rate depends on the step and on the step at which the evidence settled. A model may
    scale the rates of its roles (``Model.rate_factors``); the factors are fixed at the start of
    training and saved with the optimiser. After every step positive parameters are clamped to
    (1 + MARGIN) times their lower limit, where they still have a gradient
    (``gpx.bounds.limits_within``).
    """

    streams = True
    takes_priors = True
    advice = "lower the learning rates (optimizer.groups.*.lr) or use trainer.dtype=float64"

    def __init__(
        self,
        groups: Mapping[str, Mapping[str, Any]],
        schedule: Mapping[str, Any] | None = None,
        settled: float | None = None,
        bounds: Sequence[Any] = (),
    ) -> None:
        self.settings = checked_groups(groups)
        self.schedule = checked_schedule(schedule)
        if settled is not None:
            require_number("settled", settled)
        self.settled = settled
        self.bounds = checked_bounds(bounds)
        self.settling = Settling(None, 1)
        self.parameters: dict[str, list[nn.Parameter]] = {}
        self.optimisers: dict[str, torch.optim.Optimizer] = {}
        self.limits: dict[str, list[tuple[nn.Parameter, float]]] = {}
        self.upper_limits: dict[str, list[tuple[nn.Parameter, float]]] = {}
        self.factors: dict[str, float] = {}
        self.replaced: dict[str, dict[str, Any]] = {}
        self.max_steps = 1

    def require_fit(
        self, model: Model, objective: Objective, num_data: int, max_steps: int
    ) -> None:
        """As in ``Optimizer``: every role of parameters has its settings."""
        super().require_fit(model, objective, num_data, max_steps)
        self.bind(model.parameter_groups(), max_steps, model, objective=objective)

    def bounds_of_values(self) -> dict[str, tuple[float, float]]:
        """As in ``Optimizer``."""
        return self.bounds

    def run(self, session: Session) -> str:
        """As in ``Optimizer``: steps on mini-batches, or on all data, up to ``session.limit``."""
        objective = session.objective
        num_data = objective.num_data(session.x)
        groups, limit = session.model.parameter_groups(), session.limit
        self.bind(groups, limit, session.model, num_data, objective=objective)
        self.factors = session.model.rate_factors()
        for role in self.replaced:
            why = "they have no natural gradient steps"
            if not objective.elbo:
                name = class_name(objective)
                why = f"natural gradient steps are for evidence lower bounds, and {name} is none"
            session.say(
                f"{role} parameters: {why}; trained by "
                f"algorithm={self.settings[role].get('algorithm', 'adam')} "
                f"(optimizer.groups.{role}.otherwise)"
            )
        if session.resumed:
            self.load_state_dict(session.pending)
            clock = (session.seconds, session.seconds_of_start, session.budget)
            self.settling.given_more_time(session.step, *clock)
        batches = _batches(session) if objective.batching == "minibatch" else None
        every = [p for group in self.parameters.values() for p in group]
        evaluate = shared_evaluation(self._evaluation(session), every, objective.shared)
        total = torch.zeros((), dtype=torch.float64, device=session.x.device)
        summed = 0
        self._set_last_step(session)
        if not every:  # one step, for its evidence
            session.max_steps = min(session.max_steps, 1)
        while session.step < session.max_steps and not session.out_of_time:
            # a check of sparse gradients would wait for a GPU, and cannot be part of a CUDA graph
            with session.timed(), torch.sparse.check_sparse_tensor_invariants(False):
                self.before_step(session.step)
                batch = Batch(session.x, session.y)
                if batches is not None:
                    rows = batches.rows(session.step)
                    objective.before_step(session.model, session.x, session.y, rows)
                    batch = Batch.of(session.model, session.x, session.y, rows)
                loss, parts = evaluate(batch)
                self.step(session.step)
                objective.after_step(session.model)
                session.step += 1
                total += loss
                summed += 1
                if self.settling.add(loss, session.step):
                    self._set_last_step(session)
                log = session.log_due()
                mean_loss = float(total) / summed if log else 0.0  # the only host synchronisation
            if log:
                session.report(mean_loss, parts, self.learning_rates(session.step - 1))
                total.zero_()
                summed = 0
            session.unlogged = (total, parts)
            session.end_step()
            self._end_by_budget(session)
        if summed:  # the budget ended training between two reports
            session.report(float(total) / summed, parts, self.learning_rates(session.step - 1))
        self.release()
        placed = [(p, p.detach().clone()) for p in self.parameters.get("inducing", [])]
        session.end_round(math.nan)
        for parameter, before in placed:
            if not torch.equal(parameter, before):  # moments are of the points before
                self.optimisers["inducing"].state.pop(parameter, None)
        if not every:
            return NOTHING_TRAINED
        if session.step < session.limit:
            if self.settling.ran_out or session.out_of_time:
                return session.ended_in_time()
            return f"the evidence settled: {session.step} of max_steps={session.limit} steps done"
        return f"max_steps={session.limit} steps done"

    def _end_by_budget(self, session: Session) -> None:
        """Set the last step of the run once the last share of its time has begun."""
        if session.budget is None:
            return
        clock = (session.seconds, session.seconds_of_start, session.budget)
        if self.settling.run_out(session.step, *clock):
            session.max_steps = self.settling.end(session.limit)

    def _set_last_step(self, session: Session) -> None:
        """Set the last step of the run, and tell the user if the evidence has settled."""
        if self.settling.at is None:
            session.max_steps = session.limit
            return
        if self.settling.ran_out:  # in a resumed run
            session.max_steps = self.settling.end(session.limit)
            return
        at = self.settling.at
        falling = self.schedule["name"] != "constant"
        session.max_steps = self.settling.end(session.limit) if falling else at
        if session.step in (at, session.max_steps) and session.max_steps < session.limit:
            rest = session.max_steps - session.step  # 0 when a finished run is resumed
            more = f" after {rest} more steps at falling rates" if rest else ""
            session.say(
                f"step {at}: the evidence has settled (the last {self.settling.length} steps "
                f"gained less than {self.settled:g} nats per point): training ends{more}; "
                "settled=None takes all steps"
            )

    def _evaluation(self, session: Session) -> Evaluate:
        """The function that evaluates a batch and leaves gradients in the parameters."""
        objective, model = session.objective, session.model

        def loss_of(evidence: Evidence, x: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
            return objective.loss(evidence, model, x), evidence.parts

        rows = len(session.x)
        if objective.batching == "minibatch":
            rows = min(rows, session.batch_size)
        if session.cuda_graphs and self.parameters and worth_recording(objective, model, rows):
            every = [p for group in self.parameters.values() for p in group]
            for optimiser in self.optimisers.values():
                if isinstance(optimiser, NaturalGradient):
                    optimiser.replay()

            return replayed_batches(objective, model, every, loss_of, session.generator)

        def evaluated(batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
            found = objective.evidence_of(model, batch, generator=session.generator)
            loss, parts = loss_of(found, batch.x)
            if self.parameters:
                loss.backward()
            return loss.detach(), parts

        return evaluated

    def bind(
        self,
        groups: Mapping[str, list[nn.Parameter]],
        max_steps: int,
        model: nn.Module | None = None,
        num_data: int = 1,
        *,
        objective: Objective | None = None,
    ) -> None:
        """Attach to a model's parameters.

        Args:
            groups: role -> parameters; those that need no gradient are left alone.
            max_steps: of the run, for the schedule.
            model: owner of the parameters, for their lower limits; None if there are no limits.
            num_data: the loss is the negative evidence divided by this.
            objective: that is trained; None: an evidence lower bound.

        Raises:
            ConfigError: a role without settings, an unknown algorithm or option, or every role
                is frozen at the start.
        """
        self.max_steps = max_steps
        self.settings.update(self.replaced)  # for a model that was bound before
        self.replaced = {}
        for role in self.settings:
            if role not in groups and role not in ROLES:
                near = difflib.get_close_matches(role, groups, n=1)
                hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(groups)}"
                raise ConfigError(
                    f"optimizer.groups.{role}: the model has no parameters of that name; {hint}"
                )
        for role, every in groups.items():
            parameters = [p for p in every if p.requires_grad]  # others are to stay as they are
            if not parameters:
                continue
            if role not in self.settings:
                raise ConfigError(
                    f"the model has {role} parameters and optimizer.groups has no entry for them "
                    f"(it has {', '.join(self.settings)}); add optimizer.groups.{role}"
                )
            self._take_otherwise(role, model, parameters, objective)
            optimiser = self.optimisers[role] = self._optimiser(role, parameters)
            if isinstance(optimiser, NaturalGradient):
                optimiser.attach(model, num_data)
            self.parameters[role] = parameters
            if model is None:
                continue
            lower, upper = limits_within(model, parameters, self.bounds)
            limited = zip(parameters, lower, strict=True)
            self.limits[role] = [pair for pair in limited if pair[1] > -math.inf]
            limited = zip(parameters, upper, strict=True)
            self.upper_limits[role] = [pair for pair in limited if pair[1] < math.inf]
        if self.parameters and all(self.settings[role]["lr"] == 0 for role in self.parameters):
            raise ConfigError(
                "nothing would be trained: the learning rate of every group of parameters "
                f"({', '.join(self.parameters)}) is 0; set optimizer.groups.*.lr"
            )
        frozen = {role: self.settings[role].get("freeze_steps", 0) for role in self.parameters}
        warmup = self.schedule["warmup"]
        begun = [step for freeze in frozen.values() for step in (freeze, freeze + warmup)]
        thawed = max((step for step in begun if step < max_steps), default=0)
        self.settling = Settling(self.settled, max_steps, thawed)
        if frozen and min(frozen.values()) > 0:
            role = min(frozen, key=lambda name: frozen[name])
            raise ConfigError(
                f"nothing would be trained in the first {frozen[role]} steps: the model has only "
                f"{' and '.join(frozen)} parameters, which this optimizer freezes at the start; "
                f"set optimizer.groups.{role}.freeze_steps=0 or choose another optimizer="
            )

    def _take_otherwise(
        self,
        role: str,
        model: nn.Module | None,
        parameters: Sequence[nn.Parameter],
        objective: Objective | None,
    ) -> None:
        """Train ``role`` by ``otherwise`` if it is given and natural steps do not apply.

        They follow the evidence lower bound: of other objectives the natural parameters of q(u) may
        leave the positive definite matrices in a step.
        """
        setting = self.settings[role]
        instead = otherwise(setting)
        if instead is None or setting.get("algorithm") != "natural":
            return
        bound = objective is None or objective.elbo
        if not bound or owners_with_steps(model, parameters) is None:
            self.replaced[role] = setting
            self.settings[role] = instead

    def _optimiser(self, role: str, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser of torch that the settings of a role name."""
        setting = dict(self.settings[role])
        algorithm = setting.pop("algorithm", "adam")
        setting.pop("freeze_steps", None)
        setting.pop("otherwise", None)
        free = not {"foreach", "differentiable"} & setting.keys()
        if algorithm == "adam" and free and all(p.is_cuda for p in parameters):
            setting.setdefault("fused", True)  # one launch for all parameters of a role
        try:
            # classes name their first argument as they like
            return algorithm_class(algorithm, f"groups.{role}")(parameters, **setting)
        except (TypeError, ValueError) as error:  # out of range, or parameters of other shapes
            raise ConfigError(f"optimizer.groups.{role}: {error}") from error

    def learning_rate(self, role: str, step: int) -> float:
        """Rate of ``role`` at ``step``; zero while frozen."""
        begun = step - self.settings[role].get("freeze_steps", 0)
        if begun < 0:
            return 0.0
        progress = self._progress(step)
        factor = schedule_factor(self.schedule["name"], self.schedule["final"], progress)
        if begun < self.schedule["warmup"]:
            factor *= (begun + 1) / self.schedule["warmup"]
        return float(self.settings[role]["lr"]) * factor * self.factors.get(role, 1.0)

    def _progress(self, step: int) -> float:
        """Share of the schedule completed at ``step``, in [0, 1]."""
        settling = self.settling
        if settling.at is None or step < settling.at:
            return step / max(1, self.max_steps)
        begun = settling.at / max(1, self.max_steps)
        left = max(1, settling.end(self.max_steps) - settling.at)
        return begun + (1.0 - begun) * min(1.0, (step - settling.at) / left)

    def learning_rates(self, step: int) -> dict[str, float]:
        """Rates of all roles at ``step``, for monitoring."""
        return {role: self.learning_rate(role, step) for role in self.optimisers}

    def before_step(self, step: int) -> None:
        """Clear gradients. Frozen roles need none, which also saves their backward pass."""
        for role, optimiser in self.optimisers.items():
            optimiser.zero_grad(set_to_none=True)
            active = step >= self.settings[role].get("freeze_steps", 0)
            for parameter in self.parameters[role]:
                parameter.requires_grad_(active)

    def step(self, step: int) -> None:
        """Update the parameters of every role that is not frozen.

        Raises:
            ConfigError: a role has sparse gradients and an algorithm that changes every entry, or
                the other way round.
        """
        for role, optimiser in self.optimisers.items():
            rate = self.learning_rate(role, step)
            if rate == 0.0:
                continue
            for group in optimiser.param_groups:
                group["lr"] = rate
            sparse = [p.grad.is_sparse for p in self.parameters[role] if p.grad is not None]
            if not all(sparse):
                require_dense(role, self.settings[role], optimiser)
            if any(sparse):
                require_sparse(role, self.settings[role])
                # torch's default, but sparse AdaGrad warns unless it is chosen
                with torch.sparse.check_sparse_tensor_invariants(False):
                    optimiser.step()
            else:
                optimiser.step()
            if limited := self.limits.get(role):
                kept = [parameter.data for parameter, _ in limited]
                torch._foreach_clamp_min_(kept, [least for _, least in limited])
            if limited := self.upper_limits.get(role):
                kept = [parameter.data for parameter, _ in limited]
                torch._foreach_clamp_max_(kept, [most for _, most in limited])

    def release(self) -> None:
        """Make every parameter trainable again (after the last step)."""
        for parameters in self.parameters.values():
            for parameter in parameters:
                parameter.requires_grad_(True)

    def state_dict(self) -> dict[str, Any]:
        """State of every optimiser by role, their settings, and the stopping rule."""
        state = {role: optimiser.state_dict() for role, optimiser in self.optimisers.items()}
        rule = self.settling.state_dict()
        settings = {role: dict(self.settings[role]) for role in self.optimisers}
        factors = dict(self.factors)
        return {**state, "rate_factors": factors, "settling": rule, "settings": settings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; older ones have only the states of the optimisers."""
        self.factors = dict(state.get("rate_factors", {}))
        for role, optimiser in self.optimisers.items():
            before = state.get("settings", {}).get(role)
            if not restore_state(optimiser, state.get(role), self.settings[role], before):
                logger.warning(
                    "optimizer.groups.%s: moments of another algorithm are dropped, or of other "
                    "parameters",
                    role,
                )
        if "settling" in state:
            self.settling.load_state_dict(state["settling"])


def _batches(session: Session) -> BatchOrder:
    num_data = session.x.shape[0]
    if session.batch_size > num_data and session.step == 0:
        session.say(
            f"trainer.batch_size={session.batch_size} is above the {num_data} training rows: "
            "every step uses all of them"
        )
    return batch_order(session.x, session.batch_size, session.seed)
