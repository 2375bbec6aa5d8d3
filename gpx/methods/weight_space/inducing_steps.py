"""Training of the inducing-point model by solves: conjugate gradients or block Gauss-Seidel."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.linalg import UnconvergedWarning, cholesky
from gpx.methods.base.objective import Evidence
from gpx.methods.base.own_steps import OwnSteps
from gpx.methods.weight_space.inducing_elbo import inducing_bound
from gpx.methods.weight_space.qsgp_inducing import QSGPInducing
from gpx.tensor_checks import check_at_least, check_one_of, check_positive
from gpx.warned_line import users_line

Method = Literal["conjugate_gradients", "gauss_seidel"]
MeanError = Literal["average", "worst"]

MIN_CURVATURE_RATIO = 0.999
"""Smallest d^T K d / d^T Q d accepted from float32 products. It is at least 1 in exact arithmetic,
as K - Q is positive semi-definite; a smaller ratio shows that rounding is too large."""

logger = logging.getLogger(__name__)


class InducingSteps(OwnSteps[QSGPInducing]):
    """Solves (K + noise I) alpha = y for the weight mean, one step at a time.

    The solution is the optimum of the bound over the mean. ``conjugate_gradients`` is
    preconditioned with the Nystrom matrix at greedy points. ``gauss_seidel`` is block ascent of
    y^T alpha - alpha^T (K + noise I) alpha / 2, exact over ``block_size`` weights given the others;
    it needs no preconditioner and is slower for smooth kernels. The residual r =
    y - (K + noise I) alpha is kept up to date. Kernel products run in the dtype of the data,
    recurrences in float64. Steps end once means are certified to ``tolerance`` noise standard
    deviations:

    - ``error="average"``: in root mean square over the training inputs. The error of the fitted
      values is K (K + noise I)^-1 r, whose norm is at most |r|, and the bound is within
      |r|^2 / (2 noise) of its maximum: tolerance^2 / 2 nats per point.
    - ``error="worst"``: at any input, by |k_*^T (alpha - optimum)| <= sqrt(k_** r^T Q^-1 r) with
      Q <= K + noise I. With small noise this is hundreds of times the average, and takes up to
      twice the products.

    Before ending, r is recomputed with float64 products. If rounding of float32 products is too
    large (``MIN_CURVATURE_RATIO``), or the true residual does not fall, all further products are
    float64.

    Args:
        method: see above.
        tolerance: of means, in noise standard deviations.
        error: which error is meant, ``average`` or ``worst``.
        block_size: weights per Gauss-Seidel step.
        max_products: most passes over K. Reaching it without convergence is a warning; the error
            bound reached is among the posterior's facts.

    Raises:
        ConfigError: an option out of range; a block above n (``check``).

    Cost per step: n^2 / 2 kernel entries (conjugate gradients), n b entries + b^3 / 3
    (Gauss-Seidel); the preconditioner n rank^2 once. Memory O(n rank + b^2).
    Source: Golub and van Loan, section 11; QSGP paper for the objective.
    """

    unit = "solver steps"
    purpose = "solves for the weights of QSGPInducing models"
    model_type = QSGPInducing

    def __init__(
        self,
        method: Method = "conjugate_gradients",
        tolerance: float = 0.02,
        error: MeanError = "average",
        block_size: int = 2000,
        max_products: int = 200,
    ) -> None:
        check_one_of(get_args(Method), method=method)
        check_positive(tolerance=tolerance)
        check_at_least(1, block_size=block_size, max_products=max_products)
        check_one_of(get_args(MeanError), error=error)
        self.method: Method = method
        self.tolerance = tolerance
        self.error: MeanError = error
        self.size = block_size
        self.max_products = max_products
        self.state: dict[str, Any] = {}
        self._limit = max_products

    def check_fit(self, model: QSGPInducing, num_data: int) -> None:
        """As in ``OwnSteps``: a block of Gauss-Seidel is no larger than the data."""
        if self.method == "gauss_seidel" and self.size > num_data:
            raise ConfigError(f"block_size={self.size} is above the {num_data} training points")

    def bind(self, model: QSGPInducing, x: Tensor, seed: int) -> None:
        """As in ``OwnSteps``."""
        self.model = model
        self.freeze(model)
        self.system = PreconditionedKernel(model.kernel, x, model.noise_variance, model.options)
        start = {
            "solution": torch.zeros(x.shape[0], dtype=torch.float64, device=x.device),
            "converged": False,
            "outcome": "",
            "verified": math.inf,
            "exact": self.system.product_dtype == torch.float64,
        }
        self.state = start | (self.state if self.restored else {})
        self.restored = False
        self.converged = bool(self.state["converged"])

    def max_steps(self, limit: int) -> int:
        """``max_products`` passes over K, at most ``limit`` steps."""
        passes = self.max_products
        if self.method == "gauss_seidel":
            passes *= -(-self.system.x.shape[0] // self.size)
        self._limit = min(limit, passes)
        return self._limit

    @torch.no_grad()
    def step(self, step: int, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """One step of the solve (none once converged); returns the bound afterwards."""
        if "residual" not in self.state:  # alpha = 0
            self.state["residual"] = y.double().clone()
            self.state["targets"] = y.double().clone()
        if not self.converged:
            if self.method == "conjugate_gradients":
                self._conjugate_gradient_step()
            else:
                self._gauss_seidel_step(step, x)
            self._certify(step)
            self.model.set_weights(self.state["solution"])
        return self.evidence(x.shape[0])

    @property
    def outcome(self) -> str:
        """How the steps ended, with the certified error; empty before the end."""
        return str(self.state["outcome"])

    def _product(self, vector: Tensor) -> Tensor:
        """(K + noise I) vector in float64, from products in float32 while these are accurate."""
        if self.state["exact"]:
            return self.system.matmul(vector)
        return self.system.matmul(vector.to(self.system.product_dtype)).double()

    def _conjugate_gradient_step(self) -> None:
        state, solve = self.state, self.system.preconditioner.solve
        if "lifted" not in state:
            state["direction"] = solve(state["residual"])
            state["lifted"] = state["residual"]  # Q times the direction, by its recurrence
            state["gamma"] = state["residual"] @ state["direction"]
        direction, gamma = state["direction"], state["gamma"]
        image = self._product(direction)
        curvature = direction @ image
        if not state["exact"] and bool(
            curvature < MIN_CURVATURE_RATIO * (direction @ state["lifted"])
        ):
            self._exact_products()
            return self._conjugate_gradient_step()
        left = gamma > 0.0  # the residual may be zero, for constant targets
        size = torch.where(left, gamma / curvature, 0.0)
        state["solution"] = state["solution"] + size * direction
        state["residual"] = state["residual"] - size * image
        whitened = solve(state["residual"])
        state["gamma"] = state["residual"] @ whitened
        ratio = torch.where(left, state["gamma"] / gamma, 0.0)
        state["direction"] = whitened + ratio * direction
        state["lifted"] = state["residual"] + ratio * state["lifted"]

    def _exact_products(self) -> None:
        """Use float64 products from here on, and recompute the residual."""
        logger.info("kernel products in float64 from here: float32 rounding is above the noise")
        self.state["exact"] = True
        if bool(self.state["solution"].any()):
            self._true_residual()
        self.state.pop("lifted", None)

    def _true_residual(self) -> None:
        state = self.state
        state["residual"] = state["targets"] - self.system.matmul(state["solution"])
        state.pop("lifted", None)  # restart: conjugacy is lost

    def _gauss_seidel_step(self, step: int, x: Tensor) -> None:
        n = x.shape[0]
        blocks = -(-n // self.size)
        if "order" not in self.state:  # random blocks, the same in every sweep
            order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
            self.state["order"] = order.to(x.device)
        chosen = self.state["order"][step % blocks :: blocks]
        exact = self.state["exact"]
        kernel = self.system.kernel if exact else self.model.kernel
        inputs = self.system.x if exact else x
        inner = self.system.kernel.evaluate(self.system.x[chosen])
        inner.diagonal().add_(self.system.noise)
        factor, _ = cholesky(inner, name=f"kernel matrix of a block of {chosen.shape[0]} weights")
        residual = self.state["residual"]
        change = torch.cholesky_solve(residual[chosen, None], factor)
        self.state["solution"][chosen] += change[:, 0]
        product = kernel(inputs, inputs[chosen]) @ change.to(inputs.dtype)
        residual -= product[:, 0].double()
        residual[chosen] -= self.system.noise * change[:, 0]

    def _errors(self) -> tuple[float, float]:
        """Certified average and worst error of means, in noise standard deviations."""
        residual, noise = self.state["residual"], self.system.noise
        squared = residual @ self.system.preconditioner.solve(residual)
        # where rounding makes that negative (very small noise), use noise I <= K instead
        squared = torch.where(squared >= 0.0, squared, residual.square().sum() / noise)
        worst = (self.system.prior_variance * squared / noise).sqrt()
        return float((residual.square().mean() / noise).sqrt()), float(worst)

    def _chosen_error(self) -> float:
        average, worst = self._errors()
        return average if self.error == "average" else worst

    def _certify(self, step: int) -> None:
        """Check for convergence, after recomputing the residual in float64."""
        state = self.state
        last = step + 1 == self._limit
        sweep = -(-self.system.x.shape[0] // self.size) if self.method == "gauss_seidel" else 1
        if not last and ((step + 1) % sweep or self._chosen_error() > self.tolerance):
            return
        self._true_residual()
        average, worst = self._errors()
        found, before = self._chosen_error(), state["verified"]
        state["verified"] = found
        self.model.mean_error.copy_(worst * self.system.noise.sqrt())
        certified = (
            f"fitted values within {average:.2g} noise standard deviations of the optimum in root "
            f"mean square, the bound within {average**2 / 2:.1g} nats per point, any one predicted "
            f"mean within {worst:.2g} noise standard deviations"
        )
        stalled = found > 0.5 * before and not last
        ended = stalled and state["exact"]
        if found <= self.tolerance:
            state["outcome"] = f"converged: {certified}"
        elif stalled and not ended:
            state["exact"] = True
        elif ended or last:
            why = "the true residual no longer falls" if ended else "max_products is used up"
            state["outcome"] = f"not converged, {why}: {certified}"
            warnings.warn(
                f"the weight mean stopped after {step + 1} steps short of tolerance="
                f"{self.tolerance:g}, {why}: {certified}; raise rank=, "
                f"raise max_products={self.max_products} or use dtype=float64",
                UnconvergedWarning,
                stacklevel=users_line(),
            )
        self.converged = state["converged"] = found <= self.tolerance or ended

    def final_evidence(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Evidence:
        """The bound without 1/2 log|K| after the last step."""
        return self.evidence(x.shape[0])

    @torch.no_grad()
    def evidence(self, num_data: int) -> Evidence:
        """The bound without 1/2 log|K| at the current weights, from the residual; O(n)."""
        y, alpha = self.state["targets"], self.state["solution"]
        fitted = y - self.state["residual"] - self.system.noise * alpha
        return inducing_bound(
            misfit=(y - fitted).square().sum(),
            prior=alpha @ fitted,
            log_scales=self.model.scales().log().sum() * 0.5,
            noise=self.system.noise,
            num_data=num_data,
        )

    def state_dict(self) -> dict[str, Any]:
        """Solution, residual, search direction: everything the next step needs."""
        return dict(self.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
        self.state, self.restored = dict(state), True
