"""Q = Q_xx + noise I of the inducing points as a matrix below K: solves, log determinant, roots."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gpx.errors import NotPositiveDefinite
from gpx.inducing.features import POINTS, InducingFeatures
from gpx.inference.inner_factor import InnerFactor
from gpx.inference.nystrom import BlockStore, NystromSums, factorise, nystrom_sums
from gpx.kernels.base import Kernel
from gpx.linalg import CholeskyReport, Preconditioner

NEGLIGIBLE = 1e-13
"""Eigenvalues of A A^T below this times the largest are dropped from the root."""


class NystromMatrix(Preconditioner):
    """Q = A^T A + s I with A = L^{-1} K_zx, L = chol(K_zz); never materialised.

    Products with A read the stored blocks where the budget holds all of them, and otherwise
    evaluate K_xz again and solve with L on vectors of length M, so that memory stays linear in n.

    Args:
        kernel, x (n, d), z (M, d): covariance function, inputs, inducing inputs.
        target (n,): whose projection A target is gathered in the same pass over the data.
        noise (): s.
        jitter: see ``factorise``.
        memory_budget: bytes of A that may be kept.
        features: what z stands for.

    Attributes:
        store, sums, inner: blocks of A, sums over the data, B = I + A A^T / s.
        noise (): s, float64.
        report: jitter that K_zz took. With any jitter Q <= K holds.

    No gradients. Cost: n M^2 multiply-adds once; a solve 2 n M (kept), or 2 n M (d + 1) and a few
    exponentials per entry.
    Raises: NotPositiveDefinite.
    Source: Burt thesis, sections 2.3 and 4.1.2.
    """

    below_kernel = True

    @torch.no_grad()
    def __init__(
        self,
        kernel: Kernel,
        x: Tensor,
        z: Tensor,
        target: Tensor,
        noise: Tensor,
        *,
        jitter: float | None = None,
        memory_budget: int = 2**30,
        features: InducingFeatures = POINTS,
    ) -> None:
        whitener, self.report = factorise(kernel, z, jitter, features=features)
        self._adopt(BlockStore(whitener, x, memory_budget), noise)
        self.sums = nystrom_sums(self.store, target.detach())
        self.inner = InnerFactor(self.sums, self.noise)

    def _adopt(self, store: BlockStore, noise: Tensor) -> None:
        self.store, self.noise = store, noise.detach().double()
        if not bool(self.noise > 0.0):
            raise NotPositiveDefinite(
                f"the noise variance is {float(noise):.3g}; a Nystrom matrix is only invertible "
                "with a positive one"
            )
        self._spectrum: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of_factors(
        cls, store: BlockStore, sums: NystromSums, inner: InnerFactor, noise: Tensor
    ) -> NystromMatrix:
        """Around a cache that exists already."""
        made = cls.__new__(cls)
        made._adopt(store, noise)
        made.sums, made.inner, made.report = sums, inner, CholeskyReport(0.0, ())
        return made

    @torch.no_grad()
    def with_target(self, target: Tensor) -> NystromMatrix:
        """The same matrix with the sums of another target (n,). Cost: n M."""
        sums = replace(
            self.sums,
            projected=self.project(target.detach()).double(),
            squared_residual=target.detach().double().square().sum(),
        )
        made = NystromMatrix.of_factors(self.store, sums, InnerFactor(sums, self.noise), self.noise)
        made.report, made._spectrum = self.report, self._spectrum
        return made

    # -- products with A --------------------------------------------------------------------------

    def project(self, vectors: Tensor) -> Tensor:
        """A times vectors (n,) or (n, c): (M,) or (M, c)."""
        whole = self.store.whole
        if whole is not None:
            return whole.mT @ vectors
        block = vectors.unsqueeze(1) if vectors.ndim == 1 else vectors
        total = block.new_zeros(self.store.whitener.z.shape[0], block.shape[1])
        for rows, cross in self.store.cross_blocks():
            total.addmm_(cross.mT, block[rows])
        low = torch.linalg.solve_triangular(self._factor, total, upper=False)
        return low.reshape(low.shape[0], *vectors.shape[1:])

    def expand(self, low: Tensor) -> Tensor:
        """A^T times low (M,) or (M, c): (n,) or (n, c)."""
        whole = self.store.whole
        if whole is not None:
            return whole @ low
        block = low.unsqueeze(1) if low.ndim == 1 else low
        block = torch.linalg.solve_triangular(self._factor.mT, block, upper=True)
        out = block.new_empty(self.store.x.shape[0], block.shape[1])
        for rows, cross in self.store.cross_blocks():
            torch.mm(cross, block, out=out[rows])
        return out.reshape(out.shape[0], *low.shape[1:])

    @property
    def _factor(self) -> Tensor:
        return self.store.whitener.factor.to(self.dtype)

    # -- the contract of Preconditioner -----------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """(n, n)."""
        return torch.Size((self.store.x.shape[0],) * 2)

    @property
    def dtype(self) -> torch.dtype:
        """Of the data."""
        return self.store.x.dtype

    @property
    def device(self) -> torch.device:
        """Of the data."""
        return self.store.x.device

    def matmul(self, vectors: Tensor) -> Tensor:
        """Q times vectors (n,) or (n, c)."""
        return self.expand(self.project(vectors)) + self.noise.to(self.dtype) * vectors

    def solve(self, vectors: Tensor) -> Tensor:
        """Q^{-1} times vectors (n,) or (n, c)."""
        return self._shifted(vectors, self.inner.factor, self.noise)

    def shifted_solve(self, vectors: Tensor) -> Tensor:
        """(Q + T I)^{-1} times vectors, T the trace error: a matrix above K."""
        shift = self.noise + self.sums.trace_error
        return self._shifted(vectors, InnerFactor(self.sums, shift).factor, shift)

    def _shifted(self, vectors: Tensor, inner: Tensor, s: Tensor) -> Tensor:
        low = self.project(vectors).double()
        block = low.unsqueeze(1) if low.ndim == 1 else low
        block = torch.cholesky_solve(block, inner).div_(s)
        s = s.to(self.dtype)
        return (vectors - self.expand(block.reshape(low.shape).to(self.dtype))) / s

    def logdet(self) -> Tensor:
        """log det Q, in nats, float64."""
        return self.shape[0] * self.noise.log() + 2.0 * self.inner.factor.diagonal().log().sum()

    def largest_eigenvalue(self) -> Tensor:
        """lambda_1(Q_xx), without the noise, float64. Cost: one M x M eigendecomposition."""
        return self._spectral()[0][-1].clamp(min=0.0)

    def root_matmul(self, vectors: Tensor) -> Tensor:
        """Q^{1/2} times vectors; the root is symmetric."""
        return self._power(vectors, 0.5)

    def inverse_root_matmul(self, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """Q^{-1/2} times vectors."""
        return self._power(vectors, -0.5)

    def _power(self, vectors: Tensor, exponent: float) -> Tensor:
        values, modes = self._spectral()
        keep = values > NEGLIGIBLE * values[-1]
        values, modes = values[keep], modes[:, keep]
        weights = torch.expm1(exponent * torch.log1p(values / self.noise)) / values
        low = self.project(vectors).double()
        block = low.unsqueeze(1) if low.ndim == 1 else low
        block = modes @ (weights.unsqueeze(1) * (modes.mT @ block))
        moved = vectors + self.expand(block.reshape(low.shape).to(self.dtype))
        return moved * (self.noise**exponent).to(self.dtype)

    def _spectral(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (ascending) and eigenvectors of A A^T; those of Q_xx that are not zero."""
        if self._spectrum is None:
            values, modes = torch.linalg.eigh(self.sums.gram)
            self._spectrum = values, modes
        return self._spectrum
