"""Posterior process of a weight-space model: predictions and sampled functions in chunks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gpx.bases.cells import Cells
from gpx.bases.random_fourier import RandomFourier
from gpx.models.base import Marginals, Posterior
from gpx.variational.cell_covariance import CellCovariance

FEATURE_BUDGET = 32 * 2**20
"""Bytes of features held at once."""
ROW_CHUNK = 2048


class QSGPPosterior(Posterior):
    """f(x) = phi(x)^T w under q(w) = N(mu, C C^T); mean phi^T mu, variance |C^T phi|^2.

    Self-contained: own copy of the basis (kernel hyperparameters and frequency seed), O(m) weights.

    Args:
        basis: copied.
        num_dense: K, dense columns of C.
        cells: partition of a block-diagonal covariance, whose blocks ``covariance`` holds; they
            add to the diagonal and the dense columns, which are zero in their rows.
        storage: dtype of those blocks.

    Cost of prediction: O(m (d + K)) time per point (b more per function for blocks of b columns),
    memory that grows with neither m nor the number of points beyond the result: features are made
    in chunks of rows and blocks, products run in the dtype of x and are summed over blocks in
    float64.
    Source: Evans and Nair 2020 (QSGP), prediction.
    """

    weight_mean: Tensor
    scale: Tensor
    dense: Tensor

    def __init__(
        self,
        basis: RandomFourier,
        num_dense: int,
        cells: Cells | None = None,
        storage: str = "float32",
    ) -> None:
        super().__init__()
        self.cells = cells
        self.covariance = None if cells is None else CellCovariance(storage)
        self.basis = copy.deepcopy(basis).requires_grad_(False)
        blocks, width = basis.num_blocks, basis.block_size
        self.num_dense = num_dense
        self.register_buffer("weight_mean", torch.zeros(blocks, width))
        self.register_buffer("scale", torch.zeros(blocks, width))
        self.register_buffer("dense", torch.zeros(blocks, width, num_dense))

    def _chunks(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks (L,) and their features (n, L W) until all m functions were seen."""
        per_block = self.basis.block_size * x.shape[0] * x.element_size()
        at_once = max(1, FEATURE_BUDGET // max(1, per_block))
        for blocks in torch.arange(self.basis.num_blocks, device=x.device).split(at_once):
            yield blocks, self.basis.block_features(x, blocks)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of f at x (n, d), without observation noise."""
        parts = [self._predict_rows(rows) for rows in x.split(ROW_CHUNK)]
        mean = torch.cat([part.mean for part in parts])
        return Marginals(mean, torch.cat([part.variance for part in parts]))

    def _predict_rows(self, x: Tensor) -> Marginals:
        n = x.shape[0]
        mean = torch.zeros(n, dtype=torch.float64, device=x.device)
        variance = torch.zeros(n, dtype=torch.float64, device=x.device)
        projected = torch.zeros(n, self.num_dense, dtype=torch.float64, device=x.device)
        for blocks, features in self._chunks(x):
            mean += features @ self.weight_mean[blocks].reshape(-1).to(x.dtype)
            if self.num_dense:
                dense = self.dense[blocks].reshape(-1, self.num_dense)
                projected += features @ dense.to(x.dtype)
            square = self.scale[blocks].reshape(-1).to(x.dtype).square()
            # features are this loop's own buffer, so they are squared in place
            variance += features.square_() @ square
        variance += projected.square().sum(1)
        for cell, root in self._roots(x.dtype):
            assert self.cells is not None
            variance += (root @ self.cells.features(self.basis, cell, x)).square_().sum(0)
        return Marginals(mean.to(x.dtype), variance.to(x.dtype))

    def _roots(self, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
        """Cells with a covariance block and their roots (b, b)."""
        if self.covariance is not None:
            for cell in self.covariance.roots:
                root = self.covariance.root(cell, dtype)
                assert root is not None
                yield cell, root

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` functions: draws of w. The callable maps x (n, d) to (num, n).

        Cost: O(num m) memory; evaluation O(m (d + num)) per point.
        """
        device, dtype = self.weight_mean.device, self.weight_mean.dtype
        shape = (*self.weight_mean.shape, num)
        weights = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        weights.mul_(self.scale[..., None]).add_(self.weight_mean[..., None])
        if self.num_dense:
            shared = torch.randn(
                self.num_dense, num, generator=generator, device=device, dtype=dtype
            )
            weights += self.dense @ shared
        for cell, root in self._roots(dtype):
            assert self.cells is not None
            normals = torch.randn(
                root.shape[0], num, generator=generator, device=device, dtype=dtype
            )
            deviation = root.T @ normals
            for path in range(num):
                table = weights[..., path]
                own = self.cells.read(table, cell)
                self.cells.write(table, cell, own + deviation[:, path])

        @torch.no_grad()
        def paths(x: Tensor) -> Tensor:
            chunks = []
            for rows in x.split(ROW_CHUNK):
                values = torch.zeros(rows.shape[0], num, dtype=torch.float64, device=x.device)
                for blocks, features in self._chunks(rows):
                    values += features @ weights[blocks].reshape(-1, num).to(x.dtype)
                chunks.append(values.to(x.dtype))
            return torch.cat(chunks).T

        return paths
