"""Inducing points, their selectors, and inducing variables of other kinds."""

from gpx.errors import ConfigError
from gpx.inducing.base import Selection, Selector
from gpx.inducing.combinations import Eigenvectors
from gpx.inducing.conditional_variance import (
    GreedyConditionalVariance,
    SampledConditionalVariance,
)
from gpx.inducing.determinantal import Determinantal
from gpx.inducing.eigenfunctions import Eigenfunctions
from gpx.inducing.features import InducingFeatures, Points
from gpx.inducing.kmeans import KMeans
from gpx.inducing.ridge_leverage import AdaptiveRidgeLeverage, RidgeLeverage
from gpx.inducing.uniform import Uniform

__all__ = [
    "AdaptiveRidgeLeverage",
    "Determinantal",
    "Eigenfunctions",
    "Eigenvectors",
    "GreedyConditionalVariance",
    "InducingFeatures",
    "KMeans",
    "Points",
    "RidgeLeverage",
    "SampledConditionalVariance",
    "Selection",
    "Selector",
    "Uniform",
    "selector",
]

SELECTORS: dict[str, type[Selector]] = {
    "greedy": GreedyConditionalVariance,
    "rpcholesky": SampledConditionalVariance,
    "kmeans": KMeans,
    "uniform": Uniform,
    "dpp": Determinantal,
    "rls": RidgeLeverage,
    "rls_adaptive": AdaptiveRidgeLeverage,
}


def selector(name: str) -> Selector:
    """Selector by the name used in configs: a key of ``SELECTORS``.

    Raises:
        ConfigError: unknown name.
    """
    if name not in SELECTORS:
        raise ConfigError(f"unknown selector {name!r}; expected one of {', '.join(SELECTORS)}")
    return SELECTORS[name]()
