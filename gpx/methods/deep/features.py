"""Random features of a layer, with fixed frequencies or a posterior over them."""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from gpx.bases import (
    ArcCosineFeatures,
    Basis,
    FastfoodFourier,
    OrthogonalFourier,
    RandomFourier,
    StructuredOrthogonalFourier,
)
from gpx.bases.random_directions import ROWS, Directions
from gpx.errors import ConfigError, class_name
from gpx.kernels import RBF, ArcCosine
from gpx.kernels.base import Kernel
from gpx.kernels.own_covariance import computes_as
from gpx.methods.deep.signs import SignFrequencies
from gpx.methods.deep.weights import DroppedWeights, MeanFieldWeights, RandomWeights
from gpx.tensor_checks import check_one_of

Frequency = Literal["fixed", "learned", "dropout", "point", "fixed_signs", "learned_signs"]
"""Drawn once; with a Gaussian posterior for each entry; with Monte Carlo dropout of the inputs;
trained without masks, as the authors' program for convolutional networks does; products of Hadamard
matrices and signs, which are fixed or have Monte Carlo dropout."""

FOURIER: dict[Directions, type[RandomFourier]] = {
    "independent": RandomFourier,
    "orthogonal": OrthogonalFourier,
    "structured": StructuredOrthogonalFourier,
    "fastfood": FastfoodFourier,
}


class LearnedFeatures(nn.Module):
    """Features with a posterior q(w) over frequencies w_r / lengthscale with prior w_r ~ N(0, I).

    sqrt(2 outputscale / m) times (cos(w_r . u), sin(w_r . u)) for an RBF kernel, or times
    max(0, w_r . u)^n for an arc-cosine kernel of order n, with u = x / lengthscale. The posterior
    is over w, so that its divergence from the prior does not depend on the lengthscales.

    Args:
        kernel: RBF or arc-cosine.
        num_features: m; even for the RBF kernel, which has a cosine and a sine for each frequency.
        num_inputs: d.
        frequencies: q, over (d, m / 2) or (d, m).

    Raises:
        ConfigError: another kernel, or an odd m.

    Source: Cutajar et al., "Random feature expansions for deep Gaussian processes", 2017.
    """

    def __init__(
        self,
        kernel: Kernel,
        num_features: int,
        num_inputs: int,
        frequencies: RandomWeights | SignFrequencies,
    ) -> None:
        super().__init__()
        self.kernel, self.num_basis, self.num_inputs = kernel, num_features, num_inputs
        self.frequencies = frequencies

    def forward(self, x: Tensor) -> Tensor:
        """phi(x): (n, d) -> (n, m) for a draw of the frequencies."""
        kernel = self.kernel
        scale = (2.0 / self.num_basis * cast(Tensor, kernel.outputscale)).sqrt()
        if isinstance(kernel, ArcCosine):
            units = self.frequencies(kernel.scaled(x))
            active = units.clamp_min(0.0) if kernel.order else (units > 0).to(x)
            return (active.pow(kernel.order) if kernel.order > 1 else active) * scale
        assert isinstance(kernel, RBF)
        angles = self.frequencies(kernel.coordinates(x))
        return torch.cat([angles.cos(), angles.sin()], 1) * scale


def layer_features(
    kernel: Kernel,
    num_features: int,
    num_inputs: int,
    *,
    frequencies: Frequency,
    directions: Directions,
    seed: int,
    keep: float = 0.5,
) -> Basis | LearnedFeatures:
    """The features of a layer; learned frequencies start at a draw from their prior.

    Raises:
        ConfigError: an unknown option, or one that does not fit the kernel.
    """
    check_one_of(get_args(Frequency), frequencies=frequencies)
    check_one_of(get_args(Directions), directions=directions)
    if not isinstance(kernel, ArcCosine) and num_features % 2:
        raise ConfigError(
            f"num_features={num_features}: Fourier features come in pairs of a cosine and a sine, "
            "so their number must be even"
        )
    if frequencies == "fixed":
        if isinstance(kernel, ArcCosine):
            return ArcCosineFeatures(kernel, num_features, num_inputs, seed, directions)
        # block size num_features // 2: all frequencies are used at once
        return FOURIER[directions](kernel, num_features, seed, num_features // 2)
    # a subclass with a covariance or a profile of its own does not have RBF's
    gaussian = isinstance(kernel, RBF) and kernel.in_place is RBF.in_place
    if not (gaussian or computes_as(kernel, ArcCosine)):
        raise ConfigError(
            f"frequencies={frequencies} takes an RBF or an arc-cosine kernel, whose frequencies "
            f"are normal, got {class_name(kernel)}; give one of them, or frequencies='fixed'"
        )
    count = num_features if isinstance(kernel, ArcCosine) else num_features // 2
    if frequencies in ("fixed_signs", "learned_signs"):
        if directions != "independent":
            raise ConfigError(
                f"directions={directions}: frequencies={frequencies} have the directions of "
                "Hadamard matrices; leave directions out"
            )
        signs = SignFrequencies(
            num_inputs, count, learned=frequencies == "learned_signs", keep=keep, seed=seed
        )
        return LearnedFeatures(kernel, num_features, num_inputs, signs)
    q: RandomWeights
    if frequencies == "learned":
        q = MeanFieldWeights(num_inputs, count)
    else:
        q = DroppedWeights(num_inputs, count, keep if frequencies == "dropout" else 1.0)
    with torch.no_grad():
        q.mean.copy_(ROWS[directions](seed, torch.arange(count), num_inputs).mT)
    return LearnedFeatures(kernel, num_features, num_inputs, q)
