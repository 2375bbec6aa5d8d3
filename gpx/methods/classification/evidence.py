"""Base class of the evidences of Laplace's approximation and EP, and their kernel gradient."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gpx.backends import row_chunks
from gpx.errors import ConfigError
from gpx.inference.kernel_gradient import KernelGradient
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian, NoisyOutputs
from gpx.linalg import SolveReport, with_gradient
from gpx.methods.base.objective import Evidence, Facts, Kind, Objective
from gpx.methods.classification.model import DenseModel, kernel_matrix
from gpx.tensor_checks import check_share

Gradients = tuple[list[Tensor], list[Tensor]]
"""Tensors, and the gradient by each of them."""

BLOCK_BYTES = 2**23
"""Bytes of one block of rows: large enough to hide overheads, small compared with n x n."""


def dense_gradient(
    kernel: Kernel,
    x: Tensor,
    precision: Tensor,
    weights: Tensor,
    implicit: Tensor | None = None,
) -> KernelGradient:
    """Gradient by kernel parameters, from the gradient (a a^T - R + t a^T + a t^T) / 2 by K.

    Args:
        x (n, d): inputs.
        precision (n, n): R.
        weights (n,) or (n, p): a; products are summed over its columns.
        implicit: t, of the same shape; None: zero.

    Cost: n^2 (p + d) operations, in blocks of rows of the lower triangle.
    """
    n = x.shape[0]
    a = weights.reshape(n, -1)
    # a a^T + t a^T + a t^T = (a + t)(a + t)^T - t t^T
    left = [a] if implicit is None else [a + implicit.reshape(n, -1), implicit.reshape(n, -1)]
    gradient = KernelGradient(kernel, x)

    def twice_gradient(rows: slice, past: slice) -> Tensor:
        weight = left[0][rows] @ left[0][past].mT - precision[rows, past]
        if implicit is not None:
            weight -= left[1][rows] @ left[1][past].mT
        return weight.to(x.dtype)

    with torch.no_grad():
        gradient.add_symmetric(row_chunks(n, 8 * n, BLOCK_BYTES), twice_gradient)
    return gradient


class Approximation(NamedTuple):
    """The approximate posterior at one setting of the hyperparameters.

    Attributes:
        solution: start for the iteration at similar hyperparameters; a plain tensor.
        parts: terms of its evidence, nats.
        report, facts: as in ``Evidence``.
        gradients: computes the gradients of the evidence.
    """

    solution: Tensor
    parts: dict[str, Tensor]
    report: SolveReport
    facts: Facts
    gradients: Callable[[], Gradients]


class DenseEvidence(Objective[DenseModel]):
    """Evidence of an approximation that is found by iteration from a stored start.

    Every evaluation starts from the solution at the end of the last optimiser step (``start``), not
    from the last evaluation. The evidence is then the same function throughout a line search, and a
    run resumed from a checkpoint is bit-identical.

    Attributes:
        start, latest: ``Approximation.solution`` after the last optimiser step, and of the last
            evaluation.
    """

    batching = "full"
    kind: ClassVar[Kind] = "estimate"
    models = (DenseModel,)
    data_sized = ("start", "latest")
    start: Tensor
    latest: Tensor

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        check_share(tolerance=tolerance)
        self.tolerance = tolerance
        self.register_data_sized()

    def check(self, model: DenseModel) -> None:
        """As in ``Objective``; refuses Gaussian noise, for which exact inference exists."""
        super().check(model)
        if isinstance(model.likelihood, (Gaussian, NoisyOutputs)):
            raise ConfigError(
                f"{type(self).__name__} finds the Gaussian nearest to a posterior, and with "
                "Gaussian noise there is nothing to approximate: take model=ExactGP(), of many "
                "rows model=SGPR(), or the likelihood of other targets, as likelihood=Bernoulli() "
                "for two classes and Poisson() for counts"
            )

    def after_step(self, model: DenseModel) -> None:
        """As in ``Objective``: the next evaluations start from the latest solution."""
        self.start = self.latest.clone()

    def evidence(
        self, model: DenseModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Approximate evidence in nats, in float64; parts ``fit`` and ``complexity``.

        Raises:
            DidNotConverge: the approximation did not converge.
            ConfigError: n x n arrays do not fit into memory.
            DataError: targets that the likelihood does not accept.
        """
        mean = model.mean(x)
        with torch.no_grad():
            kernel = kernel_matrix(model, x, y)
            found = self.approximate(model, kernel, mean, x, y.double())
        self.latest = found.solution
        value = torch.stack(list(found.parts.values())).sum()
        if torch.is_grad_enabled():
            value = with_gradient(value, *found.gradients())
        return Evidence(value, self.kind, found.parts, found.report, found.facts)

    @abstractmethod
    def approximate(
        self, model: DenseModel, kernel: Tensor, mean: Tensor, x: Tensor, y: Tensor
    ) -> Approximation:
        """The approximation at the model's hyperparameters, started from ``start`` if it fits.

        Args:
            kernel (n, n): K, float64.
            mean (n,): m, with its graph.
            x (n, d), y (n,): inputs, and targets in float64.
        """

    def start_if_shaped(self, shape: tuple[int, ...]) -> Tensor | None:
        """``start`` if it has this shape, otherwise None."""
        return self.start.double() if self.start.shape == shape else None
