"""Fourier features of a stationary kernel, by the name that approx.basis= gives them."""

from __future__ import annotations

from gpx.bases.fourier.orthogonal_features import OrthogonalFourier, StructuredOrthogonalFourier
from gpx.bases.fourier.quadrature_features import GaussHermiteFourier, QuasiMonteCarloFourier
from gpx.bases.fourier.random_fourier import RandomFourier

RANDOM: dict[str, type[RandomFourier]] = {
    "random_fourier": RandomFourier,
    "orthogonal": OrthogonalFourier,
    "structured_orthogonal": StructuredOrthogonalFourier,
    "quasi_monte_carlo": QuasiMonteCarloFourier,
}
"""Those of random frequencies, which may be drawn farther out."""

FOURIER: dict[str, type[RandomFourier]] = {**RANDOM, "gauss_hermite": GaussHermiteFourier}
