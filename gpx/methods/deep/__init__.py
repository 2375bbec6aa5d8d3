"""Deep and convolutional networks with Gaussian process layers."""

from gpx.methods.deep.additive_grid import AdditiveGridLayer
from gpx.methods.deep.cnn import CNN
from gpx.methods.deep.cnn_gp import CNNGP
from gpx.methods.deep.deep_gp import DeepGP
from gpx.methods.deep.deep_svgp import DeepSVGP
from gpx.methods.deep.dkl import DKL
from gpx.methods.deep.draws import RandomLayer, draws_of, total_kl
from gpx.methods.deep.elbo import SampledELBO
from gpx.methods.deep.inducing_layer import InducingLayer
from gpx.methods.deep.layer import GPLayer
from gpx.methods.deep.model import NetworkModel
from gpx.methods.deep.network import Network
from gpx.methods.deep.output_layer import OutputLayer
from gpx.methods.deep.posterior import NetworkPosterior
from gpx.methods.deep.signs import SignFrequencies
from gpx.methods.deep.svdkl import SVDKL
from gpx.methods.deep.weights import DroppedWeights, FullWeights, MeanFieldWeights, RandomWeights

__all__ = [
    "CNN",
    "CNNGP",
    "DKL",
    "SVDKL",
    "AdditiveGridLayer",
    "DeepGP",
    "DeepSVGP",
    "DroppedWeights",
    "FullWeights",
    "GPLayer",
    "InducingLayer",
    "MeanFieldWeights",
    "Network",
    "NetworkModel",
    "NetworkPosterior",
    "OutputLayer",
    "RandomLayer",
    "RandomWeights",
    "SampledELBO",
    "SignFrequencies",
    "draws_of",
    "total_kl",
]
