"""One nn.Module per approximation."""

from gpx.inference.auxiliary import AuxiliarySolver
from gpx.inference.exact_posterior import ExactPosterior
from gpx.inference.exact_solver import IterativeOptions
from gpx.inference.iterative_posterior import IterativePosterior
from gpx.inference.sampled_hyperparameters import HyperparameterMixture
from gpx.methods.base.model import Model
from gpx.methods.base.posterior import Marginals, Posterior
from gpx.methods.classification.model import VGP, ExpectationPropagationGP, LaplaceGP
from gpx.methods.classification.sampled_model import SampledGP
from gpx.methods.classification.sampled_posterior import SampledPosterior
from gpx.methods.classification.site_posterior import SitePosterior
from gpx.methods.coregional.model import CoregionalGP
from gpx.methods.coregional.posterior import CoregionalPosterior
from gpx.methods.deep.cnn import CNN
from gpx.methods.deep.cnn_gp import CNNGP
from gpx.methods.deep.deep_gp import DeepGP
from gpx.methods.deep.deep_svgp import DeepSVGP
from gpx.methods.deep.dkl import DKL
from gpx.methods.deep.model import NetworkModel
from gpx.methods.deep.posterior import NetworkPosterior
from gpx.methods.deep.svdkl import SVDKL
from gpx.methods.derivatives.model import DerivativeGP
from gpx.methods.derivatives.posterior import DerivativePosterior
from gpx.methods.direct.grids import NoiseGrid, WeightGrid
from gpx.methods.direct.logistic import DirectLogistic
from gpx.methods.direct.mixture import DirectMixture
from gpx.methods.direct.model import Direct
from gpx.methods.direct.network import DirectNetwork
from gpx.methods.direct.network_posterior import DirectNetworkPosterior
from gpx.methods.direct.posterior import DirectPosterior
from gpx.methods.eigenfunctions.model import GRIEF
from gpx.methods.eigenfunctions.posterior import GRIEFPosterior
from gpx.methods.exact.fully_bayesian import FullyBayesianGP
from gpx.methods.exact.model import ExactGP
from gpx.methods.exact.subset_of_data import SubsetOfData
from gpx.methods.experts.committee import Committee
from gpx.methods.experts.committee_posterior import CommitteePosterior
from gpx.methods.experts.local_experts import LocalExperts
from gpx.methods.experts.local_posterior import LocalExpertsPosterior
from gpx.methods.experts.mixture import MixtureOfExperts, MixturePosterior
from gpx.methods.experts.transductive import Transductive, TransductivePosterior
from gpx.methods.grid.gaps import GapOptions
from gpx.methods.grid.model import GridGP
from gpx.methods.grid.posterior import GridPosterior
from gpx.methods.independent.model import IndependentGP
from gpx.methods.independent.posterior import IndependentPosterior
from gpx.methods.nearest.posterior import NearestPosterior
from gpx.methods.nearest.swsgp import SWSGP
from gpx.methods.nearest.vecchia import Vecchia, VecchiaPosterior
from gpx.methods.nearest.vnngp import VNNGP
from gpx.methods.reweighted.hyper_priors import HyperPriors, InverseGamma, LogNormal, WeightPriors
from gpx.methods.reweighted.model import Reweighted
from gpx.methods.reweighted.posterior import ReweightedPosterior
from gpx.methods.ski.model import SKI
from gpx.methods.ski.posterior import SKIPosterior
from gpx.methods.ski.projection import LinearProjection, NetworkProjection, Projection
from gpx.methods.ski.stream import SKIStream
from gpx.methods.sparse.cglb import CGLB, CGLBPosterior
from gpx.methods.sparse.conv_gp import ConvGP
from gpx.methods.sparse.effective_posterior import BlockPosterior, EffectivePosterior
from gpx.methods.sparse.effective_prior import EffectivePrior
from gpx.methods.sparse.fully_bayesian import FullyBayesianSGPR
from gpx.methods.sparse.sgpr import SGPR, SGPRPosterior
from gpx.methods.sparse.svgp import SVGP
from gpx.methods.sparse.svgp_posterior import SVGPPosterior
from gpx.methods.sparse_spectrum.model import SSGP, VSSGP
from gpx.methods.sparse_spectrum.posterior import SparseSpectrumPosterior
from gpx.methods.weight_space.posterior import QSGPPosterior
from gpx.methods.weight_space.qsgp import QSGP
from gpx.methods.weight_space.qsgp_inducing import InducingPosterior, QSGPInducing
from gpx.methods.weight_space.qsrvm import QSRVM, RelevanceVectorPosterior

__all__ = [
    "CGLB",
    "CNN",
    "CNNGP",
    "DKL",
    "GRIEF",
    "QSGP",
    "QSRVM",
    "SGPR",
    "SKI",
    "SSGP",
    "SVDKL",
    "SVGP",
    "SWSGP",
    "VGP",
    "VNNGP",
    "VSSGP",
    "AuxiliarySolver",
    "BlockPosterior",
    "CGLBPosterior",
    "Committee",
    "CommitteePosterior",
    "ConvGP",
    "CoregionalGP",
    "CoregionalPosterior",
    "DeepGP",
    "DeepSVGP",
    "DerivativeGP",
    "DerivativePosterior",
    "Direct",
    "DirectLogistic",
    "DirectMixture",
    "DirectNetwork",
    "DirectNetworkPosterior",
    "DirectPosterior",
    "EffectivePosterior",
    "EffectivePrior",
    "ExactGP",
    "ExactPosterior",
    "ExpectationPropagationGP",
    "FullyBayesianGP",
    "FullyBayesianSGPR",
    "GRIEFPosterior",
    "GapOptions",
    "GridGP",
    "GridPosterior",
    "HyperPriors",
    "HyperparameterMixture",
    "IndependentGP",
    "IndependentPosterior",
    "InducingPosterior",
    "InverseGamma",
    "IterativeOptions",
    "IterativePosterior",
    "LaplaceGP",
    "LinearProjection",
    "LocalExperts",
    "LocalExpertsPosterior",
    "LogNormal",
    "Marginals",
    "MixtureOfExperts",
    "MixturePosterior",
    "Model",
    "NearestPosterior",
    "NetworkModel",
    "NetworkPosterior",
    "NetworkProjection",
    "NoiseGrid",
    "Posterior",
    "Projection",
    "QSGPInducing",
    "QSGPPosterior",
    "RelevanceVectorPosterior",
    "Reweighted",
    "ReweightedPosterior",
    "SGPRPosterior",
    "SKIPosterior",
    "SKIStream",
    "SVGPPosterior",
    "SampledGP",
    "SampledPosterior",
    "SitePosterior",
    "SparseSpectrumPosterior",
    "SubsetOfData",
    "Transductive",
    "TransductivePosterior",
    "Vecchia",
    "VecchiaPosterior",
    "WeightGrid",
    "WeightPriors",
]
