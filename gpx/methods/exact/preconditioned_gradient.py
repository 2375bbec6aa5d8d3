"""Gradient of the iterative evidences: outer products for dK, an exact part for dQ."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.data_pass import eigenfunction_gradient
from gpx.inference.dense_factor import row_blocks
from gpx.inference.kernel_gradient import KernelGradient
from gpx.inference.log_density import LogDensityGradient
from gpx.inference.noisy_kernel import NoisyKernel, PreconditionedKernel
from gpx.kernels.base import Kernel


def preconditioned_gradient(
    system: PreconditionedKernel,
    kernel: Kernel,
    x: Tensor,
    *,
    left: Tensor,
    right: Tensor,
    probes: Tensor,
    correction: Tensor,
    residual: Tensor,
) -> LogDensityGradient:
    """Gradient of sum_c left_c^T K right_c + <V, Q> for fixed vectors.

    V = u u^T / 2 - (Q^{-1} - Z Z^T / L) / 2. With z = Q^{-1/2} w the bracket has mean zero over the
    probes w: it is a control variate of the stochastic trace in ``left`` and ``right``, whose
    variance falls as Q approaches K and vanishes for Q = K.

    Math: with C = L^{-1} K_zx and P = K_zz^{-1} K_zx = L^{-T} C, dQ = dK_xz P + P^T dK_zx -
    P^T dK_zz P + I dnoise for fixed greedy points z. With eigenfunctions, for a fixed choice of
    them, <V, dQ> = 2 <V C^T, dC^T> + tr V dnoise.

    Args:
        system: K and Q.
        kernel, x (n, d): differentiated (the kernel's parameters, and x if it requires a gradient).
        left, right (n, c): float64.
        probes (n, L): Z.
        correction (n,): u.
        residual (n,): gradient with respect to y - m(x), passed through.

    Cost: one pass of kernel derivatives with c columns, 4 n m^2 multiply-adds, n m derivatives.
    Source: Burt thesis, sections 4.1.3 (control variate) and 4.3.3 (terms of the CG bound).
    """
    with torch.no_grad():
        factor, q = system.factor, system.preconditioner
        count, n = probes.shape[1], x.shape[0]
        solved = q.solve(factor.mT)  # Q^{-1} C^T
        trace_q = (n - (solved * factor.mT).sum()) / system.noise
        weighted = probes @ ((factor @ probes).mT / count) - solved
        weighted = 0.5 * torch.addr(weighted, correction, factor @ correction)  # V C^T
        noise = (left * right).sum()
        noise += 0.5 * (correction.square().sum() - trace_q + probes.square().sum() / count)
    if system.eigenfunctions is None:
        kernel_gradient = _greedy_point_gradient(system, kernel, x, weighted)
    else:
        kernel_gradient = KernelGradient(kernel, x)
        basis = system.eigenfunctions.under(kernel)
        found = eigenfunction_gradient(basis, x, 2.0 * weighted)
        kernel_gradient.add_found(dict(zip(*found, strict=True)))
    products = NoisyKernel(kernel, x, system.noise, memory_budget=system.memory_budget)
    kernel_gradient.add_found(products.derivative(left.to(x.dtype), right.to(x.dtype)))
    return LogDensityGradient(residual, noise, kernel_gradient)


def _greedy_point_gradient(
    system: PreconditionedKernel, kernel: Kernel, x: Tensor, weighted: Tensor
) -> KernelGradient:
    """Gradient of <V, C^T C> from V C^T (n, m) for the factor C at greedy points."""
    factor, pivots = system.factor, system.pivots
    with torch.no_grad():
        lower = factor[:, pivots].mT
        inner = torch.linalg.solve_triangular(lower.mT, factor @ weighted, upper=True)
        inner = torch.linalg.solve_triangular(lower, inner, upper=False, left=False)
        cross = torch.linalg.solve_triangular(lower, weighted, upper=False, left=False)
    kernel_gradient = KernelGradient(kernel, x, x[pivots])
    for rows in row_blocks(x.shape[0], pivots.shape[0], x):
        kernel_gradient.add_cross(rows, 2.0 * cross[rows].to(x.dtype))
    kernel_gradient.add_inducing(-0.5 * (inner + inner.mT).to(x.dtype))
    return kernel_gradient
