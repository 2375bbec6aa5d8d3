"""A Gaussian process layer with inducing points, for any network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, ShapeError, class_name
from gpx.inducing import KMeans, Selector
from gpx.inducing.base import copy_points
from gpx.inference.variational import (
    FullCholesky,
    InducingVariables,
    Whitened,
    raise_noise,
    whitened_optimum,
    whitened_sums,
)
from gpx.inference.variational.paths import conditioned_paths
from gpx.kernels.base import Kernel
from gpx.kernels.for_inputs import resized
from gpx.likelihoods import Gaussian, GaussianOutputs
from gpx.linalg import CholeskyReport
from gpx.linalg.triangular import inverse_lower, lower_matmul
from gpx.means import Zero
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals
from gpx.methods.deep.draws import deviation
from gpx.methods.deep.output_layer import OutputLayer, check_columns
from gpx.tensor_checks import check_at_least, check_jitter


class InducingLayer(OutputLayer):
    """p functions with one kernel, and q(u) over their values at M inducing points.

    u = mean(Z) + L v with L L^T = K_zz and q(v) Gaussian, as in ``SVGP``. The layer can be used
    anywhere in a torch network; its inducing points are in the space of its inputs.

    Args:
        kernel: copied, and resized to ``num_inputs``, also if it is a sum or product.
        num_inputs: d.
        num_outputs: p.
        num_inducing: M.
        mean: prior mean: a gpx mean function for all outputs, or a module (n, d) -> (n, p); None:
            zero. A module is not copied.
        jitter: added to K_zz, relative to its mean diagonal; more is tried on failure and reported.

    Raises:
        ConfigError: sizes below one, or a negative jitter.

    Attributes:
        report: of the factorisation of K_zz in the last pass; None before the first.

    Cost per pass: O(M^3 + n p M^2). Source: Salimbeni and Deisenroth, "Doubly stochastic
    variational inference for deep Gaussian processes", NeurIPS 2017.
    """

    report: CholeskyReport | None = None
    _inverse: Tensor | None = None

    def __init__(
        self,
        kernel: Kernel,
        num_inputs: int,
        num_outputs: int = 1,
        num_inducing: int = 128,
        *,
        mean: nn.Module | None = None,
        jitter: float = 1e-6,
    ) -> None:
        super().__init__()
        check_at_least(1, num_inputs=num_inputs, num_outputs=num_outputs, num_inducing=num_inducing)
        check_jitter(jitter=jitter)
        self.kernel = resized(kernel, num_inputs)
        _require_width(self.kernel, num_inputs)
        self.mean = Zero() if mean is None else mean
        self.num_inputs, self.num_outputs, self.jitter = num_inputs, num_outputs, jitter
        self.inducing = nn.Parameter(torch.zeros(num_inducing, num_inputs))
        self.q = FullCholesky().start(num_inducing, num_outputs)

    @property
    def variables(self) -> InducingVariables:
        """The inducing variables at the current hyperparameters."""
        return InducingVariables(self.kernel, self.inducing, self.jitter)

    def _offset(self, x: Tensor) -> Tensor:
        """Prior mean (n, p), or (n, 1) if shared by all outputs."""
        found: Tensor = self.mean(x)
        return found.unsqueeze(1) if found.ndim == 1 else found

    def marginals(self, x: Tensor) -> Marginals:
        """Mean and variance (n, p) of f(x) under q."""
        check_columns(self, x, self.num_inputs)
        if self._inverse is None:
            terms = Whitened().terms(self.variables, self.q, x)
            self.report = terms.report
            mean, variance = terms.mean, terms.variance
        else:
            projection = lower_matmul(self._inverse, self.variables.cross(x))
            mean, excess = self.q.moments(projection, self.q.root())
            variance = (self.kernel.diagonal(x) + excess).clamp_min(0.0)
        return Marginals(mean.mT + self._offset(x), variance.mT)

    def forward(self, x: Tensor) -> Tensor:
        """A draw of f(x) under q: (n, d) -> (n, p); see ``Draws`` for the dependence of rows."""
        if self.draws.joint:
            return self._path(x)
        marginals = self.marginals(x)
        if not self.draws.shared:
            return self.draw_from(marginals)
        noise = self.draws.normals((self.num_outputs,), marginals.mean)
        return marginals.mean + deviation(marginals.variance) * noise

    def _path(self, x: Tensor) -> Tensor:
        """One sampled function of q at x, by pathwise conditioning of random features."""
        device = None if self.draws.generator is None else self.draws.generator.device
        seed = torch.randint(2**62, (), generator=self.draws.generator, device=device)
        inverse = self._inverse
        if inverse is None:
            inverse = inverse_lower(self.variables.whitening().cholesky).to(x.dtype)
        values = conditioned_paths(
            self.kernel,
            self.inducing,
            inverse,
            self.q.mean,
            self.q.factor(),
            1,
            generator=torch.Generator(x.device).manual_seed(int(seed)),
        )
        return values(x).mT + self._offset(x)

    def sample(self, x: Tensor, num: int) -> Tensor:
        """As in ``OutputLayer``, at the cost of one pass."""
        return self.draw_from(self.marginals(x), num)

    def kl(self) -> Tensor:
        """KL(q(u) || p(u)), exact."""
        return self.q.kl(self.q.root())

    @torch.no_grad()
    def hold(self) -> None:
        """As in ``RandomLayer``: factorise K_zz once for many passes."""
        white = self.variables.whitening()
        self._inverse = inverse_lower(white.cholesky).to(self.inducing.dtype)

    def release(self) -> None:
        """As in ``RandomLayer``."""
        self._inverse = None

    def _resize(self, num_inducing: int) -> None:
        """Change the number of inducing points; resets q to the prior."""
        if num_inducing != len(self.inducing):
            points = self.inducing.new_zeros(num_inducing, self.num_inputs)
            self.inducing.data, self.inducing.grad = points, None
            self.q.start(num_inducing, self.num_outputs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a state with any number of inducing points."""
        stored = state_dict.get(prefix + "inducing")
        if isinstance(stored, Tensor) and stored.ndim == 2:
            self._resize(len(stored))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @torch.no_grad()
    def place(
        self, x: Tensor, *, generator: torch.Generator, selector: Selector | None = None
    ) -> None:
        """Choose inducing points for the layer's inputs x (n, d), and reset q to the prior.

        The layer then has as many points as the selector chose.
        """
        chosen = KMeans() if selector is None else selector
        points = chosen(x, self.kernel, len(self.inducing), generator=generator)
        self._resize(len(points))
        copy_points(self.inducing, points)
        size = len(self.inducing)
        identity = torch.eye(size, dtype=self.inducing.dtype, device=self.inducing.device)
        self.q.assign(
            self.q.mean.new_zeros(self.q.mean.shape), identity.expand(self.num_outputs, size, size)
        )

    @torch.no_grad()
    def fit(
        self,
        parts: Any,
        num_data: int,
        likelihood: Gaussian | GaussianOutputs,
        *,
        noise: bool = True,
    ) -> None:
        """Set q to its optimum given Z, the kernel and Gaussian noise.

        Args:
            parts: blocks (x, y, scale) of all rows, with x (b, d) inputs of the layer and scale
                (b,) as in ``whitened_sums``.
            num_data: n, rows of all blocks.
            likelihood: with ``noise``, its noise variance is first raised to the optimum of the
                bound.

        Cost: O(n M^2), memory of one block.
        """
        assert isinstance(self.mean, Mean)
        sums = None
        for x, y, scale in parts:
            part = whitened_sums(self.variables, self.mean, x, y, scale)
            sums = part if sums is None else sums.plus(part)
        assert sums is not None
        if noise:
            raise_noise(sums, num_data, likelihood)
        self.q.assign(*whitened_optimum(sums, likelihood))


@torch.no_grad()
def _require_width(kernel: Kernel, num_inputs: int) -> None:
    """Raise ConfigError if a kernel that could not be resized does not take so many inputs."""
    like = next(kernel.parameters(), torch.zeros(()))
    at = torch.full((2, num_inputs), 0.5, dtype=like.dtype, device=like.device)
    try:
        kernel.evaluate(at, at)
    except ShapeError as error:
        what = str(error).split(";")[0]
        raise ConfigError(
            f"{what}: here the kernel is of the {num_inputs} features of a layer, and a "
            f"{class_name(kernel)} keeps its width; make as many features as it has inputs "
            "(num_features=), or use kernel=RBF() or Matern32()"
        ) from error
