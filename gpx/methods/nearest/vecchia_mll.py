"""The log density of all data under the Vecchia approximation."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.inference.exact_solver import require_finite
from gpx.inference.neighbour_likelihood import neighbour_log_likelihood
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import training_noise
from gpx.means.base import Mean
from gpx.methods.base.objective import Evidence, Facts, Objective


@runtime_checkable
class Grouped(Protocol):
    """What ``VecchiaMLL`` requires of a model: blocks of rows, and the rows they condition on."""

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    given: Tensor
    blocks: Tensor


class VecchiaMLL(Objective[Grouped]):
    """sum_b log p(y_b | y_N(b)), by one Cholesky factorisation per block and its neighbours.

    Kind: an estimate of the log marginal likelihood of the exact Gaussian process, neither a lower
    nor an upper bound; the exact log density of the approximate process. They are equal if every
    block conditions on all rows before it. Computed in float64.

    Cost: n (k + s)^3 / (3 s) operations and n (k + s)^2 / s kernel entries for blocks of s rows
    with k neighbours, about three times as much with the gradient; memory O(n) and a chunk of
    blocks.
    Source: ``neighbour_log_likelihood``.
    """

    batching = "full"
    takes_row_noise = True
    kind = "estimate"
    models = (Grouped,)
    made_for = "Vecchia"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def evidence(
        self, model: Grouped, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Log density in nats, in float64.

        Raises:
            ConfigError: ``initialise`` was not called with these rows.
        """
        given, blocks = model.given, model.blocks
        if int((blocks >= 0).sum()) != x.shape[0]:
            raise ConfigError(
                f"the model's blocks are of other data than these {x.shape[0]} rows; "
                "call initialise(x, y, generator=...) first"
            )
        residual = (y - model.mean(x)).double()
        require_finite(residual)
        noise = training_noise(model, residual).double()
        value = neighbour_log_likelihood(
            model.kernel,
            noise,
            x.double(),
            residual,
            torch.cat([given, blocks], 1),
            targets=blocks.shape[1],
        )
        facts: Facts = {"num_blocks": blocks.shape[0], "num_neighbours": given.shape[1]}
        return Evidence(value, self.kind, facts=facts)
