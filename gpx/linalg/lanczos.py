"""Lanczos tridiagonalisation of a symmetric matrix known by its products; many starts at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpx.errors import DidNotConverge, ShapeError
from gpx.linalg.cg_iteration import column_scales
from gpx.linalg.conjugate_gradients import CGResult

BREAKDOWN = {torch.float64: 1e3, torch.float32: 20.0}
"""The iteration ends when the next vector is shorter than this times the rounding unit times the
scale of the matrix: it is then only rounding. Rounding grows with the steps, but in float32 a
thousand units, 1e-4 of the largest eigenvalue, would leave out eigenvalues that matter; there the
process may go on in rounding, which carries no weight."""


class Lanczos:
    """Orthonormal Krylov bases U and tridiagonal T = U^T K U, grown step by step.

    Every new vector is orthogonalised against all previous ones, twice: without it the basis loses
    orthogonality as soon as an extreme eigenvalue is found, and no test of inner products can be
    fooled by their sign. When the Krylov space is exhausted for a start vector (its next vector is
    rounding noise), that column stops: its further basis vectors are zero, its T is padded by
    uncoupled copies of its first entry, which carry no weight in e_1^T f(T) e_1. The length of that
    next vector stays the last coupling, so that Gauss-Radau remains a lower bound.

    Args:
        matmul: (n, c) -> K times it.
        start (n,) or (n, c): one start vector per column; not zero.
        capacity: largest number of steps (storage is allocated at once); at most n.
        check_every: steps between checks for an early end, which synchronise with the device;
            default 1 on a CPU, else 10.

    Attributes:
        steps: t, steps made so far.
        alphas (c, t), betas (c, t): diagonal of T, and the norms coupling each step to the next
            (``betas[:, :-1]`` is T's off-diagonal, the last one belongs to Gauss-Radau).
        basis (c, t, n): rows are the vectors u_1 .. u_t.
        norms (c,): lengths of the start vectors.
        exhausted (c,): whether the Krylov space of a column has ended.

    Cost: per step one product and 8 n c t operations; memory n c ``capacity``.
    Source: Burt thesis, section 4.1.4.
    """

    def __init__(
        self,
        matmul: Callable[[Tensor], Tensor],
        start: Tensor,
        capacity: int,
        *,
        check_every: int | None = None,
    ) -> None:
        if start.ndim not in (1, 2) or capacity < 1:
            raise ShapeError(
                f"Lanczos takes start vectors (n,) or (n, c) and at least one step, got "
                f"{tuple(start.shape)} and {capacity}"
            )
        block = start.detach().unsqueeze(-1) if start.ndim == 1 else start.detach()
        n, c = block.shape
        self._matmul = matmul
        self._check_every = check_every or (1 if start.device.type == "cpu" else 10)
        self.capacity = min(capacity, n)
        self.norms = torch.linalg.vector_norm(block, dim=0)
        self._storage = block.new_zeros(c, self.capacity, n)
        self._alphas = block.new_zeros(c, self.capacity)
        self._betas = block.new_zeros(c, self.capacity)
        self._next = (block / self.norms).mT.contiguous()
        self._scale = torch.zeros_like(self.norms)
        self.exhausted = torch.zeros(c, dtype=torch.bool, device=block.device)
        self.steps = 0

    @property
    def alphas(self) -> Tensor:
        """Diagonal of T, (c, t)."""
        return self._alphas[:, : self.steps]

    @property
    def betas(self) -> Tensor:
        """Couplings, (c, t); the last one leads out of T."""
        return self._betas[:, : self.steps]

    @property
    def basis(self) -> Tensor:
        """Orthonormal vectors as rows, (c, t, n)."""
        return self._storage[:, : self.steps]

    def tridiagonal(self) -> Tensor:
        """T, (c, t, t)."""
        return tridiagonal(self.alphas, self.betas)

    @torch.no_grad()
    def extend(self, steps: int) -> Lanczos:
        """Make up to ``steps`` more steps: fewer at the capacity or when all columns ended.

        Raises:
            DidNotConverge: NaN or infinite values in the products or the start vectors (zero start
                vectors included).
        """
        stop = min(self.steps + steps, self.capacity)
        while self.steps < stop:
            if self.steps and self.steps % self._check_every == 0 and bool(self.exhausted.all()):
                break
            self._step()
        if not bool(torch.isfinite(self.alphas).all()):
            raise DidNotConverge(
                f"Lanczos met NaN or infinite values within {self.steps} steps: a start vector is "
                "zero or not finite, or the matrix is; check the inputs and hyperparameters"
            )
        return self

    def _step(self) -> None:
        i = self.steps
        vector = self._next
        self._storage[:, i] = vector
        product = self._matmul(vector.mT).mT
        alpha = (vector * product).sum(-1)
        alpha = torch.where(self.exhausted, self._alphas[:, 0], alpha)
        basis = self._storage[:, : i + 1]
        rest = product.unsqueeze(-1)
        for _ in range(2):
            rest = rest - basis.mT @ (basis @ rest)
        rest = rest.squeeze(-1)
        size = column_scales(rest.mT)  # the squares of a badly scaled matrix leave the range
        beta = size * torch.linalg.vector_norm(rest / size.unsqueeze(-1), dim=-1)
        self._scale = torch.maximum(self._scale, alpha.abs() + beta)
        noise = BREAKDOWN.get(beta.dtype, 20.0) * torch.finfo(beta.dtype).eps * self._scale
        whole = i + 1 == rest.shape[-1]
        beta = beta * (not whole)
        if i:  # the coupling that ended a column moves along, as the last one
            beta = torch.where(self.exhausted, self._betas[:, i - 1], beta)
            self._betas[:, i - 1].masked_fill_(self.exhausted, 0.0)
        self.exhausted = self.exhausted | (beta <= noise) | whole
        self._alphas[:, i], self._betas[:, i] = alpha, beta
        self._next = torch.where(
            self.exhausted.unsqueeze(-1), 0.0, rest / beta.masked_fill(self.exhausted, 1.0)[:, None]
        )
        self.steps += 1


def lanczos(matmul: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Lanczos:
    """``Lanczos`` after ``steps`` steps (fewer when every Krylov space ends earlier)."""
    return Lanczos(matmul, start, steps).extend(steps)


def tridiagonal(alphas: Tensor, betas: Tensor) -> Tensor:
    """Symmetric tridiagonal (..., t, t) of diagonal (..., t) and couplings (..., >= t - 1)."""
    off = betas[..., : alphas.shape[-1] - 1]
    out = torch.diag_embed(alphas)
    if off.shape[-1]:
        out = out + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    return out


def tridiagonal_of_cg(result: CGResult) -> tuple[Tensor, Tensor]:
    """Lanczos coefficients of Q^{-1/2} K Q^{-1/2} started at Q^{-1/2} b, read off a PCG solve.

    T_ii = 1 / a_i + b_{i-1} / a_{i-1}, T_{i,i+1} = sqrt(b_i) / a_i. Steps after a refresh or
    restart belong to another Krylov space and are left out. Columns frozen early are padded as in
    ``Lanczos``, but their space has not ended: the coupling that leads out of their own T is the
    last one, ``betas[:, -1]``, which is where ``gauss_radau`` looks for it.

    Args:
        result: of ``conjugate_gradients`` with (n, c) right-hand sides, started at zero.

    Returns:
        alphas (c, t), betas (c, t).

    Source: Burt thesis, section 4.1.4.
    """
    if result.undisturbed == 0:  # solved without a step: T = 1, as for columns that never moved
        empty = result.solution.new_zeros(result.solution.shape[-1], 1)
        return empty + 1.0, empty
    a = result.step_sizes[: result.undisturbed].reshape(result.undisturbed, -1).mT
    b = result.ratios[: result.undisturbed].reshape(result.undisturbed, -1).mT
    moving = a > 0.0
    if a.is_cpu and bool(moving.all()):  # the general case below, in a few operations
        inverse = a.reciprocal()
        betas = b.clamp(min=0.0).sqrt_() * inverse
        alphas = inverse.clone()
        alphas[:, 1:] += b[:, :-1] * inverse[:, :-1]
        return alphas, betas
    inverse = torch.where(moving, 1.0 / a, 0.0)
    alphas = inverse.clone()
    alphas[:, 1:] += b[:, :-1] * inverse[:, :-1]
    betas = b.clamp(min=0.0).sqrt() * inverse
    # a step couples to the next one only if the next one was made
    coupled = torch.nn.functional.pad(moving[:, 1:], (0, 1), value=True)
    last = moving & ~coupled
    first = alphas[:, :1].clone()
    alphas = torch.where(moving, alphas, torch.where(first > 0.0, first, 1.0))
    leaving = torch.where(last, betas, 0.0).sum(-1)
    betas = torch.where(last, 0.0, betas)
    betas[:, -1] += leaving  # of columns in motion to the end it is there already
    return alphas, betas
