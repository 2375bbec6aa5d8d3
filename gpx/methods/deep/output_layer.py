"""What the last layer of a network is: latent functions with marginals given what is below."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from gpx.methods.base.model import Marginals
from gpx.methods.deep.draws import RandomLayer


class OutputLayer(RandomLayer):
    """p latent functions of the outputs of the layers below, (n, d) -> (n, p)."""

    @property
    def analytic(self) -> bool:
        """Whether ``marginals`` are those of q, and not of a draw, and outputs are independent."""
        return True

    @abstractmethod
    def marginals(self, x: Tensor) -> Marginals:
        """Mean and variance (n, p) at x (n, d), as far as q has no other randomness."""

    def sample(self, x: Tensor, num: int) -> Tensor:
        """``num`` draws at each row of x (n, d), independent of one another: (num, n, p)."""
        found: Tensor = self(x.repeat(num, 1))
        return found.view(num, len(x), -1)
