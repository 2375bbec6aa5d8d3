"""Several classes through the softmax of as many latent functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.likelihoods.base import Curvature, Likelihood, class_law, require_labels
from gpx.likelihoods.log_sum_exp import Rules, expected_log_sum_exp, expected_shares
from gpx.likelihoods.quadrature import GaussHermite, GaussLogExponential
from gpx.tensor_checks import check_at_least


class Softmax(Likelihood):
    """P(y = c | f) = exp(f_c) / sum_k exp(f_k), c = 0 ... p - 1.

    Expectations are deterministic and not bounds: integrals over one dimension whatever the number
    of classes (``gpx.likelihoods.log_sum_exp``).

    Args:
        num_classes: p, at least two.
        num_nodes: Q, nodes per latent of either rule; of rows with a latent standard deviation
            above 8, and on a GPU.
        num_steps: T, trapezoid points for up to four classes; for more in proportion to the grid,
            which is 1.5 times as long at 1,000. With the defaults the error is below 1e-6 nats for
            latent standard deviations up to 8, beyond below 1e-5 of the largest deviation, however
            narrow the others are; on a GPU below 1e-6 up to 2, below 1e-3 up to 4.

    Cost: up to a deviation of 8 about 200 exponentials per latent, and matrix products of 1e4
    multiply-adds; beyond, O(n p Q T) operations. All in blocks that fit a CPU's cache. On a GPU
    twice the latter, where some latents may be narrow and others wide.
    """

    log_concave = True
    task = "multiclass"

    def __init__(self, num_classes: int, num_nodes: int = 20, num_steps: int = 48) -> None:
        super().__init__()
        if num_classes < 2:
            raise ConfigError(f"softmax needs at least two classes, got {num_classes}")
        check_at_least(8, num_steps=num_steps)
        self.num_latents = self.num_classes = num_classes
        self.num_steps = num_steps
        self.quadrature = GaussHermite(num_nodes)
        self.wide_quadrature = GaussLogExponential(num_nodes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "wide_quadrature" not in self._modules:  # of earlier versions
            nodes = self.quadrature.nodes
            self.wide_quadrature = GaussLogExponential(len(nodes)).to(nodes.device)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """f_y - log sum_c exp(f_c): f (..., n, p) -> (..., n)."""
        return self._pick(f, y) - f.logsumexp(-1)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """mean_y - E log sum_c exp(f_c); (n,)."""
        return self._pick(mean, y) - self.expected_logsumexp(mean, variance)

    def expected_logsumexp(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E log sum_c exp(f_c) for independent f_c ~ N(mean_c, variance_c): (n, p) -> (n,)."""
        return expected_log_sum_exp(mean, variance, self._rules)

    def class_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E softmax(f), (n, p); rows sum to one."""
        return expected_shares(mean, variance, self._rules)

    def predictive(self, mean: Tensor, variance: Tensor) -> torch.distributions.Categorical:
        """The averaged class probabilities, as ``class_law``."""
        return class_law(self.class_probabilities(mean, variance))

    def curvature(self, y: Tensor, f: Tensor) -> Curvature:
        """1[y = c] - softmax(f)_c and softmax(f)_c."""
        shares = f.softmax(-1)
        truth = torch.nn.functional.one_hot(y.long(), self.num_latents).to(shares)
        return Curvature(truth - shares, shares)

    @property
    def _rules(self) -> Rules:
        return Rules(self.quadrature, self.wide_quadrature, self.num_steps)

    def _pick(self, values: Tensor, y: Tensor) -> Tensor:
        """values (..., n, p) at the classes y (n,): (..., n)."""
        require_labels(self, y, values.shape[-1])
        index = y.long().unsqueeze(-1).expand(*values.shape[:-1], 1)
        return values.gather(-1, index).squeeze(-1)


def class_shares(likelihood: Likelihood, f: Tensor) -> Tensor:
    """P(y = c | f) of every class c for any likelihood of C classes: (..., n, C) -> (..., n, C)."""
    if type(likelihood).log_prob is Softmax.log_prob:
        return f.softmax(-1)  # by log_prob every class would take the sum over all of them
    labels = [f.new_full(f.shape[-2:-1], label) for label in range(f.shape[-1])]
    return torch.stack([likelihood.log_prob(y, f).exp() for y in labels], -1)
