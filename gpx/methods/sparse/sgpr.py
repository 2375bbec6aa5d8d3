"""Sparse Gaussian process regression with inducing points and a collapsed Gaussian posterior."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.inducing import GreedyConditionalVariance, KMeans, Selector, require_selector
from gpx.inducing.base import choose_num_inducing, describe_num_inducing, place_points
from gpx.inducing.features import InducingFeatures, features_of
from gpx.inference.float32_digits import warn_of_few_digits
from gpx.inference.nystrom import BlockStore, Whitener, factorise, longest_prefix, nystrom_sums
from gpx.inference.nystrom_matrix import InnerFactor
from gpx.inference.variational import raise_noise
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise, training_noise
from gpx.linalg import CholeskyReport, pivoted_cholesky
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.sparse.certified_selection import (
    CertifiedSelection,
    KLCertifier,
    certified_selection,
)
from gpx.methods.sparse.sgpr_posterior import Certificate, SGPRPosterior
from gpx.methods.sparse.unit_noise import scale_to_common_noise
from gpx.tensor_checks import check_at_least, check_jitter, check_positive


class SGPR(Model):
    """Sparse Gaussian process regression (Titsias 2009).

    Args:
        kernel, mean, likelihood: the likelihood must be Gaussian.
        num_inputs: d, the number of columns of x.
        num_inducing: M, or "auto": the smallest number of greedy points that certifies
            KL(q || posterior) <= ``tolerance``, at the initial hyperparameters and again at the
            trained ones. "auto" needs float64.
        num_data: n if it is known; caps M.
        selector: how ``initialise`` places the inducing points; ``gpx.inducing`` says when to use
            which. None: ``KMeans``, with "auto" ``GreedyConditionalVariance``.
        features: kind of the inducing variables; None: function values at inducing points. Other
            kinds are not selected, and not trained.
        fit_noise: whether ``initialise`` raises the noise variance to the maximum of the collapsed
            bound for the new Z. Hyperparameters initialised without inducing points often give a
            noise that is too small for M points, and the bound then starts at -T / (2 noise).
        jitter: smallest jitter on K_zz, relative to its mean diagonal; None: 0 in float64 and 1e-6
            in float32. Larger ones are tried if the factorisation fails, and reported.
        reinitialise: how often Z is selected again at the trained hyperparameters and optimised
            again; a round that does not raise the bound is undone and ends training. K_zz then
            never gets a larger jitter; linearly dependent points are dropped instead.
        tolerance: nats, for "auto".
        max_inducing: most points of "auto"; if they do not reach the tolerance, the run reports it.

    Attributes:
        inducing_points (M, d): Z, trained with the hyperparameters; zero until ``initialise``.
        escalate: whether K_zz may get a larger jitter.
    """

    certifiable = True
    takes_row_noise = True
    fixed_shapes = True
    data_sized: ClassVar[tuple[str, ...]] = ("inducing_points",)  # M may change in training
    kernel: Kernel
    mean: Mean
    likelihood: Gaussian

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_inputs: int,
        num_inducing: int | str = 512,
        num_data: int | None = None,
        selector: Selector | None = None,
        features: InducingFeatures | None = None,
        fit_noise: bool = True,
        jitter: float | None = None,
        reinitialise: int = 0,
        tolerance: float = 0.1,
        max_inducing: int = 2048,
    ) -> None:
        super().__init__()
        self.automatic = num_inducing == "auto"
        check_at_least(1, max_inducing=max_inducing)
        if isinstance(num_inducing, str):
            if not self.automatic:
                raise ConfigError(
                    f"num_inducing={num_inducing}: expected a whole number or the word auto"
                )
            selector = GreedyConditionalVariance() if selector is None else selector
            if not isinstance(selector, GreedyConditionalVariance):
                raise ConfigError(
                    "num_inducing=auto grows a nested set and needs "
                    "selector=GreedyConditionalVariance(), got "
                    f"{type(require_selector(selector)).__name__}"
                )
            if selector.threshold:
                raise ConfigError(
                    f"num_inducing=auto ends at a bound on KL, and threshold={selector.threshold} "
                    "of the selector would end it elsewhere: leave one of them out"
                )
            if features is not None:
                raise ConfigError("num_inducing=auto needs inducing points: set features=None")
            num_inducing = min(32, max_inducing)
        check_at_least(1, num_inputs=num_inputs, num_inducing=num_inducing, num_data=num_data)
        check_at_least(0, reinitialise=reinitialise)
        check_jitter(jitter=jitter)
        check_positive(tolerance=tolerance)
        self.kernel = kernel
        self.mean = mean
        self.likelihood = likelihood
        self.selector = KMeans() if selector is None else require_selector(selector, targets=True)
        self.features = features_of(features, selector)
        self.fit_noise = fit_noise
        self.jitter = jitter
        self.reinitialise = reinitialise
        self.tolerance = tolerance
        self.max_inducing = max_inducing
        self.escalate = reinitialise == 0 and not self.automatic
        self._round = 0
        self._best: tuple[float, dict[str, Tensor]] | None = None
        size = choose_num_inducing(num_inducing, num_data, self.selector, self.features.trainable)
        self.num_inducing, self._asked = size, num_inducing
        self._num_inputs = num_inputs
        self.inducing_points = nn.Parameter(
            torch.zeros(size, num_inputs), requires_grad=self.features.trainable
        )

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: M, if above the number of rows, or if ``Given`` sets it."""
        self.features.require(self.kernel)
        if self.automatic:
            _require_float64(x)
            return {}
        return describe_num_inducing(self._asked, self.num_inducing, self.selector)

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Place the inducing points at the current hyperparameters, then refit the noise variance.

        Rounds of an earlier run are forgotten.

        Cost: that of the selector, and 1.5 n M^2 multiply-adds for the noise.
        Raises:
            DataError: fewer data than inducing points.
        """
        self._round, self._best = 0, None
        self._select(x, y, generator)
        if self.fit_noise and not self.automatic and self.row_noise is None:
            with torch.no_grad():
                whitener, _ = self._factorise()
                sums = nystrom_sums(BlockStore(whitener, x), y - self.mean(x))
            raise_noise(sums, len(x), self.likelihood)

    def know_noise(self, noise: RowNoise | Tensor) -> None:
        """As in ``Model``; ``fit_noise`` then does nothing.

        Raises:
            ConfigError: ``num_inducing="auto"``, which certifies with one noise variance only.
        """
        if self.automatic:
            raise ConfigError(
                "num_inducing=auto certifies with one noise variance for all rows, and noise= or "
                "weights= give each row its own: give a number, or leave them out"
            )
        super().know_noise(noise)

    def _select(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Place the inducing points at the current hyperparameters."""
        if self.automatic:
            found = self._certified_selection(x, y, generator)
            self.note = str(found)
            self.place(found.points)
            return
        with torch.no_grad():
            selector = self.selector.given(y - self.mean(x), training_noise(self, x))
        points = self.features.choose(
            x, self.kernel, self.num_inducing, selector=selector, generator=generator
        )
        if not self.escalate:
            kept = self._independent(points)
            if len(kept) < len(points):
                self.note = (
                    f"{len(kept)} of {len(points)} inducing points kept: the others are determined "
                    "by them in the precision of the kernel matrix"
                )
            points = kept
        self.place(points)

    @torch.no_grad()
    def _independent(self, points: Tensor) -> Tensor:
        """The largest subset found whose K_zz has a Cholesky factor at the smallest jitter."""
        if self.features.trainable:
            # pivoting puts points that are determined by others last
            gram = self.features.gram(self.kernel, points)
            order = pivoted_cholesky(lambda rows: gram[rows], gram.diagonal(), len(points)).pivots
            points = points[order]
        return longest_prefix(self.kernel, points, self.jitter, self.features)

    def _certified_selection(
        self, x: Tensor, y: Tensor, generator: torch.Generator
    ) -> CertifiedSelection:
        return certified_selection(
            self._certifier(x, y),
            max_points=self.max_inducing,
            jitter=self.jitter,
            generator=generator,
            selector=self.selector,
        )

    @torch.no_grad()
    def _certifier(self, x: Tensor, y: Tensor) -> KLCertifier:
        """Certifier of KL(q || posterior) at the current hyperparameters."""
        _require_float64(x)
        noise = self.likelihood.noise_variance.clone()
        return KLCertifier(self.kernel, x, y - self.mean(x), noise, self.tolerance)

    def place(self, points: Tensor) -> None:
        """Set the inducing points (M, d); M may change."""
        place_points(self.inducing_points, points)

    rounds_argument = "reinitialise"

    @property
    def num_rounds(self) -> int:
        """As in ``Model``: one, and those of ``reinitialise``."""
        return 1 + self.reinitialise

    def next_round(self, x: Tensor, y: Tensor, loss: float, *, generator: torch.Generator) -> bool:
        """As in ``Model``: select Z again; see ``reinitialise`` and ``num_inducing="auto"``.

        After the last round, "auto" leaves points that are certified at the final hyperparameters,
        if ``max_inducing`` allows.
        """
        self._round += 1
        more = self._round < self.num_rounds
        if self.automatic:
            more = self._grow(x, y, generator) and more
        elif self.reinitialise:
            more = self._select_again(x, y, loss, more, generator)
        else:
            more = False
        if not more:
            self._round = self.num_rounds
        return more

    def _grow(self, x: Tensor, y: Tensor, generator: torch.Generator) -> bool:
        """Select points again if the trained ones are not certified; returns whether it did."""
        kl = self.kl_upper_bound(x, y)
        if kl <= self.tolerance:
            self.note = (
                f"certified with {len(self.inducing_points)} inducing points: "
                f"KL(q || posterior) <= {kl:.3g} nats"
            )
            return False
        found = self._certified_selection(x, y, generator)
        before = f"{len(self.inducing_points)} inducing points, KL(q || posterior) <= {kl:.3g} nats"
        if not (found.met or found.kl < kl):
            self.note = f"{before}, above the {self.tolerance:g} asked for: {found.limit}"
            return False
        self.place(found.points)
        self.note = f"{before}; selected anew: {found}"
        return True

    def _select_again(
        self, x: Tensor, y: Tensor, loss: float, more: bool, generator: torch.Generator
    ) -> bool:
        """Undo a round that did not raise the bound; otherwise store it, and select Z again."""
        if self._best is not None and not loss <= self._best[0]:
            self.keep_best(loss)
            self.note = "selecting the inducing points anew did not raise the bound and was undone"
            return False
        if math.isfinite(loss):
            state = {name: value.detach().clone() for name, value in self.state_dict().items()}
            self._best = loss, state
        if more:
            self.note = ""
            self._select(x, y, generator)
            dropped = f"; {self.note}" if self.note else ""
            self.note = f"inducing points selected anew, round {self._round + 1}{dropped}"
        return more

    def keep_best(self, loss: float) -> None:
        """As in ``Model``."""
        if self._best is not None and not loss <= self._best[0]:
            self.load_state_dict(self._best[1])

    def rounds_state(self) -> dict[str, Any]:
        """As in ``Model``: rounds done, and the best state with its loss."""
        best = {} if self._best is None else {"loss": self._best[0], "model": self._best[1]}
        return {"done": self._round, **best}

    def load_rounds_state(self, state: dict[str, Any]) -> None:
        """As in ``Model``."""
        self._round = state.get("done", 0)
        self._best = (state["loss"], state["model"]) if "loss" in state else None

    @torch.no_grad()
    def kl_upper_bound(self, x: Tensor, y: Tensor) -> float:
        """Upper bound on KL(q || posterior) in nats; infinite if K_zz has no Cholesky factor.

        Cost: n M^2 multiply-adds and that of ``KLCertifier``.
        """
        try:
            whitener, report = self._factorise()
        except NotPositiveDefinite:
            return math.inf
        certifier = self._certifier(x, y)
        sums = nystrom_sums(BlockStore(whitener, x), certifier.residual)
        return certifier.bound(whitener, sums, report)

    def _factorise(self) -> tuple[Whitener, CholeskyReport]:
        """Factorise K_zz at the current hyperparameters; raises NotPositiveDefinite."""
        return factorise(
            self.kernel,
            self.inducing_points,
            self.jitter,
            escalate=self.escalate,
            features=self.features,
        )

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``inducing`` (Z, if it is trained) and ``hyperparameters`` (everything else)."""
        rest = [p for p in self.parameters() if p is not self.inducing_points]
        inducing = {"inducing": [self.inducing_points]} if self.features.trainable else {}
        return {**inducing, "hyperparameters": rest}

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> SGPRPosterior:
        """Optimal q(u) given x (n, d), y (n,). Cost: 1.5 n M^2 multiply-adds, memory O(M^2)."""
        posterior = SGPRPosterior(self.kernel, self.mean, self.features)
        whitener, report = self._factorise()
        noise, residual = training_noise(self, x).double(), y - self.mean(x)
        warn_of_few_digits(self.kernel, noise, x)
        rows = scale_to_common_noise(noise, residual)
        sums = nystrom_sums(BlockStore(whitener, x, scale=rows.scale), rows.residual)
        inner = InnerFactor(sums, rows.noise)
        if self.automatic:
            # what the caller does to x afterwards must not change the certificate
            certifier = self._certifier(x.detach().clone(), y)
            certifier = replace(certifier, kernel=posterior.kernel)
            own = Whitener(posterior.kernel, whitener.z, whitener.factor)
            posterior.certificate = Certificate(certifier, own, sums, report)
        posterior.fill(whitener, inner.factor, inner.weights)
        return posterior

    def new_posterior(self) -> SGPRPosterior:
        """As in ``Model``."""
        return SGPRPosterior(self.kernel, self.mean, self.features)


def _require_float64(x: Tensor) -> None:
    if x.dtype != torch.float64:
        raise ConfigError(
            "num_inducing=auto certifies in nats, which float32 cannot: set dtype=float64"
        )
