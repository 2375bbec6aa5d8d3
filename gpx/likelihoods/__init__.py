"""Likelihoods p(y | f)."""

from gpx.likelihoods.base import Curvature, Likelihood, Tilted, target_marginals
from gpx.likelihoods.bernoulli import Bernoulli, Sign
from gpx.likelihoods.beta import Beta
from gpx.likelihoods.gamma import Gamma
from gpx.likelihoods.gaussian import Gaussian, GaussianOutputs
from gpx.likelihoods.heteroscedastic import Heteroscedastic
from gpx.likelihoods.laplace import Laplace
from gpx.likelihoods.mixed_outputs import MixedOutputs
from gpx.likelihoods.negative_binomial import NegativeBinomial
from gpx.likelihoods.ordinal import Ordinal
from gpx.likelihoods.poisson import Poisson
from gpx.likelihoods.quadrature import GaussHermite, GaussLogExponential, GaussLogistic
from gpx.likelihoods.row_noise import RowNoise
from gpx.likelihoods.softmax import Softmax
from gpx.likelihoods.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Beta",
    "Curvature",
    "Gamma",
    "GaussHermite",
    "GaussLogExponential",
    "GaussLogistic",
    "Gaussian",
    "GaussianOutputs",
    "Heteroscedastic",
    "Laplace",
    "Likelihood",
    "MixedOutputs",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "RowNoise",
    "Sign",
    "Softmax",
    "StudentT",
    "Tilted",
    "target_marginals",
]
