"""Posterior process of a sparse variational Gaussian process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.inducing.features import POINTS, InducingFeatures
from gpx.inference.joint_law import JointLaw, Projected
from gpx.inference.variational.paths import conditioned_paths
from gpx.kernels.base import Kernel
from gpx.linalg.triangular import lower_matmul
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, no_joint_law, untrained
from gpx.sampling import SHARED, Frequencies

PREDICT_CHUNK = 4096
"""Test rows predicted at a time."""


class SVGPPosterior(JointLaw):
    """Posterior process of an SVGP: Z, L^{-1} and q(v), with copies of kernel and mean function.

    Args:
        kernel, mean, features: copied; features are the kind of the inducing variables.
        refitted: whether q(v) is the optimum given all training data, or as trained.

    Attributes:
        inducing (M, d), inverse_cholesky (M, M), q_mean (p, M), q_factor (p, M, M).
        refitted (): in the state, as the objective of the run has a say in it.
    """

    data_sized = ("inducing", "inverse_cholesky", "q_mean", "q_factor")
    inducing: Tensor
    inverse_cholesky: Tensor
    q_mean: Tensor
    q_factor: Tensor
    refitted: Tensor

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        features: InducingFeatures = POINTS,
        *,
        refitted: bool = False,
    ) -> None:
        super().__init__()
        self.features = copy.deepcopy(features)
        self.kernel = untrained(kernel)
        self._mark(refitted)
        self.mean = untrained(mean)
        self.register_data_sized()

    def _mark(self, refitted: bool) -> None:
        device = next((p.device for p in self.kernel.parameters()), None)
        self.register_buffer("refitted", torch.tensor(refitted, device=device))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "refitted" not in self._buffers:  # earlier versions had a plain attribute
            self._mark(self.__dict__.pop("refitted", False))

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: whether q(u) was refitted to all the data or is as trained."""
        return {"variational_distribution": "refitted" if self.refitted else "as trained"}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}refitted", self.refitted)  # states of earlier versions
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def inducing_variables(self) -> tuple[Tensor, InducingFeatures]:
        """As in ``Posterior``."""
        return self.inducing, self.features

    def predict(self, x: Tensor) -> Marginals:
        """Marginals of f at x (n, d): (n,) or (n, p). Cost: O(p M^2) per row, in chunks."""
        parts = [self._predict(x[rows]) for rows in row_slices(x.shape[0], PREDICT_CHUNK)]
        if not parts:
            none = x.new_zeros(self.q_mean.shape[0], 0)
            return latent_marginals(none, none, self.mean(x))
        return Marginals(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))

    def _predict(self, x: Tensor) -> Marginals:
        cross = self.features.cross_rows(self.kernel, self.inducing, x)
        if cross.requires_grad:
            projection = self.inverse_cholesky @ cross
        else:
            projection = lower_matmul(self.inverse_cholesky, cross)
        added = (self.q_factor.mT @ projection).square().sum(1)
        variance = self.kernel.diagonal(x) - projection.square().sum(0) + added
        return latent_marginals(self.q_mean @ projection, variance.clamp_min(0.0), self.mean(x))

    def project_rows(self, x: Tensor) -> Projected:
        """As in ``JointLaw``, for one latent function. Cost: M^2 multiply-adds per row.

        Raises:
            NotAvailable: there are several latent functions.
        """
        if len(self.q_mean) > 1:
            raise no_joint_law(self)
        cross = self.features.cross_rows(self.kernel, self.inducing, x)
        root = (self.inverse_cholesky @ cross).mT
        return Projected(x, self.mean(x) + root @ self.q_mean[0], root, root @ self.q_factor[0])

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (n, d) -> (num, n), or (num, n, p) for p latent functions.

        A prior function from random Fourier features is corrected at the inducing points:
        f(x) = prior(x) + K_xz K_zz^{-1} (u - prior(Z)) with u ~ q (pathwise conditioning, Wilson et
        al. 2020). Exact in the mean; the variance away from Z is that of the feature approximation.
        ``frequencies`` sets the number of features and whether paths share them, and documents the
        error.

        Raises:
            ConfigError: the kernel has no random Fourier features, or the inducing variables are
                not function values.
        """
        self.features.require_sampled()
        latents = len(self.q_mean)
        values = conditioned_paths(
            self.features.path_kernel(self.kernel),
            self.inducing,
            self.inverse_cholesky,
            self.q_mean,
            self.q_factor,
            num,
            generator=generator,
            frequencies=frequencies,
        )

        if latents == 1 and self.features.path_kernel(self.kernel) is self.kernel:
            return replace(values, mean=self.mean)

        def paths(x: Tensor) -> Tensor:
            inputs = self.features.path_inputs(self.kernel, x)
            drawn = values(inputs).view(num, latents, -1)
            found = self.features.path_values(self.kernel, drawn) + self.mean(x)
            return found.squeeze(1) if found.shape[1] == 1 else found.mT

        return paths


def latent_marginals(mean: Tensor, variance: Tensor, offset: Tensor) -> Marginals:
    """Marginals from (p, B) with the prior mean (B,) added: (B,) for p = 1, else (B, p)."""
    mean = mean + offset.unsqueeze(0)
    if mean.shape[0] == 1:
        return Marginals(mean.squeeze(0), variance.squeeze(0))
    return Marginals(mean.mT, variance.mT)
