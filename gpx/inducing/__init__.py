"""Selectors of inducing points."""

from gpx.errors import ConfigError
from gpx.inducing.base import Selection, Selector
from gpx.inducing.determinantal import Determinantal
from gpx.inducing.greedy import GreedyConditionalVariance
from gpx.inducing.kmeans import KMeans
from gpx.inducing.ridge_leverage import AdaptiveRidgeLeverage, RidgeLeverage
from gpx.inducing.uniform import Uniform

__all__ = [
    "AdaptiveRidgeLeverage",
    "Determinantal",
    "GreedyConditionalVariance",
    "KMeans",
    "RidgeLeverage",
    "Selection",
    "Selector",
    "Uniform",
    "selector",
]

SELECTORS: dict[str, type[Selector]] = {
    "greedy": GreedyConditionalVariance,
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
