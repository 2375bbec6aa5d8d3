"""Base class of the last layer of a network: latent functions with marginals."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from gpx.errors import ShapeError, class_name
from gpx.methods.base.posterior import Marginals
from gpx.methods.deep.draws import RandomLayer, repeated


class OutputLayer(RandomLayer):
    """p latent functions of the outputs of the layers below, (n, d) -> (n, p)."""

    @property
    def analytic(self) -> bool:
        """Whether ``marginals`` are exact for q (not given a draw) and outputs are independent."""
        return True

    @property
    def drawn(self) -> bool:
        """Whether ``marginals`` are given a draw, and so differ between passes."""
        return False

    @abstractmethod
    def marginals(self, x: Tensor) -> Marginals:
        """Mean and variance (n, p) at x (n, d), given a draw of what has no closed form."""

    def sample(self, x: Tensor, num: int) -> Tensor:
        """``num`` draws at each row of x (n, d), independent of one another: (num, n, p)."""
        return repeated(self, x, num)


def check_columns(layer: nn.Module, x: Tensor, num_inputs: int) -> None:
    """Raise ShapeError unless ``layer`` gets inputs x (n, num_inputs)."""
    if x.ndim != 2 or x.shape[1] != num_inputs:
        raise ShapeError(
            f"{class_name(layer)} of {num_inputs} inputs got shape {tuple(x.shape)}; expected "
            f"(n, {num_inputs})"
        )
