"""Base class of bases: functions phi: R^d -> R^m, any subset on demand, and a weight prior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gpx.data_sized import DataSized
from gpx.errors import ConfigError, ShapeError, class_name

if TYPE_CHECKING:
    from gpx.bases.closed_forms import ClosedForm
    from gpx.bases.sufficient_statistics import SufficientStatistics
    from gpx.operators import Interpolation


LEAST_LOG_VARIANCE = -80.0
"""Prior variances are at least e^-80 where their reciprocal is needed: below, float32 overflows."""

Spent = Callable[[], bool]
"""Called during a search: whether its time is over."""


def never() -> bool:
    """The ``Spent`` of a search without a time limit."""
    return False


class Basis(DataSized, ABC):
    """Finite basis of f(x) = sum_i w_i phi_i(x), with w ~ N(0, S^-1) and S diagonal.

    A subclass defines ``forward``, ``precision_diagonal`` and ``mean_column_square``. To be usable
    as ``basis=`` its constructor takes ``kernel`` and ``num_basis`` by name; further arguments are
    its options.

    Functions are grouped in contiguous blocks of ``block_size`` columns; a block is the cheapest
    unit to evaluate and the unit that stochastic objectives sample.

    Attributes:
        kernel: covariance function that the basis approximates.
        num_basis: m.
        block_size: columns per block; divides m.
        num_inputs: d, where the basis is made for a fixed number of input columns.
        parts: number of equal contiguous parts of a block that are nearly orthogonal to each other
            over the data; one where that is not known.
        follows_kernel: whether hyperparameters of the kernel change only the prior of the weights,
            not the functions.
        dense_prior: whether the prior of the weights is ``prior_covariance``, not a diagonal.
        fixed_shapes: whether evaluating a fixed number of blocks is always the same operations
            without synchronisation, so that it can be recorded as a CUDA graph.
    """

    kernel: nn.Module
    num_basis: int
    block_size: int = 1
    num_inputs: int | None = None
    parts: int = 1
    follows_kernel: bool = False
    dense_prior: bool = False
    fixed_shapes: bool = False

    @property
    def num_blocks(self) -> int:
        """Number of blocks, m / block_size."""
        return self.num_basis // self.block_size

    def columns_of(self, blocks: Tensor) -> Tensor:
        """Column numbers of ``blocks`` (L,), in order; int64 (L * block_size,)."""
        within = torch.arange(self.block_size, device=blocks.device)
        return (blocks[:, None] * self.block_size + within).reshape(-1)

    def block_precision(self, blocks: Tensor) -> Tensor:
        """``precision_diagonal`` of ``blocks`` (L,): (L * block_size,)."""
        return self.precision_diagonal(self.columns_of(blocks))

    @abstractmethod
    def forward(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """phi(x): (n, len(columns)), or (n, m) without ``columns``.

        Args:
            x (n, d): inputs.
            columns: int64 column numbers, any order; time and memory are those of the subset.
        """

    def block_features(self, x: Tensor, blocks: Tensor) -> Tensor:
        """The columns of ``blocks`` (L,), in order: (n, L * block_size).

        May be a transposed view of a contiguous (L * block_size, n) array.
        """
        columns: Tensor = self(x, self.columns_of(blocks))
        return columns

    def features_of(self, blocks: Tensor) -> Callable[[Tensor], Tensor]:
        """x (n, d) -> ``block_features(x, blocks)``, for many x in turn without gradients.

        Quantities that do not depend on x are computed once, so the hyperparameters must not change
        while the function is in use.
        """
        return lambda x: self.block_features(x, blocks)

    def selected(self, blocks: Tensor, x: Tensor) -> SelectedBlocks:
        """``blocks`` (L,) for products with their features, at inputs of the d and dtype of x."""
        return SelectedBlocks(self, blocks)

    @abstractmethod
    def precision_diagonal(self, columns: Tensor | None = None) -> Tensor:
        """Diagonal of S at ``columns`` (all without): (len(columns),) or (m,)."""

    @abstractmethod
    def mean_column_square(self) -> Tensor:
        """Expected phi_r(x)^2, the mean over columns, or a number of that order: 0-d.

        Differentiable in the kernel; outputscale / m where S = I and the features carry the scale.
        """

    def log_variances(self) -> Tensor:
        """-log S (m,), differentiable in the kernel where it depends on it."""
        return -self.precision_diagonal().log()

    def prior_covariance(self) -> Tensor:
        """S^-1 (m, m), float64, differentiable in the kernel where it depends on it."""
        return torch.diag(self.log_variances().double().exp())

    def sparse_rows(self, x: Tensor) -> Interpolation | None:
        """The features at training inputs x (n, d) as a sparse matrix; None: they are dense."""
        return None

    # -- set up from the training data, once, before the first use --------------------------------

    def place(self, x: Tensor) -> None:
        """Set what depends on the locations of the inputs x (n, d); ``num_basis`` may decrease."""

    def start(
        self,
        x: Tensor,
        residual: Tensor,
        noise: Tensor,
        *,
        generator: torch.Generator,
        spent: Spent = never,
    ) -> str:
        """Place, choose or draw the functions for the training data; they are fixed afterwards.

        Args:
            x (n, d), residual (n,): inputs, and targets minus their prior mean.
            noise (): noise variance.
            generator: source of randomness.
            spent: asked during a search whether it must stop.

        Returns:
            a log message. Hyperparameters of the kernel may have changed.
        """
        self.place(x)
        return f"{self.num_basis} functions"

    def fit_scales(
        self,
        statistics: SufficientStatistics,
        *,
        unit_noise: bool = False,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, str] | None:
        """Set the kernel's outputscale to that of largest evidence, after ``start``.

        Args:
            statistics: of the training data.
            unit_noise: keep a noise variance of one: the outputscale becomes the ratio of the two.
            noise (): a noise variance that is not trained; given only then, and only to methods
                that have this keyword.

        Returns:
            the factor () applied to the outputscale, the noise variance () that goes with it, and a
            log message; None where the kernel is left unchanged.
        """
        return None

    def subset(self, columns: Tensor) -> Basis | None:
        """A basis of ``columns`` (k,) only; None where that is not available."""
        return None

    def closed_form(self, num_inputs: int) -> ClosedForm | None:
        """The current functions of d = ``num_inputs`` columns, float64, without gradient.

        None where they have none of these forms: exported programs then store their values.
        """
        return None

    def feature_parameters(self) -> list[nn.Parameter]:
        """Parameters that change the functions. Default: all, or none if ``follows_kernel``."""
        return [] if self.follows_kernel else list(self.parameters())

    # -- reports ----------------------------------------------------------------------------------

    def facts(self) -> dict[str, bool | int | float | str]:
        """Plain values for records. Default: nothing."""
        return {}

    def warn_of_few(self) -> bool:
        """Warn if too few functions are effective to approximate the kernel; returns whether so."""
        return False


def basis_of(basis: Basis | Callable[..., Basis], kernel: nn.Module, num_basis: int) -> Basis:
    """The basis of a model, constructed here unless it already is one.

    Args:
        basis: a basis on ``kernel``; or a class, or any callable, that takes ``kernel`` and
            ``num_basis`` by name.
        kernel: of the model.
        num_basis: m, of a basis constructed here.

    Raises:
        ConfigError: something else, or a basis on another kernel.
    """
    if not callable(basis):
        raise ConfigError(
            f"basis={basis!r}: expected a Basis, or a class or function that makes one of a kernel"
        )
    found = basis if isinstance(basis, Basis) else basis(kernel=kernel, num_basis=num_basis)
    if not isinstance(found, Basis):
        raise ConfigError(f"basis={basis!r} makes a {class_name(found)}, expected a Basis")
    if found.kernel is not kernel:
        raise ConfigError("the basis was made for another kernel than that of the model")
    return found


class SelectedBlocks:
    """Blocks (L,) of a basis; Phi denotes their features (n, L W).

    This class evaluates Phi and multiplies; bases that can compute products without storing Phi
    return their own class from ``Basis.selected``. All products are differentiable in the
    hyperparameters and in x as far as the features are.

    Args:
        basis: its owner.
        blocks (L,): block numbers, any order, repeats allowed.
    """

    def __init__(self, basis: Basis, blocks: Tensor) -> None:
        self.basis = basis
        self.blocks = blocks

    def split(self, sizes: Sequence[int]) -> list[SelectedBlocks]:
        """Parts of ``sizes`` blocks, in order."""
        return [SelectedBlocks(self.basis, part) for part in self.blocks.split(list(sizes))]

    def of(self, basis: Basis) -> SelectedBlocks:
        """The same blocks of a copy of the basis at other hyperparameters."""
        return SelectedBlocks(basis, self.blocks)

    def products(self, x: Tensor, weights: Tensor, keep: list[Tensor] | None = None) -> Tensor:
        """Phi w: (n, k).

        Args:
            x (n, d): inputs.
            weights (L W, k): w, differentiable.
            keep: receives the features, without gradient, in the form that ``carry`` takes.
        """
        features = self.basis.block_features(x, self.blocks)
        if keep is not None:
            keep.append(features.detach())
        return features @ weights

    def form(
        self, x: Tensor, weights: Tensor, direction: Tensor, keep: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """sum(u * Phi w), 0-d, and Phi w (n, k) without gradient.

        Args:
            x (n, d): inputs.
            weights (L W, k): w, differentiable.
            direction (n, k): u, differentiable.
            keep: as in ``products``.
        """
        product = self.products(x, weights, keep)
        return (direction * product).sum(), product.detach()

    def column_squares(self, x: Tensor) -> Tensor:
        """Diagonal of Phi^T Phi: (L W,)."""
        return self.basis.block_features(x, self.blocks).square().sum(0)

    @torch.no_grad()
    def carry(self, total: Tensor, kept: Tensor, change: Tensor) -> None:
        """total += Phi change, in place, from kept features.

        Args:
            total (n, k): a product with weights before they changed.
            kept: features as ``products`` or ``form`` put them into ``keep``.
            change (L W, k): of the weights.

        The product is computed before it is added: ``addmm_`` may add its small terms one by one
        to the larger total, each with the total's rounding error.
        """
        total += kept @ change


def check_inputs(x: Tensor, what: str) -> None:
    """Raise ShapeError unless x is a matrix (n, d)."""
    if x.ndim != 2:
        raise ShapeError(
            f"{what} expects inputs of shape (n, d), got {tuple(x.shape)}; "
            "use x[:, None] for one input dimension"
        )


def largest_divisor(number: int, limit: int) -> int:
    """Largest divisor of ``number`` that is at most ``limit``."""
    return max(k for k in range(1, min(limit, number) + 1) if number % k == 0)
