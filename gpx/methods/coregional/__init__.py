"""Several targets with a learned covariance between them, modelled exactly."""

from gpx.methods.coregional.mll import CoregionalMLL
from gpx.methods.coregional.model import CoregionalGP
from gpx.methods.coregional.posterior import CoregionalPosterior

__all__ = ["CoregionalGP", "CoregionalMLL", "CoregionalPosterior"]
