"""Stochastic lower bound of the ELBO for log-concave sites, at a cost independent of n and m."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.methods.base.batch import Batch
from gpx.methods.base.objective import Batching, Evidence, Kind, Objective
from gpx.methods.base.step_count import StepCount
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.block_sampling import (
    Sampling,
    multiplicity,
    sample_columns,
)
from gpx.methods.weight_space.control_variate import anchor_rows, factor_rows
from gpx.methods.weight_space.elbo_terms import weights_kl
from gpx.methods.weight_space.site_snapshot import SiteSnapshot, SitesOnBasis, site_elbo
from gpx.methods.weight_space.sites import check_site, sites_of
from gpx.tensor_checks import check_at_least, check_num_data, check_one_of

Bound = Literal["affine", "reparam", "paper"]
DEFAULT_COLUMNS = 10_000
ETA_DECAY = 0.99
"""Decay of the running mean of the sampled latent variance."""


class SiteBoundELBO(StepCount, Objective[SitesOnBasis]):
    """Stochastic lower bound on the ELBO of QSGP under likelihoods with log-concave sites.

    E_q log p(y | w) = sum_l h_l(a_l, sqrt(v_l)) with a_l = phi_l mu, v_l = |C^T phi_l|^2 and
    h_l(a, s) = E log p(y_l | a + s z), z ~ N(0, 1), which is jointly concave in (a, s) and falls
    with |s|. Data rows and lists of basis functions are sampled. With unbiased estimates a^ and v^,
    Jensen's inequality gives a lower bound in expectation, for each row:

    - ``affine`` (default): h(a^, (eta + v^ / eta) / 2) <= h(a, sqrt(v)) for every eta > 0, because
      sqrt(v) <= (eta + v / eta) / 2; tight at eta = sqrt(v).
    - ``reparam``: h(a^, s^) with s^ the scaled norm of the sampled rows of phi C. Its variance is
      inflated by m / columns, so the bound is loose for short lists.
    - ``paper``: h(a^, v^), theorem 3 of the QSGP paper as printed, with the variance in place of
      the standard deviation. Not a bound if v < 1; for reproduction only.

    The KL term is unbiased (``weights_kl``), so the whole is an unbiased estimate of a lower bound
    of the ELBO, equal to it when all functions are sampled and eta = sqrt(v).

    Snapshot: the loss by Jensen's inequality grows with the variance of a^, which is large when few
    functions are sampled, and training would then reduce this variance at the expense of the fit.
    Therefore f0 = Phi mu0 of all rows is stored and only phi^T mu - phi^T mu0 is sampled
    (``SiteSnapshot``). Every ``refresh_steps`` steps, passes over all functions improve the weights
    for the current hyperparameters (``representer``) and the snapshot is taken again; if the exact
    bound has fallen, the model is reset to the last snapshot.

    Anchor (without a snapshot): as in QuadruplyStochasticELBO, weights that exact solves have set
    are evaluated exactly on the mini-batch, and only the difference to them is sampled. Their prior
    term is exact, too.

    Args:
        num_data: n, training points.
        columns: basis functions per list (m tilde), rounded to whole blocks; None: 10,000, at
            most m.
        bound: ``affine``, ``reparam`` or ``paper``.
        eta: latent standard deviation at which ``affine`` is tight: a positive number, or
            ``running`` for the root of a running mean of v^ over earlier steps (which is
            independent of the samples of the step, so that the bound holds).
        sampling: ``stratified``, ``with_replacement`` or ``without_replacement``.
        snapshot: whether to store latent means of all rows and sample only their change; takes one
            pass over all rows and functions at the start, O(n m d), and m + 3 n numbers.
        refresh_steps: steps between snapshots; 0: only at the start.
        refresh_passes: passes over all functions at each snapshot, which improve the weights.

    Raises:
        ConfigError: an invalid option, or columns above m.

    Kind: unbiased for a lower bound of the ELBO (``paper``: an estimate without guarantee).
    Cost per step: O(batch (columns + A W) (d + K)) time, memory the same without the factor d, plus
    the quadrature's nodes per row; twice the features once hyperparameters differ from those of
    the snapshot; two lists for a chevron covariance. Independent of n and m.

    Source: QSGP paper theorem 3; thesis section 6.3. ``affine`` and ``reparam`` are corrections.
    """

    batching: ClassVar[Batching] = "minibatch"
    fixed_total: ClassVar[bool] = True
    kind: ClassVar[Kind] = "unbiased"
    models: ClassVar[tuple[type, ...]] = (SitesOnBasis,)
    made_for = "QSGP"
    data_sized: ClassVar[tuple[str, ...]] = ("anchor",)
    anchor: Tensor
    eta: Tensor

    def __init__(
        self,
        num_data: int,
        columns: int | None = None,
        bound: Bound = "affine",
        eta: float | Literal["running"] = "running",
        sampling: Sampling = "stratified",
        snapshot: bool = True,
        refresh_steps: int = 0,
        refresh_passes: int = 1,
    ) -> None:
        super().__init__()
        check_at_least(1, num_data=num_data, columns=columns)
        check_one_of(get_args(Bound), bound=bound)
        if eta != "running" and not (isinstance(eta, (int, float)) and eta > 0):
            raise ConfigError(f"eta={eta}: expected a positive number or running")
        if min(refresh_steps, refresh_passes) < 0 or (refresh_steps and not snapshot):
            raise ConfigError(
                f"refresh_steps={refresh_steps} and refresh_passes={refresh_passes} must not be "
                f"negative, and only a snapshot can be refreshed (snapshot={snapshot})"
            )
        self.total = num_data
        self.columns = columns
        self.bound: Bound = bound
        check_one_of(get_args(Sampling), sampling=sampling)
        self.sampling = sampling
        self.running_eta = eta == "running"
        self.register_buffer("anchor", torch.zeros(0, 0))
        self.register_buffer("eta", torch.tensor(1.0 if self.running_eta else float(eta)))
        self.snapshot = SiteSnapshot() if snapshot else None
        self.refresh_steps = refresh_steps
        self.refresh_passes = refresh_passes
        self._sampled_variance: Tensor | None = None
        self._data: tuple[Tensor, Tensor] | None = None

    def check(self, model: SitesOnBasis) -> None:
        """As in ``Objective``; sites must be log-concave and lists no longer than the basis."""
        super().check(model)
        check_site(model.likelihood)
        if isinstance(model.family, BlockDiagonalWeights):
            raise ConfigError(
                "objective SiteBoundELBO needs covariance=mean_field, chevron or full: "
                "blocks of the covariance are exact solves, which these sites do not have"
            )
        if self.columns is not None and self.columns > model.basis.num_basis:
            raise ConfigError(
                f"columns={self.columns} basis functions per step, but there are "
                f"num_basis={model.basis.num_basis}; lower the first or raise the second"
            )

    @torch.no_grad()
    def prepare(
        self, model: SitesOnBasis, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> None:
        """Take the snapshot (or the anchor), and the first eta from one sample."""
        check_num_data(self.total, x)
        model.num_data.fill_(float(self.total))
        if self.snapshot is not None:
            passes = getattr(model.report, "representer", None)
            self.snapshot.take(model, x, y, None if passes is None else passes.alpha)
        else:
            self.anchor = model.family.mean[: model.anchor_blocks].detach().clone()
        if self.running_eta:
            lists = self.draw(model, generator=generator, device=x.device)
            chosen = torch.randint(
                x.shape[0], (min(128, x.shape[0]),), generator=generator, device=x.device
            )
            _, variance = self.latent(model, x[chosen], *lists)
            floor = torch.finfo(x.dtype).eps
            self.eta.copy_(variance.mean().clamp_min(floor).sqrt())

    def before_step(self, model: SitesOnBasis, x: Tensor, y: Tensor, rows: Tensor) -> None:
        """Keep a reference to all the data, for a refresh of the snapshot."""
        if self.refresh_steps:
            self._data = x, y

    @torch.no_grad()
    def after_step(self, model: SitesOnBasis) -> None:
        """Update the running eta with the variance of this step; refresh the snapshot if due."""
        if self.running_eta and self._sampled_variance is not None:
            square = self.eta.square() * ETA_DECAY + (1.0 - ETA_DECAY) * self._sampled_variance
            self.eta.copy_(square.clamp_min(torch.finfo(square.dtype).eps).sqrt())
        self._sampled_variance = None
        due = self.count_step(self.refresh_steps)
        if self.snapshot is None:
            return
        if any(p.requires_grad for p in model.basis.parameters()):
            self.snapshot.moved = True
        if due and self._data is not None:
            self.snapshot.refresh(model, *self._data, self.refresh_passes)

    @torch.no_grad()
    def full_evidence(
        self,
        model: SitesOnBasis,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
    ) -> Evidence:
        """As in ``Objective``; exact with a snapshot, which costs as much anyway."""
        if self.snapshot is None:
            return super().full_evidence(model, x, y, batch_size=batch_size, generator=generator)
        return exact_site_elbo(model, x, y)

    def draw(
        self, model: SitesOnBasis, *, generator: torch.Generator | None, device: torch.device
    ) -> list[Tensor]:
        """Independent block lists (L,): one, or two if C has dense columns."""
        size = DEFAULT_COLUMNS if self.columns is None else self.columns
        return [
            sample_columns(model.basis, size, self.sampling, generator=generator, device=device)
            for _ in range(2 if model.family.num_dense else 1)
        ]

    def evidence(
        self,
        model: SitesOnBasis,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
        rows: Tensor | None = None,
    ) -> Evidence:
        """Estimate of the bound in nats, summed over all n points.

        Args:
            rows (batch,): row numbers, to look up latent means in the snapshot; None: do without
                the snapshot.
        """
        lists = self.draw(model, generator=generator, device=x.device)
        return self.estimate(model, x, y, *lists, rows=rows)

    def evidence_of(
        self, model: SitesOnBasis, batch: Batch, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """As in ``Objective``, with the row numbers of the batch."""
        return self.evidence(model, batch.x, batch.y, generator=generator, rows=batch.rows)

    def estimate(
        self, model: SitesOnBasis, x: Tensor, y: Tensor, *lists: Tensor, rows: Tensor | None = None
    ) -> Evidence:
        """The estimate for given lists of blocks.

        Args:
            x (batch, d), y (batch,): mini-batch, each row drawn with equal probability.
            lists: one list (L,), or two independent ones if C has dense columns.
            rows (batch,): as in ``evidence``.
        """
        mean, variance = self.latent(model, x, *lists, rows=rows)
        if self.bound == "affine":
            eta = self.eta.to(mean.dtype)
            square = (0.5 * (eta + variance / eta)).square()
            if torch.is_grad_enabled():
                self._sampled_variance = variance.detach().mean()
        else:
            square = variance.square() if self.bound == "paper" else variance
        expected = sites_of(model).expected_log_prob(y, mean, square)
        fit = self.total / x.shape[0] * expected.sum()
        both = torch.cat(lists)
        kl = weights_kl(
            model.basis,
            model.family,
            both,
            factor_rows(model.family, both, sparse=True),
            model.log_scales(both, sparse=True),
            model.basis.num_blocks / both.shape[0],
        )
        if self.snapshot is not None and self.snapshot.taken:
            ratio = model.basis.num_blocks / both.shape[0]
            kl = kl + self.snapshot.prior_correction(model, both, ratio)
        else:
            kl = kl + self._anchor_quadratic(model, both)
        parts = {"fit": fit, "complexity": -kl}
        return Evidence(fit - kl, "estimate" if self.bound == "paper" else "unbiased", parts)

    def _anchor_quadratic(self, model: SitesOnBasis, blocks: Tensor) -> Tensor | float:
        """1/2 anchor^T S anchor minus its estimate from ``blocks`` (L,), of mean zero."""
        held = self.anchor.shape[0]
        if held == 0:
            return 0.0
        basis = model.basis
        head = torch.arange(held, device=blocks.device)
        anchor = self.anchor.reshape(-1).square()
        whole = basis.block_precision(head).to(anchor) @ anchor
        seen = anchor_rows(self.anchor, blocks).reshape(-1).square()
        sampled = basis.block_precision(blocks).to(anchor) @ seen
        return 0.5 * (whole - basis.num_blocks / blocks.shape[0] * sampled)

    def latent(
        self, model: SitesOnBasis, x: Tensor, *lists: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sampled moments (batch,) of phi w: a^, unbiased, and v^; arguments of ``estimate``.

        v^ is unbiased for the latent variance, except under ``reparam``, where it is the variance
        of the sampled sum. With dense columns it is a product of two lists and may be negative,
        which is allowed, since h(a, s) is even and concave in s.
        """
        basis, family = model.basis, model.family
        both = torch.cat(lists)
        ratio = basis.num_blocks / both.shape[0]
        head = torch.arange(self.anchor.shape[0], device=x.device)
        sizes = [k * basis.block_size for k in (both.shape[0], head.shape[0])]
        features, features_head = basis.block_features(x, torch.cat((both, head))).split(
            sizes, dim=1
        )
        factors = factor_rows(family, both, sparse=True)
        snapshot = self.snapshot
        if snapshot is not None and snapshot.taken and rows is not None:
            change = snapshot.change(model, x, both, features, factors[:, 0])
            mean = snapshot.fitted[rows] + ratio * change
        else:
            shift = anchor_rows(self.anchor, both).reshape(-1) if head.shape[0] else 0.0
            mean = ratio * (features @ (factors[:, 0] - shift))
            if head.shape[0]:
                mean = mean + features_head @ self.anchor.reshape(-1)
        log_scale = model.log_scales(both, sparse=True)
        active = family.is_diagonal_column(both)
        scale_square = torch.where(active, (2.0 * log_scale).exp(), torch.zeros_like(log_scale))
        if self.bound == "reparam":
            # the noise of a block listed k times counts k^2 times, shared by its k entries
            scale_square = scale_square * (ratio * multiplicity(both))[:, None]
        variance = ratio * (features.square() @ scale_square.reshape(-1).to(features.dtype))
        if family.num_dense:
            dense = factors[:, 1:]
            half = sizes[0] // 2
            if self.bound == "reparam":
                variance = variance + (ratio * (features @ dense)).square().sum(1)
            else:
                left, right = features[:, :half] @ dense[:half], features[:, half:] @ dense[half:]
                variance = variance + 4.0 * ratio**2 * (left * right).sum(1)
        return mean, variance


@torch.no_grad()
def exact_site_elbo(model: SitesOnBasis, x: Tensor, y: Tensor) -> Evidence:
    """The ELBO that SiteBoundELBO bounds: all rows, all functions; nats, no randomness.

    Args:
        x (n, d), y (n,): all training data.

    Cost: O(n m (d + K)) time, in chunks; no gradients.
    """
    marginals = model.condition(x, y).predict(x)
    return site_elbo(model, y, marginals.mean, marginals.variance)
