"""Q = Q_xx + noise I of the inducing points, for the collapsed posterior and as preconditioner.

Notation as in ``gpx.inference.nystrom``: A = L^{-1} K_zx (M, n) with L = chol(K_zz), Q_xx = A^T A.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.inducing.features import POINTS, InducingFeatures
from gpx.inference.noisy_kernel import NoisyKernel
from gpx.inference.nystrom import BlockStore, NystromSums, factorise, nystrom_sums
from gpx.kernels.base import Kernel
from gpx.linalg import Capacitance, CholeskyReport, Woodbury
from gpx.linalg.triangular import inverse_root

INNER_NAME = "I + A A^T / noise of the inducing points"
"""Of B, for error messages."""


class InnerFactor(Capacitance):
    """B = I + A A^T / noise and the optimal weights; float64.

    Attributes:
        gram (M, M): A A^T / noise.
        factor (M, M): LB = chol(B).
        weights (M,): beta = B^{-1} A r / noise, the posterior mean of L^{-1} u.
    """

    def __init__(self, sums: NystromSums, noise: Tensor) -> None:
        super().__init__(sums.gram / noise, name=INNER_NAME)
        self._noise = noise
        self.weights = self._weights(sums)

    def with_target(self, sums: NystromSums) -> InnerFactor:
        """The same B with the weights for the sums of another target."""
        made = copy.copy(self)
        made.weights = made._weights(sums)
        return made

    def inverse_root(self) -> Tensor:
        """S (M, M), lower triangular with a positive diagonal, of B^{-1} = S S^T."""
        inner = self.gram.clone()
        inner.diagonal().add_(1.0)
        return inverse_root(inner, name=INNER_NAME).contiguous()

    def _weights(self, sums: NystromSums) -> Tensor:
        return self.solve((sums.projected / self._noise).unsqueeze(1)).squeeze(1)


def best_noise(sums: NystromSums, n: int, current: Tensor) -> Tensor:
    """Noise variance that maximises the collapsed bound with everything else fixed.

    With the eigenvalues lambda of A A^T and p the squares of A r in its eigenvectors,
    -2 F(s) = n log s + sum log(1 + lambda / s) + (r^T r - sum p / (s + lambda) + T) / s + const,
    minimised over a grid of 400 points from ``current`` (never below it) to twice the mean square
    of the residuals. Steps are a few per cent, enough for a start.

    Cost: one M x M eigendecomposition.
    """
    values, vectors = torch.linalg.eigh(sums.gram)
    values = values.clamp(min=0.0)
    power = (vectors.mT @ sums.projected).square()
    top = torch.maximum(2.0 * sums.squared_residual / n, current)
    share = torch.linspace(0.0, 1.0, 400, dtype=values.dtype, device=values.device).unsqueeze(1)
    grid = current * (top / current) ** share
    fit = sums.squared_residual - (power / (grid + values)).sum(1, keepdim=True)
    logs = n * grid.log() + (values / grid).log1p().sum(1, keepdim=True)
    return grid[torch.argmin(logs + (fit + sums.trace_error) / grid)].squeeze()


class NystromMatrix(Woodbury):
    """Q = A^T A + s I from blocks of A and their sums; never materialised, always below K.

    Products with A read the stored blocks where the budget holds all of them, and otherwise
    evaluate K_xz again and solve with L on vectors of length M, so that memory stays linear in n.

    Args:
        store: blocks of A.
        sums: over the data, for one target.
        noise (): s.
        report: jitter used for K_zz. Q <= K holds with any jitter.
        inner: B = I + A A^T / s, if already computed.

    Attributes:
        store, sums, inner, report: as above.
        noise (): s, float64.

    No gradients. Cost: a solve 2 n M (stored), or 2 n M (d + 1) and a few exponentials per entry.
    Raises: NotPositiveDefinite.
    Source: Burt thesis, sections 2.3 and 4.1.2.
    """

    @torch.no_grad()
    def __init__(
        self,
        store: BlockStore,
        sums: NystromSums,
        noise: Tensor,
        *,
        report: CholeskyReport | None = None,
        inner: InnerFactor | None = None,
    ) -> None:
        x = store.x
        super().__init__(x.shape[0], noise, dtype=x.dtype, device=x.device, below_kernel=True)
        self.store, self.sums, self.noise = store, sums, noise.detach().double()
        self.report = CholeskyReport(0.0, ()) if report is None else report
        self.inner = InnerFactor(sums, self.noise) if inner is None else inner
        self.capacitance = self.inner

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        kernel: Kernel,
        x: Tensor,
        z: Tensor,
        target: Tensor,
        noise: Tensor,
        *,
        jitter: float | None = None,
        memory_budget: int = 2**30,
        features: InducingFeatures = POINTS,
    ) -> NystromMatrix:
        """From one pass over the data, n M^2 multiply-adds.

        Args:
            kernel, x (n, d), z (M, d): covariance function, inputs, inducing inputs.
            target (n,): its projection A target is computed in the same pass.
            noise (): s.
            jitter: see ``factorise``.
            memory_budget: bytes of A that may be kept.
            features: the inducing features that z defines.
        """
        whitener, report = factorise(kernel, z, jitter, features=features)
        store = BlockStore(whitener, x, memory_budget)
        return cls(store, nystrom_sums(store, target.detach()), noise, report=report)

    @torch.no_grad()
    def with_target(self, target: Tensor) -> NystromMatrix:
        """The same matrix with the sums of another target (n,). Cost: n M."""
        sums = replace(
            self.sums,
            projected=self.project(target.detach()).double(),
            squared_residual=target.detach().double().square().sum(),
        )
        inner = self.inner.with_target(sums)
        return NystromMatrix(self.store, sums, self.noise, report=self.report, inner=inner)

    def shifted_solve(self, vectors: Tensor) -> Tensor:
        """(Q + T I)^{-1} times vectors, T the trace error: a matrix above K."""
        shift = self.noise + self.sums.trace_error
        return NystromMatrix(self.store, self.sums, shift).solve(vectors)

    def largest_eigenvalue(self) -> Tensor:
        """lambda_1(Q_xx), without the noise, float64. Cost: one M x M eigendecomposition."""
        return self.inner.spectrum[0][-1].clamp(min=0.0) * self.noise

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

    def _project(self, vectors: Tensor) -> Tensor:
        """A s^{-1/2} times vectors."""
        return self.project(vectors) * self._inverse_root

    def _expand(self, low: Tensor) -> Tensor:
        """A^T s^{-1/2} times low."""
        return self.expand(low * self._inverse_root)


class TightGap(NamedTuple):
    """-n/2 log(tau / n), tau = tr(Q^{-1} K), and the parts of its gradient.

    With C = LB^{-1} A (so that Q^{-1} = (I - C^T C / s) / s), G = C K C^T and H = Q^{-1} K Q^{-1}:
    tau = (tr K - tr G / s) / s and d tau = tr(Q^{-1} dK) - tr(H dQ).

    Attributes:
        value (): -n/2 log(tau / n), in nats.
        noise (): its derivative with respect to the noise variance.
        extra: rows -> (rows, M), its derivative with respect to these rows of A^T.
        diagonal: its derivative with respect to each k(x_n, x_n), apart from that via ``factor``.
        factor (n, M), scale: its derivative with respect to K_xx is ``scale`` C^T C.
    """

    value: Tensor
    noise: Tensor
    extra: Callable[[slice], Tensor]
    diagonal: Tensor
    factor: Tensor
    scale: Tensor


def tight_gap(matrix: NoisyKernel, nystrom: NystromMatrix, diagonal: Tensor) -> TightGap:
    """``TightGap`` of K and Q.

    Args:
        matrix, nystrom: K and Q.
        diagonal (n,): k(x_n, x_n).

    Exactness: log det K <= log det Q + n log(tau / n), by the inequality of the arithmetic and the
    geometric mean of the eigenvalues of Q^{-1/2} K Q^{-1/2}.
    Cost: a product of the kernel matrix with M vectors, n^2 M multiply-adds (three times that with
    the gradient); memory 2 n M.
    Source: Burt thesis, sections 4.3.1 and 4.3.3; the gradient is derived from it.
    """
    n, s, inner = nystrom.shape[0], nystrom.noise, nystrom.inner
    m = inner.factor.shape[0]
    eye = torch.eye(m, dtype=s.dtype, device=s.device)
    to_low = torch.linalg.solve_triangular(inner.factor, eye, upper=False)  # LB^{-1}
    factor = nystrom.expand(to_low.mT.to(nystrom.dtype))  # C^T
    product = matrix(factor)  # K C^T
    gram = (factor.mT @ product).double()
    total = diagonal.double().sum() + n * s
    tau = (total - gram.trace() / s) / s
    inverse_trace = (n - inner.complement.trace()) / s
    # C C^T / s = I - LB^{-1} LB^{-T}
    projector = eye - to_low @ to_low.mT
    curved = (total - 2.0 * gram.trace() / s + (gram * projector).sum() / s) / s.square()
    weight = n / tau
    mixed = (gram / s).to(nystrom.dtype)
    outward = (weight / s.square() * to_low).to(nystrom.dtype)

    def extra(rows: slice) -> Tensor:
        # rows of (n / tau) H A^T = n / (tau s^2) (K C^T - C^T G / s) LB^{-1}
        return (product[rows] - factor[rows] @ mixed) @ outward

    return TightGap(
        value=-0.5 * n * (tau / n).log(),
        noise=-0.5 * weight * (inverse_trace - curved),
        extra=extra,
        diagonal=-0.5 * weight / s,
        factor=factor,
        scale=0.5 * weight / s.square(),
    )
