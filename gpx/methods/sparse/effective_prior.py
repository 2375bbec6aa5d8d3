"""Sparse regression by effective priors: SoR, DTC, FITC, FIC, PITC and PIC."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError
from gpx.inducing import (
    ClusterBlocks,
    KMeans,
    Partition,
    Selector,
    require_partition,
    require_selector,
)
from gpx.inducing.base import choose_num_inducing, describe_num_inducing, place_points
from gpx.inducing.features import InducingFeatures, features_of
from gpx.inducing.partition import Regions, choose_num_blocks, require_regions
from gpx.inference.float32_digits import warn_of_few_digits
from gpx.inference.nystrom import BlockStore, factorise, nystrom_sums
from gpx.inference.variational import raise_noise
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise, training_noise
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.sparse.effective_posterior import BlockPosterior, EffectivePosterior
from gpx.methods.sparse.residual_noise import Structure, effective_sums
from gpx.methods.sparse.unit_noise import scale_to_common_noise
from gpx.tensor_checks import check_at_least, check_jitter, check_one_of

PriorName = Literal["sor", "dtc", "fitc", "fic", "pitc", "pic"]


class KeptCovariance(NamedTuple):
    """The part of K - Q, the covariance given u, that an effective prior keeps.

    Attributes:
        training: among training points.
        test: among test points; "blocks" also between a test point and the training points of its
            block.
    """

    training: Structure
    test: Literal["none", "diagonal", "blocks", "full"]


PRIORS: dict[str, KeptCovariance] = {
    "sor": KeptCovariance("none", "none"),
    "dtc": KeptCovariance("none", "full"),
    "fitc": KeptCovariance("diagonal", "full"),
    "fic": KeptCovariance("diagonal", "diagonal"),
    "pitc": KeptCovariance("blocks", "full"),
    "pic": KeptCovariance("blocks", "blocks"),
}
"""See Quinonero-Candela and Rasmussen (2005), Snelson and Ghahramani (2007)."""


class EffectivePrior(Model):
    """Exact Gaussian process regression under a cheaper prior (Quinonero-Candela and Rasmussen).

    Given u = f(Z), function values are independent except for the part of K - Q that ``prior``
    keeps, Q = K_xz K_zz^{-1} K_zx: nothing (SoR; DTC keeps it among test points), the diagonal
    (FITC; FIC also among test points), blocks of training points (PITC), or blocks of training and
    test points (PIC). Evidence and predictions are exact for that prior. The evidence is no bound,
    and that of SoR, DTC and FITC tends to overfit.

    The covariance of SoR vanishes far from Z, and so do its error bars. SoR, FIC and PIC are
    Gaussian processes; DTC, FITC and PITC are not, as they treat training and test points
    differently.

    Args:
        kernel, mean, likelihood: the likelihood must be Gaussian.
        num_inputs: d, the number of columns of x.
        prior: "sor", "dtc", "fitc", "fic", "pitc" or "pic".
        num_inducing: M.
        num_data: n if it is known; caps M.
        selector: how ``initialise`` places the inducing points; None: ``KMeans``.
        features: kind of the inducing variables; None: function values at inducing points.
        learn_inducing: whether Z is trained with the hyperparameters; None: yes, except for SoR and
            DTC, where Z would overfit.
        fit_noise: whether ``initialise`` raises the noise variance of SoR and DTC to the maximum of
            their evidence for the new Z (hyperparameters initialised without inducing points often
            give a noise that is too small for M points).
        jitter: smallest jitter on K_zz, relative to its mean diagonal; None: 0 in float64 and 1e-6
            in float32. Larger ones are tried if the factorisation fails, and reported.
        num_blocks: K of PITC and PIC; None: n / ``block_size``.
        block_size: points of a block on average; None: M, for which blocks cost as much as inducing
            points.
        partition: how ``initialise`` divides the training rows into blocks; None: k-means cells of
            any size. A test point of PIC belongs to the block of the nearest centre.
        block_centres (K, d): instead of a partition: blocks are the cells of these points, by
            Euclidean distance in the units of x; cells may be empty.

    Attributes:
        inducing_points (M, d): Z; zero until ``initialise``.
        labels (n,): block of every training row; empty until ``initialise``, and with
            ``block_centres``.
        regions: assigns inputs to blocks.
        structure: the part of K - Q kept among training points.

    Raises:
        ConfigError: an unknown prior, more blocks than points, block options for a prior without
            blocks, or random blocks for PIC.
    """

    takes_row_noise = True
    data_sized = ("labels", "inducing_points")
    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    labels: Tensor
    _chosen: int | None = None  # the number of blocks if it was chosen for data, not given

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_inputs: int,
        prior: PriorName = "fitc",
        num_inducing: int = 512,
        num_data: int | None = None,
        selector: Selector | None = None,
        features: InducingFeatures | None = None,
        learn_inducing: bool | None = None,
        fit_noise: bool = True,
        jitter: float | None = None,
        num_blocks: int | None = None,
        block_size: int | None = None,
        partition: Partition | None = None,
        block_centres: Any = None,
    ) -> None:
        super().__init__()
        check_one_of(PRIORS, prior=prior)
        check_at_least(1, num_inputs=num_inputs, num_inducing=num_inducing, num_data=num_data)
        check_at_least(1, num_blocks=num_blocks, block_size=block_size)
        check_jitter(jitter=jitter)
        self.kernel, self.mean, self.likelihood = kernel, mean, likelihood
        self.prior = prior
        self.structure, self.test = PRIORS[prior]
        self.selector = KMeans() if selector is None else require_selector(selector, targets=True)
        self.features = features_of(features, selector)
        if learn_inducing is None:
            learn_inducing = self.structure != "none"
        self.fit_noise, self.jitter = fit_noise, jitter
        size = choose_num_inducing(num_inducing, num_data, self.selector, self.features.trainable)
        self.num_inducing, self._asked = size, num_inducing
        self._num_inputs = num_inputs
        self.register_data_sized()
        self.inducing_points = nn.Parameter(
            torch.zeros(size, num_inputs),
            requires_grad=self.features.trainable and learn_inducing,
        )
        self.regions = Regions()
        self.num_blocks, self.block_size = num_blocks, block_size
        self._given = block_centres is not None
        self._check_blocks(num_inputs, num_data, partition, block_centres)
        self.partition = ClusterBlocks(balanced=False) if partition is None else partition

    @property
    def fixed_shapes(self) -> bool:  # type: ignore[override]
        """As in ``Model``: without blocks, whose sizes are read by the host."""
        return self.structure != "blocks"

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``inducing`` (Z, if it is trained) and ``hyperparameters`` (everything else)."""
        rest = [p for p in self.parameters() if p is not self.inducing_points]
        trained = self.inducing_points.requires_grad
        inducing = {"inducing": [self.inducing_points]} if trained else {}
        return {**inducing, "hyperparameters": rest}

    def _check_blocks(
        self, num_inputs: int, num_data: int | None, partition: Partition | None, centres: Any
    ) -> None:
        ways: dict[str, Any] = {"num_blocks": self.num_blocks, "block_size": self.block_size}
        ways["block_centres"] = centres
        names = [name for name, value in ways.items() if value is not None]
        every = [*names, *(["partition"] if partition is not None else [])]
        if every and self.structure != "blocks":
            raise ConfigError(f"prior={self.prior} has no blocks: leave out {' and '.join(every)}")
        if partition is not None:
            require_partition(partition)
            if self.test == "blocks":
                require_regions(partition, f"prior={self.prior}")
            if centres is not None:
                raise ConfigError("partition and block_centres both define the blocks: give one")
        if len(names) > 1:
            raise ConfigError(f"{' and '.join(names)} define the same thing: give one of them")
        if num_data is not None and self.num_blocks is not None and self.num_blocks > num_data:
            raise ConfigError(
                f"num_blocks={self.num_blocks} is more than the {num_data} training points"
            )
        if centres is None:
            return
        try:
            placed = torch.as_tensor(centres, dtype=self.inducing_points.dtype)
        except (TypeError, ValueError, RuntimeError):  # whichever torch raises for it
            raise ConfigError(
                f"block_centres={centres}: expected rows of numbers, a list for each block"
            ) from None
        if placed.ndim != 2 or placed.shape[1] != num_inputs or not len(placed):
            raise ConfigError(
                f"block_centres have shape {tuple(placed.shape)}, expected (K, {num_inputs}): a "
                "row for each block"
            )
        self.regions.place(placed, torch.ones(num_inputs))

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: M, if more points were asked for than there are rows, and K.

        K is chosen anew for other data if it was not given.
        """
        self.features.require(self.kernel)
        settled = describe_num_inducing(self._asked, self.num_inducing, self.selector)
        if self._has_partition:
            size = self.num_inducing if self.block_size is None else self.block_size
            count, reason = choose_num_blocks(
                *(self.num_blocks, self.partition, x, size, "num_blocks"), chosen=self._chosen
            )
            if reason:
                settled["num_blocks"] = (count, reason)
            if self.block_size is not None:
                settled["block_size"] = (None, "replaced by num_blocks")
            self.num_blocks, self._chosen = count, count if reason else None
        return settled

    @property
    def _has_partition(self) -> bool:
        """Whether ``initialise`` divides the training rows into blocks."""
        return self.structure == "blocks" and not self._given

    def block_order(self, x: Tensor, *, largest_first: bool = False) -> tuple[Tensor, list[int]]:
        """Order (n,) of the training inputs x (n, d) by blocks, and the K + 1 block bounds.

        Block k are positions bounds[k] to bounds[k + 1], with rows in their old order. With
        ``largest_first`` blocks are sorted by size.

        Raises:
            ConfigError: ``initialise`` was not called with these rows.
        """
        labels = self.regions.nearest(x) if self._given else self.labels
        if len(labels) != len(x):
            raise ConfigError(
                f"{len(labels)} training rows are in blocks and there are {len(x)}: call "
                "initialise(x, y, generator=...) with the rows to train on"
            )
        sizes = torch.bincount(labels, minlength=len(self.regions))
        if largest_first:
            sizes, order = sizes.sort(descending=True, stable=True)
            labels = order.argsort()[labels]
        ends: list[int] = sizes.cumsum(0).tolist()
        return labels.argsort(stable=True), [0, *ends]

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Place inducing points and blocks at the current hyperparameters; see ``fit_noise``.

        Cost: that of selector and partition, and 1.5 n M^2 multiply-adds for the noise.
        Raises:
            DataError: fewer data than inducing points or blocks.
        """
        with torch.no_grad():
            selector = self.selector.given(y - self.mean(x), training_noise(self, x))
        points = self.features.choose(
            x, self.kernel, self.num_inducing, selector=selector, generator=generator
        )
        self.place(points)
        if self._has_partition:
            self.settle(x)
            assert self.num_blocks is not None
            blocks = self.partition(x, self.kernel, self.num_blocks, generator=generator)
            self.labels = blocks.labels
            self.regions.place(blocks.centres, blocks.weights)
            least, most = int(blocks.sizes.min()), int(blocks.sizes.max())
            self.note = f"{len(blocks.sizes)} blocks of {least} to {most} training points"
        if self.structure == "none" and self.fit_noise and self.row_noise is None:
            with torch.no_grad():
                whitener, _ = factorise(
                    self.kernel, self.inducing_points, self.jitter, features=self.features
                )
                sums = nystrom_sums(BlockStore(whitener, x), y - self.mean(x))
                sums = replace(sums, trace_error=torch.zeros_like(sums.trace_error))
            raise_noise(sums, len(x), self.likelihood)

    def know_noise(self, noise: RowNoise | Tensor) -> None:
        """As in ``Model``; ``fit_noise`` then does nothing.

        Raises:
            ConfigError: a prior with blocks.
        """
        if self.structure == "blocks":
            raise ConfigError(
                f"prior={self.prior} takes one noise variance for all rows, and noise= or weights= "
                "give each row its own: take prior=fitc, or leave them out"
            )
        super().know_noise(noise)

    def place(self, points: Tensor) -> None:
        """Set the inducing points (M, d); M may change."""
        place_points(self.inducing_points, points)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> EffectivePosterior | BlockPosterior:
        """The posterior of the effective prior given x (n, d), y (n,).

        Cost: 1.5 n M^2 multiply-adds and that of the blocks, memory O(M^2).
        """
        posterior = self.new_posterior()
        whitener, _ = factorise(
            self.kernel, self.inducing_points, self.jitter, features=self.features
        )
        residual, bounds = y - self.mean(x), None
        if self.structure == "blocks":
            order, bounds = self.block_order(x)
            x, residual = x[order], residual[order]
        noise = training_noise(self, x).double()
        warn_of_few_digits(self.kernel, noise, x)
        scale, target = None, residual
        if self.structure == "none":  # otherwise the noise of each row is part of D
            scale, target, _ = scale_to_common_noise(noise, residual)
        store = BlockStore(whitener, x, bounds=bounds, scale=scale)
        inner = effective_sums(store, target, noise, self.structure).inner()
        posterior.fill(whitener, inner.factor, inner.weights)
        if isinstance(posterior, BlockPosterior):
            assert bounds is not None
            posterior.fill_blocks(x, residual, noise, bounds)
        return posterior

    def new_posterior(self) -> EffectivePosterior | BlockPosterior:
        """As in ``Model``."""
        if self.test == "blocks":
            return BlockPosterior(self.kernel, self.mean, self.features, self.regions)
        return EffectivePosterior(self.kernel, self.mean, self.features, self.prior, self.test)
