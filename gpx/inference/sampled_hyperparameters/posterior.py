"""Posterior process averaged over samples of the hyperparameters."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from gpx.constraints import natural_parameters
from gpx.errors import ConfigError, NotAvailable, class_name
from gpx.inference.exact_posterior import ExactPosterior
from gpx.inference.finite_mixture import gaussian_mixture, mixture_moments
from gpx.inference.joint_law import JointLaw
from gpx.inference.leave_one_out import LeftOut
from gpx.inference.sampled_hyperparameters.left_out import LeftOutMixture, enough_samples
from gpx.inference.sampled_hyperparameters.stacked import StackedProcesses
from gpx.inference.sampled_hyperparameters.stacked_law import StackedLaw
from gpx.inference.several_laws import SeveralLaws
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian, NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import cholesky
from gpx.methods.base.hyper_position import HyperPosition
from gpx.methods.base.model import Model
from gpx.methods.base.posterior import Marginals, Posterior, no_joint_law, untrained
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.warned_line import users_line

KEPT_BYTES = 2**30
"""The posteriors of all samples are kept between predictions if they take no more memory;
otherwise every call computes them anew."""


class ConditionsOnce(Protocol):
    """What the mixture needs of a model (``SampledHyperparameters``)."""

    samples: Tensor
    likelihood: Likelihood
    row_noise: RowNoise | None

    def hyper_position(self, *, fixed: bool = False) -> HyperPosition:
        """Access to the hyperparameters as one vector; ``fixed``: also to those that stay."""

    def condition_once(self, x: Tensor, y: Tensor) -> Posterior:
        """The posterior at the current hyperparameters."""

    def log_density_once(self, x: Tensor, y: Tensor) -> Tensor | None:
        """log p(y | theta) () at them; None: predictions of further rows have that density."""

    def condition_all(self, samples: Tensor, x: Tensor, y: Tensor) -> StackedProcesses | None:
        """The posteriors at all samples as one batch; None: one after the other."""


class Component(NamedTuple):
    """The posterior at one sample, and its noise variance ()."""

    posterior: Posterior
    noise: Tensor


class HyperparameterMixture(Posterior):
    """A mixture of posteriors, one for each sample of the hyperparameters.

    Args:
        model: copied, without its samples.

    Attributes:
        inputs (n, d), targets (n,): the data.
        row_noise (2, n): ``RowNoise`` of the data; empty: one noise variance for all.
        samples (S, k): all hyperparameters, those that stay fixed too, as in ``HyperPosition``.
        weights (S,): shares of the components, which sum to one. They are equal until the process
            is conditioned on further rows.

    Cost: that of the model's ``condition`` for every sample at the first prediction, and at each
    one if the posteriors take more than ``KEPT_BYTES``; then S predictions. Marginals of exact
    processes whose factors take no more than that are predicted as one batch.
    """

    data_sized = ("inputs", "targets", "row_noise", "samples", "weights")
    derived = ("_kept", "_stacked")
    inputs: Tensor
    targets: Tensor
    row_noise: Tensor
    samples: Tensor
    weights: Tensor
    _kept: list[Component] | None
    _stacked: StackedProcesses | Literal[False] | None

    def __init__(self, model: ConditionsOnce) -> None:
        super().__init__()
        assert isinstance(model, Model)
        template: ConditionsOnce = untrained(model)
        template.samples, template.row_noise = template.samples[:0], None
        self.template = template
        self.register_data_sized()
        self._kept = self._stacked = None

    @property
    def num_inputs(self) -> int | None:
        """As in ``Posterior``: that of the data; None before there are any."""
        return self.inputs.shape[1] if self.inputs.ndim == 2 else None

    def fill(
        self,
        x: Tensor,
        y: Tensor,
        samples: Tensor,
        noise: RowNoise | None = None,
        weights: Tensor | None = None,
    ) -> None:
        """Keep x (n, d), y (n,), samples (S, k) and weights (S,); None: equal ones."""
        count = len(samples)
        shares = samples.new_full((count,), 1.0 / count) if weights is None else weights
        known = x.new_zeros(0) if noise is None else torch.stack(list(noise))
        self.keep(x, inputs=x, targets=y, row_noise=known)
        self.keep(samples.double(), samples=samples, weights=shares)
        self._kept = self._stacked = None

    def _noise(self) -> RowNoise | None:
        return RowNoise(*self.row_noise) if len(self.row_noise) else None

    def components(self) -> Iterator[Component]:
        """The posterior of each sample in turn.

        Raises:
            ConfigError: there are none: it has no state yet.
        """
        if not len(self.samples):
            raise ConfigError(
                f"{class_name(self)} is empty: load the state of a posterior into it with "
                "load_state_dict, or take the one that model.condition(x, y) returns"
            )
        if self._kept is not None:
            yield from self._kept
            return
        template, made = copy.deepcopy(self.template), []
        template.row_noise = self._noise()
        for number, _ in enumerate(template.hyper_position(fixed=True).visit(self.samples)):
            with torch.no_grad():
                assert isinstance(template.likelihood, Gaussian)
                noise = template.likelihood.noise_variance.detach().clone()
                found = Component(template.condition_once(self.inputs, self.targets), noise)
            if number == 0:
                held = sum(b.numel() * b.element_size() for b in found.posterior.buffers())
                keeps = held * len(self.samples) <= KEPT_BYTES
            if keeps:
                made.append(found)
            yield found
        if keeps:
            self._kept = made

    def joint_laws(self, num: int) -> tuple[JointLaw, Tensor]:
        """Joint laws of at most ``num`` components that stand for all, and their noise (S,).

        Each has the same weight. One is taken for every ``num``-th part of the total weight, from
        the middle of that part: with equal weights they are evenly spaced, and if there are no
        more than ``num`` they are all.

        Returns:
            ``StackedLaw``, or ``SeveralLaws`` of components that are no batch.

        Raises:
            NotAvailable: the components have no joint law in closed form.
        """
        shares = self.weights.double().cpu()
        if len(shares) <= num and bool(torch.isclose(shares, shares[:1]).all()):
            chosen = torch.arange(len(shares))
        else:
            middles = (torch.arange(num, dtype=torch.float64) + 0.5) / num
            chosen = torch.searchsorted(shares.cumsum(0), middles).clamp_max(len(shares) - 1)
        batch = self._batch()
        if batch is not None:
            own = chosen.to(batch.noise.device)
            return StackedLaw(batch, own), batch.noise[own]
        wanted = chosen.tolist()
        found = {number: part for number, part in enumerate(self.components()) if number in wanted}
        laws = [found[number].posterior for number in wanted]
        if not all(isinstance(law, JointLaw) for law in laws):
            raise no_joint_law(laws[0])
        noise = torch.stack([found[number].noise for number in wanted])
        return SeveralLaws(cast(list[JointLaw], laws)), noise

    def _batch(self) -> StackedProcesses | None:
        """All components as one batch; None: not of this model or these data."""
        if self._stacked is None and len(self.samples):
            self._stacked = False
            x, y = self.inputs, self.targets
            if len(self.samples) * len(x) ** 2 * x.element_size() <= KEPT_BYTES:
                template = copy.deepcopy(self.template)
                template.row_noise = self._noise()
                self._stacked = template.condition_all(self.samples, x, y) or False
        return self._stacked or None

    def marginals(self, x: Tensor) -> tuple[Marginals, Tensor]:
        """Mean and variance (S, t) of f at x (t, d) by sample, and its noise variance (S, 1)."""
        batch = self._batch()
        if batch is not None:
            return batch.marginals(x), batch.noise.unsqueeze(1)
        found = [(*part.posterior.predict(x), part.noise) for part in self.components()]
        mean, variance, noise = (torch.stack(each) for each in zip(*found, strict=True))
        return Marginals(mean, variance), noise.unsqueeze(1)

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d), whose law is a mixture."""
        parts, _ = self.marginals(x)
        return mixture_moments(parts, self.weights)

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """Mixture of S normals for y at every row of x (t, d), each with its own noise."""
        parts, noise = self.marginals(x)
        return gaussian_mixture(Marginals(parts.mean, parts.variance + noise), self.weights)

    def predictive_of_rows(
        self, x: Tensor, likelihood: Gaussian | NoisyOutputs, noise: RowNoise
    ) -> Distribution:
        """As in ``Posterior``; weights count in the noise of every sample."""
        parts, learned = self.marginals(x)
        variance = parts.variance + noise.like(x).variance(learned)
        return gaussian_mixture(Marginals(parts.mean, variance), self.weights)

    def training_targets(self) -> Tensor:
        """The targets (n,) that it was conditioned on."""
        return self.targets

    @torch.no_grad()
    def leave_one_out(self) -> LeftOutMixture:
        """Prediction of every training value given all others, averaged over the samples.

        Raises:
            NotAvailable: the components are no exact Gaussian processes.

        Cost: that of ``LeftOut.of`` for every sample.
        """
        batch = self._batch()
        if batch is not None:
            return LeftOutMixture.of(batch.leave_one_out(), self.weights)
        found = []
        for part in self.components():
            if not isinstance(part.posterior, ExactPosterior):
                raise NotAvailable(
                    "leave-one-out predictions need exact Gaussian processes, and the components "
                    f"of {class_name(self)} are each a {class_name(part.posterior)}: train with "
                    "model=FullyBayesianGP() or ExactGP()"
                )
            found.append(part.posterior.leave_one_out())
        parts = LeftOut(*(torch.stack(each) for each in zip(*found, strict=True)))
        return LeftOutMixture.of(parts, self.weights)

    @property
    def has_own_noise(self) -> bool:
        """As in ``Posterior``: every sample has its own noise variance."""
        return True

    def own_hyperparameters(self) -> dict[str, Tensor]:
        """As in ``Posterior``: the samples of each by its name, with a leading axis of S."""
        model, found = copy.deepcopy(self.template), dict[str, list[Tensor]]()
        assert isinstance(model, Model)
        parts = model.hyperparameters()
        assert parts is not None
        for _ in model.hyper_position(fixed=True).visit(self.samples):
            for name, part in parts._asdict().items():
                for own, value in natural_parameters(part).items():
                    found.setdefault(f"{name}.{own}", []).append(value.clone())
        return {name: torch.stack(values) for name, values in found.items()}

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: the number of samples, and how many equally weighted ones say as
        much once further rows have changed their weights."""
        return {"num_samples": len(self.samples), "effective_samples_mixture": self._effective()}

    def _effective(self) -> float:
        return float(1.0 / self.weights.square().sum())

    def joint_covariance(self, x: Tensor) -> Tensor:
        """As in ``Posterior``, of the mixture: within the components, and of their means."""
        found, center = None, self.predict(x).mean
        for part, share in zip(self.components(), self.weights.to(x), strict=True):
            gap = part.posterior.predict(x).mean - center
            own = share * (part.posterior.joint_covariance(x) + gap.outer(gap))
            found = own if found is None else found + own
        assert found is not None
        return found

    @torch.no_grad()
    def sample(self, x: Tensor, num: int = 1, *, generator: torch.Generator) -> Tensor:
        """As in ``Posterior``: each draw is of a randomly drawn component."""
        counts, order = self._drawn_components(num, generator)
        draws = [
            part.posterior.sample(x, count, generator=generator)
            for part, count in zip(self.components(), counts, strict=True)
            if count
        ]
        return torch.cat(draws)[order]

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (t, d) -> (num, t), each of a randomly drawn component.

        Raises:
            ConfigError: the kernel has no random Fourier features.
        """
        counts, order = self._drawn_components(num, generator)
        functions = [
            part.posterior.sample_paths(count, generator=generator)
            for part, count in zip(self.components(), counts, strict=True)
            if count
        ]

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            return torch.cat([each(x) for each in functions])[order]

        return paths

    @torch.no_grad()
    def noise_of_draws(self, num: int, *, generator: torch.Generator) -> Tensor:
        """As in ``Posterior``: that of the component that each is drawn of."""
        counts, order = self._drawn_components(num, generator)
        batch = self._batch()
        if batch is not None:
            noise = batch.noise
        else:
            noise = torch.stack([part.noise for part in self.components()])
        repeats = torch.tensor(counts, device=noise.device)
        return noise.repeat_interleave(repeats)[order]

    def _drawn_components(self, num: int, generator: torch.Generator) -> tuple[list[int], Tensor]:
        """How many of ``num`` draws are of each component, and an order (num,) of them.

        In that order draws tell nothing about their components. They are the first that is drawn
        from a generator, so that one in the same state gives the same (``noise_of_draws``).
        """
        shares = self.weights.to(generator.device)
        drawn = torch.multinomial(shares, num, replacement=True, generator=generator)
        counts = torch.bincount(drawn, minlength=len(shares)).tolist()
        order = torch.randperm(num, generator=generator, device=generator.device)
        return counts, order.to(self.samples.device)

    @torch.no_grad()
    def with_observations(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: Gaussian | NoisyOutputs,
        noise: RowNoise | None = None,
    ) -> HyperparameterMixture:
        """As in ``Posterior``. A sample counts the more, the better it predicted the rows.

        The weights are multiplied with p(y | x, data, theta), so that the mixture is that of
        samples given all rows, as far as these samples go: ``facts`` has how many are left. For
        SGPR that is the ratio of the exponentials of its bound, from which the samples are drawn.
        """
        known = self._noise()
        if noise is not None or known is not None:
            known = RowNoise.plain(self.targets) if known is None else known
            more = RowNoise.plain(y) if noise is None else noise
            known = known.concatenated(more.like(known.known))
        rows, targets = torch.cat([self.inputs, x]), torch.cat([self.targets, y])
        logs = self._log_density_gains(rows, targets, known)
        if logs is None:
            logs = self._log_densities_of(x, y, noise)
        made = HyperparameterMixture(self.template)
        weights = (self.weights.log() + logs).softmax(0)
        made.fill(rows, targets, self.samples, known, weights)
        left, enough = made._effective(), enough_samples(len(weights))
        if left < enough <= self._effective():
            warnings.warn(
                f"the further rows change the posterior of the hyperparameters so much that only "
                f"{left:.1f} of its {len(weights)} samples are effective; train again with all "
                "rows",
                stacklevel=users_line(),
            )
        return made

    def _log_densities_of(self, x: Tensor, y: Tensor, noise: RowNoise | None) -> Tensor:
        """log p(y | x, data, theta) (S,) of further rows by the prediction of every sample."""
        batch, m = self._batch(), len(x)
        numbers = len(self.samples) * m * (m + len(self.inputs))
        if batch is not None and numbers * x.element_size() <= KEPT_BYTES:
            own = batch.noise.unsqueeze(1)
            found = batch.log_densities(x, y, own if noise is None else noise.like(x).variance(own))
            if found is not None:
                return found
        logs = []
        for part in self.components():
            mean, covariance = part.posterior.predict(x).mean, part.posterior.joint_covariance(x)
            own = part.noise.expand(len(x)) if noise is None else noise.like(x).variance(part.noise)
            covariance = (covariance + torch.diag(own)).double()
            factor, _ = cholesky(covariance, name="the covariance of further observations")
            law = MultivariateNormal(mean.double(), scale_tril=factor, validate_args=False)
            logs.append(law.log_prob(y.double()))
        return torch.stack(logs)

    def _log_density_gains(
        self, rows: Tensor, targets: Tensor, noise: RowNoise | None
    ) -> Tensor | None:
        """By how much log p(y | theta) (S,) grows from the data to all rows; None: by prediction.

        Args:
            rows (n + m, d), targets (n + m,): the data, and further rows.
            noise: of all of them.
        """
        template, logs = copy.deepcopy(self.template), []
        for _ in template.hyper_position(fixed=True).visit(self.samples):
            template.row_noise = self._noise()
            before = template.log_density_once(self.inputs, self.targets)
            if before is None:
                return None
            template.row_noise = noise
            after = template.log_density_once(rows, targets)
            assert after is not None
            logs.append(after.double() - before.double())
        return torch.stack(logs)
