"""Weight matrices with standard normal priors, one class for each family of q."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError
from gpx.linalg.triangular import inverse_root
from gpx.methods.base.posterior import Marginals
from gpx.methods.deep.draws import RandomLayer
from gpx.methods.deep.output_layer import OutputLayer
from gpx.tensor_checks import check_at_least

INITIAL_DEVIATION = 0.1
"""Initial standard deviation of Gaussian weights under q; that of the prior is one."""


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
        """Mean and variance (n, p) of x W for x (n, m), given a draw of what has no closed form."""

    @abstractmethod
    def sample_weights(self) -> Tensor:
        """One draw of W (m, p), differentiable in the parameters of q."""

    def forward(self, x: Tensor) -> Tensor:
        """x (n, m) -> x W (n, p) with W ~ q.

        If rows need not share W, each is drawn from the marginals of x W, which gives gradients
        with less noise (local reparameterisation; Kingma, Salimans and Welling 2015).
        """
        if self.draws.shared:
            return x @ self.sample_weights()
        return self.draw_from(self.marginals(x))

    @torch.no_grad()
    def start(self, mean: Tensor, precision: Tensor) -> None:
        """Set q to its best fit to a Gaussian posterior of mean (m, p) and precision (m, m)."""
        self.mean.copy_(mean)


class MeanFieldWeights(RandomWeights):
    """q(W_ij) = N(mean_ij, deviation_ij^2), independent entries.

    Args:
        num_inputs, num_outputs: of ``RandomWeights``.

    Cost: O(n m p) per pass, 2 m p parameters.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs)
        start = torch.full((num_inputs, num_outputs), INITIAL_DEVIATION)
        self.log_deviation = nn.Parameter(start.log())

    def marginals(self, x: Tensor) -> Marginals:
        """As in ``RandomWeights``; exact."""
        return Marginals(x @ self.mean, x.square() @ (2.0 * self.log_deviation).exp())

    def sample_weights(self) -> Tensor:
        """As in ``RandomWeights``."""
        noise = self.draws.normals(tuple(self.mean.shape), self.mean)
        return self.mean + self.log_deviation.exp() * noise

    def kl(self) -> Tensor:
        """KL(q || N(0, I)), exact."""
        log_variance = 2.0 * self.log_deviation
        return 0.5 * (log_variance.exp() + self.mean.square() - 1.0 - log_variance).sum()

    @torch.no_grad()
    def start(self, mean: Tensor, precision: Tensor) -> None:
        """As in ``RandomWeights``: the mean-field Gaussian with the largest bound."""
        super().start(mean, precision)
        deviation = -0.5 * precision.diagonal().log()
        self.log_deviation.copy_(deviation.unsqueeze(1).expand_as(self.log_deviation))


