"""One nn.Module per approximation."""

from gpx.models.base import Marginals, Model, Posterior

__all__ = ["Marginals", "Model", "Posterior"]
