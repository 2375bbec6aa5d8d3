"""Training: optimisers, initialisation, runs and their folders."""

from gpx.methods.base.own_steps import OwnSteps
from gpx.methods.classification.elliptical_slice import EllipticalSlice
from gpx.methods.direct.ascent import CoordinateAscent
from gpx.methods.experts.hard_cut import HardCut
from gpx.methods.reweighted.mala import MALA
from gpx.methods.reweighted.relevance_vectors import RelevanceVectors
from gpx.methods.weight_space.block_steps import BlockSteps
from gpx.methods.weight_space.inducing_steps import InducingSteps
from gpx.methods.weight_space.relevance_steps import RelevanceSteps
from gpx.methods.weight_space.stochastic_block_steps import StochasticBlockSteps
from gpx.training.config import TrainerConfig
from gpx.training.export import export
from gpx.training.first_order import FirstOrder
from gpx.training.fit import Fitted, fit
from gpx.training.initialisation import ConstantInitialisation, Initialisation, SubsetInitialisation
from gpx.training.int4 import Int4Predictor
from gpx.training.lbfgsb import LBFGSB
from gpx.training.loading import load
from gpx.training.neighbour_initialisation import NeighbourInitialisation
from gpx.training.parsimonious_initialisation import ParsimoniousInitialisation
from gpx.training.predictor import Prediction, Predictor
from gpx.training.progress import Monitor, Progress
from gpx.training.run import resume, run
from gpx.training.run_folder import RunFolder
from gpx.training.trainer import Trainer

__all__ = [
    "LBFGSB",
    "MALA",
    "BlockSteps",
    "ConstantInitialisation",
    "CoordinateAscent",
    "EllipticalSlice",
    "FirstOrder",
    "Fitted",
    "HardCut",
    "InducingSteps",
    "Initialisation",
    "Int4Predictor",
    "Monitor",
    "NeighbourInitialisation",
    "OwnSteps",
    "ParsimoniousInitialisation",
    "Prediction",
    "Predictor",
    "Progress",
    "RelevanceSteps",
    "RelevanceVectors",
    "RunFolder",
    "StochasticBlockSteps",
    "SubsetInitialisation",
    "Trainer",
    "TrainerConfig",
    "export",
    "fit",
    "load",
    "resume",
    "run",
]
