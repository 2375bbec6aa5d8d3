"""Joint distributions of the latent function at groups of inputs, and given further rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gpx.errors import NotAvailable, class_name
from gpx.inference.batched_covariance import batched_covariances
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian, NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import cholesky
from gpx.methods.base.gradients import no_gradient
from gpx.methods.base.posterior import Marginals, Posterior
from gpx.methods.base.sampled_functions import sampled_functions

CERTIFICATE = ("kl_upper_bound", "kl_tolerance", "certified")
"""Facts of a posterior that do not hold once it is conditioned on further rows."""

CHUNK_BYTES = 2**26
"""Bytes of the projections of one chunk of rows."""


class Projected(NamedTuple):
    """Posterior mean at groups of inputs, and rows whose products give posterior covariances.

    cov(f, f') = k(x, x') - e . e' + a . a' for two inputs with rows e, e' and a, a'.

    Attributes:
        x (..., q, d): the inputs, q in each group.
        mean (..., q): posterior mean.
        explained (..., q, r): rows e.
        added (..., q, s): rows a, from the uncertainty that approximate inference leaves; None:
            none.
    """

    x: Tensor
    mean: Tensor
    explained: Tensor
    added: Tensor | None = None


class JointLaw(Posterior):
    """A Gaussian posterior process with covariance k(x, x') - e . e' + a . a' (``Projected``).

    A subclass defines ``project_rows``; covariances of pairs of inputs follow.
    """

    kernel: Kernel

    @abstractmethod
    def project_rows(self, x: Tensor) -> Projected:
        """``Projected`` of one group x (n, d), differentiable in x.

        Raises:
            NotAvailable: this posterior has no joint law in closed form.
        """

    def project(self, x: Tensor) -> Projected:
        """``Projected`` of groups of inputs x (..., q, d), differentiable in x.

        Raises:
            NotAvailable: this posterior has no joint law in closed form.

        Cost: as a prediction of every row.
        """
        rows = self.project_rows(x.reshape(-1, x.shape[-1]))
        groups = x.shape[:-1]
        return Projected(
            x,
            rows.mean.reshape(groups),
            rows.explained.reshape(*groups, rows.explained.shape[-1]),
            None if rows.added is None else rows.added.reshape(*groups, rows.added.shape[-1]),
        )

    def projected_marginals(self, x: Tensor) -> Marginals:
        """Mean and variance of f at x (n, d) from ``project``, differentiable in x."""
        try:
            found = self.project(x)
        except NotAvailable:
            raise no_gradient(self) from None
        return self._marginals_of(found)

    def _marginals_of(self, found: Projected) -> Marginals:
        """Mean and variance of one group of inputs."""
        variance = self.kernel.diagonal(found.x) - found.explained.square().sum(-1)
        if found.added is not None:
            variance = variance + found.added.square().sum(-1)
        return Marginals(found.mean, variance.clamp_min(0.0))

    def covariance_between(self, left: Projected, right: Projected | None = None) -> Tensor:
        """Posterior covariances (..., p, q) of groups of p and of q inputs; None: left with itself.

        The groups' leading dimensions are broadcast. Without observation noise.

        Cost: r + s multiply-adds and a kernel entry for every pair.
        """
        other = left if right is None else right
        found = self._prior(left.x, None if right is None else right.x)
        found = found - left.explained @ other.explained.mT
        if left.added is not None and other.added is not None:
            found = found + left.added @ other.added.mT
        return found

    def _prior(self, left: Tensor, right: Tensor | None) -> Tensor:
        """k (..., p, q) between groups (..., p, d) and (..., q, d)."""
        if left.ndim == 2 and (right is None or right.ndim == 2):
            return self.kernel.evaluate(left, right)
        groups = left.shape[:-2]
        if right is not None:
            groups = torch.broadcast_shapes(groups, right.shape[:-2])
            right = right.expand(*groups, *right.shape[-2:]).reshape(-1, *right.shape[-2:])
        left = left.expand(*groups, *left.shape[-2:]).reshape(-1, *left.shape[-2:])
        found = batched_covariances(self.kernel, left, right)
        return found.reshape(*groups, *found.shape[-2:])

    def joint_covariance(self, x: Tensor) -> Tensor:
        """As in ``Posterior``. Cost: that of predictions, and r + s operations a pair of rows."""
        return self.covariance_between(self.project_rows(x))

    @torch.no_grad()
    def with_observations(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: Gaussian | NoisyOutputs,
        noise: RowNoise | None = None,
    ) -> Posterior:
        """As in ``Posterior``: ``Conditioned``.

        Raises:
            NotAvailable: there are several outputs, another likelihood, or no joint law.
        """
        if isinstance(likelihood, NoisyOutputs):
            raise NotAvailable(
                f"{class_name(self)} takes further rows of one target, and these have "
                f"{likelihood.num_outputs}: train again with them, or take model=CoregionalGP()"
            )
        if not isinstance(likelihood, Gaussian):
            raise NotAvailable(
                f"{class_name(self)} takes further rows with likelihood=Gaussian(), and these have "
                f"{class_name(likelihood)}: train again with them"
            )
        learned = likelihood.noise_variance.to(x)
        variances = learned.expand(len(x)) if noise is None else noise.like(x).variance(learned)
        try:
            return Conditioned.of(self, x, y, variances)
        except NotAvailable:
            return super().with_observations(x, y, likelihood, noise)  # which raises


class ObservationSolve(NamedTuple):
    """Quantities shared by all predictions.

    Attributes:
        seen: ``Projected`` of the observed inputs under the base process.
        factor (..., m, m): lower triangular L, L L^T their covariance with noise.
        weights (..., m): L^{-1} (y - mean).
    """

    seen: Projected
    factor: Tensor
    weights: Tensor


class Conditioned(JointLaw):
    """A posterior process conditioned exactly on m further rows y = f(x) + noise.

    For an exact Gaussian process the result is the exact posterior of all data. For a sparse one it
    conditions the approximate process: the rows need not be near inducing points.

    Args:
        base: the posterior without them; not copied, as posteriors do not change.

    Attributes:
        x (..., m, d), y (..., m), noise (..., m): the rows, and their noise variances; leading
            dimensions are separate groups of observations and broadcast.

    Cost: m rows of ``base.project``, their m x m covariance and its Cholesky factor, once; per
    predicted row a prediction of the base and m (m + r) multiply-adds, r the number of data or
    inducing points of the base. Differentiable in x and y where these require gradients; then
    nothing is cached between calls.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("x", "y", "noise")
    derived: ClassVar[tuple[str, ...]] = ("_solved",)
    x: Tensor
    y: Tensor
    noise: Tensor

    def __init__(self, base: JointLaw) -> None:
        super().__init__()
        self.base = base
        self._solved: ObservationSolve | None = None
        self._jitter = 0.0
        self.register_data_sized()

    @classmethod
    def of(cls, base: JointLaw, x: Tensor, y: Tensor, noise: Tensor) -> Conditioned:
        """``base`` given rows; the rows of a ``Conditioned`` base are joined with the new ones.

        Args:
            x (..., m, d), y (..., m), noise (..., m): as the attributes.

        Raises:
            NotAvailable: the base has no joint law in closed form.
        """
        if isinstance(base, Conditioned):
            x, y = _joined(base.x, x, 2), _joined(base.y, y, 1)
            noise = _joined(base.noise, noise, 1)
            base = base.base
        made = cls(base)
        made.x, made.y, made.noise = x, y, noise
        made.solved()
        return made

    @property
    def kernel(self) -> Kernel:  # type: ignore[override]
        """Of the base."""
        return self.base.kernel

    @property
    def num_inputs(self) -> int | None:
        """As the base."""
        return self.base.num_inputs

    @property
    def has_own_noise(self) -> bool:
        """As the base."""
        return self.base.has_own_noise

    def facts(self) -> dict[str, bool | int | float | str]:
        """The base's but its certificate, how many rows were added, and the jitter for them."""
        found = {k: v for k, v in self.base.facts().items() if k not in CERTIFICATE}
        return found | {"rows_added": self.y.shape[-1], "rows_jitter": self._jitter}

    def solved(self) -> ObservationSolve:
        """Quantities shared by all predictions; cached unless derivatives pass through them."""
        if self._solved is not None:
            return self._solved
        seen = self.base.project(self.x)
        covariance = self.base.covariance_between(seen) + torch.diag_embed(self.noise)
        name = f"the covariance of {self.y.shape[-1]} further observations"
        factor, report = cholesky(covariance, name=name)
        self._jitter = report.jitter
        gap = (self.y - seen.mean).unsqueeze(-1)
        weights = torch.linalg.solve_triangular(factor, gap, upper=False).squeeze(-1)
        found = ObservationSolve(seen, factor, weights)
        # weights that predictions make, without gradients, do not show whether the rows need them
        if not any(part.requires_grad for part in (self.x, self.y, self.noise)):
            self._solved = found
        return found

    def _prior(self, left: Tensor, right: Tensor | None) -> Tensor:
        return self.base._prior(left, right)

    def project_rows(self, x: Tensor) -> Projected:
        """As in ``JointLaw``; raises ``NotAvailable`` as the base does."""
        return self.project(x)

    def project(self, x: Tensor) -> Projected:
        """As in ``JointLaw``; groups of x (..., q, d) and of observations are broadcast."""
        seen, factor, weights = self.solved()
        there = self.base.project(x)
        cross = self.base.covariance_between(seen, there)
        root = torch.linalg.solve_triangular(factor, cross, upper=False).mT
        mean = there.mean + (root @ weights.unsqueeze(-1)).squeeze(-1)
        groups = torch.broadcast_shapes(root.shape[:-2], there.explained.shape[:-2])
        parts = [part.expand(*groups, *part.shape[-2:]) for part in (there.explained, root)]
        return Projected(x, mean, torch.cat(parts, -1), there.added)

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d); cost: see the class."""
        parts = [self.projected_marginals(rows) for rows in self._chunks(x)]
        return Marginals(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))

    def _chunks(self, x: Tensor) -> Iterator[Tensor]:
        width = self.solved().seen.explained.shape[-1] + 2 * self.y.shape[-1]
        yield from x.split(max(1, CHUNK_BYTES // (8 * width)))

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` sampled functions x (t, d) -> (num, t): those of the base, corrected at the rows.

        g(x) = f(x) + cov(x, X) (cov(X, X) + noise)^{-1} (y - f(X) - noise): pathwise conditioning
        (Wilson et al. 2020) of the process that the base describes.

        Raises:
            ConfigError: the kernel has no random Fourier features.
        """
        functions = self.base.sample_paths(num, generator=generator)
        seen, factor, _ = self.solved()
        noise = self.y.new_empty(num, len(self.y)).normal_(generator=generator)
        gap = self.y - functions(self.x) - noise * self.noise.sqrt()
        weights = torch.cholesky_solve(gap.mT.to(factor), factor).mT

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            cross = self.base.covariance_between(seen, self.base.project(x))
            return functions(x) + (weights @ cross).to(x)

        return paths


def _joined(first: Tensor, second: Tensor, own: int) -> Tensor:
    """Concatenated along the first of the last ``own`` dimensions; the others are broadcast."""
    groups = torch.broadcast_shapes(first.shape[:-own], second.shape[:-own])
    parts = [part.expand(*groups, *part.shape[-own:]) for part in (first, second)]
    return torch.cat(parts, -own)
