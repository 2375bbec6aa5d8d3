"""Circulant approximations of Toeplitz matrices: log-determinants, and as preconditioners.

    python experiments/ski/circulants.py           # half a minute of processor time
    python experiments/ski/circulants.py --quick   # m = 200, nothing written

Table R2 (Hultin 2017, section 3.4), the iterations of preconditioned conjugate gradients and the
error of Chebyshev log-determinants (section 5.3). Writes circulants.json and RESULTS.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from record import Checks, Rows, write
from setting import command_line
from torch import Tensor

from gpx.kernels import RBF, Kernel, Matern12, Matern32, RationalQuadratic
from gpx.linalg import (
    RelativeResidual,
    chebyshev_logdet,
    circulant_approximation,
    conjugate_gradients,
    enough_wraps,
    toeplitz_logdet,
    whittle,
)
from gpx.methods.ski.grid_spectrum import scaled_logdet

HERE = Path(__file__).resolve().parent
KINDS = ("strang", "chan", "tyrtyshnikov")

LOGDETS: list[tuple[str, type[Kernel], float, float, tuple[float, float, float, float]]] = [
    # kernel, lengthscale, noise variance; table R2: Strang, Chan, Tyrtyshnikov, Whittle
    ("SE", RBF, 0.1, 1e-3, (-1.7e-3, 9.6e-2, 1.3, -1.7e-3)),
    ("SE", RBF, 1.0, 1e-3, (-2.1e-3, 1.7e-1, 1.6, -2.1e-3)),
    ("SE", RBF, 5.0, 1e-3, (9.1e-2, 1.8e-1, 1.8, -2.6e-3)),
    ("Matern 1/2", Matern12, 5.0, 1e-3, (-2.4e-3, 3.8e-2, 1.7, -8.8e-4)),
    ("Matern 3/2", Matern32, 1.0, 1e-1, (-1.5e-3, 1.6e-2, 2.7, -1.5e-3)),
    ("RQ", RationalQuadratic, 5.0, 1e-3, (8.1e-2, 1.7e-1, 1.8, 1.9e-1)),
]
MORE_WRAPS = {10: 1.3e-2, 100: -1.9e-3}
"""R2, RQ: error of Whittle's by the number of wraps."""
SOLVES: list[tuple[str, type[Kernel], float, tuple[int, int, int, int, int]]] = [
    # kernel of lengthscale 1, noise variance; iterations: none, Strang, Chan, Tyrtyshnikov, Whittle
    ("SE", RBF, 1e-3, (150, 19, 162, 169, 19)),
    ("Matern 3/2", Matern32, 1e-3, (902, 7, 25, 677, 6)),
    ("Matern 1/2", Matern12, 1e-3, (413, 4, 8, 105, 3)),
    ("SE", RBF, 1e-1, (59, 11, 22, 130, 11)),
]
KERNELS: dict[str, type[Kernel]] = {"SE": RBF, "Matern 3/2": Matern32, "RQ": RationalQuadratic}
LENGTHSCALES, NOISES = (0.1, 1.0, 5.0), (1e-4, 1e-3, 1e-2, 1e-1)
CHEBYSHEV = {25: 6e-2, 50: 3.5e-3, 100: 2e-5}
"""Relative error of the trace by degree, condition number about 500, 300 rows."""


def at_lags(kernel: Kernel) -> Callable[[Tensor], Tensor]:
    """Lags (..., 1) -> values (...)."""
    kernel = kernel.double()

    def at(lags: Tensor) -> Tensor:
        found = kernel.evaluate(lags.new_zeros(1, 1), lags.reshape(-1, 1))
        return found.reshape(lags.shape[:-1])

    return at


def logdet(column: Tensor, noise: float) -> float:
    """log det of the circulant with this first column (m,), negative eigenvalues clipped, plus
    noise."""
    return float(scaled_logdet(torch.fft.fft(column).real, torch.tensor(noise), len(column)))


def column(kernel: Kernel, m: int) -> tuple[Tensor, float]:
    """First column (m,) of the kernel's matrix on m points over 20 units, and their distance."""
    spacing = 20.0 / (m - 1)
    lags = spacing * torch.arange(m, dtype=torch.float64)
    return at_lags(kernel)(lags.unsqueeze(1)), spacing


