"""Stored latent means of all rows, so that steps need to sample only the change since then."""

from __future__ import annotations

import logging
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from gpx.bases.base import Basis
from gpx.bases.frozen import flat_parameters, frozen_basis, set_parameters
from gpx.data_sized import DataSized
from gpx.methods.base.objective import Evidence
from gpx.methods.base.posterior import Posterior
from gpx.methods.weight_space.control_variate import factor_rows
from gpx.methods.weight_space.elbo_terms import weights_kl
from gpx.methods.weight_space.model import WeightsOnBasis
from gpx.methods.weight_space.sites import improve_sites, sites_of

logger = logging.getLogger(__name__)


@runtime_checkable
class SitesOnBasis(WeightsOnBasis, Protocol):
    """What the bound of log-concave sites needs of a model beside ``WeightsOnBasis``.

    Attributes:
        report: ``SiteReport`` of the start; None: there was none.
    """

    report: Any

    def site_group(self, num_data: int) -> int:
        """Number of blocks that precondition passes over all functions."""

    def condition(self, x: Tensor, y: Tensor) -> Posterior:
        """The posterior, with whose means and variances the exact bound is computed."""


class SiteSnapshot(DataSized):
    """Weights mu0, hyperparameters theta0 and f0 = Phi(theta0) mu0 of all rows, without a level.

    Latent mean of row l: f0_l + [phi_l(theta)^T mu - phi_l(theta0)^T mu0]. Only the bracket is
    sampled, over the same functions in both terms, which is unbiased, and exact while theta and mu
    have not changed. The loss by Jensen's inequality grows with the variance of the sampled sum:
    with a snapshot that of the change of f, without one that of f.

    Attributes:
        weights (B, W): mu0.
        scales: the other parameters of q and those of the likelihood, one after the other.
        hyperparameters: those of the basis, theta0.
        moved: whether the basis is no longer at theta0; None: not known yet.

    State: m + 3 n numbers, and the other parameters of q.
    Source: variance reduction of Johnson and Zhang 2013, applied to the sum over functions.
    """

    data_sized = ("weights", "scales", "hyperparameters", "fitted", "alpha", "prior", "value")
    derived = ("_frozen",)  # from the hyperparameters
    weights: Tensor
    scales: Tensor
    hyperparameters: Tensor
    fitted: Tensor
    alpha: Tensor
    prior: Tensor
    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in self.data_sized:
            self.register_buffer(name, torch.zeros(0))
        self.moved: bool | None = False
        self._frozen: Basis | None = None

    @property
    def taken(self) -> bool:
        """Whether ``take`` was called."""
        return self.weights.numel() > 0

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.moved = None

    @torch.no_grad()
    def take(self, model: SitesOnBasis, x: Tensor, y: Tensor, alpha: Tensor | None) -> Evidence:
        """Store the current state of the model; returns its exact bound. Cost: O(n m d).

        Args:
            x (n, d), y (n,): all training data.
            alpha (n,): from ``representer``, if the weights are S^-1 Phi^T alpha.
        """
        marginals = model.condition(x, y).predict(x)
        evidence = site_elbo(model, y, marginals.mean, marginals.variance)
        self.weights = model.family.mean.detach().clone()
        others = [p.detach().reshape(-1) for p in _others(model)]
        self.scales = torch.cat([self.weights.new_zeros(0), *others])
        self.hyperparameters = flat_parameters(model.basis.parameters())
        self.fitted = marginals.mean - _level(model)
        self.alpha = self.weights.new_zeros(0) if alpha is None else alpha.to(x.dtype)
        precision = model.basis.precision_diagonal().to(self.weights)
        self.prior = precision @ self.weights.reshape(-1).square()
        self.value = evidence.value.detach().clone()
        self.moved, self._frozen = False, None
        return evidence

    @torch.no_grad()
    def refresh(self, model: SitesOnBasis, x: Tensor, y: Tensor, passes: int) -> bool:
        """Improve the weight mean by passes over all functions and take the snapshot again.

        If the exact bound is below that of the last snapshot, the model is reset to it, so that the
        bound never falls from refresh to refresh.

        Returns:
            whether the model was kept.

        Cost: 2 + passes times O(n m d).
        """
        alpha: Tensor | None = None
        if passes and self.alpha.numel():
            marginals = model.condition(x, y).predict(x)
            report = improve_sites(
                model.basis,
                model.family.mean.data,
                sites_of(model),
                x,
                y,
                latent=marginals.mean - _level(model),
                latent_variance=marginals.variance.mean(),
                alpha=self.alpha,
                group=model.site_group(x.shape[0]),
                passes=passes,
            )
            alpha = report.alpha
        elif self.alpha.numel():
            alpha = self.alpha
        kept = {name: getattr(self, name) for name in self.data_sized}
        value = self.take(model, x, y, alpha).value
        if bool(value >= kept["value"]):
            return True
        logger.info(
            "bound %.6g is below %.6g of the last snapshot: reset to it", value, kept["value"]
        )
        for name, tensor in kept.items():
            setattr(self, name, tensor)
        model.family.mean.copy_(self.weights)
        left = self.scales.reshape(-1)
        for parameter in _others(model):
            size = parameter.numel()
            if len(left) >= size:  # runs saved by earlier versions hold the first of them only
                parameter.copy_(left[:size].view_as(parameter))
                left = left[size:]
        set_parameters(model.basis, self.hyperparameters)
        return False

    def change(
        self, model: SitesOnBasis, x: Tensor, blocks: Tensor, features: Tensor, weights: Tensor
    ) -> Tensor:
        """phi(theta)^T mu - phi(theta0)^T mu0 over ``blocks``, (batch,).

        Args:
            x (batch, d): rows.
            blocks (L,): functions.
            features (batch, L W), weights (L W,): phi(theta) and mu there.
        """
        old = self.weights[blocks].reshape(-1)
        basis = self._snapshot_basis(model)
        if basis is not model.basis:
            with torch.no_grad():
                before = basis.block_features(x, blocks) @ old
        elif features.requires_grad:  # the gradient by theta is that of phi(theta)^T mu
            before = features.detach() @ old
        else:
            return features @ (weights - old)
        return features @ weights - before

    def _snapshot_basis(self, model: SitesOnBasis) -> Basis:
        """The basis at the hyperparameters of the snapshot: the model's own until it moves."""
        if self.moved is None:  # loaded; a run that goes on must take the path that it would take
            now = flat_parameters(model.basis.parameters())
            self.moved = not torch.equal(now, self.hyperparameters.to(now))
        if not self.moved:
            return model.basis
        if self._frozen is None:
            self._frozen = frozen_basis(model.basis, self.hyperparameters)
        return self._frozen

    @torch.no_grad()
    def prior_correction(self, model: SitesOnBasis, blocks: Tensor, ratio: float) -> Tensor:
        """1/2 mu0^T S0 mu0 minus its estimate from ``blocks`` (L,), of mean zero.

        S0 is the prior precision at the hyperparameters of the snapshot.
        """
        precision = self._snapshot_basis(model).block_precision(blocks).to(self.weights)
        square = self.weights[blocks].reshape(-1).square()
        return 0.5 * (self.prior - ratio * (precision @ square))


def _others(model: SitesOnBasis) -> list[nn.Parameter]:
    """Parameters of q beside its mean, those of the likelihood, and the level."""
    own = [p for p in model.family.parameters() if p is not model.family.mean]
    level: nn.Module | None = getattr(model, "level", None)
    return [*own, *model.likelihood.parameters(), *([] if level is None else level.parameters())]


def _level(model: SitesOnBasis) -> Tensor | float:
    level = getattr(model, "level", None)
    return 0.0 if level is None else level.constant.detach()


@torch.no_grad()
def site_elbo(model: SitesOnBasis, y: Tensor, mean: Tensor, variance: Tensor) -> Evidence:
    """The exact bound from means and variances (n,) of f in all rows; O(n + m K)."""
    fit = model.likelihood.expected_log_prob(y, mean, variance).double().sum()
    basis, family = model.basis, model.family
    blocks = torch.arange(basis.num_blocks, device=y.device)
    kl = weights_kl(
        basis, family, blocks, factor_rows(family, blocks), model.log_scales(blocks), 1.0
    )
    parts = {"fit": fit, "complexity": -kl}
    return Evidence(fit - kl, "lower_bound", parts)
