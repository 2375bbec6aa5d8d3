"""The evidence lower bound of models that can sample their latent functions."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import CholeskyReport
from gpx.methods.base.batch import Batch, batches_in_order, resolve_row_noise
from gpx.methods.base.objective import Evidence, Kind, Objective
from gpx.methods.base.posterior import Marginals
from gpx.methods.deep.draws import Draw, Draws
from gpx.tensor_checks import check_at_least

_plans: WeakKeyDictionary[nn.Module, tuple[object, list[Draw]]] = WeakKeyDictionary()
"""Model -> what its plan is for, and the plan: what a pass draws. Kept outside of the objective,
which is pickled and may serve several models."""


@runtime_checkable
class Sampled(Protocol):
    """What ``SampledELBO`` requires of a model."""

    likelihood: Likelihood

    def sample_marginals(
        self, x: Tensor, num: int = 1, *, generator: torch.Generator | None = None
    ) -> Marginals:
        """Gaussian marginals of f given draws of lower layers: (num, B) or (num, B, p) each."""

    @property
    def kl_known(self) -> bool:
        """Whether ``kl`` is exact, not only up to a constant."""

    def sample_latents(
        self, x: Tensor, num: int = 1, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws of f at x (B, d) under q: (num, B), or (num, B, p) for p latent functions."""

    def kl(self) -> Tensor:
        """KL(q || p) in nats; ()."""


class Pass(NamedTuple):
    """Found in one pass of a batch.

    Attributes:
        f: draws of the latent functions (S, B) or (S, B, p), or their marginals.
        kl, report: KL(q || p) in nats and the report of a factorisation, if these came with it.
    """

    f: Marginals | Tensor
    kl: Tensor | None = None
    report: CholeskyReport | None = None


class SampledELBO(Objective[Sampled]):
    """(n / B) sum over a batch of log p(y | f), averaged over draws of f, minus KL(q || p).

    An unbiased estimate, over uniformly drawn batches and draws of f, of a lower bound on the log
    marginal likelihood. If the divergence is known only up to a constant (Monte Carlo dropout), so
    is the bound, and its kind is "estimate".

    Args:
        num_data: n, the number of training points.
        num_samples: draws of f at each row of a batch.
        expected: draw only the lower layers, and take the expectation over the Gaussian marginals
            of the last layer in closed form or by quadrature. This has less noise; for several
            classes it treats latent functions as independent.

    Raises:
        ConfigError: numbers below one.

    Cost: ``num_samples`` passes through the model, forward and backward.
    """

    batching = "minibatch"
    kind: ClassVar[Kind] = "unbiased"
    takes_row_noise = True
    fixed_shapes = True
    elbo = True
    models = (Sampled,)
    made_for = "DeepGP"

    def __init__(self, num_data: int, num_samples: int = 1, *, expected: bool = False) -> None:
        super().__init__()
        check_at_least(1, num_data=num_data, num_samples=num_samples)
        self.total, self.num_samples, self.expected = num_data, num_samples, expected

    def evidence(
        self,
        model: Sampled,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
        noise: RowNoise | None = None,
    ) -> Evidence:
        """Evidence with parts ``fit`` (expected log-likelihood) and ``complexity`` (KL).

        Args:
            noise: what is known of the noise of these rows; None: of all rows what the model knows.

        Raises:
            ConfigError: the model knows something of each row, and some came without.
        """
        noise = resolve_row_noise(model, noise, len(x), self.total)
        return self._of(model, Batch(x, y, noise=noise), generator=generator)

    def _of(self, model: Sampled, batch: Batch, **source: Any) -> Evidence:
        found = self._pass(model, batch.x, **source)
        fit = self._fit(model.likelihood, batch, found.f)
        return self._evidence(model, fit * (self.total / len(batch.x)), found)

    def recordable(self, model: Sampled) -> bool:
        """As in ``Objective``; the model must take given draws, too."""
        return super().recordable(model) and getattr(model, "takes_draws", False)

    def step_draws(
        self, model: Sampled, x: Tensor, *, generator: torch.Generator | None
    ) -> tuple[Tensor, ...]:
        """As in ``Objective``: what a pass of ``evidence`` would draw, in the same order.

        The first call for a model and a shape of x makes a pass only to see what is drawn.
        """
        if not self.recordable(model):
            return ()
        assert isinstance(model, nn.Module)
        kind = x.shape, x.dtype, x.device, self.num_samples, self.expected
        known, plan = _plans.get(model, (None, []))
        if kind != known:
            plan = self._plan_of(model, x, generator)
            _plans[model] = kind, plan
        return tuple(draw(generator) for draw in plan)

    def prepare(
        self, model: Sampled, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """As in ``Objective``; a network may have been changed since an earlier run."""
        super().prepare(model, x, y, generator=generator)
        if isinstance(model, nn.Module):
            _plans.pop(model, None)

    def _plan_of(self, model: Sampled, x: Tensor, generator: torch.Generator | None) -> list[Draw]:
        """What a pass draws, seen in one with numbers that are not used."""
        assert isinstance(model, nn.Module)
        unused = torch.Generator(x.device if generator is None else generator.device)
        plan: list[Draw] = []
        modes = [(module, module.training) for module in model.modules()]
        model.eval()  # such as statistics of batch normalisation stay as they are
        try:
            with torch.no_grad():
                self._pass(model, x, draws=Draws(unused, plan=plan))
        finally:
            for module, training in modes:
                module.training = training
        return plan

    def evidence_given(self, model: Sampled, batch: Batch, drawn: tuple[Tensor, ...]) -> Evidence:
        """As in ``Objective``."""
        if not self.recordable(model):
            return self.evidence_of(model, batch)
        noise = resolve_row_noise(model, batch.noise, len(batch.x), self.total)
        return self._of(model, batch._replace(noise=noise), draws=Draws(known=iter(drawn)))

    def _fit(self, likelihood: Likelihood, batch: Batch, f: Marginals | Tensor) -> Tensor:
        """Sum over the rows of a batch; ()."""
        _, y, _, noise = batch
        if isinstance(f, Marginals):
            return likelihood.expected_log_prob_of_rows(y, *f, noise).mean(0).sum()
        return likelihood.log_prob_of_rows(y, f, noise).mean(0).sum()

    def _pass(self, model: Sampled, x: Tensor, **source: Any) -> Pass:
        """A pass with ``source`` of random numbers: generator or draws."""
        sample = model.sample_marginals if self.expected else model.sample_latents
        return Pass(sample(x, self.num_samples, **source))

    def _evidence(self, model: Sampled, fit: Tensor, last: Pass) -> Evidence:
        """From the sum over all rows, and one of the passes it was made from."""
        kl = model.kl()
        kind: Kind = "unbiased" if model.kl_known else "estimate"
        return Evidence(fit - kl, kind, {"fit": fit, "complexity": kl})

    @torch.no_grad()
    def full_evidence(
        self,
        model: Sampled,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """Unbiased estimate of the bound, streamed over all rows."""
        fit = torch.zeros((), dtype=torch.float64, device=x.device)
        for batch in batches_in_order(model, x, y, batch_size):
            last = self._pass(model, batch.x, generator=generator)
            fit += self._fit(model.likelihood, batch, last.f).double()
        return self._evidence(model, fit, last)
