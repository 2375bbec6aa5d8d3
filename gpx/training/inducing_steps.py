"""Training of the inducing-point model by solves: conjugate gradients or block Gauss-Seidel."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.linalg import UnconvergedWarning, cholesky
from gpx.models.base import Model
from gpx.models.inducing_weights import QSGPInducing
from gpx.models.noisy_kernel import NoisyKernel
from gpx.objectives.base import Evidence
from gpx.objectives.inducing_elbo import bound_terms
from gpx.training.block_steps import BlockSteps

Method = Literal["conjugate_gradients", "gauss_seidel"]


class InducingSteps(BlockSteps):
    """Solves (K + noise I) alpha = y for the weight mean, one step at a time.

    The optimum of the bound over the mean is that solution. ``conjugate_gradients`` is
    preconditioned with the Nystrom matrix at greedy points; ``gauss_seidel`` is block ascent of
    y^T alpha - alpha^T (K + noise I) alpha / 2 (its maximum is the same), exact over ``block_size``
    weights given the others: no preconditioner, slower on smooth kernels. The residual r =
    y - (K + noise I) alpha is kept up to date, kernel products run in the dtype of the data and
    recurrences in float64. Both stop when |k_*^T (alpha - optimum)| <= sqrt(k_** r^T Q^-1 r) (Q
    below K + noise I) certifies every predicted mean to ``tolerance`` noise standard deviations;
    before stopping, r is recomputed with float64 products.

    Args:
        method: see above.
        tolerance: of predicted means, in noise standard deviations.
        block_size: weights per Gauss-Seidel step.
        max_products: give up after as many passes over K; not converged is a warning, and the
            certificate that holds is in the posterior's facts.

    Raises:
        ConfigError: an option out of range; a block above n (``check``).

    Cost per step: n^2 / 2 kernel entries (conjugate gradients), n b entries + b^3 / 3
    (Gauss-Seidel); the preconditioner n rank^2 once. Memory O(n rank + b^2).
    Source: Golub and van Loan, section 11; QSGP paper for the objective.
    """

    def __init__(
        self,
        method: Method = "conjugate_gradients",
        tolerance: float = 0.1,
        block_size: int = 2000,
        max_products: int = 200,
    ) -> None:
        super().__init__()
        if method not in get_args(Method):
            raise ConfigError(
                f"optimizer.method={method}: expected one of {', '.join(get_args(Method))}"
            )
        if tolerance <= 0.0 or block_size < 1 or max_products < 1:
            raise ConfigError(
                f"optimizer: tolerance={tolerance} must be positive, block_size={block_size} and "
                f"max_products={max_products} at least 1"
            )
        self.method: Method = method
        self.tolerance = tolerance
        self.size = block_size
        self.max_products = max_products
        self.state: dict[str, Any] = {}
        self.converged = False
        self._limit = max_products

    def check(self, model: Model, num_data: int) -> None:
        """Raise ConfigError, in one sentence, when these steps do not fit ``model`` or the data."""
        if not isinstance(model, QSGPInducing):
            raise ConfigError(
                "this optimizer solves for inducing-point weights and needs approx=qsgp_inducing, "
                f"got {type(model).__name__}; choose another optimizer="
            )
        if self.method == "gauss_seidel" and self.size > num_data:
            raise ConfigError(
                f"optimizer.block_size={self.size} is above the {num_data} training points"
            )

    def bind(self, model: QSGPInducing, x: Tensor, seed: int) -> None:  # type: ignore[override]
        """Attach to a model and all training inputs x (n, d)."""
        self.inducing = model
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self.system = NoisyKernel(model.kernel, x, model.noise_variance, model.options)
        if not self.state:
            zero = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
            self.state = {"solution": zero, "converged": False, "verified": math.inf}
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
        """One step of the solve; nothing once it has converged. Returns the bound afterwards."""
        if "residual" not in self.state:  # alpha = 0
            self.state["residual"] = y.double().clone()
            self.state["targets"] = y.double().clone()
        if not self.converged:
            if self.method == "conjugate_gradients":
                self._conjugate_gradient_step()
            else:
                self._gauss_seidel_step(step, x)
            self._certify(step, y)
            self.inducing.weight_mean.copy_(self.state["solution"][:, None])
        return self.evidence(x.shape[0])

    def _product(self, vector: Tensor) -> Tensor:
        """(K + noise I) vector, computed in the product dtype, returned in float64."""
        return self.system.matmul(vector.to(self.system.product_dtype)).double()

    def _conjugate_gradient_step(self) -> None:
        state, solve = self.state, self.system.preconditioner.solve
        if "direction" not in state:
            state["direction"] = solve(state["residual"])
            state["gamma"] = state["residual"] @ state["direction"]
        direction, gamma = state["direction"], state["gamma"]
        image = self._product(direction)
        left = gamma > 0.0  # nothing is left to do where the residual is zero: constant targets
        size = torch.where(left, gamma / (direction @ image), 0.0)
        state["solution"] = state["solution"] + size * direction
        state["residual"] = state["residual"] - size * image
        whitened = solve(state["residual"])
        state["gamma"] = state["residual"] @ whitened
        ratio = torch.where(left, state["gamma"] / gamma, 0.0)
        state["direction"] = whitened + ratio * direction

    def _gauss_seidel_step(self, step: int, x: Tensor) -> None:
        n = x.shape[0]
        blocks = -(-n // self.size)
        if "order" not in self.state:  # blocks spread over the inputs, the same in every sweep
            order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
            self.state["order"] = order.to(x.device)
        chosen = self.state["order"][step % blocks :: blocks]
        kernel = self.inducing.kernel
        inner = self.system.kernel.evaluate(self.system.x[chosen])
        inner.diagonal().add_(self.system.noise)
        factor, _ = cholesky(inner, name=f"kernel matrix of a block of {chosen.shape[0]} weights")
        residual = self.state["residual"]
        change = torch.cholesky_solve(residual[chosen, None], factor)
        self.state["solution"][chosen] += change[:, 0]
        product = kernel(x, x[chosen]) @ change.to(x.dtype)
        residual -= product[:, 0].double()
        residual[chosen] -= self.system.noise * change[:, 0]

    def _error(self) -> float:
        """sqrt(k_** r^T Q^-1 r), in noise standard deviations."""
        residual = self.state["residual"]
        squared = residual @ self.system.preconditioner.solve(residual)
        return float((self.system.prior_variance * squared / self.system.noise).sqrt())

    def _certify(self, step: int, y: Tensor) -> None:
        """Judge the residual; before believing it, compute the true one in float64."""
        last = step + 1 == self._limit
        sweep = -(-y.shape[0] // self.size) if self.method == "gauss_seidel" else 1
        if not last and ((step + 1) % sweep or self._error() > self.tolerance):
            return
        solution = self.state["solution"]
        self.state["residual"] = y.double() - self.system.matmul(solution)
        self.state.pop("direction", None)  # start again from the true residual
        error, before = self._error(), self.state["verified"]
        self.state["verified"] = error
        sigma = self.system.noise.sqrt()
        self.inducing.mean_error.copy_(error * sigma)
        stalled = not last and error > 0.5 * before
        self.converged = self.state["converged"] = error <= self.tolerance or stalled
        if error > self.tolerance and (stalled or last):
            why = "the true residual no longer falls" if stalled else "max_products is used up"
            warnings.warn(
                f"the weight mean stopped after {step + 1} steps with predicted means certified "
                f"to {error:.2g} noise standard deviations, not {self.tolerance:g}: {why}; use a "
                "higher approx.rank, trainer.dtype=float64 or more optimizer.max_products",
                UnconvergedWarning,
                stacklevel=2,
            )

    @torch.no_grad()
    def evidence(self, num_data: int) -> Evidence:
        """The bound without 1/2 log|K| at the current weights, from the residual; O(n)."""
        y, alpha = self.state["targets"], self.state["solution"]
        fitted = y - self.state["residual"] - self.system.noise * alpha
        return bound_terms(
            misfit=(y - fitted).square().sum(),
            prior=alpha @ fitted,
            log_scales=self.inducing.scales().log().sum() * 0.5,
            noise=self.system.noise,
            num_data=num_data,
        )

    def state_dict(self) -> dict[str, Any]:
        """Solution, residual, search direction: everything the next step needs."""
        return dict(self.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``; before ``bind``."""
        self.state = dict(state)

    def release(self) -> None:
        """Make every parameter trainable again (after the last step)."""
        for parameter in self.inducing.parameters():
            parameter.requires_grad_(True)
