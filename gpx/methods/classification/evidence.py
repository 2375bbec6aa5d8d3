"""What the evidences of this room share: where they start, their gradient, whom they refuse."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.backends import row_chunks
from gpx.errors import ConfigError
from gpx.inference.kernel_gradient import KernelGradient
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian, NoisyOutputs
from gpx.linalg import SolveReport, with_gradient
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.classification.model import DenseModel, kernel_matrix

Gradients = tuple[list[Tensor], list[Tensor]]
"""Tensors, and the gradient of each."""

BLOCK_BYTES = 2**23
"""Of one block of rows: large enough to hide overheads, small beside n x n."""


def dense_gradient(
    kernel: Kernel,
    x: Tensor,
    precision: Tensor,
    weights: Tensor,
    turned: Tensor | None = None,
) -> KernelGradient:
    """Gradient in the kernel of what has the gradient (a a^T - R + t a^T + a t^T) / 2 in K.

    Args:
        x (n, d): inputs.
        precision (n, n): R.
        weights (n,) or (n, p): a; summed over its columns.
        turned: t, shaped alike; None: zero.

    Cost: n^2 (p + d) operations, blocks of rows of the lower triangle.
    """
    n = x.shape[0]
    a = weights.reshape(n, -1)
    # (a + t)(a + t)^T - t t^T
    left = [a] if turned is None else [a + turned.reshape(n, -1), turned.reshape(n, -1)]
    gathered = KernelGradient(kernel, x)

    def doubled(rows: slice, past: slice) -> Tensor:
        weight = left[0][rows] @ left[0][past].mT - precision[rows, past]
        if turned is not None:
            weight -= left[1][rows] @ left[1][past].mT
        return weight.to(x.dtype)

    with torch.no_grad():
        gathered.add_symmetric(row_chunks(n, 8 * n, BLOCK_BYTES), doubled)
    return gathered


class Approximation(NamedTuple):
    """An approximation at one setting of the hyperparameters.

    Attributes:
        kept: from where it is found again quickly; a plain tensor.
        parts: terms of its evidence, nats.
        report, facts: as in ``Evidence``.
        gradients: of the evidence, worked out on demand.
    """

    kept: Tensor
    parts: dict[str, Tensor]
    report: SolveReport
    facts: Facts
    gradients: Callable[[], Gradients]


class DenseEvidence(Objective[DenseModel]):
    """Evidence of an approximation that is found by iteration, from a start that is remembered.

    Every evaluation starts where the last finished optimiser step ended (``start``), not where the
    last evaluation did: through a line search the evidence is one function, and what a checkpoint
    carries makes a resumed run the same to the bit.

    Attributes:
        start, latest: ``Approximation.kept`` after the last step, and of the last evaluation.
    """

    batching = "full"
    kind = "estimate"
    models = (DenseModel,)
    data_sized = ("start", "latest")
    start: Tensor
    latest: Tensor

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        if not 0.0 < tolerance < 1.0:
            raise ConfigError(f"tolerance={tolerance}: expected a number between 0 and 1")
        self.tolerance = tolerance
        self.register_data_sized()

    def check(self, model: DenseModel) -> None:
        """As in ``Objective``; Gaussian noise leaves nothing to approximate."""
        super().check(model)
        if isinstance(model.likelihood, (Gaussian, NoisyOutputs)):
            raise ConfigError(
                f"{type(self).__name__} is for classes, and with Gaussian noise there is nothing "
                "to approximate: take model=ExactGP(), or likelihood=Bernoulli() for two classes"
            )

    def after_step(self, model: DenseModel) -> None:
        """As in ``Objective``: what was found last is where the next evaluations start."""
        self.start = self.latest.clone()

    def evidence(
        self, model: DenseModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """Approximate evidence in nats, in float64; parts ``fit`` and ``complexity``.

        Raises:
            DidNotConverge: the approximation was not found.
            ConfigError: n x n arrays do not fit into memory.
            DataError: targets that are none of the likelihood's.
        """
        mean = model.mean(x)
        with torch.no_grad():
            kernel = kernel_matrix(model, x, y)
            found = self.approximate(model, kernel, mean, x, y.double())
        self.latest = found.kept
        value = torch.stack(list(found.parts.values())).sum()
        if torch.is_grad_enabled():
            value = with_gradient(value, *found.gradients())
        return Evidence(value, self.kind, found.parts, found.report, found.facts)

    @abstractmethod
    def approximate(
        self, model: DenseModel, kernel: Tensor, mean: Tensor, x: Tensor, y: Tensor
    ) -> Approximation:
        """The approximation at the model's hyperparameters, from ``start`` where that fits.

        Args:
            kernel (n, n): K, float64.
            mean (n,): m, with its graph.
            x (n, d): inputs; y (n,): targets, float64.
        """

    def start_of(self, shape: tuple[int, ...]) -> Tensor | None:
        """``start``, where it is of this shape."""
        return self.start.double() if self.start.shape == shape else None
