"""Experts: many exact Gaussian processes on a few rows each, trained as a batch."""

from gpx.methods.experts.committee import Committee
from gpx.methods.experts.committee_posterior import CommitteePosterior
from gpx.methods.experts.evidence import ExpertsMLL
from gpx.methods.experts.hard_cut import HardCut
from gpx.methods.experts.local_experts import LocalExperts
from gpx.methods.experts.local_posterior import LocalExpertsPosterior
from gpx.methods.experts.mixture import HardCutEvidence, MixtureOfExperts, MixturePosterior
from gpx.methods.experts.transductive import Transductive, TransductivePosterior

__all__ = [
    "Committee",
    "CommitteePosterior",
    "ExpertsMLL",
    "HardCut",
    "HardCutEvidence",
    "LocalExperts",
    "LocalExpertsPosterior",
    "MixtureOfExperts",
    "MixturePosterior",
    "Transductive",
    "TransductivePosterior",
]
