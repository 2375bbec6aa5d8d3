"""Evidence objectives, one per file."""

from gpx.methods.base.objective import Evidence, Objective
from gpx.methods.classification.laplace_evidence import LaplaceEvidence
from gpx.methods.classification.propagation_evidence import EPEvidence
from gpx.methods.classification.sampled_model import LatentLikelihood
from gpx.methods.classification.variational_evidence import VGPELBO
from gpx.methods.coregional.mll import CoregionalMLL
from gpx.methods.deep.elbo import SampledELBO
from gpx.methods.deep.predictive_likelihood import PredictiveLogLikelihood
from gpx.methods.derivatives.mll import DerivativeMLL
from gpx.methods.direct.elbo import DirectELBO
from gpx.methods.direct.logistic_bound import DirectLogisticBound
from gpx.methods.direct.mixture_elbo import DirectMixtureELBO, DirectSampledELBO
from gpx.methods.direct.network_elbo import DirectNetworkELBO
from gpx.methods.eigenfunctions.evidence import EigenfunctionEvidence
from gpx.methods.exact.barely_biased_mll import BarelyBiasedMLL
from gpx.methods.exact.exact_mll import ExactMLL
from gpx.methods.exact.iterative_mll import IterativeMLL
from gpx.methods.exact.leave_one_out import LeaveOneOut
from gpx.methods.exact.marginal_likelihood import MarginalLikelihood
from gpx.methods.exact.subset_of_data import SubsetEvidence
from gpx.methods.experts.evidence import ExpertsMLL
from gpx.methods.experts.mixture import HardCutEvidence
from gpx.methods.grid.gcv import GCV
from gpx.methods.grid.mll import GridMLL
from gpx.methods.independent.mll import IndependentMLL
from gpx.methods.nearest.swsgp_objective import SWSGPObjective
from gpx.methods.nearest.vecchia_mll import VecchiaMLL
from gpx.methods.nearest.vnngp_elbo import VNNGPELBO
from gpx.methods.reweighted.evidence import ReweightedEvidence
from gpx.methods.ski.evidence import SKIEvidence
from gpx.methods.sparse.cg_lower_bound import CGLowerBound
from gpx.methods.sparse.collapsed_elbo import CollapsedELBO
from gpx.methods.sparse.effective_evidence import EffectiveEvidence
from gpx.methods.sparse.svgp_elbo import SVGPELBO
from gpx.methods.sparse_spectrum.evidence import SparseSpectrumELBO, SparseSpectrumEvidence
from gpx.methods.weight_space.exact_elbo import WeightSpaceELBO
from gpx.methods.weight_space.inducing_elbo import InducingELBO
from gpx.methods.weight_space.quadruply_stochastic_elbo import QuadruplyStochasticELBO
from gpx.methods.weight_space.site_bound_elbo import SiteBoundELBO, exact_site_elbo

__all__ = [
    "GCV",
    "SVGPELBO",
    "VGPELBO",
    "VNNGPELBO",
    "BarelyBiasedMLL",
    "CGLowerBound",
    "CollapsedELBO",
    "CoregionalMLL",
    "DerivativeMLL",
    "DirectELBO",
    "DirectLogisticBound",
    "DirectMixtureELBO",
    "DirectNetworkELBO",
    "DirectSampledELBO",
    "EPEvidence",
    "EffectiveEvidence",
    "EigenfunctionEvidence",
    "Evidence",
    "ExactMLL",
    "ExpertsMLL",
    "GridMLL",
    "HardCutEvidence",
    "IndependentMLL",
    "InducingELBO",
    "IterativeMLL",
    "LaplaceEvidence",
    "LatentLikelihood",
    "LeaveOneOut",
    "MarginalLikelihood",
    "Objective",
    "PredictiveLogLikelihood",
    "QuadruplyStochasticELBO",
    "ReweightedEvidence",
    "SKIEvidence",
    "SWSGPObjective",
    "SampledELBO",
    "SiteBoundELBO",
    "SparseSpectrumELBO",
    "SparseSpectrumEvidence",
    "SubsetEvidence",
    "VecchiaMLL",
    "WeightSpaceELBO",
    "exact_site_elbo",
]
