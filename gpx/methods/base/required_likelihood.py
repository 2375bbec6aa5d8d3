"""Checks of the likelihood, for models that support only some likelihoods."""

from __future__ import annotations

from gpx.errors import ConfigError, class_name
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian

OTHER_MODELS = (
    "model=LaplaceGP() for classes and counts of some thousand rows, or model=SVGP(), which takes "
    "any"
)
"""Models for likelihoods that are not Gaussian, as the end of an error message."""


def require_gaussian(likelihood: Likelihood, reason: str) -> Gaussian:
    """Return ``likelihood`` if it is Gaussian, else raise ConfigError.

    Args:
        reason: start of the error message, such as "SKI is exact regression".
    """
    if not isinstance(likelihood, Gaussian):
        raise ConfigError(
            f"{reason} and needs the Gaussian likelihood, got {class_name(likelihood)}; choose "
            f"another likelihood=, {OTHER_MODELS}"
        )
    return likelihood


def require_one_latent(likelihood: Likelihood, model: str) -> Likelihood:
    """Return ``likelihood`` if it has one latent function, else raise ConfigError.

    Args:
        model: name of the model, for the message.
    """
    if likelihood.num_latents != 1:
        raise ConfigError(
            f"{model} needs a likelihood of one latent function, got {class_name(likelihood)} with "
            f"{likelihood.num_latents}; use model=SVGP()"
        )
    return likelihood
