"""Posterior process of a weight-space model: predictions and sampled functions in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.bases.base import Basis
from gpx.bases.frozen import fixed_copy
from gpx.linalg.memory import working_memory
from gpx.methods.base.posterior import Marginals, Posterior
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.methods.base.trained_columns import TrainedColumns
from gpx.methods.weight_space.block_diagonal import CellCovariance
from gpx.methods.weight_space.cells import Cells

FEATURE_BUDGET = 32 * 2**20
"""Bytes of features held at a time on a CPU; on a GPU an eighth of the working memory."""
ROW_CHUNK = 2048
PANEL = 512
"""Rows of a triangular root that are multiplied at a time."""


class QSGPPosterior(TrainedColumns, Posterior):
    """f(x) = phi(x)^T w + level under q(w) = N(mu, C C^T); mean phi^T mu + level, variance
    |C^T phi|^2.

    Self-contained: has its own copy of the basis (kernel hyperparameters and frequency seed).

    Args:
        basis: copied.
        num_dense: K, dense columns of C.
        cells: partition of a block-diagonal covariance, whose blocks are in ``covariance``; the
            scales and dense columns of their weights are zero.
        storage: dtype of the covariance blocks.

    Cost of prediction: O(m (d + K)) time per point (O(m b) more for blocks of b columns). Features
    are computed in chunks of rows and blocks, so that memory is independent of m and of the number
    of points; products run in the dtype of x and are summed over blocks in float64.
    Source: Evans and Nair 2020 (QSGP), prediction.
    """

    weight_mean: Tensor
    scale: Tensor
    dense: Tensor
    level: Tensor

    def __init__(
        self,
        basis: Basis,
        num_dense: int,
        cells: Cells | None = None,
        storage: str = "float32",
    ) -> None:
        super().__init__()
        self.cells = cells
        self.covariance = None if cells is None else CellCovariance(storage)
        self.basis = fixed_copy(basis)
        blocks, width = basis.num_blocks, basis.block_size
        self.num_dense = num_dense
        like = next(basis.parameters())
        self.register_buffer("weight_mean", like.new_zeros(blocks, width))
        self.register_buffer("scale", like.new_zeros(blocks, width))
        self.register_buffer("dense", like.new_zeros(blocks, width, num_dense))
        self.register_buffer("level", like.new_zeros(()))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}level", torch.zeros(()))  # of earlier versions
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _chunks(self, x: Tensor, blocks: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunks of ``blocks`` (None: all): block numbers (L,) and their features (n, L W)."""
        if blocks is None:
            blocks = torch.arange(self.basis.num_blocks, device=x.device)
        at_once = len(blocks)
        if not torch.compiler.is_exporting():  # the number of rows is unknown then
            per_block = self.basis.block_size * x.shape[0] * x.element_size()
            share = 0 if x.is_cpu else working_memory(x.device) // 8
            at_once = max(1, max(FEATURE_BUDGET, share) // max(1, per_block))
        for some in blocks.split(at_once):
            yield some, self.basis.block_features(x, some)

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of f at x (n, d), without observation noise."""
        n = x.shape[0]
        mean = torch.zeros(n, dtype=torch.float64, device=x.device)
        variance = torch.zeros(n, dtype=torch.float64, device=x.device)
        rest = self._add_solved_groups(x, mean, variance)
        for rows in row_slices(n, ROW_CHUNK) if len(rest) else ():
            self._add_diagonal_blocks(x[rows], rest, mean[rows], variance[rows])
        return Marginals((mean + self.level).to(x.dtype), variance.to(x.dtype))

    def _add_solved_groups(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Add the contribution of groups with covariance blocks; returns all other blocks.

        Roots are unpacked once for all rows, and each feature is computed once.
        """
        blocks = torch.arange(self.basis.num_blocks, device=x.device)
        if self.cells is None or self.covariance is None:
            return blocks
        left = set(range(self.basis.num_blocks))
        for group in range(self.cells.num_groups):
            members = self.cells.group(group)
            if members[0] not in self.covariance.roots:
                continue
            left -= set(range(self.basis.num_blocks)[self.cells.blocks_of(group)])
            weights = self.cells.read_group(self.weight_mean, group)
            roots = [self.covariance.root(cell, x.dtype) for cell in members]
            source = self.cells.group_source(self.basis, group, x.device)
            for rows in row_slices(x.shape[0], ROW_CHUNK):
                features = source(x[rows])
                mean[rows] += weights.to(x.dtype) @ features
                offset = 0
                for root in roots:
                    assert root is not None
                    own = features[offset : offset + root.shape[0]]
                    variance[rows] += _squared_columns(root, own)
                    offset += root.shape[0]
        return torch.tensor(sorted(left), dtype=torch.int64, device=x.device)

    def _add_diagonal_blocks(
        self, x: Tensor, blocks: Tensor, mean: Tensor, variance: Tensor
    ) -> None:
        """Add the contribution of ``blocks`` with scales and dense columns at x."""
        projected = torch.zeros(x.shape[0], self.num_dense, dtype=torch.float64, device=x.device)
        for some, features in self._chunks(x, blocks):
            mean += features @ self.weight_mean[some].reshape(-1).to(x.dtype)
            if self.num_dense:
                dense = self.dense[some].reshape(-1, self.num_dense)
                projected += features @ dense.to(x.dtype)
            square = self.scale[some].reshape(-1).to(x.dtype).square()
            # without a graph, features are not used again
            squared = features.square() if features.requires_grad else features.square_()
            variance += squared @ square
        variance += projected.square().sum(1)

    def _roots(self, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
        """Cells that have a covariance block, and their roots (b, b)."""
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
        like = self.weight_mean
        weights = like.new_empty(*like.shape, num).normal_(generator=generator)
        weights.mul_(self.scale[..., None]).add_(self.weight_mean[..., None])
        if self.num_dense:
            shared = like.new_empty(self.num_dense, num).normal_(generator=generator)
            weights += self.dense @ shared
        for cell, root in self._roots(like.dtype):
            assert self.cells is not None
            normals = like.new_empty(root.shape[0], num).normal_(generator=generator)
            deviation = root.T @ normals
            for path in range(num):
                table = weights[..., path]
                own = self.cells.read(table, cell)
                self.cells.write(table, cell, own + deviation[:, path])

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            chunks = []
            for rows in x.split(ROW_CHUNK):
                values = torch.zeros(rows.shape[0], num, dtype=torch.float64, device=x.device)
                for blocks, features in self._chunks(rows):
                    values += features @ weights[blocks].flatten(0, 1).to(x.dtype)
                chunks.append((values + self.level).to(x.dtype))
            return torch.cat(chunks).T

        return paths


def _squared_columns(root: Tensor, features: Tensor) -> Tensor:
    """Column sums of squares of R F (n,), R (b, b) lower triangular, F (b, n), in panels."""
    total = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    for start in range(0, root.shape[0], PANEL):
        stop = min(start + PANEL, root.shape[0])
        part = root[start:stop, :stop] @ features[:stop]
        total += torch.linalg.vecdot(part, part, dim=0)
    return total
