"""Exact Gaussian processes: by Cholesky factorisation, iteratively, with a bounded bias."""

from gpx.methods.exact.barely_biased_mll import BarelyBiasedMLL
from gpx.methods.exact.by_autograd import differentiable_prediction
from gpx.methods.exact.coregional import CoregionalGP
from gpx.methods.exact.coregional_mll import CoregionalMLL
from gpx.methods.exact.coregional_posterior import CoregionalPosterior
from gpx.methods.exact.derivative_mll import DerivativeMLL
from gpx.methods.exact.derivative_posterior import DerivativePosterior
from gpx.methods.exact.derivatives import DerivativeGP
from gpx.methods.exact.exact_mll import ExactMLL
from gpx.methods.exact.independent import IndependentGP
from gpx.methods.exact.independent_mll import IndependentMLL
from gpx.methods.exact.independent_posterior import IndependentPosterior
from gpx.methods.exact.iterative_mll import IterativeMLL
from gpx.methods.exact.leave_one_out import LeaveOneOut
from gpx.methods.exact.marginal_likelihood import MarginalLikelihood
from gpx.methods.exact.model import ExactGP, ExactPosterior
from gpx.methods.exact.subset_of_data import SubsetEvidence, SubsetOfData

__all__ = [
    "BarelyBiasedMLL",
    "CoregionalGP",
    "CoregionalMLL",
    "CoregionalPosterior",
    "DerivativeGP",
    "DerivativeMLL",
    "DerivativePosterior",
    "ExactGP",
    "ExactMLL",
    "ExactPosterior",
    "IndependentGP",
    "IndependentMLL",
    "IndependentPosterior",
    "IterativeMLL",
    "LeaveOneOut",
    "MarginalLikelihood",
    "SubsetEvidence",
    "SubsetOfData",
    "differentiable_prediction",
]
