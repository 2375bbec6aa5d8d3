"""Exact regression of several targets, each with hyperparameters of its own."""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import GaussianOutputs
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.model_checks import check_variance
from gpx.methods.independent.evidence import Cells
from gpx.methods.independent.parts import StackedParts, TargetParts
from gpx.methods.independent.posterior import IndependentPosterior
from gpx.tensor_checks import check_num_inputs


class IndependentGP(Model):
    """p Gaussian processes of the same inputs, one for each target, without approximation.

    y_j(x) = f_j(x) + e_j with a kernel, a mean and a noise variance for each target j, which share
    nothing: the model is that of p ``ExactGP``, and so are evidence (their sum) and predictions.
    Targets of few rows are evaluated in batches, which is where it is faster
    (``target_evidences``), and each is optimised by itself (``gpx.training.SeparateLBFGSB``).

    Targets may be missing, NaN in y (n, p): each uses the rows in which it was observed.

    Args:
        kernel, mean: each target has a copy; or a list of one for each, which may differ in form.
        likelihood: ``GaussianOutputs``, which sets p.

    Attributes:
        targets: kernel and mean of each, ``targets[0].kernel``.

    Raises:
        ConfigError: another likelihood, a list of another length, or one whose parts share
            parameters.
    """

    takes_missing_targets = True
    takes_row_noise = True
    takes_cell_noise = True
    derived = ("_made",)
    likelihood: GaussianOutputs
    targets: nn.ModuleList

    def __init__(
        self,
        *,
        kernel: Kernel | Sequence[Kernel],
        mean: Mean | Sequence[Mean],
        likelihood: GaussianOutputs,
    ) -> None:
        super().__init__()
        if not isinstance(likelihood, GaussianOutputs):
            raise ConfigError(
                f"likelihood={class_name(likelihood)}: IndependentGP models several targets with "
                "Gaussian noise: take GaussianOutputs(num_outputs)"
            )
        p = likelihood.num_outputs
        kernels = _one_for_each("kernel", kernel, Kernel, p)
        means = _one_for_each("mean", mean, Mean, p)
        self.targets = nn.ModuleList(
            [TargetParts(own, its_mean) for own, its_mean in zip(kernels, means, strict=True)]
        )
        self._require_own()
        self.likelihood = likelihood
        self._made: tuple[list[nn.Module], StackedParts] | None = None

    def _require_own(self) -> None:
        seen: set[int] = set()
        for each in self.parts:
            own = {id(parameter) for parameter in each.parameters()}
            if own & seen:
                raise ConfigError(
                    "two targets of IndependentGP share a parameter of their kernels or means, and "
                    "each has its own: give copies (copy.deepcopy), or one kernel for all"
                )
            seen |= own

    @property
    def parts(self) -> list[TargetParts]:
        """Kernel and mean of every target."""
        return [cast(TargetParts, each) for each in self.targets]

    @property
    def num_outputs(self) -> int:
        """As in ``Model``: that of the likelihood."""
        return self.likelihood.num_outputs

    def hyperparameters(self) -> None:
        """As in ``Model``: None, as every target has its own."""

    def stacked(self) -> StackedParts:
        """The hyperparameters of all targets as a matrix.

        Made once; again if a kernel, mean or parameter was replaced, the model was copied or moved,
        or a state was loaded.
        """
        parts = self.parts
        known: list[nn.Module] = [self.likelihood]
        for each in parts:
            known += [each.kernel, each.mean]
        before, made = self._made or ([], None)
        changed = len(before) != len(known) or any(map(operator.is_not, before, known))
        if made is None or changed or not made.holds():
            made = StackedParts(parts, self.likelihood)
            self._made = known, made
        return made

    def cells(self, x: Tensor, y: Tensor) -> Cells:
        """The data of all targets, x (n, d) and y (n, p), NaN where one is missing.

        Raises:
            DataError: infinite targets, or a target that was never observed.
        """
        noise = None if self.row_noise is None else self.row_noise.like(y)
        return Cells(x, y, noise)

    def check(self, x: Tensor) -> None:
        """As in ``Model``, of the first target, and of others that differ in form."""
        check_num_inputs(self.num_inputs, x)
        every = self.parts
        for each in every[:1] if self.stacked().alike else every:
            with torch.no_grad():
                check_variance(each.kernel, x[:3])
                each.mean(x[:3])

    def condition(self, x: Tensor, y: Tensor) -> IndependentPosterior:
        """Posterior given x (n, d) and y (n, p), NaN where a target is missing.

        Cost: n_j^3/3 multiply-adds for each target with n_j observations.

        Raises:
            DataError: infinite targets, or a target that was never observed.
            NotPositiveDefinite: see ``gpx.linalg.cholesky``.
        """
        posterior = self.new_posterior()
        if self.row_noise is not None:
            posterior.know_noise(self.row_noise.like(x))
        posterior.condition_(x, y)
        return posterior

    def new_posterior(self) -> IndependentPosterior:
        """As in ``Model``."""
        return IndependentPosterior(self.targets, self.likelihood)


def _one_for_each(name: str, given: Any, kind: type, p: int) -> list[Any]:
    """p modules: copies of one, or those of a list."""
    if isinstance(given, kind):
        return [given, *(copy.deepcopy(given) for _ in range(p - 1))]
    listed = [*given] if isinstance(given, (Sequence, nn.ModuleList)) else []
    if len(listed) != p or not all(isinstance(each, kind) for each in listed):
        found = f"a list of {len(listed)}" if isinstance(given, list) else class_name(given)
        raise ConfigError(
            f"{name}= of IndependentGP: expected a {name}, of which each of {p} targets has a "
            f"copy, or a list of {p}, got {found}"
        )
    return listed
