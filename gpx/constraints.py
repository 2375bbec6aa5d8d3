"""Parameters that must stay positive, behind ``torch.nn.utils.parametrize``.

``kernel.lengthscale`` reads and assigns in natural units; the optimiser sees an unconstrained
tensor; ``state_dict``, ``pickle`` and ``copy.deepcopy`` work as for any module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.nn.utils import parametrize

from gpx.errors import ConfigError, class_name

FLOOR = 1e-6
"""Smallest value of a positive parameter."""

MARGIN = 0.05
"""Relative distance that optimisers keep from the floor of a positive parameter; closer to it the
gradient of the unconstrained parameter vanishes, and it would never move away again."""


class Positive(nn.Module):
    """Softplus with a floor: ``value = floor + log(1 + exp(raw))``.

    Args:
        floor: infimum of the natural value.
        name: of the parameter, for error messages.

    Attributes:
        bounds: lowest and largest natural value for searches that start a run; None: the floor
            alone. Set by ``gpx.bounds.remember_bounds``; copies have them too.

    Raises:
        ConfigError: a negative floor.
    """

    bounds: tuple[float, float] | None = None

    def __init__(self, floor: float = FLOOR, name: str = "a positive parameter") -> None:
        super().__init__()
        if not 0.0 <= floor < math.inf:
            raise ConfigError(f"the floor of {name} was set to {floor:g}; it must be 0 or more")
        self.floor = floor
        self.name = name

    def forward(self, raw: Tensor) -> Tensor:
        """Natural value of an unconstrained value; same shape."""
        return softplus(raw) + self.floor

    def right_inverse(self, value: Tensor) -> Tensor:
        """Unconstrained value of a natural value.

        A value equal to the floor counts as just above it: values close to the floor round to it,
        and every value that was read must be assignable.

        Raises:
            ConfigError: a value below the floor, or not finite.
        """
        above = value - self.floor
        bad = ~((above >= 0) & value.isfinite())
        if bool(bad.any()):
            raise ConfigError(
                f"{self.name} was set to {value[bad][0].item():.3g}; "
                f"it must be above its floor {self.floor:.1e} and finite"
            )
        return self._raw(above)

    def unconstrained(self, value: Tensor) -> Tensor:
        """``right_inverse`` of a value known to be above the floor, without a wait to check it."""
        return self._raw(value - self.floor)

    def _raw(self, above: Tensor) -> Tensor:
        info = torch.finfo(above.dtype)
        return _unconstrained(above.clamp_min(max(self.floor * info.eps, info.tiny)))

    @property
    def lowest_raw(self) -> float:
        """Unconstrained value of (1 + MARGIN) times the floor; -inf for a floor of zero."""
        if self.floor <= 0.0:
            return -math.inf
        return float(_unconstrained(torch.tensor(MARGIN * self.floor, dtype=torch.float64)))


class _ExactInitial(parametrize.ParametrizationList):
    """Unconstrained value of a positive parameter that keeps its initial natural value in float64.

    Attributes:
        initial: natural value in float64.
        initial_raw: the unconstrained value computed from it; the parameter has not been changed
            as long as they are equal.
    """

    initial: Tensor
    initial_raw: Tensor

    def remember(self, initial: Tensor) -> None:
        """Record the natural value from which the current unconstrained value was computed."""
        self.initial, self.initial_raw = initial, self.original.detach().clone()

    def right_inverse(self, value: float | Sequence[float] | Tensor) -> None:
        """Assign a natural value: one number for all entries, or one for each.

        torch's own method accepts a tensor of any shape.

        Raises:
            ConfigError: not a number, of another shape, below the floor or not finite.
        """
        raw, name = self.original, cast(Positive, self[0]).name
        given = _numbers(name, value).to(raw.device, raw.dtype)
        if given.shape != raw.shape and given.numel() != 1:
            raise ConfigError(
                f"{name} was set to values of shape {tuple(given.shape)}; it has {tuple(raw.shape)}"
            )
        super().right_inverse(given.reshape(()).expand(raw.shape) if given.numel() == 1 else given)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        before = self.original.detach()
        super()._apply(fn, recurse)
        raw = self.original
        if raw.dtype != before.dtype and torch.equal(before, self.initial_raw.to(before.device)):
            exact = cast(Positive, self[0]).right_inverse(self.initial)
            raw.data.copy_(exact)
            self.remember(self.initial)
        return self


@contextmanager
def cached_parameters(device: torch.device, *owners: object) -> Iterator[None]:
    """On a GPU, compute every positive parameter once within the block, however often it is read.

    There every reading would take two launches forward and two backward; the parameters of
    ``owners`` are computed together, in three launches for all. On a CPU nothing is cached, which
    costs nothing and keeps the summation order of gradients. No parameter may be assigned inside.

    Args:
        device: of the parameters.
        owners: modules whose positive parameters will be read; other objects are ignored.
    """
    if device.type == "cpu":
        yield
        return
    with parametrize.cached():
        groups: dict[tuple[torch.dtype, float], list[tuple[tuple[int, str], Tensor]]] = {}
        for owner in owners:
            for module in owner.modules() if isinstance(owner, nn.Module) else ():
                for constrained in positive_parameters(module, below=False):
                    raw, floor = constrained.raw, constrained.constraint.floor
                    key = (id(module), constrained.name)
                    groups.setdefault((raw.dtype, floor), []).append((key, raw))
        for (_, floor), members in groups.items():
            raws = [raw for _, raw in members]
            flat = torch.cat([raw.reshape(-1) for raw in raws])
            values = (softplus(flat) + floor).split([raw.numel() for raw in raws])
            for (key, member), value in zip(members, values, strict=True):
                parametrize._cache[key] = value.view(member.shape)
        yield


def _unconstrained(above: Tensor) -> Tensor:
    """log(exp(v) - 1), accurate for large and tiny values."""
    return above + torch.log(-torch.expm1(-above))


def positive_parameter(
    module: nn.Module,
    name: str,
    value: float | Sequence[float] | Tensor,
    *,
    floor: float = FLOOR,
) -> None:
    """Register ``module.<name>`` as a positive parameter with natural value ``value``.

    Args:
        module: owner.
        name: attribute name; reads and assigns in natural units.
        value: initial natural value, any shape (a float gives a 0-d parameter).
        floor: infimum of the value.

    Raises:
        ConfigError: a value that is no number, not above the floor or not finite.

    The parameter has torch's default dtype. As long as it is not changed, a change of precision
    (``module.double()``) computes it again from ``value``, without rounding errors.
    """
    initial = _numbers(name, value).clone()
    setattr(module, name, nn.Parameter(initial.to(torch.get_default_dtype())))
    parametrize.register_parametrization(module, name, Positive(floor, name))
    parametrization = cast("_ExactInitial", module.parametrizations[name])  # type: ignore[index]
    parametrization.__class__ = _ExactInitial
    parametrization.remember(initial)
    _make_picklable(module)


@torch.no_grad()
def replace_positive(module: nn.Module, name: str, value: Tensor) -> None:
    """Set the positive parameter ``module.<name>`` to natural values of any shape.

    Floor, dtype, device and whether it is learned stay. torch's ``remove_parametrizations`` would
    also change the class, which copies of the module share.
    """
    found = cast("_ExactInitial", module.parametrizations[name])  # type: ignore[index]
    before, initial = found.original, _numbers(name, value).clone()
    raw = cast(Positive, found[0]).right_inverse(initial)
    found.original = nn.Parameter(raw.to(before), requires_grad=before.requires_grad)
    found.remember(initial)


def _numbers(name: str, value: float | Sequence[float] | Tensor) -> Tensor:
    """``value`` in float64, detached; raises ConfigError if it is no number."""
    try:
        return torch.as_tensor(value, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} was set to {value!r}; it must be a number or several") from error


def _make_picklable(module: nn.Module) -> None:
    """Make pickle and copy work for a class that torch created for a parametrised module."""
    cls: Any = type(module)
    cls.__reduce_ex__, cls.__copy__ = _reduce, _shallow_copy


def _shallow_copy(module: nn.Module) -> nn.Module:
    """``copy.copy`` as for any module: another one with the same contents."""
    copied = _empty(type(module))
    vars(copied).update(vars(module))
    return copied


def _reduce(module: nn.Module, protocol: int) -> tuple[Any, ...]:
    """For pickle and joblib: the class that the user wrote, and the module's state."""
    return _empty, (type(module).__bases__[0],), vars(module), None, None, _restore