def wrapped(kernel: Kernel, m: int, spacing: float, wraps: int) -> Tensor:
    return whittle(at_lags(kernel), torch.tensor([spacing], dtype=torch.float64), (m,), wraps=wraps)


@torch.no_grad()
def logdets(m: int) -> Rows:
    """R2: (approximation - true) / |true| of log |T + noise I|."""
    rows = []
    for name, kind, lengthscale, noise, known in LOGDETS:
        kernel = kind(1, lengthscale, 1.0)
        first, spacing = column(kernel, m)
        shifted = first.clone()
        shifted[0] += noise
        true = float(toeplitz_logdet(shifted))
        found = {k: circulant_approximation(first, k) for k in KINDS}
        settings: list[tuple[int, float | None]] = [(3, known[3])]
        settings += [*MORE_WRAPS.items()] if name == "RQ" else []
        for wraps, whittle_known in settings:
            found["whittle"] = wrapped(kernel, m, spacing, wraps)
            row: dict[str, Any] = {
                "kernel": name,
                "lengthscale": lengthscale,
                "noise": noise,
                "wraps": wraps,
                "log|T + noise I|": true,
            }
            for k, c in found.items():
                row[k] = (logdet(c, noise) - true) / abs(true)
            row["least eigenvalue, strang"] = float(torch.fft.fft(found["strang"]).real.min())
            for k, value in zip((*KINDS, "whittle"), (*known[:3], whittle_known), strict=True):
                row[f"{k}, prototype"] = value
            rows.append(row)
            print(row, flush=True)
    return rows


@torch.no_grad()
def sweep(m: int) -> Rows:
    """E11: the same over kernels and lengthscales, the largest magnitude over four noises."""
    rows = []
    for name, kind in KERNELS.items():
        for lengthscale in LENGTHSCALES:
            kernel = kind(1, lengthscale, 1.0)
            first, spacing = column(kernel, m)
            found = {k: circulant_approximation(first, k) for k in KINDS}
            wraps = enough_wraps(at_lags(kernel), spacing * m)
            found["whittle, w = 3"] = wrapped(kernel, m, spacing, 3)
            found["whittle, enough"] = wrapped(kernel, m, spacing, wraps)
            row: dict[str, Any] = {"kernel": name, "lengthscale": lengthscale, "enough": wraps}
            for k in found:
                row[k] = 0.0
            for noise in NOISES:
                shifted = first.clone()
                shifted[0] += noise
                true = float(toeplitz_logdet(shifted))
                for k, c in found.items():
                    off = abs((logdet(c, noise) - true) / true)
                    row[k] = max(row[k], off)
            rows.append(row)
            print(row, flush=True)
    return rows


@torch.no_grad()
def solves(m: int) -> Rows:
    """Iterations to a relative residual of 1e-8, by preconditioner."""
    right = torch.from_numpy(np.random.default_rng(0).standard_normal(m))
    rows = []
    for name, kind, noise, known in SOLVES:
        kernel = kind(1, 1.0, 1.0)
        first, spacing = column(kernel, m)
        first[0] += noise
        place = torch.arange(m)
        dense = first[(place.unsqueeze(1) - place).abs()]
        wraps = enough_wraps(at_lags(kernel), spacing * m)
        spectra = {k: torch.fft.rfft(circulant_approximation(first, k)).real for k in KINDS}
        spectra["whittle"] = torch.fft.rfft(wrapped(kernel, m, spacing, wraps)).real + noise
        row: dict[str, Any] = {"kernel": name, "noise": noise}
        for k in ("none", *KINDS, "whittle"):
            values = spectra.get(k)
            if values is not None and not bool((values > 0.0).all()):
                row[k] = None  # not positive definite
                continue

            def apply(v: Tensor, values: Tensor | None = values) -> Tensor:
                assert values is not None
                return torch.fft.irfft(torch.fft.rfft(v, dim=0) / values.unsqueeze(1), n=m, dim=0)

            found = conjugate_gradients(
                dense,
                right.unsqueeze(1),
                preconditioner=None if values is None else apply,
                stop=RelativeResidual(1e-8),
                max_iterations=2000,
                on_failure="return",
            )
            row[k] = found.report.iterations if found.report.converged else None
        for k, value in zip(("none", *KINDS, "whittle"), known, strict=True):
            row[f"{k}, prototype"] = value
        rows.append(row)
        print(row, flush=True)
    return rows


