"""The posterior process of a random network: an average over draws of it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal

from gpx.inference.finite_mixture import gaussian_mixture, mixture_moments
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.likelihoods.base import Likelihood, class_law
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.likelihoods.softmax import class_shares
from gpx.methods.base.posterior import Marginals, Posterior
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.methods.deep.draws import draws_of, held, is_random, random_layers
from gpx.methods.deep.inducing_layer import InducingLayer
from gpx.methods.deep.layer import GPLayer
from gpx.methods.deep.network import Network
from gpx.tensor_checks import check_inputs, validation

PREDICT_CHUNK = 512
"""Test rows per pass of a prediction."""

_PASSES = threading.RLock()
"""Layers hold the draws and the factors of a pass, so that threads take turns. One for all
posteriors: they may share a network, and are copied and pickled."""


class NetworkPosterior(Posterior):
    """Posterior process of q as an average over draws of the network, the same in every prediction.

    Each draw is a function of x with its own seed, so that only the seed is stored and the number
    of draws (``num_samples``) may be changed. Given a draw of the layers below, the head has
    Gaussian marginals, which are averaged without drawing them.

    Args:
        network: not copied; switched to evaluation, without gradients.
        num_inputs, num_latents: d, p.
        num_samples: number of draws; a single one is used if only the head is random.
        seed: of the draws.
    """

    def __init__(
        self,
        network: Network,
        *,
        num_inputs: int,
        num_latents: int,
        num_samples: int,
        seed: int,
    ) -> None:
        super().__init__()
        # layers such as ``nn.BatchNorm1d`` would depend on the batch; random layers stay random
        self.network = network.requires_grad_(False).eval()
        self.num_latents, self.num_samples, self.seed = num_latents, num_samples, seed
        self._num_inputs = num_inputs
        self._recorded: list[list[Tensor]] | None = None
        self._stacked: list[Tensor] | None = None

    def fix(self) -> None:
        """As in ``Posterior``: records the random numbers of every draw and factorises layers.

        If ``torch.vmap`` can take the network, an exported program then evaluates all draws in one
        pass. It is smaller than with one pass per draw, but holds the features of all draws.
        """
        example = next(self.network.parameters()).new_zeros(1, self._num_inputs)
        recorded: list[list[Tensor]] = []
        with _one_thread(), torch.no_grad():
            for layer in random_layers(self.network):
                layer.hold()
            for number in range(self.draws_needed):
                recorded.append([])
                generator = self._generator(number)
                with draws_of(self.network, generator, shared=True, record=recorded[-1]):
                    self.network.marginals(example)
        self._recorded, self._stacked = recorded, None
        if not recorded[0]:
            return
        stacked = [torch.stack(numbers) for numbers in zip(*recorded, strict=True)]
        try:
            with _one_thread():
                self._all_draws(example, stacked)
        except (RuntimeError, ValueError):  # from layers that torch.vmap cannot take
            return
        self._stacked = stacked

    @torch.no_grad()
    def _all_draws(self, x: Tensor, stacked: list[Tensor]) -> Tensor:
        """``_mean_and_variance`` of all draws, (2, S, n, p), from their random numbers (S, ...)."""

        def one_draw(rows: Tensor, *numbers: Tensor) -> tuple[Tensor, Tensor]:
            with draws_of(self.network, None, shared=True, known=iter(numbers)):
                mean, variance = self.network.marginals(rows)
                return mean, variance

        # x is expanded for every draw: a shared x would fix n in an exported program
        rows = x.expand(len(stacked[0]), *x.shape)
        return torch.stack(torch.vmap(one_draw)(rows, *stacked))

    @property
    def num_inputs(self) -> int:
        """Columns of the inputs."""
        return self._num_inputs

    @property
    def draws_needed(self) -> int:
        """Number of draws that a prediction averages; one if all draws have the same marginals.

        Class probabilities may need more, see ``_class_draws``.
        """
        drawn = is_random(self.network.body) or self.network.head.drawn
        return self.num_samples if drawn else 1

    @property
    def _class_draws(self) -> int:
        """Number of draws of f for probabilities of several classes; one if all are independent
        normals, which needs an analytic head on a body that is not random."""
        head = self.network.head
        weights = head.weights if isinstance(head, GPLayer) else head
        known = weights if weights.analytic else None
        layers = [layer for layer in random_layers(self.network) if layer is not known]
        return self.num_samples if any(layer.random for layer in layers) else 1

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: most draws of a prediction, and the largest relative jitter of any
        K_zz."""
        layers = [m for m in self.network.modules() if isinstance(m, InducingLayer)]
        reports = [layer.variables.whitening().report for layer in layers]
        found: dict[str, bool | int | float | str] = {
            "draws": max(self.draws_needed, self._class_draws)
        }
        return found | ({"jitter": max(r.relative for r in reports)} if reports else {})

    def _generator(self, number: int) -> torch.Generator:
        # on the CPU, for the same draws on every device
        return torch.Generator().manual_seed((self.seed << 20) + number)

    def _over_rows(
        self,
        x: Tensor,
        numbers: Sequence[int],
        of: Callable[[Network, Tensor], Tensor],
        combine: Callable[[list[Tensor]], Tensor],
        *,
        joint: bool = False,
    ) -> Tensor:
        """``of`` the network and rows of x for each of the draws, combined, in blocks: (..., n, p).

        Layers before the first random one are evaluated once for all draws, and ``of`` gets the
        rest of the network with their outputs.
        """
        if not len(x):  # not every layer accepts an empty batch
            one = x.new_zeros(1, x.shape[1])
            return self._over_rows(one, numbers, of, combine, joint=joint)[..., :0, :]
        fixed, drawn = self.network.split()
        parts = []
        for rows in x.split(PREDICT_CHUNK):
            features, found = fixed(rows), []
            for number in numbers:
                with draws_of(self.network, self._generator(number), shared=True, joint=joint):
                    found.append(of(drawn, features))
            parts.append(combine(found))
        return torch.cat(parts, -2)

    def _recorded_marginals(self, x: Tensor, numbers: list[Tensor]) -> Tensor:
        """``_mean_and_variance`` of one draw with its recorded numbers, in one pass."""
        with draws_of(self.network, None, shared=True, known=iter(numbers)):
            return _mean_and_variance(self.network, x)

    @contextmanager
    def _passes(self) -> Iterator[None]:
        """A context for passes of one thread; layers factorise once in it, unless ``fix`` did."""
        with _one_thread(), held(self.network) if self._recorded is None else nullcontext():
            yield

    def components(self, x: Tensor) -> Marginals:
        """Mean and variance of f for each draw: (S, n), or (S, n, p).

        Cost: S passes through the network.
        """
        # all draws at once only when exporting: they need S times the memory and are slower
        if self._stacked is not None and torch.compiler.is_exporting():
            found = self._all_draws(x, self._stacked)
        elif self._recorded is not None:
            with self._passes():
                found = _side_by_side([self._recorded_marginals(x, n) for n in self._recorded])
        else:
            draws = range(self.draws_needed)
            with self._passes():
                found = self._over_rows(x, draws, _mean_and_variance, _side_by_side)
        if self.num_latents == 1:
            found = found.squeeze(3)
        return Marginals(found[0], found[1])

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the mixture over draws at x (n, d): (n,) or (n, p)."""
        return mixture_moments(self.components(x))

    def outputs(self, x: Tensor, likelihood: Likelihood) -> Marginals:
        """As in ``Posterior``: latents share the draws, and are independent only given one."""
        return mixture_moments(Marginals(*likelihood.outputs(*self.components(x))))

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """Mixture over draws of the distribution of y at x (n, d).

        For classes the probabilities are averaged (not the latent functions); for three or more
        unordered classes over drawn latent functions.
        """
        plain = not is_random(self.network)  # f is known, and need not be averaged over
        if likelihood.task == "multiclass" and (plain or self._class_draws > 1):
            return class_law(self._class_probabilities(x, likelihood))
        if self.draws_needed == 1:
            return super().predictive(x, likelihood)
        mean, variance = self.components(x)
        if likelihood.task == "ordinal":
            predictive = likelihood.predictive(mean, variance)
            assert isinstance(predictive, Categorical)
            return class_law(predictive.probs.mean(0))
        if isinstance(likelihood, Bernoulli):
            if likelihood.probability == "median":
                return super().predictive(x, likelihood)
            return likelihood.predictive(mean, variance).averaged()
        if isinstance(likelihood, Gaussian):
            return gaussian_mixture(Marginals(mean, variance + likelihood.noise_variance))
        if isinstance(likelihood, NoisyOutputs):
            return _mixture_of_outputs(mean, variance, likelihood, None)
        parts = likelihood.predictive(mean.movedim(0, 1), variance.movedim(0, 1))
        # as precise as the parts, which for counts are float64: a sum of shares that is not one to
        # their rounding looks like counts without end
        share = parts.mean.new_ones(mean.shape[1], len(mean))
        return MixtureSameFamily(Categorical(probs=share), parts, validate_args=validation(share))

    def predictive_of_rows(
        self, x: Tensor, likelihood: Gaussian | NoisyOutputs, noise: RowNoise
    ) -> Distribution:
        """As in ``Posterior``: the mixture over draws, as in ``predictive``."""
        if self.draws_needed == 1:
            return super().predictive_of_rows(x, likelihood, noise)
        mean, variance = self.components(x)
        if isinstance(likelihood, NoisyOutputs):
            return _mixture_of_outputs(mean, variance, likelihood, noise)
        own = noise.like(mean).variance(likelihood.noise_variance.to(mean))
        return gaussian_mixture(Marginals(mean, variance + own))

    def _class_probabilities(self, x: Tensor, likelihood: Likelihood) -> Tensor:
        """Mean over draws of P(y = c | f), (n, C)."""
        draws = self._class_draws

        def part(network: Network, rows: Tensor) -> Tensor:
            return class_shares(likelihood, network(rows)) / draws

        with self._passes():
            total = self._over_rows(x, range(draws), part, _total)
        return total / total.sum(1, keepdim=True)

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` draws of the network as functions x (n, d) -> (num, n), or (num, n, p)."""
        numbers = torch.randint(
            self.num_samples, 2**20, (num,), generator=generator, device=generator.device
        ).tolist()

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            check_inputs(self, x, self.num_inputs)
            with self._passes():
                found = self._over_rows(x, numbers, Network.__call__, torch.stack, joint=True)
            return found.squeeze(2) if self.num_latents == 1 else found

        return paths


