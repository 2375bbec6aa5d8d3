"""Hyperparameters that are averaged over: chains, and the mixture of posteriors they leave."""

from gpx.inference.sampled_hyperparameters.chains import HamiltonianChains
from gpx.inference.sampled_hyperparameters.model import SampledHyperparameters
from gpx.inference.sampled_hyperparameters.posterior import HyperparameterMixture

__all__ = ["HamiltonianChains", "HyperparameterMixture", "SampledHyperparameters"]
