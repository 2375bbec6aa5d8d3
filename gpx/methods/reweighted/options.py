"""Checks of the options of ``Reweighted``, alone and in combination."""

from __future__ import annotations

from typing import Literal, get_args

from gpx.bases import Basis
from gpx.constraints import floor_of
from gpx.errors import ConfigError, class_name
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.bernoulli import Bernoulli
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.reweighted.hyper_priors import WeightPriors
from gpx.methods.reweighted.state import Structure
from gpx.tensor_checks import check_one_of

Inference = Literal["type1", "type2", "relevance_vectors"]


def check_options(
    basis: Basis,
    structure: Structure,
    inference: Inference,
    priors: WeightPriors | None,
    likelihood: Likelihood,
) -> None:
    """Raise ConfigError for options that are unknown, out of range or contradictory."""
    check_one_of(get_args(Structure), structure=structure)
    check_one_of(get_args(Inference), inference=inference)
    if inference == "type1" and priors is None:
        raise ConfigError("type-I inference needs hyper-priors: set priors=, or inference=type2")
    diagonal = {"structure=diagonal": structure == "diagonal"}
    flat = {"priors=None": priors is None}
    if basis.follows_kernel:
        _require(
            f"basis {class_name(basis)} learns the kernel, which determines every weight's prior",
            diagonal | {"inference=type2": inference == "type2"} | flat,
        )
    if inference == "relevance_vectors":
        _require(
            "inference=relevance_vectors selects functions by the evidence alone",
            diagonal | flat,
        )
    if structure == "householder" and priors is None:
        raise ConfigError(
            "structure=householder needs hyper-priors (priors=): with free rotations one axis of "
            "the prior could explain all targets, and the evidence is unbounded"
        )
    mode = None if priors is None else priors.noise_mode
    if mode is not None and isinstance(likelihood, Gaussian):  # the objective refuses others
        floor = floor_of(likelihood, "noise_variance")
        if mode <= floor:
            raise ConfigError(
                f"noise_mode={mode}, where inference starts, must be above noise_floor={floor}"
            )
    if isinstance(likelihood, Bernoulli):
        _require(
            "model=Reweighted() treats classes as signs of latent targets, which it samples",
            {
                "likelihood=Bernoulli(link=probit)": likelihood.link == "probit",
                "inference=type1": inference == "type1",
            },
        )


def _require(reason: str, needed: dict[str, bool]) -> None:
    """Raise ConfigError with the options ``needed`` that were not chosen."""
    missing = [option for option, chosen in needed.items() if not chosen]
    if missing:
        raise ConfigError(f"{reason}: it needs {' '.join(missing)}")