def _mean_and_variance(network: Network, rows: Tensor) -> Tensor:
    """Mean and variance (2, n, p) of the head for the current draw."""
    return torch.stack(tuple(network.marginals(rows)))


def _side_by_side(found: list[Tensor]) -> Tensor:
    """Moments (2, n, p) of each draw as (2, S, n, p)."""
    return torch.stack(found, 1)


def _total(found: list[Tensor]) -> Tensor:
    return functools.reduce(torch.add, found)


def _mixture_of_outputs(
    mean: Tensor, variance: Tensor, likelihood: NoisyOutputs, noise: RowNoise | None
) -> Independent:
    """The mixture over draws for each output, from latent moments (s, n, q)."""
    mean, variance = likelihood.outputs(mean, variance)
    deviation = (variance + likelihood.noise_of_rows(noise)).sqrt()
    parts = Normal(mean.movedim(0, -1), deviation.movedim(0, -1))
    share = mean.new_ones(*mean.shape[1:], len(mean))
    mixture = MixtureSameFamily(Categorical(probs=share), parts, validate_args=validation(share))
    return Independent(mixture, 1)


def _one_thread() -> AbstractContextManager[object]:
    """The lock of ``_PASSES``; none while a program is traced, which has no locks."""
    return nullcontext() if torch.compiler.is_compiling() else _PASSES
