"""Base class of selectors of inducing points."""

from __future__ import annotations

import copy
import inspect
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, DataError, ShapeError, class_name
from gpx.kernels.base import Kernel
from gpx.tensor_checks import check_at_least, check_inputs
from gpx.warned_line import users_line


@dataclass(frozen=True)
class Selection:
    """Chosen inducing points.

    Attributes:
        points (M, d): inducing inputs.
        indices (M,): their row numbers, or None if they are not rows of the data.
        informative: how many of them reduced the residual prior variance when they were chosen; the
            rest are random rows, because the kernel matrix of the data has no higher rank.
        trace_error: tr(K_xx - Q_xx) over the candidates at the current hyperparameters, if known.
    """

    points: Tensor
    indices: Tensor | None = None
    informative: int | None = None
    trace_error: float | None = None


class Selector(ABC):
    """Chooses inducing points from the inputs, a few selectors by targets and noise as well.

    Calling a selector gives the points; ``select`` gives the indices and diagnostics as well.

    Attributes:
        needs_targets: whether ``given`` must be called before; regressions with Gaussian noise do.
        fixed_number: M if it is the selector's own, as with ``Given``; None: as many as asked for.
        may_choose_fewer: whether fewer than asked for are meant; otherwise they are warned of.
    """

    needs_targets: ClassVar[bool] = False
    fixed_number: int | None = None

    @property
    def may_choose_fewer(self) -> bool:
        """See ``Selector``."""
        return False

    def given(self, residual: Tensor, noise: Tensor) -> Selector:
        """The selector for these targets; by default itself, as it does not use them.

        Args:
            residual (n,): y - m(x), of the rows that ``select`` will get.
            noise () or (n,): noise variances.
        """
        return self

    def construction(self) -> dict[str, Any] | None:
        """Every argument of the constructor by name, for the config in a run folder.

        By default the attributes of these names; None if one of them has no such attribute.
        """
        names = inspect.signature(type(self)).parameters
        own = vars(self)
        return {name: own[name] for name in names} if own.keys() >= names.keys() else None

    @abstractmethod
    def _select(
        self, x: Tensor, kernel: Kernel, num_inducing: int, generator: torch.Generator | None
    ) -> Selection:
        """Choice for valid arguments (1 <= num_inducing <= n), without a gradient graph."""

    def select(
        self,
        x: Tensor,
        kernel: Kernel,
        num_inducing: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Selection:
        """Choose inducing points with their indices and diagnostics.

        Args:
            x (n, d): training inputs.
            kernel: at its current hyperparameters.
            num_inducing: M, at most n.
            generator: source of randomness on the device of x.

        Raises:
            ShapeError, DTypeError: x is not a matrix, or has not the kernel's dtype and device.
            DataError: fewer data than inducing points, or inputs that are not finite.
        """
        check_at_least(1, num_inducing=num_inducing)
        check_inputs(kernel, x)
        n = x.shape[0]
        if num_inducing > n:
            raise DataError(
                f"{num_inducing} inducing points were asked for but there are only {n} training "
                f"points; set num_inducing={n} or less, or use model=ExactGP()"
            )
        if not bool(torch.isfinite(x).all()):
            raise DataError(
                "inducing points cannot be selected: the inputs hold NaN or infinite values; "
                "clean the data"
            )
        with torch.no_grad():
            found = self._select(x.detach(), kernel, num_inducing, generator)
        own = self.fixed_number is not None or self.may_choose_fewer
        if len(found.points) != num_inducing and not own:
            warnings.warn(
                f"{class_name(self)} chose {len(found.points)} inducing points where "
                f"{num_inducing} were asked for: the model has as many as it chose",
                stacklevel=users_line(),
            )
        return found

    def __call__(
        self,
        x: Tensor,
        kernel: Kernel,
        num_inducing: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Inducing inputs (M, d), a new tensor; see ``select``."""
        return self.select(x, kernel, num_inducing, generator=generator).points


class TargetSelector(Selector):
    """A selector that chooses by targets and noise as well: ``_select`` asks ``_targets``."""

    needs_targets = True
    _residual: Tensor | None = None
    _noise: Tensor | None = None

    def given(self, residual: Tensor, noise: Tensor) -> TargetSelector:
        """A copy that knows the targets; see ``Selector.given``.

        Raises:
            DataError: targets that are not finite.
            ShapeError: more than one target.
        """
        if residual.ndim != 1:
            raise ShapeError(
                f"{class_name(self)}: targets must be a vector (n,), got {tuple(residual.shape)}; "
                "choose points for several targets by the inputs, such as by KMeans()"
            )
        if not bool(torch.isfinite(residual).all()):
            raise DataError(
                "inducing points cannot be selected: the targets hold NaN or infinite values; "
                "clean the data"
            )
        found = copy.copy(self)
        found._residual, found._noise = residual.detach(), noise.detach()
        return found

    def _targets(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Residuals and noise variances (n,) of the rows x (n, d).

        Raises:
            ConfigError: ``given`` was not called.
            ShapeError: it was called with another number of targets.
        """
        if self._residual is None or self._noise is None:
            raise ConfigError(
                f"{class_name(self)} chooses by the targets: call given(y - mean, noise) before"
            )
        if len(self._residual) != len(x):
            raise ShapeError(
                f"{class_name(self)}: {len(x)} inputs and {len(self._residual)} targets"
            )
        return self._residual, self._noise.expand(len(x))


def random_rows(n: int, size: int, x: Tensor, generator: torch.Generator | None) -> Tensor:
    """``size`` of ``n`` row indices, drawn uniformly without replacement, on the device of x."""
    return torch.randperm(n, generator=generator, device=x.device)[:size]


def fill_with_random_rows(
    rows: Tensor, size: int, x: Tensor, generator: torch.Generator | None
) -> Tensor:
    """``rows`` of x (n, d), and further ones drawn uniformly up to ``size`` distinct rows."""
    if len(rows) >= size:
        return rows
    free = torch.ones(len(x), dtype=torch.bool, device=x.device)
    free[rows] = False
    rest = free.nonzero().squeeze(1)
    return torch.cat([rows, rest[random_rows(len(rest), size - len(rows), x, generator)]])


@torch.no_grad()
def place_points(parameter: nn.Parameter, points: Tensor) -> None:
    """Set the parameter to points (M, d); M may change."""
    if points.shape == parameter.shape:
        parameter.copy_(points)
    else:
        parameter.grad = None
        parameter.data = points.detach().to(parameter, copy=True)


@torch.no_grad()
def copy_points(parameter: Tensor, points: Tensor) -> None:
    """Set the parameter to points (M, d).

    Raises:
        ShapeError: M or d differ from the parameter's.
    """
    if points.shape != parameter.shape:
        remedy = f"make the model with num_inducing={len(points)}"
        if points.shape[1:] != parameter.shape[1:]:
            remedy = f"give points (M, {parameter.shape[1]})"
        raise ShapeError(
            f"the model has {parameter.shape[0]} inducing points of {parameter.shape[1]} inputs, "
            f"those to place are {tuple(points.shape)}; {remedy}"
        )
    parameter.copy_(points)


def require_selector(value: object, *, targets: bool = False) -> Selector:
    """``value`` if it is a selector.

    Args:
        targets: whether the model calls ``Selector.given``.

    Raises:
        ConfigError: it is something else, or needs targets that the model does not give.
    """
    if not isinstance(value, Selector):
        given = repr(value) if isinstance(value, str) else type(value).__name__
        raise ConfigError(
            f"selector={given} is no selector of inducing points: give an instance, such as "
            "gpx.inducing.KMeans()"
        )
    if value.needs_targets and not targets:
        raise ConfigError(
            f"selector={type(value).__name__} chooses by the targets, which only regressions with "
            "Gaussian noise pass on to it: use model=SGPR(), or a selector that needs the inputs "
            "alone, such as selector=KMeans()"
        )
    return value


MAX_DEFAULT_INDUCING = 512
"""Largest default number of inducing points."""


def default_num_inducing(num_data: int | None) -> int:
    """Default number of learned inducing points: half of n training points, at most 512."""
    return (
        MAX_DEFAULT_INDUCING
        if num_data is None
        else max(1, min(MAX_DEFAULT_INDUCING, num_data // 2))
    )


def choose_num_inducing(
    asked: int, num_data: int | None, selector: Selector, trainable: bool = True
) -> int:
    """Number of inducing points that a model is made with.

    Args:
        asked: the option, which gives way to the number of a selector that has its own.
        num_data: n, which caps ``asked``; None: unknown.
        trainable: ``InducingFeatures.trainable``; kinds that are not take no selector.
    """
    if trainable and selector.fixed_number is not None:
        return selector.fixed_number
    return asked if num_data is None else min(asked, num_data)


def describe_num_inducing(
    asked: int | None, size: int, selector: Selector | None = None
) -> dict[str, tuple[Any, str]]:
    """Result of ``Model.settle`` for ``size`` inducing points, ``asked`` being the option.

    Empty if they are equal; otherwise the number with the reason in words.

    Args:
        selector: of a model whose size is from ``choose_num_inducing``.
    """
    if selector is not None and selector.fixed_number == size != asked:
        return {"num_inducing": (size, "the points that the selector was given")}
    if asked is None:
        return {"num_inducing": (size, f"half the training points, at most {MAX_DEFAULT_INDUCING}")}
    if asked == size:
        return {}
    return {"num_inducing": (size, f"one per training point; {asked:,} would be more")}
