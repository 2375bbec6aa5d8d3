"""Matrices of random weights with standard normal priors, each family with its own q."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError
from gpx.linalg import cholesky
from gpx.linalg.triangular import inverse_lower
from gpx.methods.base.posterior import Marginals
from gpx.methods.deep.draws import RandomLayer
from gpx.methods.deep.output_layer import OutputLayer
from gpx.tensor_checks import check_at_least

DEVIATION = 0.1
"""Of Gaussian entries at the start, in units of their prior's."""


class RandomWeights(OutputLayer):
    """x -> x W with a prior W_ij ~ N(0, 1) and an approximate posterior q(W).

    Args:
        num_inputs: m, rows of W.
        num_outputs: p, columns of W.

    Raises:
        ConfigError: sizes below one.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        check_at_least(1, num_inputs=num_inputs, num_outputs=num_outputs)
        self.num_inputs, self.num_outputs = num_inputs, num_outputs
        self.mean = nn.Parameter(torch.zeros(num_inputs, num_outputs))

    @abstractmethod
    def marginals(self, x: Tensor) -> Marginals:
        """Mean and variance (n, p) of x W given x (n, m), as far as q has no other randomness."""

    @abstractmethod
    def sampled(self) -> Tensor:
        """One draw of W (m, p), differentiable in the parameters of q."""

    def forward(self, x: Tensor) -> Tensor:
        """x (n, m) -> x W (n, p) with W ~ q.

        Rows that need not share W are drawn from the marginals of x W, which is the same law at
        less noise (local reparameterisation; Kingma, Salimans and Welling 2015).
        """
        if self.draws.shared:
            return x @ self.sampled()
        return self.drawn(self.marginals(x))

    @torch.no_grad()
    def start(self, mean: Tensor, precision: Tensor) -> None:
        """Move q to that of a Gaussian posterior of mean (m, p) and precision (m, m)."""
        self.mean.copy_(mean)


class MeanFieldWeights(RandomWeights):
    """q(W_ij) = N(mean_ij, deviation_ij^2), independent entries.

    Args:
        num_inputs, num_outputs: of ``RandomWeights``.

    Cost: O(n m p) a pass, 2 m p parameters.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs)
        start = torch.full((num_inputs, num_outputs), DEVIATION)
        self.log_deviation = nn.Parameter(start.log())

    def marginals(self, x: Tensor) -> Marginals:
        """As in ``RandomWeights``; exact."""
        return Marginals(x @ self.mean, x.square() @ (2.0 * self.log_deviation).exp())

    def sampled(self) -> Tensor:
        """As in ``RandomWeights``."""
        noise = self.draws.normals(tuple(self.mean.shape), self.mean)
        return self.mean + self.log_deviation.exp() * noise

    def kl(self) -> Tensor:
        """KL(q || N(0, I)), exact."""
        log_variance = 2.0 * self.log_deviation
        return 0.5 * (log_variance.exp() + self.mean.square() - 1.0 - log_variance).sum()

    @torch.no_grad()
    def start(self, mean: Tensor, precision: Tensor) -> None:
        """As in ``RandomWeights``: the mean-field Gaussian of largest bound."""
        super().start(mean, precision)
        deviation = -0.5 * precision.diagonal().log()
        self.log_deviation.copy_(deviation.unsqueeze(1).expand_as(self.log_deviation))


