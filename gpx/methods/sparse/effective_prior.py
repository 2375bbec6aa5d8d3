"""Sparse regression by effective priors: SoR, DTC, FITC, FIC, PITC and PIC, one class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

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
from gpx.inducing.base import describe_num_inducing, place_points
from gpx.inducing.features import POINTS, InducingFeatures
from gpx.inducing.partition import Regions, choose_num_blocks, require_regions
from gpx.inference.nystrom import BlockStore, factorise, nystrom_sums
from gpx.inference.variational import raise_noise
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise, training_noise
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.sparse.effective_posterior import BlockPosterior, EffectivePosterior
from gpx.methods.sparse.residual_noise import Structure, effective_sums
from gpx.methods.sparse.unit_noise import rows_of_one_noise
from gpx.tensor_checks import check_at_least, check_not_negative

PriorName = Literal["sor", "dtc", "fitc", "fic", "pitc", "pic"]


class Kept(NamedTuple):
    """What an effective prior keeps of K - Q, the covariance that u does not determine.

    Attributes:
        training: among training points.
        test: among test points; "blocks" also between a test point and its training points.
    """

    training: Structure
    test: Literal["none", "diagonal", "blocks", "full"]


PRIORS: dict[str, Kept] = {
    "sor": Kept("none", "none"),
    "dtc": Kept("none", "full"),
    "fitc": Kept("diagonal", "full"),
    "fic": Kept("diagonal", "diagonal"),
    "pitc": Kept("blocks", "full"),
    "pic": Kept("blocks", "blocks"),
}
"""Quinonero-Candela and Rasmussen (2005), Snelson and Ghahramani (2007)."""


class EffectivePrior(Model):
    """Exact Gaussian process regression under a cheaper prior (Quinonero-Candela and Rasmussen).

    Function values are independent given u = f(Z), but for what ``prior`` keeps of K - Q with
    Q = K_xz K_zz^{-1} K_zx: nothing (SoR; DTC keeps it at test points), the diagonal (FITC; FIC at
    test points, too), blocks of training points (PITC), blocks of training and test points (PIC).
    Evidence and predictions are exact for that prior: they are no bounds of anything, and the
    evidence of SoR, DTC and FITC overestimates gladly (noise or inducing points that overfit).

    The covariance of SoR vanishes far from Z, and so do its error bars. DTC, FITC and PITC treat
    training and test points differently: they are no Gaussian processes. SoR, FIC and PIC are.

    Args:
        kernel, mean, likelihood: the likelihood must be Gaussian.
        num_inputs: d, the number of columns of x.
        prior: "sor", "dtc", "fitc", "fic", "pitc" or "pic".
        num_inducing: M.
        num_data: n when it is known; M is then at most n, so that defaults serve small data too.
        selector: how ``initialise`` places the inducing points; None: ``KMeans``.
        features: what the inducing variables are; None: function values at inducing points.
        learn_inducing: whether Z is trained with the hyperparameters; None: where the prior keeps
            something of K - Q (without it the evidence has nothing that stops Z from overfitting).
        fit_noise: whether ``initialise`` moves the noise variance of SoR and DTC to where their
            evidence is largest for the new Z: hyperparameters found without inducing points leave
            to the signal what M points cannot explain.
        jitter: smallest jitter on K_zz, relative to its mean diagonal; None: 0 in float64 and 1e-6
            in float32. Larger ones are tried when it does not suffice, and reported.
        num_blocks: K of PITC and PIC; None: as many as ``block_size`` gives.
        block_size: points of a block on average; None: M, where blocks cost as much as inducing
            points do.
        partition: how ``initialise`` cuts the training rows into blocks; None: the cells of
            k-means, of any size. A test point of PIC belongs to the block of its nearest centre.
        block_centres (K, d): in the place of a partition, blocks are the cells of these points, at
            Euclidean distance in the units of x; cells may be empty.

    Attributes:
        inducing_points (M, d): Z; zero until ``initialise``.
        labels (n,): block of every training row; empty until ``initialise``, and where
            ``block_centres`` say it.
        regions: who is whose block by its inputs.
        structure: what is kept among training points.

    Raises:
        ConfigError: no such prior, more blocks than points, blocks for a prior without, random
            blocks for PIC.
    """

    takes_row_noise = True
    data_sized = ("labels", "inducing_points")
    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    labels: Tensor

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
        if prior not in PRIORS:
            raise ConfigError(f"prior={prior}: choose one of {', '.join(get_args(PriorName))}")
        check_at_least(1, num_inputs=num_inputs, num_inducing=num_inducing, num_data=num_data)
        check_at_least(1, num_blocks=num_blocks, block_size=block_size)
        check_not_negative(jitter=jitter or 0.0)
        self.kernel, self.mean, self.likelihood = kernel, mean, likelihood
        self.prior = prior
        self.structure, self.test = PRIORS[prior]
        self.selector = KMeans() if selector is None else require_selector(selector)
        self.features: InducingFeatures = POINTS if features is None else features
        if learn_inducing is None:
            learn_inducing = self.structure != "none"
        self.fit_noise, self.jitter = fit_noise, jitter
        size = num_inducing if num_data is None else min(num_inducing, num_data)
        self.num_inducing, self._asked = size, num_inducing
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
                raise ConfigError("partition and block_centres both say the blocks: give one")
        if len(names) > 1:
            raise ConfigError(f"{' and '.join(names)} say the same thing: give one of them")
        if num_data is not None and self.num_blocks is not None and self.num_blocks > num_data:
            raise ConfigError(
                f"num_blocks={self.num_blocks} is more than the {num_data} training points"
            )
        if centres is None:
            return
        placed = torch.as_tensor(centres, dtype=self.inducing_points.dtype)
        if placed.ndim != 2 or placed.shape[1] != num_inputs or not len(placed):
            raise ConfigError(
                f"block_centres have shape {tuple(placed.shape)}, expected (K, {num_inputs}): a "
                "row for each block"
            )
        self.regions.place(placed, torch.ones(num_inputs))

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """M where more were asked for than there are data, and the number of blocks."""
        self.features.require(self.kernel)
        settled = describe_num_inducing(self._asked, self.num_inducing)
        if self._cuts:
            size = self.num_inducing if self.block_size is None else self.block_size
            count, reason = choose_num_blocks(
                self.num_blocks, self.partition, x, size, "num_blocks"
            )
            if reason:
                settled["num_blocks"] = (count, reason)
            if self.block_size is not None:
                settled["block_size"] = (None, "num_blocks says it")
            self.num_blocks, self.block_size = count, None
        return settled

    @property
    def _cuts(self) -> bool:
        """Whether ``initialise`` cuts the training rows into blocks."""
        return self.structure == "blocks" and not self._given

    def block_order(self, x: Tensor, *, largest_first: bool = False) -> tuple[Tensor, list[int]]:
        """Order (n,) of the training inputs x (n, d) by blocks, and K + 1 places in it.

        Block k begins at place k and ends where the next begins; rows keep their old order in it.
        With ``largest_first`` blocks are in the order of their sizes.

        Raises:
            ConfigError: ``initialise`` has not cut these rows into blocks.
        """
        labels = self.regions.nearest(x) if self._given else self.labels
        if len(labels) != len(x):
            raise ConfigError(
                f"{len(labels)} training rows are in blocks and there are {len(x)}: call "
                "initialise(x, y) with the rows to train on"
            )
        sizes = torch.bincount(labels, minlength=len(self.regions))
        if largest_first:
            sizes, order = sizes.sort(descending=True, stable=True)
            labels = order.argsort()[labels]
        ends: list[int] = sizes.cumsum(0).tolist()
        return labels.argsort(stable=True), [0, *ends]

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Place inducing points and blocks at the current hyperparameters; see ``fit_noise``.

        Cost: the selector's, that of k-means, and 1.5 n M^2 multiply-adds for the noise.
        Raises:
            DataError: fewer data than inducing points or blocks.
        """
        points = self.features.choose(
            x, self.kernel, self.num_inducing, selector=self.selector, generator=generator
        )
        self.place(points)
        if self._cuts:
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

    def know_noise(self, noise: RowNoise) -> None:
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
        """Make points (M, d) the inducing points; M may change, hyperparameters stay."""
        place_points(self.inducing_points, points)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> EffectivePosterior | BlockPosterior:
        """The posterior of the effective prior given x (n, d), y (n,).

        Cost: 1.5 n M^2 multiply-adds and those of the blocks, memory O(M^2).
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
        scale, target = None, residual
        if self.structure == "none":  # elsewhere the noise of each row is a part of D
            scale, target, _ = rows_of_one_noise(noise, residual)
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
