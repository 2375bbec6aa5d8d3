"""One function of which values and partial derivatives are observed, modelled exactly."""

from gpx.methods.derivatives.mll import DerivativeMLL
from gpx.methods.derivatives.model import DerivativeGP
from gpx.methods.derivatives.posterior import DerivativePosterior

__all__ = ["DerivativeGP", "DerivativeMLL", "DerivativePosterior"]
