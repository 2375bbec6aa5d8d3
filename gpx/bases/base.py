"""What a basis is: functions phi: R^d -> R^m, any subset of them on demand, and a weight prior."""

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


Spent = Callable[[], bool]
"""Whether the time for a search is over."""


def never() -> bool:
    """A search without a time limit: never spent."""
    return False


class Basis(DataSized, ABC):
    """Finite basis of f(x) = sum_i w_i phi_i(x), with w ~ N(0, S^-1) and S diagonal.

    A subclass writes ``forward``, ``precision_diagonal`` and ``mean_column_square``. To be chosen
    by ``basis=`` its constructor takes the kernel and ``num_basis`` by these names; further
    arguments are its options.

    Functions are grouped in contiguous blocks of ``block_size`` columns; a block is the cheapest
    unit to evaluate and the unit that stochastic objectives sample.

    Attributes:
        kernel: covariance function that the basis stands for.
        num_basis: m.
        block_size: columns per block; divides m.
        num_inputs: d, where the basis is made for a number of input columns.
        parts: equal contiguous parts of a block whose columns are nearly orthogonal to those of
            the other parts over the data; one where nothing is known.
        follows_kernel: whether hyperparameters of the kernel move the prior of the weights and
            leave the functions as they are.
        dense_prior: whether ``prior_covariance`` is to be the prior of the weights, which are
            correlated, in the place of variances.
        fixed_shapes: whether blocks of a fixed number are always the same operations, none of
            which waits for a GPU.
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

        What does not depend on x is worked out once and kept as long as the function is, so the
        hyperparameters must stay as they are.
        """
        return lambda x: self.block_features(x, blocks)

    def selected(self, blocks: Tensor, x: Tensor) -> SelectedBlocks:
        """``blocks`` (L,) for products with their features at inputs like x (its d and dtype)."""
        return SelectedBlocks(self, blocks)

    @abstractmethod
    def precision_diagonal(self, columns: Tensor | None = None) -> Tensor:
        """Diagonal of S at ``columns`` (all without): (len(columns),) or (m,)."""

    @abstractmethod
    def mean_column_square(self) -> Tensor:
        """Expected phi_r(x)^2, the mean over columns, or a number of that size: 0-d.

        Differentiable in the kernel; outputscale / m where S = I and the features carry the scale.
        """

    def log_variances(self) -> Tensor:
        """-log S (m,), differentiable where the kernel moves it."""
        return -self.precision_diagonal().log()

    def prior_covariance(self) -> Tensor:
        """S^-1 (m, m), float64, differentiable where the kernel moves it."""
        return torch.diag(self.log_variances().double().exp())

    def sparse_rows(self, x: Tensor) -> Interpolation | None:
        """The features at training inputs x (n, d) as a sparse matrix, where they are one."""
        return None

    # -- the training data, once, before the first use --------------------------------------------

    def place(self, x: Tensor) -> None:
        """Put in place what depends on where the inputs x (n, d) are; ``num_basis`` may fall."""

    def start(
        self,
        x: Tensor,
        residual: Tensor,
        noise: Tensor,
        *,
        generator: torch.Generator,
        spent: Spent = never,
    ) -> str:
        """Place, choose or draw the functions for the training data, which then stay.

        Args:
            x (n, d), residual (n,): inputs, and targets less their prior mean.
            noise (): noise variance.
            generator: of what is drawn.
            spent: whether a search is to end where it is.

        Returns:
            what was done, for people. Hyperparameters of the kernel may have moved.
        """
        self.place(x)
        return f"{self.num_basis} functions"

    def fit_scales(
        self, statistics: SufficientStatistics, *, unit_noise: bool = False
    ) -> tuple[Tensor, Tensor, str] | None:
        """Give the kernel the outputscale of largest evidence after ``start``.

        Args:
            statistics: of the training data.
            unit_noise: keep a noise variance of one: the outputscale takes the ratio of the two.

        Returns:
            the factor () on the outputscale, the noise variance () that goes with it, and a remark
            for people; None where the kernel stays as it is.
        """
        return None

    def subset(self, columns: Tensor) -> Basis | None:
        """A basis of ``columns`` (k,) alone; None where its functions cannot be had alone."""
        return None

    def closed_form(self, num_inputs: int) -> ClosedForm | None:
        """The functions of d = ``num_inputs`` columns as they are now, float64, without gradient.

        None where they have none of these forms: a program without gpx is then given their values.
        """
        return None

    def feature_parameters(self) -> list[nn.Parameter]:
        """Parameters that move the functions. Default: all, or none where these stay."""
        return [] if self.follows_kernel else list(self.parameters())

    # -- what there is to say ---------------------------------------------------------------------

    def facts(self) -> dict[str, bool | int | float | str]:
        """Plain values for records. Default: nothing."""
        return {}

    def warn_of_few(self) -> bool:
        """Warn where so few functions count that they hardly stand for the kernel; whether so."""
        return False


def basis_of(basis: Basis | Callable[..., Basis], kernel: nn.Module, num_basis: int) -> Basis:
    """The basis of a model, made for its kernel where it is not made yet.

    Args:
        basis: one on ``kernel``; or a class, or any callable, that takes ``kernel`` and
            ``num_basis`` by name.
        kernel: of the model.
        num_basis: m, of a basis that is made here.

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
    """Blocks (L,) of a basis; Phi stands for their features (n, L W).

    This class evaluates Phi and multiplies; bases that can take the products while they evaluate
    return their own from ``Basis.selected``. All products are differentiable in the hyperparameters
    and in x as far as the features are.

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
            keep: takes the features, without gradient, as ``carry`` expects them.
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
            kept: features as ``products`` or ``form`` left them.
            change (L W, k): of the weights.

        The product is summed before it is added: summed on top of a total, as ``addmm_`` may do,
        the small terms of a small change would be rounded to the total's digits one by one.
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
    """Largest divisor of ``number`` that is at most ``limit``: blocks divide the functions."""
    return max(k for k in range(1, min(limit, number) + 1) if number % k == 0)
