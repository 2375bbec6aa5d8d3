"""Training: optimisers, where hyperparameters start, the loop and its checkpoints."""

from gpx.inference.sampled_hyperparameters import HamiltonianChains
from gpx.methods.base.batch import Batch
from gpx.methods.base.optimizer import Optimizer, Session
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
from gpx.options.config import TrainerConfig
from gpx.sampling.batches import batch_order
from gpx.training.first_order import FirstOrder
from gpx.training.initialisation import ConstantInitialisation, Initialisation, SubsetInitialisation
from gpx.training.lbfgsb import LBFGSB
from gpx.training.neighbour_initialisation import NeighbourInitialisation
from gpx.training.parsimonious_initialisation import ParsimoniousInitialisation
from gpx.training.progress import Monitor, Progress, StopTraining
from gpx.training.separate_lbfgsb import SeparateLBFGSB
from gpx.training.trainer import Trainer

__all__ = [
    "LBFGSB",
    "MALA",
    "Batch",
    "BlockSteps",
    "ConstantInitialisation",
    "CoordinateAscent",
    "EllipticalSlice",
    "FirstOrder",
    "HamiltonianChains",
    "HardCut",
    "InducingSteps",
    "Initialisation",
    "Monitor",
    "NeighbourInitialisation",
    "Optimizer",
    "OwnSteps",
    "ParsimoniousInitialisation",
    "Progress",
    "RelevanceSteps",
    "RelevanceVectors",
    "SeparateLBFGSB",
    "Session",
    "StochasticBlockSteps",
    "StopTraining",
    "SubsetInitialisation",
    "Trainer",
    "TrainerConfig",
    "batch_order",
]
