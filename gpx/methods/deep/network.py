"""A network with random layers: any body, and a head of latent functions."""

from __future__ import annotations

from torch import Tensor, nn

from gpx.methods.base.posterior import Marginals
from gpx.methods.deep.draws import copies, is_random, repeated, split_at_draws
from gpx.methods.deep.layer import GPLayer
from gpx.methods.deep.output_layer import OutputLayer


class Network(nn.Module):
    """A body, which is any torch module, and a head that can give the marginals of its outputs.

    Args:
        body: x (n, d) -> (n, h).
        head: (n, h) -> (n, p), one latent function for each output.
    """

    def __init__(self, body: nn.Module, head: GPLayer | OutputLayer) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """Latent functions (n, p) for a draw of the network."""
        found: Tensor = self.head(self.body(x))
        return found

    def marginals(self, x: Tensor) -> Marginals:
        """Marginals of the latent functions (n, p), given a draw of the layers below the head."""
        return self.head.marginals(self.body(x))

    def split(self) -> tuple[nn.Module, Network]:
        """The layers before the first random one, and the network of what they give.

        The first part is the same in all draws, so that one evaluation serves all of them.
        """
        fixed, drawn = split_at_draws(self.body)
        return fixed, Network(drawn, self.head)

    def samples(self, x: Tensor, num: int) -> Tensor:
        """``num`` independent draws at each row: (num, n, p).

        Layers before the first random one are evaluated once.
        """
        if is_random(self.body):
            fixed, drawn = self.split() if num > 1 else (nn.Identity(), self)
            return repeated(drawn, fixed(x), num)
        return self.head.sample(self.body(x), num)

    def sample_marginals(self, x: Tensor, num: int) -> Marginals:
        """``marginals`` given ``num`` independent draws for each row: (num, n, p) each."""
        if is_random(self.body) or self.head.drawn:
            fixed, drawn = self.split() if num > 1 else (nn.Identity(), self)
            parts = drawn.marginals(copies(fixed(x), num))
        else:
            return Marginals(*(part.expand(num, -1, -1) for part in self.marginals(x)))
        return Marginals(*(part.view(num, len(x), -1) for part in parts))