@torch.no_grad()
def chebyshev(size: int) -> Rows:
    """Relative error of log-determinants with every unit vector as probe, by degree."""
    random = np.random.default_rng(0)
    vectors = torch.from_numpy(np.linalg.qr(random.standard_normal((size, size)))[0])
    low, high = 1e-2, 5.0
    values = torch.logspace(-2, float(np.log10(high)), size, dtype=torch.float64)
    matrix = (vectors * values) @ vectors.mT
    true = float(values.log().sum())
    rows = []
    for degree, known in CHEBYSHEV.items():
        eye = size**0.5 * torch.eye(size, dtype=torch.float64)
        found = chebyshev_logdet(matrix.matmul, eye, low=low, high=high, degree=degree)
        rows.append(
            {
                "degree": degree,
                "condition": high / low,
                "error": abs(float(found.value) / true - 1.0),
                "prototype, other spectrum": known,
            }
        )
        print(rows[-1], flush=True)
    return rows


def judged(logs: Rows, steps: Rows, degrees: Rows, more: Rows) -> Checks:
    """Checks of the rows: statement -> whether it holds."""
    checks: Checks = {}
    for k in (*KINDS, "whittle"):
        off = [abs(r[k] / r[f"{k}, prototype"] - 1.0) for r in logs]
        checks[
            f"R2, {k}: every log-determinant error within 10 % of the prototype's (largest "
            f"difference {max(off):.1%})"
        ] = max(off) <= 0.1
    for k in ("none", *KINDS, "whittle"):
        pairs = [(r[k], r[f"{k}, prototype"]) for r in steps]
        off = [abs(a / b - 1.0) if a else float("inf") for a, b in pairs]
        near = all(a is not None and abs(a - b) <= max(1.0, 0.2 * b) for a, b in pairs)
        checks[
            f"iterations, {k}: within 20 % of the prototype's, or within one iteration (largest "
            f"difference {max(off):.0%})"
        ] = near
    checks[
        "Chebyshev log-determinant with all unit vectors as probes: relative error at most 1e-4 at "
        "degree 100"
    ] = degrees[-1]["error"] <= 1e-4
    enough = [r["whittle, enough"] for r in more]
    checks[
        "E11: with enough wraps, Whittle's log-determinant is within 1 % for every kernel, "
        f"lengthscale and noise (largest error {max(enough):.2%})"
    ] = max(enough) <= 1e-2
    checks["E11: its error is at most twice that of the best other circulant"] = all(
        r["whittle, enough"] <= 2.0 * min(r[k] for k in KINDS) for r in more
    )
    return checks


def main() -> None:
    quick = command_line(__doc__).quick
    m = 200 if quick else 1000
    logs, steps, degrees = logdets(m), solves(m), chebyshev(100 if quick else 300)
    more = sweep(m)
    if quick:
        return
    write(
        HERE,
        "circulants",
        "Circulant approximations (R2), preconditioners and Chebyshev log-determinants",
        [
            "T is the Toeplitz kernel matrix of 1,000 equidistant points over 20 units, with "
            "signal variance 1. Log-determinants: the tables show (approximation - true) / |true|; "
            "the circulants approximate T, their negative eigenvalues are set to zero, and the "
            "noise is added afterwards. Iterations: preconditioned conjugate gradients on T + "
            "noise I with lengthscale 1, one standard normal right-hand side, to a relative "
            "residual of 1e-8. Tyrtyshnikov's circulant approximates T + noise I there, and "
            "Whittle's uses as many wraps as the kernel needs to decay; a dash means that the "
            "circulant is not positive definite. The columns 'prototype' are figures of a float64 "
            "prototype of the published method.",
        ],
        {
            "Log-determinants (R2)": logs,
            "Iterations of conjugate gradients": steps,
            "Chebyshev log-determinants": degrees,
            "Log-determinants, largest error over noise variances from 1e-4 to 0.1 (E11)": more,
        },
        judged(logs, steps, degrees, more),
    )


if __name__ == "__main__":
    main()
