"""Regression on a fixed basis with a learned prior variance for every weight."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gpx.bases import Basis, basis_of
from gpx.bases.fixed_functions import fix_functions, sufficient_statistics
from gpx.bases.grid_eigenfunctions.start import MIN_NOISE, require_sums
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.constraints import MARGIN, floor_of, is_trained
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.likelihoods.bernoulli import Bernoulli
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.kept_sums import SummedModel
from gpx.methods.base.start import Deadline, StartWatch, Unwatched
from gpx.methods.reweighted.hyper_priors import HyperPriors, WeightPriors
from gpx.methods.reweighted.options import Inference, check_options
from gpx.methods.reweighted.orthogonal import ReflectedForm
from gpx.methods.reweighted.posterior import ReweightedPosterior, relevant_functions
from gpx.methods.reweighted.state import ReweightedState, Structure, prior_scale
from gpx.methods.reweighted.weights import CompressedStatistics


class Reweighted(SummedModel, ReweightedState):
    """Gaussian process regression with a re-weighted basis kernel, at a cost independent of n.

    f(x) = m(x) + phi(x)^T w with w ~ N(0, diag(g)), that is, the kernel phi(x)^T diag(g) phi(z).
    Basis and mean stay as initialised, so the data are needed only once, for their
    ``SufficientStatistics``, from which evidence, gradient and posterior are computed. Only
    theta = (g, noise variance) is learned: by maximising the evidence (type-II, which over-fits if
    there are many g), by maximising over one g_i at a time from g = 0, so that most of them stay
    zero (relevance vectors), or by a Markov chain (type-I), whose states are the model's
    ``samples``.

    Args:
        kernel: of the basis, which must support it (a product over inputs for a grid, a kernel with
            a spectral sampler for Fourier features).
        mean, likelihood: Gaussian; or Bernoulli with the probit link, for which type-I inference
            also samples latent targets (``redraw_latents``) with noise variance one.
        basis: on ``kernel``; or a class or callable that makes one from ``kernel`` and
            ``num_basis``: ``GridFeatures`` (leading eigenfunctions on a grid), ``TrainingPoints``
            (kernel functions at training inputs: a relevance vector machine), Fourier features; or
            a basis whose prior follows from the kernel's hyperparameters, which are learned instead
            of g (diagonal, type2, no priors): ``ImportanceWeightedFourier``,
            ``LaplacianEigenfunctions``, or ``InterpolatedGrid``, whose weights have the kernel's
            covariance on a grid.
        num_basis: m, at most (a small grid has fewer eigenfunctions).
        structure: of the prior: ``diagonal`` (a variance per function, O(m^3) or O(rank^2 m) per
            evaluation), ``orthogonal`` (a variance per eigenvector of Phi^T Phi, O(m)), or
            ``householder`` (any prior covariance: also rotates these axes by learned reflections,
            O(rank^2) operations per evaluation and numbers per sample).
        inference: ``type1``, ``type2`` or ``relevance_vectors``, each with an optimizer of its own.
        priors: hyper-priors of theta; None: flat (not with type1); ``auto``: ``WeightPriors()``,
            but flat for relevance vectors and bases whose prior follows from the kernel.

    Attributes:
        basis: the functions.
        log_weights (k,): log g, relative to the prior variances of the basis (kernel functions at
            training inputs: g itself), and for householder the entries of the reflectors; empty if
            g follows from the kernel.
        samples (T, k + 1): states (log g, log noise) of the chain; rows that are added or removed
            leave them as they are, so run the chain again.
        latents (n,): for probit, the current latent targets of the chain minus the mean; else
            empty.

    Raises:
        ConfigError: options that do not fit together.

    Cost: n m^2 / 2 multiply-adds once; then independent of n.
    Source: Evans thesis, chapter 5 (with basis=grief: GP-GRIEF-I).
    """

    data_sized = (*ReweightedState.data_sized, "log_weights", "latents")

    mean: Mean
    likelihood: Gaussian | Bernoulli
    latents: Tensor

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian | Bernoulli,
        basis: Basis | Callable[..., Basis],
        num_basis: int = 1000,
        structure: Structure = "diagonal",
        inference: Inference = "type1",
        priors: WeightPriors | Literal["auto"] | None = "auto",
    ) -> None:
        super().__init__()
        self.basis = basis_of(basis, kernel, num_basis)
        if priors == "auto":
            flat = inference == "relevance_vectors" or self.basis.follows_kernel
            priors = None if flat else WeightPriors()
        check_options(self.basis, structure, inference, priors, likelihood)
        self.mean = mean
        self.likelihood = likelihood
        self.structure: Structure = structure
        self.inference: Inference = inference
        self.priors = priors
        self.log_weights = nn.Parameter(torch.zeros(0, dtype=torch.float64))
        self._warned = False
        self.register_buffer("latents", torch.zeros(0, dtype=torch.float64))
        self.register_state(3)  # the third total is the initial noise variance

    @property
    def kernel(self) -> Kernel:
        """Covariance function; the basis owns it."""
        kernel = self.basis.kernel
        assert isinstance(kernel, Kernel)
        return kernel

    @property
    def is_probit(self) -> bool:
        """Whether targets are classes: the signs of latent targets with noise variance one."""
        return isinstance(self.likelihood, Bernoulli)

    @property
    def noise_variance(self) -> Tensor:
        """Noise variance () of the likelihood, for probit that of the latent targets."""
        if isinstance(self.likelihood, Gaussian):
            return self.likelihood.noise_variance
        return torch.ones_like(self.totals[0])

    @property
    def learns_noise(self) -> bool:
        """Whether the noise variance is learned; not for classes, and not where it is fixed."""
        return not self.is_probit and is_trained(self.likelihood, "noise_variance")

    @property
    def hyper_priors(self) -> HyperPriors | None:
        """Hyper-priors of g and of the noise variance; None: flat."""
        if self.priors is None:
            return None
        weight = self.priors.weight()
        noise = self.priors.noise(float(self.totals[2])) if self.learns_noise else None
        if not isinstance(self.form, ReflectedForm):
            return HyperPriors(weight, noise)
        return HyperPriors(weight, noise, self.priors.tail_variances(self.form.sums.values))

    def log_variances(self) -> Tensor:
        """log g (k,), or the entries of a dense prior covariance; differentiable."""
        if self.basis.dense_prior:
            return self.basis.prior_covariance().flatten()
        return self.basis.log_variances() if self.basis.follows_kernel else self.log_weights

    @property
    def position(self) -> Tensor:
        """Current (log g, log noise variance) (k + 1,), detached."""
        noise = self.noise_variance.detach().double().log()
        return torch.cat([self.log_variances().detach(), noise[None]])

    @property
    def noise_floor(self) -> float:
        """Lower bound of the noise variance; zero if it is fixed."""
        return 0.0 if self.is_probit else floor_of(self.likelihood, "noise_variance")

    @property
    def _least_noise(self) -> float:
        return max(MIN_NOISE, (1.0 + MARGIN) * self.noise_floor)

    @torch.no_grad()
    def set_position(self, position: Tensor) -> None:
        """Set (log g, log noise variance) (k + 1,); a fixed noise variance stays."""
        self.log_weights.copy_(position[:-1])
        self._set_noise(position[-1].exp())

    def _set_noise(self, noise: Tensor) -> None:
        if isinstance(self.likelihood, Gaussian) and self.learns_noise:
            here = self.likelihood.noise_variance
            self.likelihood.noise_variance = noise.clamp_min(self._least_noise).to(here)

    def check_optimizer(self, optimizer: object) -> None:
        """As in ``Model``: type-I inference and relevance vectors need their own optimizers."""
        own, name = getattr(optimizer, "inference", None), type(optimizer).__name__
        # RelevanceVectors checks the model's inference itself
        if self.inference == "type1" and own is None:
            raise ConfigError(
                f"{name} would maximise what inference=type1 is to integrate out: leave out "
                "optimizer= for a chain, or use inference=type2"
            )
        if self.inference == "relevance_vectors" and own != "relevance_vectors":
            raise ConfigError(
                f"{name} would weight every function, but inference=relevance_vectors is "
                "to select: leave out optimizer=, or use inference=type2"
            )

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: no choices, but checks memory.

        Raises:
            ConfigError: sums of m x m do not fit into memory.
        """
        self.basis.place(x)
        require_sums("num_basis", self.basis.num_basis, x.device)
        return {}

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Fix the basis and sum over the data; theta starts at the mode of its prior."""
        self.initialise_watched(x, y, generator=generator, watch=Unwatched())

    @torch.no_grad()
    def initialise_watched(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator, watch: StartWatch
    ) -> None:
        """As ``initialise``; a search for lengthscales of the basis ends when time is up."""
        deadline = Deadline(watch)
        start = fix_functions(
            self.basis,
            x,
            y - self.mean(x),
            self.noise_variance,
            generator=generator,
            unit_noise=self.is_probit,
            fixed_noise=not self.learns_noise,
            spent=deadline,
        )
        if deadline.passed:
            watch.cut_short("the search for lengthscales")
        self.remember_columns(x, x.shape[1])
        self._warned = False
        # labels -1 and 1 are the first latent targets, and have their signs
        self.latents = (y - self.mean(x)).double() if self.is_probit else self.latents[:0]
        self.latent_sums = self.latent_sums[:0]
        self.frame = self.frame[:0]
        self.scale = prior_scale(self.basis).to(x.device)
        statistics = start.statistics
        if len(self.scale):
            statistics = statistics.standardised(self.scale)
        if self.structure != "diagonal":
            self.frame = CompressedStatistics(statistics).vectors
        self.statistics = statistics
        noise = start.noise.clamp_min(self._least_noise)
        self.totals[2] = noise
        learned = not self.basis.follows_kernel
        count = self.form.num_weights if learned else 0
        self.log_weights.data = torch.zeros(count, dtype=torch.float64, device=x.device)
        priors = self.hyper_priors
        if priors is not None:
            self.log_weights[: count - priors.num_tails] = math.log(priors.weight.mode)
            if priors.noise is not None:
                noise = torch.full_like(noise, priors.noise.mode)
        self._set_noise(noise)
        self.samples = self.log_weights.new_zeros(0, self.form.num_weights + 1)
        tails = 0 if priors is None else priors.num_tails
        variances = "" if self.basis.dense_prior else f"{self.form.num_weights - tails} "
        prior = "the kernel's covariance" if self.basis.dense_prior else "prior variances"
        self.note = f"{start.note}; {variances}{prior}, "
        self.note += f"{self.form.path} form" + (
            f", {tails} parameters of their axes" if tails else ""
        )
        if self.inference == "type2" and learned:
            self.note += (
                f"; type-II fits all of them to {len(x)} points, which tends to over-fit "
                "(inference=type1 integrates them out)"
            )

    def sums(self, x: Tensor, y: Tensor) -> SufficientStatistics:
        """As in ``SummedModel``, for the functions scaled by ``scale`` and the targets y - m(x)."""
        sums = sufficient_statistics(self.basis, x, y - self.mean(x))
        return sums.standardised(self.scale) if len(self.scale) else sums

    def check_rows(self, x: Tensor, y: Tensor) -> None:
        """As in ``SummedModel``; ConfigError for classes, and if the prior depends on the data."""
        if self.is_probit:
            raise ConfigError(
                "likelihood=Bernoulli() keeps a latent target for every training row, so rows "
                "cannot be added or removed; train again"
            )
        if self.structure != "diagonal":
            raise ConfigError(
                f"structure={self.structure} has a prior along eigenvectors of the training data, "
                "so rows cannot be added or removed; use structure=diagonal, or train again"
            )
        super().check_rows(x, y)

    def facts(self) -> dict[str, bool | int | float | str]:
        """Facts for metrics.json: size of the basis and path of the evidence."""
        found: dict[str, bool | int | float | str] = {
            "num_basis": self.basis.num_basis,
            "num_weights": self.form.num_weights,
            "evidence_path": self.form.path,
        }
        return found | self.basis.facts()

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Prior variances of the weights, or the kernel they follow from, and the likelihood.

        Basis functions and mean are fixed.
        """
        learned: list[nn.Parameter] = [self.log_weights]
        if self.basis.follows_kernel:
            learned = list(self.kernel.parameters())
        return {"hyperparameters": [*learned, *self.likelihood.parameters()]}

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> ReweightedPosterior:
        """The posterior averaged over ``samples``, or at the current theta if there are none.

        Functions with negligible prior variance are dropped, if the basis allows. x and y are not
        read. Warns, once, if too few functions have a considerable prior variance.
        """
        if not self._warned:
            self._warned = self.basis.warn_of_few()
        samples = self.samples if len(self.samples) else self.position[None]
        basis, statistics, sums = self.basis, self.statistics, self.latent_sums
        scale = self.scale
        kept = samples.new_zeros(0, dtype=torch.int64)
        few = None
        if self.structure == "diagonal" and not basis.dense_prior:
            kept = relevant_functions(samples)
            few = basis.subset(kept)
        if few is not None:
            basis = few
            statistics = statistics.select_functions(kept)
            scale = scale[kept] if len(scale) else scale
            samples, sums = (
                torch.cat([of_all[:, :-1][:, kept], of_all[:, -1:]], 1) if len(of_all) else of_all
                for of_all in (samples, sums)
            )
        posterior = ReweightedPosterior(basis, self.mean, self.structure)
        posterior.fill(statistics, samples, self.frame, sums, scale)
        posterior.remember_columns(self.totals, self.trained_columns)
        return posterior

    def new_posterior(self) -> ReweightedPosterior:
        """As in ``Model``."""
        return ReweightedPosterior(self.basis, self.mean, self.structure)
