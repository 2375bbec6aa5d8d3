"""SVGP: sparse variational GP with inducing points, mini-batches and any likelihood."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, class_name
from gpx.inducing import KMeans, Selector, require_selector
from gpx.inducing.base import (
    choose_num_inducing,
    copy_points,
    default_num_inducing,
    describe_num_inducing,
)
from gpx.inducing.features import InducingFeatures, features_of
from gpx.inference.exact_solver import require_finite
from gpx.inference.float32_digits import warn_of_few_digits
from gpx.inference.variational import (
    OPTIMAL,
    FullCholesky,
    InducingVariables,
    OutputSums,
    Strategy,
    Whitened,
    WhitenedGaussian,
    concave_start,
    has_concave_start,
    mean_shares,
    observed_sums,
    optimal_variational,
    per_output_sums,
    raise_noise,
    row_scale,
)
from gpx.kernels.base import Kernel
from gpx.likelihoods import Gaussian, Likelihood
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.linalg import CholeskyReport
from gpx.linalg.triangular import inverse_lower
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.model_checks import check_known_rows
from gpx.methods.base.posterior import Marginals
from gpx.methods.sparse.svgp_posterior import SVGPPosterior, latent_marginals
from gpx.tensor_checks import check_at_least, check_jitter

START_ROWS = 5000
"""Random rows from which q(v) is made where the likelihood is not Gaussian, to start from."""


class BoundTerms(NamedTuple):
    """Terms of a variational bound on a batch.

    Attributes:
        marginals: of f at the inputs.
        kl (): KL(q(u) || p(u)) in nats.
        report: factorisation of K_zz.
    """

    marginals: Marginals
    kl: Tensor
    report: CholeskyReport


class SVGP(Model):
    """Sparse variational GP: q(u) over function values at M inducing points Z.

    u = mean(Z) + L v with L L^T = K_zz and q(v) Gaussian. The p latent functions of a likelihood
    share kernel, mean function and Z, and have one q(v) each, so several outputs
    (``GaussianOutputs``) are modelled independently for the kernel work of one. With
    ``GaussianOutputs`` and ``MixedOutputs``, targets may be missing (NaN).

    Args:
        kernel, mean, likelihood: parts of the model.
        num_inputs: d, columns of x.
        num_inducing: M; None: half the training points, at most 512.
        num_data: n if known; caps M.
        selector: of the initial inducing points; ``gpx.inducing`` says when to use which. None:
            ``KMeans``.
        features: kind of the inducing variables; None: function values at inducing points. Other
            kinds are not selected, and not trained.
        family: of q: ``FullCholesky`` (None) or ``MeanField``; copied.
        strategy: parametrisation of q(u); None: ``Whitened``, in terms of v.
        warm_start: with Gaussian noise (also of ``MixedOutputs``), set the noise variance and q(v)
            to the maximum of the collapsed bound given Z and the kernel (one pass over the data);
            with a log-concave likelihood of one latent function, set q(v) to near its optimum
            given ``START_ROWS`` rows (``concave_start``); otherwise q(v) starts at the prior.
        refit: with Gaussian noise, ``condition`` uses the optimal q(v) at the trained Z and
            hyperparameters (one more pass over the data), whose bound is never below that of the
            trained q(v); otherwise it uses the trained q(v), as runs do whose objective is not the
            evidence lower bound (``Objective.elbo``).
        jitter: on K_zz, relative to its mean diagonal; larger ones are tried on failure and
            reported.

    Raises:
        ConfigError: an argument of the wrong kind, or a size below one.

    Source: Burt thesis, sections 2.1 to 2.3.
    """

    certifiable = True
    streams = True
    fixed_shapes = True
    takes_row_noise = True
    starts_by_laplace = True
    kernel: Kernel
    mean: Mean
    likelihood: Likelihood

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        num_inputs: int,
        num_inducing: int | None = 512,
        num_data: int | None = None,
        selector: Selector | None = None,
        features: InducingFeatures | None = None,
        family: WhitenedGaussian | None = None,
        strategy: Strategy | None = None,
        warm_start: bool = True,
        refit: bool = True,
        jitter: float = 1e-6,
    ) -> None:
        super().__init__()
        check_jitter(jitter=jitter)
        check_at_least(1, num_inputs=num_inputs, num_inducing=num_inducing, num_data=num_data)
        self._asked = num_inducing
        self.kernel = kernel
        self.mean = mean
        self.likelihood = likelihood
        self.selector = KMeans() if selector is None else require_selector(selector)
        self.features = features_of(features, selector)
        wanted = default_num_inducing(num_data) if num_inducing is None else num_inducing
        size = choose_num_inducing(wanted, num_data, self.selector, self.features.trainable)
        self.strategy = Whitened() if strategy is None else strategy
        self.warm_start = warm_start
        self.refit = refit
        self.jitter = jitter
        self._num_inputs = num_inputs
        self.inducing = nn.Parameter(
            torch.zeros(size, self.features.width(kernel, num_inputs)),
            requires_grad=self.features.trainable,
        )
        family = FullCholesky() if family is None else family
        if not isinstance(family, WhitenedGaussian):
            raise ConfigError(
                f"family={family!r} is no variational family: give an instance, such as "
                "gpx.methods.sparse.MeanField()"
            )
        self.q = copy.deepcopy(family).start(size, likelihood.num_latents)

    @property
    def takes_missing_targets(self) -> bool:  # type: ignore[override]
        """As in ``Model``: true with Gaussian noise of several outputs."""
        return isinstance(self.likelihood, NoisyOutputs)

    @property
    def num_outputs(self) -> int:
        """As in ``Model``: that of the likelihood."""
        return self.likelihood.num_outputs

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: M, if above the number of rows, or if ``Given`` sets it."""
        self.features.require(self.kernel)
        return describe_num_inducing(self._asked, self.inducing.shape[0], self.selector)

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Choose the inducing points; see ``warm_start``.

        Raises:
            DataError: fewer data than inducing points, or targets of one output not finite.
            ShapeError: x has another number of columns than ``num_inputs``.
        """
        if isinstance(y, Tensor) and self.likelihood.num_outputs == 1:
            require_finite(y)
        points = self.features.choose(
            x, self.kernel, self.inducing.shape[0], selector=self.selector, generator=generator
        )
        self._resize(points.shape)
        self.place(points)
        self._start_likelihood(x, y)
        if self.warm_start and isinstance(self.likelihood, OPTIMAL):
            self._warm_start(self.likelihood, x, y)
        elif self.warm_start and self.row_noise is None and has_concave_start(self.likelihood):
            self._start_at_sites(x, y, generator)

    @torch.no_grad()
    def _start_likelihood(self, x: Tensor, y: Tensor) -> None:
        if self.likelihood.task == "regression":
            self.likelihood.start(y - self.mean(x).view(-1, *(1 for _ in y.shape[1:])))

    def _resize(self, shape: torch.Size) -> None:
        """Change number or width of the features; resets q(v) to the prior."""
        if shape != self.inducing.shape:
            self.inducing.data, self.inducing.grad = self.inducing.new_zeros(shape), None
            self.q.start(shape[0], self.likelihood.num_latents)

    @torch.no_grad()
    def place(self, points: Tensor) -> None:
        """Set the inducing points (M, d); resets q(v) to the prior.

        Raises:
            ShapeError: M or d differ from the model's.
        """
        copy_points(self.inducing, points)
        latents, size = self.q.mean.shape
        identity = torch.eye(size, dtype=self.q.mean.dtype, device=self.q.mean.device)
        self._assign(self.q, torch.zeros_like(self.q.mean), identity.expand(latents, size, size))

    @torch.no_grad()
    def _warm_start(self, likelihood: Gaussian | NoisyOutputs, x: Tensor, y: Tensor) -> None:
        """Maximise the collapsed bound over q(v) and the noise variance, which is only raised.

        With known noise of rows, the noise variance stays.
        """
        sums = self._sums(x, y)
        if self.row_noise is None:
            raise_noise(per_output_sums(sums, likelihood), sums.counts, likelihood)
        self._assign_optimum(self.q, sums)

    @torch.no_grad()
    def _start_at_sites(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Set q(v) to ``concave_start``, if the bound is then higher than at the prior."""
        rows = torch.randperm(len(x), generator=generator, device=generator.device)[:START_ROWS]
        own_x, own_y = x[rows.to(x.device)], y[rows.to(x.device)]

        def bound() -> float:
            terms = self.bound_terms(own_x)
            expected = self.likelihood.expected_log_prob(own_y, *terms.marginals)
            return float(expected.sum() - terms.kl)

        before, kept = bound(), copy.deepcopy(self.q.state_dict())
        found = concave_start(self._variables, self.mean, own_x, own_y, self.likelihood)
        if found is None:
            self.note = "q(u) starts at the prior, as no mode of the posterior was found"
            if not math.isfinite(before):
                self.note = (
                    "q(u) starts at the prior, where the bound of the evidence is infinite: start "
                    "with a smaller outputscale, or a mean nearer to the targets"
                )
            return
        self._assign(self.q, *found)
        if not bound() > before:
            self.q.load_state_dict(kept)

    @torch.no_grad()
    def fit_variational(self, x: Tensor, y: Tensor) -> None:
        """Set q(v) to its optimum given Z, hyperparameters and Gaussian noise: O(n M^2).

        Raises:
            ConfigError: the likelihood is not Gaussian, so that there is no closed form; or the
                noise of another number of rows is known.
        """
        if not isinstance(self.likelihood, OPTIMAL):
            raise ConfigError(
                "the optimal q(u) has a closed form for the Gaussian likelihood only, not "
                f"{class_name(self.likelihood)}"
            )
        check_known_rows(self, x)
        self._assign_optimum(self.q, self._sums(x, y))

    @property
    def _variables(self) -> InducingVariables:
        return InducingVariables(self.kernel, self.inducing, self.jitter, self.features)

    def _sums(self, x: Tensor, y: Tensor) -> OutputSums:
        assert isinstance(self.likelihood, OPTIMAL)
        scale = row_scale(self.row_noise, self.likelihood)
        shares = mean_shares(self.likelihood)
        return observed_sums(self._variables, self.mean, x, y, scale, shares)

    def _assign_optimum(self, q: WhitenedGaussian, sums: OutputSums) -> None:
        assert isinstance(self.likelihood, OPTIMAL)
        self._assign(q, *optimal_variational(sums, self.likelihood))

    def _assign(self, q: WhitenedGaussian, mean: Tensor, factor: Tensor) -> None:
        """Set q such that v ~ N(mean, factor factor^T)."""
        cholesky = self._variables.whitening().cholesky
        self.strategy.from_whitened(q, mean, factor, cholesky)

    def marginals(self, x: Tensor) -> Marginals:
        """Marginals of f at x (B, d) under q, with gradients: (B,), or (B, p) for p latents."""
        return self.bound_terms(x).marginals

    kl_known = True
    """Whether ``kl`` is exact."""

    def sample_marginals(
        self, x: Tensor, num: int = 1, *, generator: torch.Generator | None = None
    ) -> Marginals:
        """Marginals at x (B, d), repeated ``num`` times: (num, B), or (num, B, p)."""
        return Marginals(*(part.expand(num, *part.shape) for part in self.marginals(x)))

    def sample_latents(
        self, x: Tensor, num: int = 1, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws from the marginals of f at x (B, d): (num, B), or (num, B, p)."""
        mean, variance = self.sample_marginals(x, num)
        device = x.device if generator is None else generator.device
        noise = torch.randn(mean.shape, generator=generator, dtype=x.dtype, device=device)
        return mean + variance.sqrt() * noise.to(x.device)

    def kl(self) -> Tensor:
        """KL(q(u) || p(u)) in nats; ()."""
        return self.strategy.kl(self._variables, self.q)

    def bound_terms(self, x: Tensor) -> BoundTerms:
        """Marginals at x (B, d) and KL term, evaluated together."""
        terms = self.strategy.terms(self._variables, self.q, x)
        marginals = latent_marginals(terms.mean, terms.variance, self.mean(x))
        return BoundTerms(marginals, terms.kl, terms.report)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> SVGPPosterior:
        """The posterior process of the trained q, or with ``refit`` of the optimal q.

        ``refitted`` and ``facts`` of the posterior say which. Note that the bound recorded in
        training is that of the trained q, which is at most that of the optimal one.
        """
        posterior = self.new_posterior()
        if isinstance(self.likelihood, OPTIMAL):
            warn_of_few_digits(self.kernel, self.likelihood.noise_variance, x)
        q = self.q
        if self._refits:
            q = copy.deepcopy(self.q)
            self._assign_optimum(q, self._sums(x, y))
        cholesky = self._variables.whitening().cholesky
        mean, factor = self.strategy.to_whitened(q, cholesky)
        posterior.keep(
            self.inducing,
            inducing=self.inducing,
            inverse_cholesky=inverse_lower(cholesky),
            q_mean=mean,
            q_factor=factor,
        )
        return posterior

    def new_posterior(self) -> SVGPPosterior:
        """As in ``Model``."""
        return SVGPPosterior(self.kernel, self.mean, self.features, refitted=self._refits)

    @property
    def _refits(self) -> bool:
        """Whether the posterior is that of the optimal q."""
        return self.refit and isinstance(self.likelihood, OPTIMAL)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: q; ``inducing``: Z, if trained; ``hyperparameters``: the rest."""
        variational = list(self.q.parameters())
        taken = {id(p) for p in variational} | {id(self.inducing)}
        inducing = {"inducing": [self.inducing]} if self.features.trainable else {}
        return {
            "variational": variational,
            **inducing,
            "hyperparameters": [p for p in self.parameters() if id(p) not in taken],
        }

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        stored = state_dict.get(prefix + "inducing")
        if isinstance(stored, Tensor) and stored.ndim == 2:
            self._resize(stored.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)
