"""A kernel fitted to some rows, and how well it does on them: what kernel=auto compares."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from gpx.constraints import lower_limits
from gpx.errors import DidNotConverge, NotPositiveDefinite
from gpx.inference.leave_one_out import LeftOut
from gpx.kernels import Kernel
from gpx.likelihoods import Gaussian, Likelihood
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.linalg import cholesky
from gpx.methods.base.model import Hyperparameters
from gpx.models import ExactGP, LaplaceGP
from gpx.objectives import ExactMLL, LaplaceEvidence
from gpx.options.build import build
from gpx.training.initialisation import exact_outputs, rows_of_outputs, take_over
from gpx.training.lbfgsb import LBFGSB

Node = dict[str, Any]

LEAST_NOISE = 1e-6
"""A run starts from a fit whose noise is at least this share of the prior variance, and whose
kernel matrix has a Cholesky factor with something to spare; else from the constants of the kernel,
as it does where a kernel is named."""


@dataclass(frozen=True)
class Fit:
    """A kernel fitted to the rows.

    Attributes:
        name: its expression.
        node: its config, with the hyperparameters found.
        likelihood: that of the likelihood beside it: a kernel with little left to explain does not
            start from noise that explains it all.
        evidence: nats per row.
        predictive: nats per row, the log density of each value given all others; None where that
            takes more than a factorisation (likelihoods other than Gaussian).
        score: nats, see ``score``.
        hyperparameters: of the kernel.
    """

    name: str
    node: Node
    likelihood: Node
    evidence: float
    predictive: float | None = None
    score: float = -math.inf
    hyperparameters: int = 0


def score(rows: int, hyperparameters: int, evidence: float, predictive: float | None) -> float:
    """What kernels are compared by, in nats.

    Half the evidence less half of log n for every hyperparameter (Schwarz 1978), and half the log
    density of every value given all others. The former asks whether a richer kernel pays for its
    hyperparameters, and takes the model for true; the latter asks what it predicts, and sees its
    hyperparameters for nothing. Without the latter: the former alone.

    Args:
        rows: n.
        hyperparameters: of the kernel.
        evidence, predictive: nats per row.
    """
    schwarz = rows * evidence - 0.5 * hyperparameters * math.log(rows)
    return schwarz if predictive is None else 0.5 * (schwarz + rows * predictive)


class Judge:
    """Fits kernels to the same rows.

    Args:
        config: with ``facts``; its mean and likelihood are fitted with every kernel.
        x (n, d), y (n,) or (n, p): the rows, NaN where one of p targets is missing.
        more (m, d): these and more inputs, which the start of a run has to bear.
        max_evaluations: of the evidence, for each kernel.
    """

    def __init__(
        self, config: DictConfig, x: Tensor, y: Tensor, more: Tensor, max_evaluations: int
    ) -> None:
        self.config, self.x, self.y, self.more = config, x, y, more
        self.max_evaluations = max_evaluations
        self.mean = build(config, "mean")
        stored = OmegaConf.to_container(config.likelihood, resolve=False)
        assert isinstance(stored, dict)
        self.start: Node = {str(option): value for option, value in stored.items()}
        likelihood: Likelihood = build(config, "likelihood")
        self.gaussian = isinstance(likelihood, (Gaussian, NoisyOutputs))

    def hyperparameters(self, node: Node) -> int:
        """How many the kernel of ``node`` has."""
        filled = copy.deepcopy(self.config)
        filled.kernel = node
        return num_learned(build(filled, "kernel"))

    def fit(self, name: str, node: Node, likelihood: Node | None = None) -> Fit:
        """The kernel of ``node`` at its largest evidence; score -inf where it has none.

        Args:
            name: of the kernel.
            node: its config, from whose values the fit starts.
            likelihood: the likelihood's; None: that of the run.
        """
        start = self.start if likelihood is None else likelihood
        filled = copy.deepcopy(self.config)
        filled.kernel, filled.likelihood = node, start
        kernel: Kernel = build(filled, "kernel")
        parts = Hyperparameters(
            kernel.double(),
            copy.deepcopy(self.mean).double(),
            build(filled, "likelihood").double(),
        )
        try:
            evidence, predictive = self._maximise(parts)
        except (NotPositiveDefinite, DidNotConverge):
            return Fit(name, node, start, -math.inf)
        count = num_learned(kernel)
        found = score(len(self.y), count, evidence, predictive)
        if not math.isfinite(found):
            return Fit(name, node, start, -math.inf)
        if isinstance(parts.likelihood, Gaussian):  # that of several outputs takes one number
            if not self._is_start(kernel, parts.likelihood.noise_variance.detach()):
                return Fit(name, node, self.start, evidence, predictive, found, count)
            start = with_values(start, parts.likelihood)
        return Fit(name, with_values(node, kernel), start, evidence, predictive, found, count)

    @torch.no_grad()
    def _is_start(self, kernel: Kernel, noise: Tensor) -> bool:
        """Whether more rows than were fitted have a Cholesky factor with something to spare."""
        variance = kernel.diagonal(self.more).max()
        if not bool(noise >= LEAST_NOISE * variance):
            return False
        covariance = kernel.evaluate(self.more, self.more)
        covariance.diagonal().add_(0.5 * noise)
        return int(torch.linalg.cholesky_ex(covariance).info) == 0

    def _maximise(self, parts: Hyperparameters) -> tuple[float, float | None]:
        """Move the parts to the largest evidence; that, and the predictive density, per row."""
        module: nn.Module
        outputs: list[tuple[ExactGP, Tensor, Tensor]] = []

        def share(y: Tensor) -> float:
            return len(y) / len(self.y)  # of the rows, those that have this output

        if self.gaussian:
            exact, objective = exact_outputs(parts), ExactMLL()
            rows = rows_of_outputs(self.x, self.y)
            outputs = [(each, *own) for each, own in zip(exact, rows, strict=True) if len(own[1])]
            module = nn.ModuleList([each for each, _, _ in outputs])

            def loss() -> Tensor:
                return torch.stack([share(y) * objective(gp, x, y) for gp, x, y in outputs]).sum()
        else:
            laplace, approximate = LaplaceGP(**parts._asdict()), LaplaceEvidence()
            module = laplace

            def loss() -> Tensor:
                return approximate(laplace, self.x, self.y)

        parameters = list(module.parameters())
        if parameters:
            LBFGSB(ftol=1e-6, gtol=1e-3).minimise(
                parameters,
                loss,
                self.max_evaluations,
                lambda *_: None,
                lower=lower_limits(module, parameters),
            )
        with torch.no_grad():
            evidence = -float(loss())
        if not self.gaussian:
            return evidence, None
        take_over(exact, parts)
        return evidence, sum(share(y) * _predictive(gp, x, y) for gp, x, y in outputs)


@torch.no_grad()
def _predictive(model: ExactGP, x: Tensor, y: Tensor) -> float:
    """Mean log density of every value y (n,) given all others."""
    covariance = model.kernel.evaluate(x, x)
    covariance.diagonal().add_(model.likelihood.noise_variance)
    factor, _ = cholesky(covariance, name="the covariance of the rows", ladder=(0.0,))
    return float(LeftOut.of(factor, y - model.mean(x)).log_density().mean())


def num_learned(kernel: Kernel) -> int:
    """Numbers that training may move."""
    return sum(p.numel() for p in kernel.parameters() if p.requires_grad)


def with_values(node: Node, part: Any) -> Node:
    """The config of a kernel or likelihood with what it has learned in the place of what it began
    with."""
    made = dict(node)
    if isinstance(node.get("kernels"), list):
        pairs = zip(node["kernels"], part.kernels, strict=True)
        made["kernels"] = [with_values(each, kernel) for each, kernel in pairs]
        return made
    if isinstance(node.get("kernel"), dict):
        made["kernel"] = with_values(node["kernel"], part.kernel)
    for option, initial in node.items():
        value = getattr(part, option, None)
        if initial is not None and isinstance(value, Tensor):
            made[option] = value.detach().tolist()
    return made
