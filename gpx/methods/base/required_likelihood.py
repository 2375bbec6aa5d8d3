"""Checks of the likelihood, for models whose mathematics holds for some likelihoods only."""

from __future__ import annotations

from gpx.errors import ConfigError, class_name
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian


def require_gaussian(likelihood: Likelihood, reason: str) -> Gaussian:
    """``likelihood`` if it is Gaussian; raises ConfigError, which starts with ``reason``, if not.

    Args:
        reason: why the model needs it, such as "SKI is exact regression".
    """
    if not isinstance(likelihood, Gaussian):
        raise ConfigError(
            f"{reason} and needs the Gaussian likelihood, got {class_name(likelihood)}; choose "
            "another likelihood=, or model=SVGP(), which takes any"
        )
    return likelihood


def require_one_latent(likelihood: Likelihood, model: str) -> Likelihood:
    """``likelihood`` if it is of one latent function; raises ConfigError otherwise.

    Args:
        model: its name.
    """
    if likelihood.num_latents != 1:
        raise ConfigError(
            f"{model} needs a likelihood of one latent function, got {class_name(likelihood)} with "
            f"{likelihood.num_latents}; use model=SVGP()"
        )
    return likelihood
