"""What a selector of inducing points is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, DataError
from gpx.kernels.base import Kernel
from gpx.tensor_checks import check_at_least, check_inputs


@dataclass(frozen=True)
class Selection:
    """Chosen inducing points.

    Attributes:
        points (M, d): inducing inputs.
        indices (M,): rows of the data they are, or None when they are not data points.
        informative: how many of them reduced the residual prior variance when they were chosen
            (the rest are fill, because the kernel matrix of the data has no more rank to give).
        trace_error: tr(K_xx - Q_xx) over the candidates at the current hyperparameters, where the
            selector knows it.
    """

    points: Tensor
    indices: Tensor | None = None
    informative: int | None = None
    trace_error: float | None = None


class Selector(ABC):
    """Chooses inducing points from the inputs alone (never from the targets).

    Calling a selector gives the points; ``select`` gives the indices and diagnostics as well.
    """

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
            ShapeError, DTypeError: x is no matrix, or in another precision or on another device
                than the kernel.
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
            return self._select(x.detach(), kernel, num_inducing, generator)

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


def subset(n: int, size: int, x: Tensor, generator: torch.Generator | None) -> Tensor:
    """``size`` of ``n`` row indices, drawn uniformly without replacement, on the device of x."""
    return torch.randperm(n, generator=generator, device=x.device)[:size]


def filled_up(rows: Tensor, size: int, x: Tensor, generator: torch.Generator | None) -> Tensor:
    """``rows`` of x (n, d) and others drawn uniformly, up to ``size`` different ones."""
    if len(rows) >= size:
        return rows
    free = torch.ones(len(x), dtype=torch.bool, device=x.device)
    free[rows] = False
    rest = free.nonzero().squeeze(1)
    return torch.cat([rows, rest[subset(len(rest), size - len(rows), x, generator)]])


@torch.no_grad()
def place_points(parameter: nn.Parameter, points: Tensor) -> None:
    """Make points (M, d) the values of the parameter of inducing points; M may change."""
    if points.shape == parameter.shape:
        parameter.copy_(points)
    else:
        parameter.grad = None
        parameter.data = points.detach().to(parameter, copy=True)


def require_selector(value: object) -> Selector:
    """``value`` if it is a selector.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, Selector):
        given = repr(value) if isinstance(value, str) else type(value).__name__
        raise ConfigError(
            f"selector={given} is no selector of inducing points: give an instance, such as "
            "gpx.inducing.KMeans()"
        )
    return value


MOST_INDUCING = 512
"""Inducing points where no number is asked for, at most."""


def inducing_for(num_data: int | None) -> int:
    """Inducing points where no number is asked for: half of n training points, at most 512.

    Of learned inducing points. On concrete (927 rows) 384 of them reach a test RMSE of 0.270 and an
    MNLP of 0.032, 256 reach 0.284 and 0.066; 512 and all 4,000 steps 0.267 and 0.015, at five times
    the time of 384 that end when the evidence has settled.
    """
    return MOST_INDUCING if num_data is None else max(1, min(MOST_INDUCING, num_data // 2))


def settled_size(asked: int | None, size: int) -> dict[str, tuple[Any, str]]:
    """What ``Model.settle`` says of ``size`` inducing points where ``asked`` were asked for.

    A default number of inducing points serves small data too, and says so.
    """
    if asked is None:
        return {"num_inducing": (size, f"half the training points, at most {MOST_INDUCING}")}
    if asked == size:
        return {}
    return {"num_inducing": (size, f"one per training point; {asked:,} would be more")}
