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

from gpx.errors import ConfigError

FLOOR = 1e-6
"""Smallest value of a positive parameter."""

MARGIN = 0.05
"""How far above its floor, relative to it, an optimiser keeps a positive parameter: closer, and the
unconstrained parameter has no gradient left that would ever move it away again."""


class Positive(nn.Module):
    """Softplus with a floor: ``value = floor + log(1 + exp(raw))``.

    Args:
        floor: the infimum of the natural value, in the parameter's own unit.
        name: of the parameter, for the error message.

    Raises:
        ConfigError: a negative floor.
    """

    def __init__(self, floor: float = FLOOR, name: str = "a positive parameter") -> None:
        super().__init__()
        if not 0.0 <= floor < math.inf:
            raise ConfigError(f"the floor of {name} was set to {floor:g}; it must be 0 or more")
        self.floor = floor
        self.name = name

    def forward(self, raw: Tensor) -> Tensor:
        """Natural value of an unconstrained one; same shape."""
        return softplus(raw) + self.floor

    def right_inverse(self, value: Tensor) -> Tensor:
        """Unconstrained value of a natural one.

        A value equal to the floor counts as just above it: after long training towards the floor
        that is what rounding makes of it, and what was read must be assignable.

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
        info = torch.finfo(value.dtype)
        return _unconstrained(above.clamp_min(max(self.floor * info.eps, info.tiny)))

    @property
    def lowest_raw(self) -> float:
        """Unconstrained value of (1 + MARGIN) times the floor; -inf for a floor of zero."""
        if self.floor <= 0.0:
            return -math.inf
        return float(_unconstrained(torch.tensor(MARGIN * self.floor, dtype=torch.float64)))


class _AsGiven(parametrize.ParametrizationList):
    """Raw value behind a positive parameter that remembers what it was made from.

    Attributes:
        given: natural value in float64.
        made: the raw value that was made from it; a raw value that differs was moved since.
    """

    given: Tensor
    made: Tensor

    def remember(self, given: Tensor) -> None:
        """``given`` is what the raw value, as it is now, was made from."""
        self.given, self.made = given, self.original.detach().clone()

    def right_inverse(self, value: float | Sequence[float] | Tensor) -> None:
        """Assign a natural value: a number for every entry, or one for each.

        torch's own takes a tensor of any shape for the parameter, whatever shape that had.

        Raises:
            ConfigError: no number, several of another shape, below the floor or not finite.
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
        if raw.dtype != before.dtype and torch.equal(before, self.made.to(before.device)):
            exact = cast(Positive, self[0]).right_inverse(self.given)
            raw.data.copy_(exact)
            self.remember(self.given)
        return self


@contextmanager
def values_made_once(device: torch.device, *owners: object) -> Iterator[None]:
    """Inside, a positive parameter that is read several times is made once, on a GPU.

    There every reading is two launches forward and two backward; the parameters of ``owners`` are
    made together, in three launches for all. On a CPU they are free, and gradients keep the order
    in which they have always been summed. Nothing may be assigned inside.

    Args:
        device: where the parameters are.
        owners: modules whose positive parameters will be read; what is no module is left out.
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
                    place = (id(module), constrained.name)
                    groups.setdefault((raw.dtype, floor), []).append((place, raw))
        for (_, floor), members in groups.items():
            raws = [raw for _, raw in members]
            together = torch.cat([raw.reshape(-1) for raw in raws])
            values = (softplus(together) + floor).split([raw.numel() for raw in raws])
            for (place, member), value in zip(members, values, strict=True):
                parametrize._cache[place] = value.view(member.shape)
        yield


def _unconstrained(above: Tensor) -> Tensor:
    """log(exp(v) - 1), written so that neither large nor tiny values lose digits."""
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

    The parameter is made in torch's default dtype; until it is moved, a change of precision
    (``module.double()``) makes it anew from ``value``, so that nothing is lost to rounding.
    """
    given = _numbers(name, value).clone()
    setattr(module, name, nn.Parameter(given.to(torch.get_default_dtype())))
    parametrize.register_parametrization(module, name, Positive(floor, name))
    made = cast("_AsGiven", module.parametrizations[name])  # type: ignore[index]
    made.__class__ = _AsGiven
    made.remember(given)
    _make_picklable(module)