def _empty(cls: type[nn.Module]) -> nn.Module:
    return cls.__new__(cls)


def _restore(module: nn.Module, state: dict[str, Any]) -> None:
    """Restore ``state``, registering its parametrisations again."""
    order = state["_modules"]
    others = {name: child for name, child in order.items() if name != "parametrizations"}
    vars(module).update(state | {"_modules": others})
    for name in order["parametrizations"]:
        module.register_parameter(name, nn.Parameter(torch.empty(0)))
        parametrize.register_parametrization(module, name, nn.Identity())
    module._modules = dict(order)  # those saved, which also restores the order of parameters
    _make_picklable(module)


def floor_of(module: nn.Module, name: str) -> float:
    """Infimum of the positive parameter ``module.<name>``."""
    return next(c.constraint.floor for c in positive_parameters(module) if c.name == name)


@torch.no_grad()
def set_above_floor(module: nn.Module, name: str, value: float | Tensor) -> None:
    """Set the positive parameter ``module.<name>``, at least to (1 + MARGIN) times its floor."""
    here = getattr(module, name)
    least = (1.0 + MARGIN) * floor_of(module, name)
    given = torch.as_tensor(value, dtype=here.dtype, device=here.device)
    setattr(module, name, given.clamp_min(least))


def is_trained(module: nn.Module, name: str) -> bool:
    """Whether ``module.<name>`` is trained; what is no positive parameter counts as trained."""
    found = [c.raw for c in positive_parameters(module, below=False) if c.name == name]
    return all(raw.requires_grad for raw in found)


