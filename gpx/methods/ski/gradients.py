"""Gradients of r^T A^{-1} r and log |A| by ``SKISystem.tensors``, for A = W K W^T + noise I."""

from __future__ import annotations

import torch
from scipy.linalg.lapack import dtrtri
from torch import Tensor

from gpx.backends import row_slices
from gpx.linalg.preconditioners.low_rank import Capacitance
from gpx.methods.ski.covariance import AxisCovariance
from gpx.methods.ski.low_rank import EigenPart, PivotedPart
from gpx.methods.ski.system import SKISystem
from gpx.methods.ski.waves import WavePart
from gpx.operators import Interpolation

CHUNK_ENTRIES = 1 << 24
"""Entries of a working array over some of the rows."""
MIN_FLOAT32_SIZE = 512
"""Fewest columns of a matrix for which a float32 inverse is tried."""
MAX_INVERSE_DIAGONAL = 1e5
"""Largest diagonal entry of the inverse of a matrix with unit diagonal for which float32 is used;
bounds the condition number of its Cholesky factor."""
COLUMNS = 32
"""Vectors on the grid per block of correlations."""


@torch.no_grad()
def quad_gradient(system: SKISystem, v: Tensor) -> list[Tensor]:
    """Gradient of r^T A^{-1} r, from v = A^{-1} r (n, 1)."""
    wv = system.detached_weights._t_multiply(v)
    found = [-g for g in system.covariance.gradient(wv, wv)]
    found.append(-(v * v).sum())
    if system.weights.values.requires_grad:
        on_grid = system.covariance.multiply(wv)
        found.append(-2.0 * _by_values(system.weights, v, on_grid))
    return found


def logdet_gradient(system: SKISystem, u: Tensor, z: Tensor) -> list[Tensor]:
    """Gradient of log |A|, from A^{-1} w and Q^{-1} w (n, L) of probes w with covariance Q.

    tr(A^{-1} dA) is split into tr(Q^{-1} dA_P), computed exactly, where dA_P has P dK P instead of
    dK for a projection P onto the range of C, and the rest, estimated from the probes.
    """
    parts = zip(carried_gradient(system), probed_gradient(system, u, z), strict=True)
    return [exact + estimated for exact, estimated in parts]


@torch.no_grad()
def probed_gradients(system: SKISystem, u: Tensor, z: Tensor) -> list[list[Tensor]]:
    """``probed_gradient`` of each probe by itself."""
    if not isinstance(system.part, WavePart) or system.weights.values.requires_grad:
        pairs = zip(u.split(1, 1), z.split(1, 1), strict=True)
        return [probed_gradient(system, *pair) for pair in pairs]
    both = system.detached_weights._t_multiply(torch.cat([u, z], 1))
    by_lag = system.part.gradients_outside(both)
    by_noise = (u * z - z * z).sum(0)
    return [list(own) for own in zip(by_lag, by_noise, strict=True)]


@torch.no_grad()
def carried_gradient(system: SKISystem) -> list[Tensor]:
    """tr(Q^{-1} dA_P), without probes; see ``logdet_gradient``."""
    part, q, noise = system.part, system.preconditioner, system.noise.detach()
    if isinstance(part, WavePart):
        diagonal = _inverse_diagonal(q.capacitance.factor)
        found = [part.carried_gradient(1.0 - diagonal)]
        found.append((system.detached_weights.shape[-2] - part.rank + diagonal.sum()) / noise)
        return _with_values(system, found)
    by_axis = isinstance(part, EigenPart) and isinstance(system.covariance, AxisCovariance)
    inverse, scale = _inverse(q.capacitance, single=by_axis)
    rows = system.detached_weights.shape[-2]
    trace = (inverse.diagonal() * scale.square()).sum()
    by_noise = (rows - part.rank + trace) / noise
    if isinstance(part, EigenPart):
        if by_axis:
            found = part.axis_gradients(inverse, scale)
        else:
            # I - B^{-1} cancels where a root is small, but dK is small there too
            inner = inverse.neg_()
            inner.diagonal().add_(1.0)
            inner.div_(part.roots).div_(part.roots.unsqueeze(1))
            found = [part.lag_gradient(inner)]
    else:
        assert isinstance(part, PivotedPart)
        found = _lag_trace(system, part)
    return _with_values(system, [*found, by_noise])


def _with_values(system: SKISystem, found: list[Tensor]) -> list[Tensor]:
    if system.weights.values.requires_grad:
        found.append(_carried_by_values(system))
    return found


