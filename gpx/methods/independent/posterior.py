"""The posterior of several targets that share nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gpx.constraints import natural_parameters
from gpx.inference.dense_factor import row_blocks
from gpx.inference.exact_posterior import ExactPosterior
from gpx.inference.leave_one_out import LeftOut
from gpx.inference.padded_rows import noisy_system
from gpx.inference.stacked_kernels import mapped, stacked_covariances, stacked_diagonals
from gpx.likelihoods.gaussian import Gaussian, GaussianOutputs, NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import CholeskyReport
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.methods.independent.evidence import Cells, TargetRows
from gpx.methods.independent.parts import StackedParts, TargetParts
from gpx.sampling import SHARED, Frequencies

KEPT_BYTES = 2**30
"""Bytes of factors that are kept from one prediction to the next."""


class TargetFactors(NamedTuple):
    """A batch of targets, conditioned on their rows.

    Attributes:
        batch: the targets.
        lower (b, m, m): Cholesky factors of K + noise.
        alpha (b, m): (K + noise)^{-1} r; zero at padding.
    """

    batch: TargetRows
    lower: Tensor
    alpha: Tensor


class IndependentPosterior(Posterior):
    """Exact posterior processes of p targets, each with hyperparameters and rows of its own.

    The state holds the training inputs and the residuals y - m(x): O(n (d + p)). Factors are
    computed when first needed, of targets of few rows in batches.

    Args:
        targets: kernel and mean of each.
        likelihood: has their noise variances.

    Attributes:
        inputs (n, d), residual (n, p): the data; NaN where a target is missing.
        row_noise: ``RowNoise.packed`` of the data; None: nothing is known.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("inputs", "residual", "row_noise")
    derived: ClassVar[tuple[str, ...]] = ("_made", "_jitter")
    inputs: Tensor
    residual: Tensor
    row_noise: Tensor | None

    def __init__(self, targets: nn.ModuleList, likelihood: GaussianOutputs) -> None:
        super().__init__()
        self.targets, self.likelihood = untrained(targets), untrained(likelihood)
        self.register_data_sized()
        self.row_noise = None  # then it is not part of the saved state
        self._made: list[tuple[list[int], TargetFactors | ExactPosterior]] | None = None
        self._jitter: float | None = None

    @property
    def num_inputs(self) -> int | None:
        """As in ``Posterior``: that of the data; None before there are any."""
        return self.inputs.shape[1] if self.inputs.ndim == 2 else None

    def know_noise(self, noise: RowNoise) -> None:
        """Set the noise of the rows, before ``condition_``."""
        self.row_noise = noise.packed()

    @torch.no_grad()
    def condition_(self, x: Tensor, y: Tensor) -> None:
        """Condition on x (n, d) and y (n, p), NaN where a target is missing.

        Raises:
            DataError: infinite targets, or a target that was never observed.
            NotPositiveDefinite: see ``gpx.linalg.cholesky``.
        """
        self._forget_derived()
        means = torch.stack([own.mean(x) for own in self._targets()], 1)
        self.keep(x, inputs=x, residual=y - means)
        for _ in self._conditioned():  # raises what is wrong
            pass

    def target(self, number: int) -> ExactPosterior:
        """The posterior of one target, which has all that an exact Gaussian process has.

        Cost: n^3/3 multiply-adds for n observations of it.
        """
        return self._alone(number, self._cells())[0]

    def training_targets(self) -> Tensor:
        """The targets (n, p) that it was conditioned on; NaN where one is missing."""
        means = torch.stack([own.mean(self.inputs) for own in self._targets()], 1)
        return self.residual + means

    @torch.no_grad()
    def leave_one_out(self) -> LeftOut:
        """Prediction of every cell (n, p) given all others of its target; NaN where it is missing.

        Cost: that of ``ExactPosterior.leave_one_out`` for each target.
        """
        residual, variance = torch.full_like(self.residual, torch.nan), self.residual.clone()
        cells = self._cells()
        for number in range(self.likelihood.num_outputs):
            rows = cells.rows(number)
            found = self._alone(number, cells)[0].leave_one_out()
            residual[rows, number], variance[rows, number] = found.residual, found.variance
        return LeftOut(residual, variance)

    def own_hyperparameters(self) -> dict[str, Tensor] | None:
        """As in ``Posterior``, with a leading axis of targets; None if kernels differ in form."""
        if not self._parts().alike:
            return None
        each = [
            {
                f"{name}.{key}": value
                for name, part in (("kernel", own.kernel), ("mean", own.mean))
                for key, value in natural_parameters(part).items()
            }
            for own in self._targets()
        ]
        found = {name: torch.stack([values[name] for values in each]) for name in each[0]}
        noise = natural_parameters(self.likelihood)
        return found | {f"likelihood.{name}": value for name, value in noise.items()}

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {
            "solver": "cholesky of each target",
            "missing_targets": int(self.residual.isnan().sum()),
            "jitter": self._jitter or 0.0,
        }

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance (t, p) of the functions at x (t, d).

        Cost: n^2 multiply-adds per row and target.
        """
        p = self.likelihood.num_outputs
        if torch.is_grad_enabled():  # x requires a gradient
            each = [self.target(number).predict(x) for number in range(p)]
            return Marginals(*(torch.stack(parts, 1) for parts in zip(*each, strict=True)))
        mean, variance = x.new_empty(len(x), p), x.new_empty(len(x), p)
        for numbers, found in self._conditioned():
            if isinstance(found, ExactPosterior):
                own = found.predict(x)
                mean[:, numbers], variance[:, numbers] = own.mean[:, None], own.variance[:, None]
            else:
                self._predict_batch(found, x, mean, variance)
        return Marginals(mean, variance)

    @torch.no_grad()
    def sample(self, x: Tensor, num: int = 1, *, generator: torch.Generator) -> Tensor:
        """``num`` draws (num, t, p) of the functions at x (t, d), exactly and jointly over rows.

        As in ``Posterior``; targets are independent. Cost: O(p t^3).
        """
        numbers = range(self.likelihood.num_outputs)
        drawn = [self.target(number).sample(x, num, generator=generator) for number in numbers]
        return torch.stack(drawn, 2)

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t, p); see ``ExactPosterior``.

        Raises:
            ConfigError: a kernel has no random Fourier features.

        Cost: O(num p n^2) once, O(num p n) per row.
        """
        each = [
            self.target(number).sample_paths(num, generator=generator, frequencies=frequencies)
            for number in range(self.likelihood.num_outputs)
        ]

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            return torch.stack([own(x) for own in each], 2)

        return paths

    def with_observations(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: Gaussian | NoisyOutputs,
        noise: RowNoise | None = None,
    ) -> Posterior:
        """As in ``Posterior``, for y (m, p); conditions on all rows again."""
        made = IndependentPosterior(self.targets, self.likelihood)
        known = self._known()
        if noise is not None or known is not None:
            before = RowNoise.plain(self.inputs[:, 0]) if known is None else known
            more = RowNoise.plain(x[:, 0]) if noise is None else noise.like(x)
            made.know_noise(before.concatenated(more))
        targets = torch.cat([self.training_targets(), y])
        made.condition_(torch.cat([self.inputs, x]), targets)
        return made

    # --- factors ---------------------------------------------------------------------------------

    def _targets(self) -> list[TargetParts]:
        return [own for own in self.targets if isinstance(own, TargetParts)]

    def _parts(self) -> StackedParts:
        return StackedParts(self._targets(), self.likelihood)

    def _known(self) -> RowNoise | None:
        return None if self.row_noise is None else RowNoise.unpacked(self.row_noise)

    def _cells(self) -> Cells:
        return Cells(self.inputs, self.residual, self._known())

    @torch.no_grad()
    def _conditioned(self) -> Iterator[tuple[list[int], TargetFactors | ExactPosterior]]:
        """All targets, in batches or alone; kept for the next time if ``KEPT_BYTES`` hold them."""
        if self._made is not None:
            yield from self._made
            return
        parts, cells, made, jitter = self._parts(), self._cells(), [], 0.0
        size = sum(count * count for count in cells.counts) * self.inputs.element_size()
        for batch in cells.batches(range(len(cells.counts)), parts.alike):
            factored = len(batch.targets) > 1 and self._factor(parts, cells, batch)
            each: list[tuple[list[int], TargetFactors | ExactPosterior]]
            if factored:
                each = [(batch.targets, factored)]
            else:  # one alone; or a batch in which one needs jitter
                alone = [self._alone(number, cells) for number in batch.targets]
                jitter = max(jitter, *(report.jitter for _, report in alone))
                each = [
                    ([number], found)
                    for number, (found, _) in zip(batch.targets, alone, strict=True)
                ]
            yield from each
            made += each if size <= KEPT_BYTES else []
        self._jitter = jitter
        self._made = made if size <= KEPT_BYTES else None

    def _factor(self, parts: StackedParts, cells: Cells, batch: TargetRows) -> TargetFactors | None:
        """Factors of a batch; None if one of them needs jitter."""
        stacks, learned = parts.stacks(parts.read()[batch.targets])
        x = cells.inputs(batch)
        matrices = stacked_covariances(parts.template.kernel, stacks, x)
        matrices = matrices.contiguous()  # those of a constant may be one number, expanded
        noisy_system(matrices, cells.noise(batch, learned), batch.mask, matrices)
        lower, info = torch.linalg.cholesky_ex(matrices)
        if bool(info.any()):
            return None
        right = cells.targets(batch)
        right = right if batch.mask is None else right * batch.mask
        return TargetFactors(batch, lower, torch.cholesky_solve(right[..., None], lower)[..., 0])

    def _alone(self, number: int, cells: Cells) -> tuple[ExactPosterior, CholeskyReport]:
        """The posterior of one target, with jitter where it is needed."""
        own, rows = self._targets()[number], cells.rows(number)
        posterior = ExactPosterior(own.kernel, own.mean, self.likelihood.output(number))
        noise = cells.known_of(number)
        if noise is not None:
            posterior.know_noise(noise)
        posterior.keep(self.inputs, inputs=self.inputs[rows], residual=self.residual[rows, number])
        return posterior, posterior.solve_()

    def _predict_batch(
        self, found: TargetFactors, x: Tensor, mean: Tensor, variance: Tensor
    ) -> None:
        """Fill in the columns of a batch of targets in means and variances (t, p)."""
        parts, cells = self._parts(), self._cells()
        batch, lower, alpha = found
        stacks, _ = parts.stacks(parts.read()[batch.targets])
        kernel, data = parts.template.kernel, cells.inputs(batch)
        for rows in row_blocks(len(x), alpha.numel(), x):
            at = x[rows].expand(len(alpha), *x[rows].shape)
            cross = stacked_covariances(kernel, stacks, data, at)
            if batch.mask is not None:
                cross = cross * batch.mask[..., None]
            prior = mapped(parts.template.mean, stacks, lambda own, points: own(points), at)
            mean[rows, batch.targets] = (prior + torch.einsum("bm,bmt->bt", alpha, cross)).mT
            root = torch.linalg.solve_triangular(lower, cross, upper=False)
            explained = root.square_().sum(1)
            left = stacked_diagonals(kernel, stacks, at) - explained
            variance[rows, batch.targets] = left.clamp_(min=0.0).mT
