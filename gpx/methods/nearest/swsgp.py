"""SWSGP: very many inducing points, of which every input depends on the nearest few."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from gpx.constraints import is_trained
from gpx.errors import ConfigError, DataError
from gpx.inducing import KMeans, Selector, Uniform, require_selector
from gpx.inducing.base import copy_points, describe_num_inducing
from gpx.inference.local_gaussian import half_log_determinant
from gpx.inference.neighbour_conditional import LocalSystem, local_system
from gpx.inference.neighbour_likelihood import CHUNK_BYTES
from gpx.kernels.base import Kernel
from gpx.lazy_rows import LazyRows
from gpx.likelihoods import Gaussian, Likelihood
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals
from gpx.methods.nearest.local_values import LocalValues
from gpx.methods.nearest.nearness import Nearness, nearest_inducing
from gpx.methods.nearest.ordering import distinct_rows
from gpx.methods.nearest.posterior import NearestPosterior
from gpx.methods.nearest.seen_points import JITTER_HINT
from gpx.tensor_checks import check_at_least, check_one_of

Covariance = Literal["diagonal", "full"]

MAX_KMEANS_POINTS = 2048
"""Most inducing points that are placed by k-means by default."""

MAX_FULL_POINTS = 8192
"""Most inducing points for a full covariance of q(u) (half a GiB in float64)."""

NOISE_ROWS = 2048
"""Rows from which the noise of a warm start is estimated."""


class LocalTerms(NamedTuple):
    """q(f) at inputs, each from its own few inducing variables.

    Attributes:
        marginals: mean (b,) and variance (b,) of f.
        kl (b,): KL(q(u_I) || p(u_I)) in nats, with I the inducing variables of the input.
    """

    marginals: Marginals
    kl: Tensor


class SWSGP(LocalValues):
    """Sparse variational GP in which every input depends only on its H nearest inducing points.

    q(u) = N(m, S) over the values u (minus the prior mean) at M inducing points Z. For an input x
    with nearest points I, q(f) = N(a^T m_I, k - a^T K_I a + a^T S_I a) with a = K_I^{-1} k_I(x).
    Nothing is M x M if S is diagonal, so that M may be 10^5. Values are not whitened, as that would
    mix all M; the mean is trained in units of a deviation of each value (``unit``). Local systems
    are solved in float64.

    Args:
        kernel, mean, likelihood: parts of the model; any likelihood of one latent function.
        num_inputs: d.
        num_inducing: M.
        num_neighbours: H; at most M.
        num_data: n if known; limits M.
        covariance: "diagonal" S, or "full" S = L L^T (M^2 numbers: up to a few thousand points).
        rule: which points are nearest: by largest "kernel" value, largest "correlation", smallest
            "euclidean" distance in lengthscales (a tree search; equal to the first two for kernels
            that decrease with distance), or "random" points (a control experiment).
        learn_inducing: train Z, at B M kernel entries per step; otherwise neighbours are found once
            (``SWSGPObjective``).
        warm_start: with a Gaussian likelihood, start q(u) at local regressions on the data near
            each inducing point, and raise the noise variance to the error that they leave. With a
            log-concave one of classes, counts or positive targets start at Laplace's approximation
            on these data. Otherwise start at the prior: a full S at K_zz, a diagonal one as close
            as it can be.
        selector: initial inducing points; None: k-means up to 2,048 points, above that random rows.
        jitter: added to K_I, relative to the kernel's variance.

    Raises:
        ConfigError: sizes below one or not whole, H above M, or an unknown option.

    Source: Tran thesis, section 4.3 and algorithm 2.
    """

    streams = True
    inducing: nn.Parameter

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        num_inputs: int,
        num_inducing: int = 16_384,
        num_neighbours: int = 64,
        num_data: int | None = None,
        covariance: Covariance = "diagonal",
        rule: Nearness = "kernel",
        learn_inducing: bool = False,
        warm_start: bool = True,
        selector: Selector | None = None,
        jitter: float = 1e-6,
    ) -> None:
        check_at_least(
            1,
            num_inputs=num_inputs,
            num_inducing=num_inducing,
            num_neighbours=num_neighbours,
            num_data=num_data,
        )
        if num_neighbours > num_inducing:
            raise ConfigError(
                f"num_neighbours={num_neighbours} is above num_inducing={num_inducing}: an input "
                "cannot see more inducing points than there are; lower it, or use model=SVGP()"
            )
        check_one_of(get_args(Nearness), rule=rule)
        check_one_of(get_args(Covariance), covariance=covariance)
        size = num_inducing if num_data is None else min(num_inducing, num_data)
        if covariance == "full" and size > MAX_FULL_POINTS:
            raise ConfigError(
                f"covariance=full has {size} x {size} numbers for num_inducing={size}: use "
                f"covariance=diagonal, or at most {MAX_FULL_POINTS} inducing points"
            )
        super().__init__(
            kernel,
            mean,
            likelihood,
            num_values=size,
            num_neighbours=min(num_neighbours, size),
            warm_start=warm_start,
            jitter=jitter,
        )
        self.rule = rule
        default: Selector = KMeans() if size <= MAX_KMEANS_POINTS else Uniform()
        self.selector = default if selector is None else require_selector(selector)
        self._asked, self._asked_neighbours = num_inducing, num_neighbours
        self.learn_inducing = learn_inducing
        self.inducing = nn.Parameter(torch.zeros(size, num_inputs), requires_grad=learn_inducing)
        self.q_factor: nn.Parameter | None = None
        if covariance == "full":
            self.q_log_deviation = None
            self.q_factor = nn.Parameter(torch.eye(size))
        self.register_buffer("unit", torch.ones(size))

    @property
    def num_inputs(self) -> int:
        """d."""
        return self.inducing.shape[1]

    @torch.no_grad()
    def set_q(self, mean: Tensor, root: Tensor, unit: Tensor | None = None) -> None:
        """Set q(u) = N(mean, root root^T).

        Args:
            mean (M,).
            root (M,): standard deviations; full S: (M, M), lower triangular.
            unit (M,): in which the mean is trained, positive; None: as it is.
        """
        super().set_q(mean, root, unit)
        if self.q_factor is not None:
            self.q_factor.copy_(root)

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: M and H, if more were requested than there are distinct inputs."""
        size = len(self.inducing)
        settled = describe_num_inducing(self._asked, size)
        if not isinstance(x, LazyRows) and (distinct := len(x.unique(dim=0))) < size:
            self._resize(distinct)
            settled = {"num_inducing": (distinct, "one per distinct training input")}
        if self.num_neighbours < self._asked_neighbours:
            settled["num_neighbours"] = (self.num_neighbours, "all inducing points")
        return settled

    @torch.no_grad()
    def _resize(self, size: int) -> None:
        """Reduce the number of inducing points."""
        for parameter in (self.inducing, self.q_scaled_mean, self.q_log_deviation):
            if parameter is not None:
                parameter.data = parameter[:size].clone()
        if self.q_factor is not None:
            self.q_factor.data = self.q_factor[:size, :size].clone()
        self.unit = self.unit[:size].clone()
        self.num_neighbours = min(self.num_neighbours, size)

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Choose inducing points among the distinct inputs, and start q(u).

        Raises:
            ShapeError: x does not have ``num_inputs`` columns.
            DataError: fewer distinct inputs than inducing points, or targets that are not finite.
        """
        size = len(self.inducing)
        first, _ = distinct_rows(x)
        if len(first) < size:
            raise DataError(
                f"{size} inducing points were asked for, and the {len(x)} training inputs have "
                f"{len(first)} distinct values; set num_inducing={len(first)} or less"
            )
        points = self.selector(x[first], self.kernel, size, generator=generator)
        with torch.no_grad():
            copy_points(self.inducing, points)
            self._start(x, y)
            fitted = self.warm_start and self.row_noise is None
            if fitted and isinstance(self.likelihood, Gaussian):
                self._raise_noise(self.likelihood, x, y, generator)

    def _raise_noise(
        self, likelihood: Gaussian, x: Tensor, y: Tensor, generator: torch.Generator
    ) -> None:
        """Raise the noise variance to its optimum given all else, if that is larger.

        The optimum is E (y - f)^2 under q, averaged over random rows. The initial noise variance
        was fitted without inducing points and lacks the error of using only H of them. One that is
        not trained stays as it is.
        """
        if not is_trained(likelihood, "noise_variance"):
            return
        rows = torch.randperm(len(x), generator=generator, device=x.device)[:NOISE_ROWS]
        total = 0.0
        for part in rows.split(NOISE_ROWS // 8):
            mean, variance = self.local_terms(x[part], self.nearest(x[part])).marginals
            total += float(((y[part] - mean).square() + variance).double().sum())
        noise = likelihood.noise_variance
        likelihood.noise_variance = noise.clamp_min(total / len(rows))

    def _start(self, x: Tensor, y: Tensor) -> None:
        """Start q(u) at the mean field closest to the prior, or at local regressions.

        The unit of the mean is the standard deviation of the prior if the mean starts at zero. If
        it starts at regressions, the unit is the deviation of each value given its neighbours, as
        far as it may move at the cost of half a nat, but at least a tenth of the prior's, so that
        1,000 steps of 0.01 can carry the mean through the prior.
        """
        prior = self._prior_variances().sqrt()
        deviation = self._closest_to_prior().sqrt()
        mean, unit = torch.zeros_like(prior), prior
        local = self._local_start(x, y)
        if local is not None:
            mean, unit = local[0].to(prior), torch.maximum(deviation, 0.1 * prior)
            deviation = torch.minimum(deviation, local[1].sqrt().to(deviation))
            deviation = torch.maximum(deviation, self.jitter**0.5 * prior)
            root = deviation if self.q_factor is None else deviation.diag()
        elif self.q_factor is None:
            root = deviation
        else:
            every = torch.arange(len(self.inducing), device=x.device)[None]
            root = self.system(every, x[None]).factor[0].to(prior)
        self.set_q(mean, root, unit)

    def _prior_variances(self) -> Tensor:
        """Prior variances (M,) of u: at least the jitter, also where f has none."""
        variances = self.kernel.diagonal(self.inducing)
        return variances.clamp_min(self._jitter().to(variances))

    def _closest_to_prior(self) -> Tensor:
        """Variances (M,) of the diagonal S that is closest to the prior.

        They minimise the mean over the inducing points of the divergence within each point's
        neighbourhood I: 1 / S_jj is the mean of (K_I^{-1})_jj over the I that hold j. With the
        variances of the prior itself that divergence would be up to H / jitter nats.

        Cost: M H^3 operations.
        """
        count = len(self.inducing)
        precision = torch.zeros(count, dtype=torch.float64, device=self.inducing.device)
        times = torch.zeros_like(precision)
        size = max(1, CHUNK_BYTES // (8 * self.num_neighbours**2))
        # one search for all points, which may make a tree
        for points, near in zip(
            self.inducing.split(size), self.nearest(self.inducing).split(size), strict=True
        ):
            factor = self.system(near, points.unsqueeze(1)).factor
            eye = torch.eye(near.shape[1]).to(factor).expand_as(factor)
            inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
            precision.index_add_(0, near.flatten(), inverse.square().sum(1).flatten())
            times.index_add_(0, near.flatten(), torch.ones_like(inverse[:, 0]).flatten())
        prior = self._prior_variances()
        return torch.where(times > 0, (times / precision).to(prior), prior)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if (mean := state_dict.pop(f"{prefix}q_mean", None)) is not None:  # earlier versions
            state_dict[f"{prefix}q_scaled_mean"] = mean
            state_dict[f"{prefix}unit"] = torch.ones_like(mean)
        if (unit := state_dict.get(f"{prefix}unit")) is not None:  # columns in earlier versions
            state_dict[f"{prefix}unit"] = unit.flatten()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    # --- nearest inducing points -----------------------------------------------------------------

    @torch.no_grad()
    def nearest(self, x: Tensor) -> Tensor:
        """Indices (b, H) of the nearest inducing points of inputs x (b, d).

        Cost: b M distances or kernel entries, in chunks; a tree search for "euclidean".
        """
        return nearest_inducing(self.kernel, self.inducing, x, self.num_neighbours, self.rule)

    def local_terms(self, x: Tensor, near: Tensor) -> LocalTerms:
        """q(f) at x (b, d) from the inducing points ``near``, and their KL divergence.

        Args:
            near (b, h): indices for each input; or (1, h) for all inputs, with kl (1,).

        Cost: b h^3 operations (full S: plus b h^2 M).
        """
        asked = x.unsqueeze(0) if near.shape[0] == 1 else x.unsqueeze(1)
        system = self.system(near, asked)
        mean, weights = self.means_of(near), system.weights
        if self.q_factor is None:
            log_deviation = self.log_deviations_of(near)
            root, log_q = log_deviation.exp(), log_deviation.sum(1)
            added = (root.unsqueeze(2) * weights).square().sum(1)  # (g, q)
        else:
            root = self.q_factor.tril()[near].double()  # (g, h, M): a root of S_I, no Cholesky
            log_q = half_log_determinant(root)
            added = (root.mT @ weights).square().sum(1)
        kl = system.prior_divergence(mean, root) - log_q
        marginals = Marginals(
            (weights.mT @ mean.unsqueeze(2)).flatten().to(x) + self.mean(x),
            (system.rest + added).flatten().to(x),
        )
        return LocalTerms(marginals, kl.to(x))

    def system(self, near: Tensor, asked: Tensor) -> LocalSystem:
        """Covariances of u at ``near`` (g, h) and f at ``asked`` (g, q, d), in float64."""
        points, asked = self.inducing[near].double(), asked.double()
        return local_system(self.kernel, points, asked, self._jitter(), hint=JITTER_HINT)

    # --- prediction ------------------------------------------------------------------------------

    def condition(self, x: Tensor, y: Tensor) -> NearestPosterior:
        """The posterior process of the trained q; the data are not used."""
        root = self.q_deviation if self.q_factor is None else self.q_factor.tril()
        return self._posterior(self.q_mean, root)