def named_for_users(module: nn.Module, *, shared: bool = False) -> dict[str, nn.Parameter]:
    """The parameters of ``module`` by dotted name, positive ones by that of their attribute.

    ``kernels.1.period`` is the unconstrained tensor that torch calls
    ``kernels.1.parametrizations.period.original``.

    Args:
        shared: whether a parameter of several parts comes with all of its names; else the first.
    """
    return {
        name.replace("parametrizations.", "").removesuffix(".original"): parameter
        for name, parameter in module.named_parameters(remove_duplicate=not shared)
    }


def fix(module: nn.Module, *names: str) -> None:
    """Keep parameters at their present values in training: ``fix(kernel, "period")``.

    Works in a loop of one's own, whose optimiser leaves parameters without gradients alone, and in
    a run: ``gpx.fit(x, y, kernel=kernel)`` records the names as the option ``fixed=``.

    Args:
        module: kernel, mean or likelihood, or a model of them.
        names: of its parameters, dotted for those of its parts: "kernels.1.period". A parameter is
            fixed as a whole, with a lengthscale for each input all of them; of one that several
            parts share, any of its names.

    ``release`` lets them be trained again; ``fixed_names`` says which are fixed, and so does
    ``print(kernel)``.

    Raises:
        ConfigError: there is no parameter of a name; none is fixed then.
    """
    _set_trained(module, names, "fix", False)


def release(module: nn.Module, *names: str) -> None:
    """Train parameters again that ``fix`` has fixed; ``module`` and ``names`` as there.

    An optimiser in a loop of one's own must know them: make it with all parameters of the model.

    Raises:
        ConfigError: there is no parameter of a name; none is released then.
    """
    _set_trained(module, names, "release", True)


def fixed_names(module: nn.Module) -> list[str]:
    """The names, as in ``fix``, of parameters that are not trained."""
    return [name for name, raw in named_for_users(module).items() if not raw.requires_grad]


def _set_trained(module: nn.Module, names: Sequence[str], verb: str, trained: bool) -> None:
    known = named_for_users(module, shared=True)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{class_name(module)} has no parameter {name} to {verb}; there are "
                f"{', '.join(named_for_users(module)) or 'none'}"
            )
    for name in names:
        known[name].requires_grad_(trained)


def raise_floor(module: nn.Module, name: str, floor: float) -> None:
    """Set a higher infimum of ``module.<name>``; values below it move to just above it.

    The floor is not in the state_dict: it must be raised again before a state is loaded.
    """
    value = getattr(module, name).detach()
    constraint = next(c.constraint for c in positive_parameters(module) if c.name == name)
    constraint.floor = floor
    setattr(module, name, value.clamp_min((1.0 + 2.0 * MARGIN) * floor))


class Constrained(NamedTuple):
    """A positive parameter: its dotted name, its unconstrained tensor, and its constraint."""

    name: str
    raw: nn.Parameter
    constraint: Positive


def positive_parameters(module: nn.Module, *, below: bool = True) -> Iterator[Constrained]:
    """Every positive parameter of ``module`` and, with ``below``, of its submodules."""
    for path, child in module.named_modules() if below else (("", module),):
        if not parametrize.is_parametrized(child):
            continue
        by_name: Any = child.parametrizations
        for name, parametrizations in by_name.items():
            constraint = parametrizations[0]
            if isinstance(constraint, Positive) and len(parametrizations) == 1:
                raw = parametrizations.original
                yield Constrained(f"{path}.{name}" if path else name, raw, constraint)


def natural_parameters(module: nn.Module) -> dict[str, Tensor]:
    """All parameters of ``module`` by dotted name, in natural units and detached.

    Parametrised ones have the name of their attribute (``kernel.lengthscale``) instead of torch's
    ``kernel.parametrizations.lengthscale.original``.
    """
    found: dict[str, Tensor] = {}
    for path, child in module.named_modules():
        if ".parametrizations" in f".{path}":
            continue
        prefix = f"{path}." if path else ""
        if parametrize.is_parametrized(child):
            for name in child.parametrizations:
                found[prefix + name] = getattr(child, name).detach()
        for name, parameter in child.named_parameters(recurse=False):
            found[prefix + name] = parameter.detach()
    return found
