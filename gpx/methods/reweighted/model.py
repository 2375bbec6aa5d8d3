"""Regression on a fixed basis of which the prior variance of every weight is learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gpx.bases import Basis, basis_of
from gpx.bases.fixed_functions import fix_functions, sufficient_statistics
from gpx.bases.grid_eigenfunctions.start import MIN_NOISE, require_sums
from gpx.constraints import MARGIN, floor_of
from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.likelihoods.bernoulli import Bernoulli
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.start import Deadline, StartWatch, Unwatched
from gpx.methods.reweighted.hyper_priors import HyperPriors, WeightPriors
from gpx.methods.reweighted.options import Inference, check_options
from gpx.methods.reweighted.orthogonal import ReflectedForm
from gpx.methods.reweighted.posterior import ReweightedPosterior, relevant
from gpx.methods.reweighted.state import ReweightedState, Structure
from gpx.methods.reweighted.weights import CompressedStatistics


class Reweighted(ReweightedState, Model):
    """Gaussian process regression with a re-weighted basis kernel, at a cost that n does not enter.

    f(x) = m(x) + phi(x)^T w with w ~ N(0, diag(g)): the kernel phi(x)^T diag(g) phi(z). Basis and
    mean stay as initialised, so that the data are needed once, for their ``SufficientStatistics``;
    every evidence, gradient and posterior afterwards comes from these. Only theta = (g, noise
    variance) is learned: by maximisation of the evidence (type-II, which over-fits many g), by
    maximisation over one g_i at a time from g = 0 on, where most of them stay (relevance vectors),
    or not at all but integrated out by a Markov chain (type-I), whose kept states are the model's
    ``samples``.

    Args:
        kernel: of the basis; it must suit it (factor over the inputs for a grid, have a spectral
            sampler for Fourier features).
        mean, likelihood: Gaussian; or Bernoulli with the probit link, of which type-I inference
            samples the latent targets as well (``redraw_latents``) at a noise variance of one.
        basis: on ``kernel``; or a class, or any callable, that makes one of ``kernel`` and
            ``num_basis``: ``GridFeatures`` (the leading eigenfunctions on a grid),
            ``TrainingPoints`` (kernel functions at training inputs: a relevance vector machine),
            Fourier features; or one whose prior follows from the kernel's hyperparameters, which
            are what is learned then (diagonal, type2, no priors): ``ImportanceWeightedFourier``,
            ``LaplacianEigenfunctions``, or ``InterpolatedGrid``, the weights of which have the
            kernel's covariance on a grid.
        num_basis: m, at most (a small grid has fewer eigenfunctions).
        structure: of the prior: ``diagonal`` (a variance for every function, O(m^3) an evaluation
            or O(rank^2 m)), ``orthogonal`` (for every eigenvector of Phi^T Phi, O(m)), or
            ``householder`` (any prior: these axes, turned by reflections that are learned too;
            O(rank^2), and so many numbers a sample).
        inference: ``type1``, ``type2`` or ``relevance_vectors``; says which optimizer fits.
        priors: hyper-priors of theta; None: flat (not with type1); ``auto``: those of the benchmark
            (``WeightPriors()``), flat where there can be none: relevance vectors and a basis whose
            weights follow from the kernel.

    Attributes:
        basis: the functions.
        log_weights (k,): log g, relative to the basis' own prior variances, and for householder
            the tails of the reflections; none where g follows from the kernel.
        samples (T, k + 1): kept states (log g, log noise) of the chain.
        latents (n,): for probit, the current latent targets of the chain, less the mean; else
            empty.

    Raises:
        ConfigError: options that do not fit.

    Cost: n m^2 / 2 multiply-adds once, then nothing of n.
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
        self.register_state(3)  # the third total: the noise variance at the start

    @property
    def kernel(self) -> Kernel:
        """Covariance function; the basis owns it."""
        kernel = self.basis.kernel
        assert isinstance(kernel, Kernel)
        return kernel

    @property
    def is_probit(self) -> bool:
        """Whether targets are classes, signs of latent ones with noise of variance one."""
        return isinstance(self.likelihood, Bernoulli)

    @property
    def noise_variance(self) -> Tensor:
        """Of the likelihood, or of latent targets; 0-d."""
        if isinstance(self.likelihood, Gaussian):
            return self.likelihood.noise_variance
        return torch.ones_like(self.totals[0])

    @property
    def hyper_priors(self) -> HyperPriors | None:
        """Of every g and of the noise variance; None: flat."""
        if self.priors is None:
            return None
        weight = self.priors.weight()
        noise = None if self.is_probit else self.priors.noise(float(self.totals[2]))
        if not isinstance(self.form, ReflectedForm):
            return HyperPriors(weight, noise)
        return HyperPriors(weight, noise, self.priors.tail_variances(self.form.sums.values))

    def log_variances(self) -> Tensor:
        """log g (k,), or the entries of a dense prior; differentiable in what is learned."""
        if self.basis.dense_prior:
            return self.basis.prior_covariance().flatten()
        return self.basis.log_variances() if self.basis.follows_kernel else self.log_weights

    @property
    def position(self) -> Tensor:
        """(log g, log noise variance) (k + 1,), where the model stands; detached."""
        noise = self.noise_variance.detach().double().log()
        return torch.cat([self.log_variances().detach(), noise[None]])

    @property
    def noise_floor(self) -> float:
        """Infimum of the noise variance; zero where it is fixed."""
        return 0.0 if self.is_probit else floor_of(self.likelihood, "noise_variance")

    @property
    def _least_noise(self) -> float:
        return max(MIN_NOISE, (1.0 + MARGIN) * self.noise_floor)

    @torch.no_grad()
    def move(self, position: Tensor) -> None:
        """Put the model at (log g, log noise variance) (k + 1,)."""
        self.log_weights.copy_(position[:-1])
        self._set_noise(position[-1].exp())

    def _set_noise(self, noise: Tensor) -> None:
        if isinstance(self.likelihood, Gaussian):
            here = self.likelihood.noise_variance
            self.likelihood.noise_variance = noise.clamp_min(self._least_noise).to(here)

    def check_optimizer(self, optimizer: object) -> None:
        """As in ``Model``: type-I inference and relevance vectors have steps of their own."""
        own, name = getattr(optimizer, "inference", None), type(optimizer).__name__
        # relevance vectors say themselves which inference they need
        if self.inference == "type1" and own is None:
            raise ConfigError(
                f"{name} would maximise what inference=type1 is to integrate out: leave out "
                "optimizer= for a chain, or use inference=type2"
            )
        if self.inference == "relevance_vectors" and own != "relevance_vectors":
            raise ConfigError(
                f"{name} would weight every function, where inference=relevance_vectors is "
                "to select: leave out optimizer=, or use inference=type2"
            )

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: nothing to settle, but sums of m x m must fit into memory.

        Raises:
            ConfigError: they do not.
        """
        self.basis.place(x)
        require_sums("num_basis", self.basis.num_basis, x.device)
        return {}

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Fix the basis and sum over the data, once; weights start at the mode of their prior."""
        self.initialise_watched(x, y, generator=generator, watch=Unwatched())

    @torch.no_grad()
    def initialise_watched(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator, watch: StartWatch
    ) -> None:
        """As ``initialise``; a search for the basis' lengthscales ends with the time for it."""
        deadline = Deadline(watch)
        start = fix_functions(
            self.basis,
            x,
            y - self.mean(x),
            self.noise_variance,
            generator=generator,
            unit_noise=self.is_probit,
            spent=deadline,
        )
        if deadline.passed:
            watch.cut_short("the search for lengthscales")
        self._warned = False
        # labels are latent targets of their own signs, and the statistics are already theirs
        self.latents = (y - self.mean(x)).double() if self.is_probit else self.latents[:0]
        self.latent_sums = self.latent_sums[:0]
        self.frame = self.frame[:0]
        if self.structure == "householder":
            self.frame = CompressedStatistics(start.statistics).vectors
        self.statistics = start.statistics
        noise = start.noise.clamp_min(self._least_noise)
        self.totals[2] = noise
        learned = not self.basis.follows_kernel
        count = self.form.num_weights if learned else 0
        self.log_weights.data = torch.zeros(count, dtype=torch.float64, device=x.device)
        priors = self.hyper_priors
        if priors is not None:
            self.log_weights[: count - priors.tails] = math.log(priors.weight.mode)
            if priors.noise is not None:
                noise = torch.full_like(noise, priors.noise.mode)
        self._set_noise(noise)
        self.samples = self.log_weights.new_zeros(0, self.form.num_weights + 1)
        turns = 0 if priors is None else priors.tails
        variances = "" if self.basis.dense_prior else f"{self.form.num_weights - turns} "
        prior = "the kernel's covariance" if self.basis.dense_prior else "prior variances"
        self.note = f"{start.note}; {variances}{prior}, "
        self.note += f"{self.form.path} form" + (f", {turns} turns of their axes" if turns else "")
        if self.inference == "type2" and learned:
            self.note += (
                f"; type-II fits all of them to {len(x)} points, which tends to over-fit "
                "(inference=type1 integrates them out)"
            )

    @torch.no_grad()
    def add_rows(self, x: Tensor, y: Tensor) -> None:
        """Take in further data x (b, d), y (b,), at O(b m^2) (and O(m^3) at the next evidence).

        Samples that were kept are of the data before: run the chain again.

        Raises:
            ConfigError: the prior's axes are those that the data before gave.
        """
        self._check_frame()
        more = sufficient_statistics(self.basis, x, y - self.mean(x))
        self.statistics = self.statistics + more

    @torch.no_grad()
    def remove_rows(self, x: Tensor, y: Tensor) -> None:
        """Forget data x (b, d), y (b,) that were taken in.

        Raises:
            ConfigError: more rows than there are, or as for ``add_rows``.
        """
        self._check_frame()
        fewer = sufficient_statistics(self.basis, x, y - self.mean(x))
        self.statistics = self.statistics - fewer

    def _check_frame(self) -> None:
        if self.is_probit:
            raise ConfigError(
                "likelihood=Bernoulli() keeps a latent target for every row that it was trained "
                "on, and takes no rows in or out; train again"
            )
        if self.structure != "diagonal":
            raise ConfigError(
                f"structure={self.structure} holds its prior in the eigenvectors of the data it "
                "has seen, and takes no rows in or out; use structure=diagonal, or train again"
            )

    def facts(self) -> dict[str, bool | int | float | str]:
        """Plain values for records: the size of the basis and the path taken."""
        found: dict[str, bool | int | float | str] = {
            "num_basis": self.basis.num_basis,
            "num_weights": self.form.num_weights,
            "evidence_path": self.form.path,
        }
        return found | self.basis.facts()

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The weights' prior variances, or the kernel they follow from, and the noise.

        The functions and the mean stay.
        """
        learned: list[nn.Parameter] = [self.log_weights]
        if self.basis.follows_kernel:
            learned = list(self.kernel.parameters())
        return {"hyperparameters": [*learned, *self.likelihood.parameters()]}

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> ReweightedPosterior:
        """The posterior over the kept samples, or at the position where there are none.

        Functions that have no prior variance are left out of it where the others can be had alone.

        x and y are not read. Warns, once, where too few functions count.
        """
        if not self._warned:
            self._warned = self.basis.warn_of_few()
        samples = self.samples if len(self.samples) else self.position[None]
        basis, statistics, sums = self.basis, self.statistics, self.latent_sums
        kept = samples.new_zeros(0, dtype=torch.int64)
        few = None
        if self.structure == "diagonal" and not basis.dense_prior:
            kept = relevant(samples)
            few = basis.subset(kept)
        if few is not None:
            basis = few
            statistics = statistics.select_functions(kept)
            samples, sums = (
                torch.cat([of_all[:, :-1][:, kept], of_all[:, -1:]], 1) if len(of_all) else of_all
                for of_all in (samples, sums)
            )
        posterior = ReweightedPosterior(basis, self.mean, self.structure)
        posterior.fill(statistics, samples, self.frame, sums)
        return posterior

    def new_posterior(self) -> ReweightedPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        return ReweightedPosterior(self.basis, self.mean, self.structure)