def _numbers(name: str, value: float | Sequence[float] | Tensor) -> Tensor:
    """``value`` in float64, without a graph; raises ConfigError where it is no number."""
    try:
        return torch.as_tensor(value, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} was set to {value!r}; it must be a number or several") from error


def _make_picklable(module: nn.Module) -> None:
    """torch gives each parametrised module a class of its own, and that class refuses to pickle."""
    made: Any = type(module)
    made.__reduce_ex__, made.__copy__ = _reduced, _shallow


def _shallow(module: nn.Module) -> nn.Module:
    """What ``copy.copy`` makes of any module: another one that shares all it holds."""
    made = _empty(type(module))
    vars(made).update(vars(module))
    return made


def _reduced(module: nn.Module, protocol: int) -> tuple[Any, ...]:
    """The class that the user wrote and the module's state: what pickle and joblib keep."""
    return _empty, (type(module).__bases__[0],), vars(module), None, None, _restore


def _empty(cls: type[nn.Module]) -> nn.Module:
    return cls.__new__(cls)


def _restore(module: nn.Module, state: dict[str, Any]) -> None:
    """Put ``state`` back and register its parametrisations again, in place of placeholders."""
    order = state["_modules"]
    others = {name: child for name, child in order.items() if name != "parametrizations"}
    vars(module).update(state | {"_modules": others})
    for name in order["parametrizations"]:
        module.register_parameter(name, nn.Parameter(torch.empty(0)))
        parametrize.register_parametrization(module, name, nn.Identity())
    module._modules = dict(order)  # the saved ones, in the order in which parameters are listed
    _make_picklable(module)


def floor_of(module: nn.Module, name: str) -> float:
    """Infimum of the positive parameter ``module.<name>``, in its own unit."""
    return next(c.constraint.floor for c in positive_parameters(module) if c.name == name)


def raise_floor(module: nn.Module, name: str, floor: float) -> None:
    """Another infimum for ``module.<name>``; values below it move to just above it.

    The floor is no part of a state_dict: who raises it sets it again before a state is loaded.
    """
    value = getattr(module, name).detach()
    constraint = next(c.constraint for c in positive_parameters(module) if c.name == name)
    constraint.floor = floor
    setattr(module, name, value.clamp_min((1.0 + 2.0 * MARGIN) * floor))


def lower_limits(module: nn.Module, parameters: Sequence[nn.Parameter]) -> list[float]:
    """Least values that an optimiser may give to ``parameters`` of ``module``, one for each.

    ``Positive.lowest_raw`` for the unconstrained tensor behind a positive parameter, -inf for any
    other parameter. A line search or a large step that goes further leaves the parameter where its
    gradient vanishes, and the optimiser then takes it for settled.
    """
    found = {id(c.raw): c.constraint.lowest_raw for c in positive_parameters(module)}
    return [found.get(id(parameter), -math.inf) for parameter in parameters]


def at_their_floor(module: nn.Module, parameters: Sequence[nn.Parameter]) -> list[str]:
    """Those of ``parameters`` with an entry within 2 MARGIN of its floor: "name (1e-06)"."""
    chosen = {id(parameter) for parameter in parameters}
    return [
        f"{c.name} ({c.constraint.floor:.0e})"
        for c in positive_parameters(module)
        if id(c.raw) in chosen
        and bool((c.constraint(c.raw.detach()) <= (1.0 + 2.0 * MARGIN) * c.constraint.floor).any())
    ]


class Constrained(NamedTuple):
    """A positive parameter: its dotted name, the tensor that is learned, and what lies between."""

    name: str
    raw: nn.Parameter
    constraint: Positive


def positive_parameters(module: nn.Module, *, below: bool = True) -> Iterator[Constrained]:
    """Every positive parameter of ``module``, and of its parts where they are to be looked at."""
    for path, child in module.named_modules() if below else (("", module),):
        if not parametrize.is_parametrized(child):
            continue
        of_child: Any = child.parametrizations
        for name, parametrizations in of_child.items():
            constraint = parametrizations[0]
            if isinstance(constraint, Positive) and len(parametrizations) == 1:
                raw = parametrizations.original
                yield Constrained(f"{path}.{name}" if path else name, raw, constraint)


def natural_parameters(module: nn.Module) -> dict[str, Tensor]:
    """All parameters of ``module`` by dotted name, in natural units and detached.

    Parametrised ones appear under the name the user reads (``kernel.lengthscale``), not under
    torch's ``kernel.parametrizations.lengthscale.original``.
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
