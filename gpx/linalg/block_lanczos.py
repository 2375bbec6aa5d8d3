"""Lanczos for several start vectors in one shared Krylov space, and quadrature brackets from it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpx.errors import DidNotConverge, NotPositiveDefinite, ShapeError
from gpx.linalg.lanczos import BREAKDOWN
from gpx.linalg.quadrature import at_ritz_values


class BlockLanczos:
    """Orthonormal basis S of the sum of the Krylov spaces of all starts, and T = S^T A S.

    A S = S T + N E^T, with candidates N (n, b) orthonormal and orthogonal to S: the vectors that
    the next steps may add. Every start gains from the vectors of all others, so a given accuracy
    takes fewer products than separate processes; the saving is larger for smaller matrices and
    slower decay of the spectrum. ``extend`` may add one direction and leave the other candidates.

    New vectors are orthogonalised against all previous ones, twice. Directions without a component
    outside S are dropped; when none is left the space is invariant and the rules are exact.

    Args:
        matmul: (n, c) -> A times it.
        start (n, c): start vectors, not all zero.
        capacity: largest number of basis vectors (storage is allocated at once); at most n.

    Attributes:
        size: t, basis vectors so far.
        coefficients (c0, c): start = S_0 times it, with S_0 the first c0 basis vectors.
        multiplied: columns multiplied by A so far.

    Cost: a step of b columns takes one product and 8 n b t operations; memory
    ``n * capacity + capacity**2``.
    Source: Golub and Underwood 1977 (block process), Ruhe 1979 (candidates one by one).
    """

    def __init__(self, matmul: Callable[[Tensor], Tensor], start: Tensor, capacity: int) -> None:
        if start.ndim != 2 or 0 in start.shape or capacity < 1:
            raise ShapeError(
                f"block Lanczos takes start vectors (n, c) and room for at least one, got "
                f"{tuple(start.shape)} and {capacity}"
            )
        if not bool(torch.isfinite(start).all()):
            raise DidNotConverge("block Lanczos: a start vector holds NaN or infinite values")
        n = start.shape[0]
        self._matmul = matmul
        self.capacity = min(capacity, n)
        self._storage = start.new_zeros(self.capacity, n)
        self._projected = start.new_zeros(self.capacity, self.capacity)
        norms = torch.linalg.vector_norm(start.detach(), dim=0)
        self._scale = 1.0
        self.size = 0
        self.multiplied = 0
        self._candidates, lead = self._split(start.detach() / norms.masked_fill(norms == 0.0, 1.0))
        self.coefficients = lead * norms
        self._couplings = start.new_zeros(0, self._candidates.shape[1])

    @property
    def basis(self) -> Tensor:
        """Orthonormal vectors as rows, (t, n)."""
        return self._storage[: self.size]

    @property
    def projected(self) -> Tensor:
        """T, (t, t)."""
        return self._projected[: self.size, : self.size]

    @property
    def couplings(self) -> Tensor:
        """E, (t, b)."""
        return self._couplings

    @property
    def candidates(self) -> Tensor:
        """N, (n, b): orthonormal vectors that may be added."""
        return self._candidates

    @property
    def exhausted(self) -> bool:
        """Whether the space is invariant: no candidates are left."""
        return self._candidates.shape[1] == 0

    @torch.no_grad()
    def extend(self, direction: Tensor | None = None) -> bool:
        """Add all candidates, or the one vector N times ``direction`` (b,).

        The residual of a Galerkin solution S c is -N E^T c. In its direction the space grows as in
        conjugate gradients deflated by the basis so far.

        Returns:
            Whether anything was added: False at the capacity and at the end.

        Raises:
            DidNotConverge: NaN or infinite values in the products.
        """
        t, count = self.size, self._candidates.shape[1]
        width = count if direction is None else min(count, 1)
        if width == 0 or t + width > self.capacity:
            return False
        if direction is not None:
            turn = _first_column(direction)
            self._candidates, self._couplings = self._candidates @ turn, self._couplings @ turn
        add, wait = self._candidates[:, :width], self._candidates[:, width:]
        self._storage[t : t + width] = add.mT
        self.size += width
        product = self._matmul(add)
        self.multiplied += width
        known = torch.cat([self.basis, wait.mT])
        rest, inside = product, known.new_zeros(known.shape[0], width)
        for _ in range(2):
            part = known @ rest
            rest = rest - known.mT @ part
            inside += part
        if not bool(torch.isfinite(inside).all()):
            raise DidNotConverge(
                f"block Lanczos met NaN or infinite values within {self.size} vectors: the matrix "
                "holds some; check the inputs and hyperparameters"
            )
        longest = float(torch.linalg.vector_norm(product, dim=0).max())
        self._scale = max(self._scale, longest) if t else longest
        block = inside[: self.size]
        self._projected[: self.size, t : self.size] = block
        self._projected[t : self.size, : self.size] = block.mT
        corner = block[t:]
        self._projected[t : self.size, t : self.size] = 0.5 * (corner + corner.mT)
        fresh, lead = self._split(rest, known)
        # concatenated: older versions of torch do not pad arrays without entries
        before = self._couplings[:, width:]
        old = torch.cat([before, before.new_zeros(width, before.shape[1])])
        old[t:] = inside[self.size :].mT
        new = torch.cat([lead.new_zeros(t, lead.shape[0]), lead.mT])
        self._candidates = torch.cat([fresh, wait], 1)
        self._couplings = torch.cat([new, old], 1)
        return True

    def _split(self, block: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """block = N B with N orthonormal (n, r), without columns that are rounding noise."""
        vectors, lead = torch.linalg.qr(block)
        noise = BREAKDOWN.get(block.dtype, 20.0) * torch.finfo(block.dtype).eps * self._scale
        smallest = float(lead.diagonal().abs().min())
        room = block.shape[0] - self.size  # no more directions are left, whatever rounding says
        if smallest <= noise or lead.shape[0] > room:
            left, values, right = torch.linalg.svd(block, full_matrices=False)
            keep = values > noise
            keep[room:] = False
            vectors, lead = left[:, keep], values[keep, None] * right[keep]
        if known is not None and smallest < 1e-6 * self._scale and vectors.shape[1]:
            # after such cancellation the vectors are not orthogonal to working accuracy
            vectors, again = torch.linalg.qr(vectors - known.mT @ (known @ vectors))
            lead = again @ lead
        return vectors, lead


def _first_column(direction: Tensor) -> Tensor:
    """Orthogonal matrix whose first column is parallel to ``direction`` (b,): a reflection."""
    unit = direction / torch.linalg.vector_norm(direction)
    eye = torch.eye(unit.shape[0], dtype=unit.dtype, device=unit.device)
    normal = unit.clone()
    normal[0] += torch.where(unit[0] < 0.0, -1.0, 1.0)
    return eye - torch.outer(normal, normal) * (2.0 / torch.dot(normal, normal))


def block_gauss(
    function: Callable[[Tensor], Tensor], projected: Tensor, coefficients: Tensor
) -> Tensor:
    """Rule w^T f(A) w ~ (R e)^T f(T) (R e) for every start w = S R e, from the shared space.

    Above the true value for f = log, below it for f = 1/x: both are integrals of resolvents, whose
    Galerkin values in any space that holds w err downwards.

    Args:
        function: f, elementwise.
        projected (t, t): T, symmetric.
        coefficients (c0, c): of ``BlockLanczos``, c0 <= t.

    Returns:
        (c,).

    Cost: one symmetric eigenproblem of size t.
    Source: Golub and Meurant 2010, chapter 6 (block rules).
    """
    values, vectors = at_ritz_values(function, projected)
    weights = (vectors[: coefficients.shape[0]].mT @ coefficients).square()
    return values @ weights


def block_radau(projected: Tensor, couplings: Tensor, node: float) -> Tensor:
    """T extended by a block such that the rule lies on the other side of the true value.

    With A >= a I the part of A on the candidates is at least a I + E^T (T - a I)^{-1} E, and a
    smaller part means larger resolvents: the extended matrix [[T, E], [E^T, that]] gives
    ``block_gauss`` values below those of log, above those of 1/x. T itself when E is empty.

    Args:
        projected (t, t), couplings (t, b): of ``BlockLanczos``.
        node: a <= smallest eigenvalue of A.

    Raises:
        NotPositiveDefinite: a Ritz value lies below ``node``.

    Returns:
        (t + b, t + b).

    Source: Golub and Meurant 2010, 6.3 (block Gauss-Radau).
    """
    t, b = couplings.shape
    if b == 0:
        return projected
    eye = torch.eye(t, dtype=projected.dtype, device=projected.device)
    # rounding may put the smallest Ritz value a hair below a node that is the smallest eigenvalue
    node -= 1e3 * torch.finfo(projected.dtype).eps * float(projected.diagonal().max())
    shifted = projected - node * eye
    factor, info = torch.linalg.cholesky_ex(shifted)
    if int(info):
        lowest = float(torch.linalg.eigvalsh(projected)[0])
        raise NotPositiveDefinite(
            f"Gauss-Radau node {node:.6g} is not below the Ritz value {lowest:.6g}: a bracket "
            "needs a lower bound of the spectrum; use the noise variance, or 1 with a "
            "preconditioner below K"
        )
    white = torch.linalg.solve_triangular(factor, couplings, upper=False)
    corner = white.mT @ white
    corner.diagonal().add_(node)
    top = torch.cat([projected, couplings], 1)
    return torch.cat([top, torch.cat([couplings.mT, corner], 1)])