class FullWeights(RandomWeights):
    """q(W_:j) = N(mean_j, L_j L_j^T): a full covariance for each column.

    Args:
        num_inputs, num_outputs: of ``RandomWeights``.

    Cost: O(n m^2 p) per pass, p m (m + 1) / 2 parameters stored in m^2 p numbers.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs)
        eye = torch.eye(num_inputs).expand(num_outputs, -1, -1)
        self.raw_root = nn.Parameter(INITIAL_DEVIATION * eye)

    @property
    def root(self) -> Tensor:
        """L (p, m, m), lower triangular; its diagonal may have any signs."""
        return self.raw_root.tril()

    def marginals(self, x: Tensor) -> Marginals:
        """As in ``RandomWeights``; exact."""
        return Marginals(x @ self.mean, (x @ self.root).square().sum(-1).mT)

    def sample_weights(self) -> Tensor:
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
        root = inverse_root(precision, name="the precision of a layer's weights")
        self.raw_root.copy_(root.expand_as(self.raw_root))


class MaskedLayer(RandomLayer):
    """A layer with Monte Carlo dropout of its inputs, in training and prediction.

    Attributes:
        keep: probability that an input is kept; 1 disables masks.
        penalty: whether its weights have a prior.
    """

    keep: float
    penalty: bool

    @property
    def random(self) -> bool:
        """Whether inputs are masked."""
        return self.keep < 1.0

    @property
    def known_kl(self) -> bool:  # type: ignore[override]
        """Whether ``kl`` is exact: only if there are neither masks nor priors."""
        return not (self.penalty or self.random)


class DroppedWeights(MaskedLayer, RandomWeights):
    """W = diag(z) M with z_r ~ Bernoulli(keep): Monte Carlo dropout of the inputs.

    Masks are not rescaled by 1 / keep, and are also used in predictions.

    Args:
        num_inputs, num_outputs: of ``RandomWeights``.
        keep: probability that an input is kept, in (0, 1].
        bias: add a vector b with prior N(0, I) and a point estimate as posterior.
        scale: initial standard deviation of the entries of M.
        penalty: whether the weights have a prior, which ``kl`` accounts for.

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
        self.keep = check_keep(keep)
        self.scale, self.penalty = scale, penalty
        self.bias = nn.Parameter(torch.zeros(num_outputs)) if bias else None

    @property
    def analytic(self) -> bool:
        """As in ``OutputLayer``: False, since masks are drawn."""
        return False

    @property
    def drawn(self) -> bool:
        """As in ``OutputLayer``: masks are drawn unless every input is kept."""
        return self.random

    def draw_start(self, generator: torch.Generator) -> None:
        """Draw M from a normal of standard deviation ``scale``, truncated at two of them."""
        truncated_normal(self.mean, self.scale, generator)

    def marginals(self, x: Tensor) -> Marginals:
        """x W for drawn masks, with a variance of zero."""
        found = self(x)
        return Marginals(found, torch.zeros_like(found))

    def sample_weights(self) -> Tensor:
        """As in ``RandomWeights``."""
        return self.draws.mask((self.num_inputs, 1), self.keep, self.mean) * self.mean

    def forward(self, x: Tensor) -> Tensor:
        """As in ``RandomWeights``; if rows need not share W, each has its own mask."""
        if self.keep < 1.0:
            x = apply_mask(self, x, self.keep)
        return x @ self.mean if self.bias is None else torch.addmm(self.bias, x, self.mean)

    @torch.no_grad()
    def start(self, mean: Tensor, precision: Tensor) -> None:
        """As in ``RandomWeights``: the mean of W, which is ``keep`` times M."""
        self.mean.copy_(mean / self.keep)

    def kl(self) -> Tensor:
        """keep / 2 |M|^2 + |b|^2 / 2: KL(q || p) up to a constant, for narrow components of q."""
        if not self.penalty:
            return self.mean.new_zeros(())
        found = 0.5 * self.keep * self.mean.square().sum()
        return found if self.bias is None else found + 0.5 * self.bias.square().sum()


def check_keep(keep: float) -> float:
    """Return ``keep``; raises ConfigError unless it is a probability above zero."""
    if not 0.0 < keep <= 1.0:
        raise ConfigError(
            f"keep={keep}: an input must be kept with a probability above 0 and at most 1 (a "
            "dropout rate of 1 leaves nothing of the network)"
        )
    return keep


def apply_mask(layer: RandomLayer, x: Tensor, keep: float) -> Tensor:
    """Set random entries of x (n, ...) to zero; with one mask for all rows if draws are shared."""
    shape = tuple(x.shape[1:]) if layer.draws.shared else tuple(x.shape)
    return x * layer.draws.mask(shape, keep, x)


@torch.no_grad()
def truncated_normal(parameter: Tensor, deviation: float, generator: torch.Generator) -> None:
    """Fill with normals of this standard deviation, truncated at two of them."""
    ends = torch.special.ndtr(torch.tensor([-2.0, 2.0], dtype=torch.float64))
    share = torch.rand(
        parameter.shape, generator=generator, dtype=torch.float64, device=generator.device
    )
    low, high = float(ends[0]), float(ends[1])
    parameter.copy_(deviation * torch.special.ndtri(low + (high - low) * share))