class FullWeights(RandomWeights):
    """q(W_:j) = N(mean_j, L_j L_j^T): one full covariance for each column.

    Args:
        num_inputs, num_outputs: of ``RandomWeights``.

    Cost: O(n m^2 p) a pass, p m (m + 1) / 2 parameters in m^2 p numbers.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs)
        eye = torch.eye(num_inputs).expand(num_outputs, -1, -1)
        self.raw_root = nn.Parameter(DEVIATION * eye)

    @property
    def root(self) -> Tensor:
        """L (p, m, m), lower triangular; signs of its diagonal are of no consequence."""
        return self.raw_root.tril()

    def marginals(self, x: Tensor) -> Marginals:
        """As in ``RandomWeights``; exact."""
        return Marginals(x @ self.mean, (x @ self.root).square().sum(-1).mT)

    def sampled(self) -> Tensor:
        """As in ``RandomWeights``."""
        noise = self.draws.normals((self.num_outputs, self.num_inputs, 1), self.mean)
        return self.mean + (self.root @ noise).squeeze(2).mT

    def kl(self) -> Tensor:
        """KL(q || N(0, I)), exact."""
        root = self.root
        log_det = 2.0 * root.diagonal(dim1=1, dim2=2).abs().log().sum()
        size = self.num_inputs * self.num_outputs
        return 0.5 * (root.square().sum() + self.mean.square().sum() - size - log_det)

    @torch.no_grad()
    def start(self, mean: Tensor, precision: Tensor) -> None:
        """As in ``RandomWeights``: that Gaussian itself."""
        super().start(mean, precision)
        # with rows and columns in reverse the precision is L L^T, and L^-T reversed back is the
        # lower triangular root of the covariance
        factor, _ = cholesky(precision.flip(0, 1), name="the precision of a layer's weights")
        root = inverse_lower(factor).flip(0, 1).mT
        self.raw_root.copy_(root.expand_as(self.raw_root))


class MaskedLayer(RandomLayer):
    """A layer whose inputs are masked, at training and at prediction: Monte Carlo dropout.

    Attributes:
        keep: probability that an input is kept; 1: nothing is masked.
        penalty: whether its weights have a prior.
    """

    keep: float
    penalty: bool

    @property
    def random(self) -> bool:
        """Whether anything is masked."""
        return self.keep < 1.0

    @property
    def known_kl(self) -> bool:  # type: ignore[override]
        """Whether there is nothing but parameters: neither masks nor priors."""
        return not (self.penalty or self.random)


class DroppedWeights(MaskedLayer, RandomWeights):
    """W = diag(z) M with z_r ~ Bernoulli(keep): Monte Carlo dropout of the inputs.

    The masks are not rescaled by 1 / keep, and stay on at prediction.

    Args:
        num_inputs, num_outputs: of ``RandomWeights``.
        keep: probability that an input is kept, in (0, 1].
        bias: add a vector b with prior N(0, I) and a point mass for a posterior.
        scale: standard deviation of the entries of M at the start.
        penalty: whether ``kl`` counts; without it the layer has no prior.

    Raises:
        ConfigError: a probability out of range.

    Source: Gal and Ghahramani, "Dropout as a Bayesian approximation", ICML 2016.
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        keep: float = 0.5,
        *,
        bias: bool = False,
        scale: float = 0.1,
        penalty: bool = True,
    ) -> None:
        super().__init__(num_inputs, num_outputs)
        self.keep = checked_keep(keep)
        self.scale, self.penalty = scale, penalty
        self.bias = nn.Parameter(torch.zeros(num_outputs)) if bias else None

    @property
    def analytic(self) -> bool:
        """As in ``OutputLayer``: masks are drawn."""
        return False

    def draw_start(self, generator: torch.Generator) -> None:
        """M from a normal of deviation ``scale``, cut at two of them."""
        truncated_normal(self.mean, self.scale, generator)

    def marginals(self, x: Tensor) -> Marginals:
        """x W at drawn masks, with a variance of zero."""
        found = self(x)
        return Marginals(found, torch.zeros_like(found))

    def sampled(self) -> Tensor:
        """As in ``RandomWeights``."""
        return self.draws.kept((self.num_inputs, 1), self.keep, self.mean) * self.mean

    def forward(self, x: Tensor) -> Tensor:
        """As in ``RandomWeights``; rows that need not share W have a mask each."""
        if self.keep < 1.0:
            x = masked(self, x, self.keep)
        return x @ self.mean if self.bias is None else torch.addmm(self.bias, x, self.mean)

    def kl(self) -> Tensor:
        """keep / 2 |M|^2 + |b|^2 / 2: KL(q || p) up to a constant, for narrow components."""
        if not self.penalty:
            return self.mean.new_zeros(())
        found = 0.5 * self.keep * self.mean.square().sum()
        return found if self.bias is None else found + 0.5 * self.bias.square().sum()


def checked_keep(keep: float) -> float:
    """``keep``; raises ConfigError unless it is a probability above zero."""
    if not 0.0 < keep <= 1.0:
        raise ConfigError(
            f"keep={keep}: an input must be kept with a probability above 0 and at most 1 (a "
            "dropout rate of 1 leaves nothing of the network)"
        )
    return keep


def masked(layer: RandomLayer, x: Tensor, keep: float) -> Tensor:
    """x (n, ...) with entries set to zero; one mask for all rows where draws are shared."""
    shape = tuple(x.shape[1:]) if layer.draws.shared else tuple(x.shape)
    return x * layer.draws.kept(shape, keep, x)


@torch.no_grad()
def truncated_normal(parameter: Tensor, deviation: float, generator: torch.Generator) -> None:
    """Fill with normals of that deviation, cut at two of them, by their quantiles."""
    ends = torch.special.ndtr(torch.tensor([-2.0, 2.0], dtype=torch.float64))
    share = torch.rand(
        parameter.shape, generator=generator, dtype=torch.float64, device=generator.device
    )
    low, high = float(ends[0]), float(ends[1])
    parameter.copy_(deviation * torch.special.ndtri(low + (high - low) * share))