def _inverse_diagonal(factor: Tensor) -> Tensor:
    """Diagonal of (L L^T)^{-1} for L (r, r): squared norms of the columns of L^{-1}.

    Cost: r^3 / 3 multiply-adds on a CPU, half of an inverse.
    """
    if factor.is_cpu and len(factor):
        found, _ = dtrtri(factor.numpy(), lower=1)  # leaves the zeros above
        return torch.from_numpy(found).square().sum(0)
    return torch.cholesky_inverse(factor).diagonal()


def _inverse(capacitance: Capacitance, *, single: bool) -> tuple[Tensor, Tensor]:
    """M (r, r) and s (r,) with B^{-1}_ij = s_i s_j M_ij.

    B scaled to unit diagonal is nearly the identity for evenly spread data, so that its inverse in
    float32, which takes half the time, has six digits.

    Args:
        single: use float32 if B is large and its inverse does not grow.
    """
    factor = capacitance.factor
    if single and len(factor) >= MIN_FLOAT32_SIZE:
        scale = (1.0 + capacitance.gram.diagonal()).rsqrt()
        found = torch.cholesky_inverse((factor * scale.unsqueeze(1)).float())
        if float(found.diagonal().max()) <= MAX_INVERSE_DIAGONAL:
            return found, scale
    found = torch.cholesky_inverse(factor)
    return found, found.new_ones(len(found))


@torch.no_grad()
def probed_gradient(system: SKISystem, u: Tensor, z: Tensor) -> list[Tensor]:
    """The rest of ``logdet_gradient``, as the mean over probes u, z (n, L)."""
    w, part, probes = system.detached_weights, system.part, u.shape[1]
    both = w._t_multiply(torch.cat([u, z], 1))
    wu, wz = both.split(probes, 1)
    if isinstance(part, WavePart):
        found = [part.gradient_outside(both)]
    elif isinstance(part, EigenPart) and isinstance(system.covariance, AxisCovariance):
        whole = system.covariance.gradient(wu / probes, wz)
        own = zip(whole, part.axis_gradients_within(wz), strict=True)
        found = [every - seen / probes for every, seen in own]
    elif isinstance(part, EigenPart):
        inside = part.within(wz)
        found = system.covariance.gradient(
            torch.cat([wu, -inside], 1) / probes, torch.cat([wz, inside], 1)
        )
    else:
        assert isinstance(part, PivotedPart)
        found = system.covariance.gradient((wu - wz) / probes, wz)
    found.append(((u * z).sum() - (z * z).sum()) / probes)
    if system.weights.values.requires_grad:
        on_grid = system.covariance.multiply(wz)
        carried = part.expand(part.project(wz))
        left, right = torch.cat([u, -z], 1), torch.cat([on_grid, carried], 1)
        found.append(_by_values(system.weights, left, right).mul_(2.0 / probes))
    return found


def _lag_trace(system: SKISystem, part: PivotedPart) -> list[Tensor]:
    """Gradient of tr(Q^{-1} W dK W^T) by the lags of K, or of its blocks.

    Q^{-1} = (I - F^T B^{-1} F / noise) / noise, F = C W^T and B = I + F F^T / noise = L L^T,
    so that it is (tr(W^T W dK) - sum_c h_c^T dK h_c) / noise, H = W^T F^T L^{-T} / noise^{1/2}.
    """
    noise = system.noise.detach()
    found = system.data.grams_by_lag(len(system.covariance.tensors))
    if part.rank:
        back = system.moment_times_pivots(part).mT
        factor = system.preconditioner.capacitance.factor
        h = torch.linalg.solve_triangular(factor, back, upper=False)
        for block in h.split(COLUMNS):
            less = system.covariance.gradient(block.mT, block.mT)
            for total, own in zip(found, less, strict=True):
                total -= own / noise
    return [total / noise for total in found]


def _carried_by_values(system: SKISystem) -> Tensor:
    """Gradient of tr(Q^{-1} d(W C^T C W^T)) by the values of W: 2 C^T C W^T Q^{-1}, exact."""
    part, w, x = system.part, system.detached_weights, system.data.inputs
    factor, noise = system.preconditioner.capacitance.factor, system.noise.detach()
    found = torch.empty_like(w.values)
    size = max(1, part.rank) * w.values.shape[1]
    for rows in row_slices(len(x), max(1, CHUNK_ENTRIES // size)):
        some = Interpolation(w.values[rows], w.indices[rows], num_columns=w.num_columns)
        low = torch.cholesky_solve(part.at(some, x[rows], "error"), factor)
        found[rows] = 2.0 / noise * part.picked(low, w.indices[rows])
    return found


def _by_values(weights: Interpolation, left: Tensor, right: Tensor) -> Tensor:
    """Gradient of sum_c left_c^T W right_c by the values of W."""
    found = weights._bilinear_derivative(left, right)[0]
    assert isinstance(found, Tensor)
    return found
