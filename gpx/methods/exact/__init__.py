"""Exact Gaussian processes: by Cholesky factorisation, iteratively, with a bounded bias."""

from gpx.methods.exact.barely_biased_mll import BarelyBiasedMLL
from gpx.methods.exact.differentiable import differentiable_prediction
from gpx.methods.exact.exact_mll import ExactMLL
from gpx.methods.exact.iterative_mll import IterativeMLL
from gpx.methods.exact.leave_one_out import LeaveOneOut
from gpx.methods.exact.marginal_likelihood import MarginalLikelihood
from gpx.methods.exact.model import ExactGP
from gpx.methods.exact.subset_of_data import SubsetEvidence, SubsetOfData

__all__ = [
    "BarelyBiasedMLL",
    "ExactGP",
    "ExactMLL",
    "IterativeMLL",
    "LeaveOneOut",
    "MarginalLikelihood",
    "SubsetEvidence",
    "SubsetOfData",
    "differentiable_prediction",
]
