"""Base class of kernels: covariance functions with parameters, called to give a lazy operator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gpx.backends import DEFAULT_BUDGET, BackendName, RadialPart, RadialProfile, TileSource
from gpx.backends.entries import at_precision_of
from gpx.constructed import Constructed
from gpx.errors import ConfigError, NoSpectrum, ShapeError, class_name
from gpx.kernels.derivatives import ByAutograd, InColumns, KernelDerivatives
from gpx.kernels.own_covariance import drop_descriptions
from gpx.kernels.tiles import EvaluatedTiles
from gpx.operators.kernel_matrix import KernelMatrix

_PAIR_BLOCK = 32


class Kernel(Constructed, ABC):
    """A covariance function k(x, x').

    A subclass writes two methods, ``covariance`` and ``variance``; the base gives column selection,
    shape checks, the lazy matrix and the algebra ``k1 + k2``, ``k1 * k2``, ``2.0 * k``. A subclass
    that replaces the ``covariance`` of its parent does not inherit what else the parent says about
    its own (``tiles``, ``pairs``, ``formula``, spectral methods, ...); what it writes itself stays.

    Args:
        active_dims: column of x that the kernel uses, or several in this order; None: all of them.

    Raises:
        ConfigError: ``active_dims`` is empty, or holds something other than column numbers, or one
            of them twice.
    """

    active_dims: Tensor | None
    ard_num_dims: int | None = None
    """Number of (active) inputs, where it has a parameter for each of them; None: any number."""
    lengthscale_in_unit_of_x: ClassVar[bool] = True
    """Whether a ``lengthscale``, where it has one, is compared with distances of inputs."""
    _for_any_covariance: ClassVar[bool] = False
    """Set by a class whose own methods hold for any covariance that its subclasses write."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        drop_descriptions(cls, Kernel)

    def __init__(self, active_dims: int | Sequence[int] | None = None) -> None:
        super().__init__()
        if active_dims is not None:
            if isinstance(active_dims, slice):
                raise ConfigError(
                    f"active_dims is {active_dims}; list the columns, as range(2, 5) does"
                )
            given: Any = active_dims
            if callable(getattr(given, "tolist", None)):  # arrays and tensors, also of a number
                given = given.tolist()
            chosen = list(given) if isinstance(given, Iterable) else [given]
            if not chosen or not all(isinstance(i, Integral) and int(i) >= 0 for i in chosen):
                raise ConfigError(
                    f"active_dims is {chosen}; it must list column numbers from 0 on, "
                    "or be None for all columns"
                )
            if len(set(chosen)) < len(chosen):
                raise ConfigError(
                    f"active_dims is {chosen}, which names a column twice; name each once, and "
                    "shorten its lengthscale where it is to count for more"
                )
            self._columns = tuple(int(i) for i in chosen)  # for which no GPU is waited for
            self.register_buffer("active_dims", torch.tensor(self._columns), persistent=False)
        else:
            self.active_dims = None

    def columns(self, width: int) -> tuple[int, ...]:
        """The columns of x (n, width) that ``active_dims`` chooses; of a kernel of others: all."""
        return tuple(range(width)) if self.active_dims is None else self._columns

    @property
    def name(self) -> str:
        """The class name, for messages (torch renames classes that have constrained parameters)."""
        return class_name(self)

    @abstractmethod
    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Written by the subclass: k at all pairs, (n1, d) and (n2, d) -> (n1, n2), a dense tensor.

        Columns are already selected. ``x1 is x2`` holds when the square matrix of one set of inputs
        is asked for, which lets a kernel make its diagonal exact.

        Inputs may be float64 in a float32 model: matrices without noise on the diagonal, such as
        K_zz of inducing points, are evaluated in float64. Where torch refuses to mix both, as in
        matrix products, the method is called again with parameters and buffers in float64; tensors
        that are neither need ``.to(x1)``. Values in float32 are widened.
        """

    @abstractmethod
    def variance(self, x: Tensor) -> Tensor:
        """Written by the subclass: k(x, x) at each row, (n, d) -> (n,); columns are selected.

        Inputs may be float64 in a float32 model, as in ``covariance``.
        """

    def evaluate(self, x1: Tensor, x2: Tensor | None = None) -> Tensor:
        """Dense kernel matrix, differentiable in the parameters and in both inputs.

        Args:
            x1 (n1, d): inputs of the rows.
            x2 (n2, d): inputs of the columns; None (or x1 itself) for the square matrix of x1.

        Returns:
            (n1, n2), in the squared unit of the function values; every entry has its own memory.

        Raises:
            ShapeError: inputs are not matrices, or lack columns; ``covariance`` gives a tensor of
                another shape.
            ConfigError: ``covariance`` gives something other than a tensor.

        Cost: O(n1 n2 d) time, O(n1 n2) memory.
        """
        rows, columns = self._select_both(x1, x2)
        if rows.shape[1] != columns.shape[1]:
            raise ShapeError(
                f"kernel inputs have {rows.shape[1]} and {columns.shape[1]} columns; "
                "both must have the same number"
            )
        found = at_precision_of(rows, self, lambda kernel: kernel.covariance(rows, columns))
        if not isinstance(found, Tensor):
            raise ConfigError(
                f"{self.name}.covariance gave a {type(found).__name__}, and kernels write dense "
                "tensors (n1, n2): return found.to_dense() of an operator; matrices whose "
                "structure solves should use are built from gpx.operators, without a kernel"
            )
        if found.shape != (rows.shape[0], columns.shape[0]):
            raise ShapeError(
                f"{self.name}.covariance gave a tensor of shape {tuple(found.shape)} for "
                f"{rows.shape[0]} and {columns.shape[0]} rows; it must have one entry for each pair"
            )
        if 0 in found.stride():  # one number for many pairs, and perhaps that of a parameter
            found = found.clone(memory_format=torch.contiguous_format)
        return _as_precise(found, rows)

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """k(x1_i, x2_i) of corresponding rows: (n, d) and (n, d) -> (n,), differentiable.

        Cost: O(n d). By default all pairs at once by ``torch.vmap``; if that cannot take
        ``covariance``, square blocks of 32 rows, O(32 n d).
        """

        def one(a: Tensor, b: Tensor) -> Tensor:
            return self.evaluate(a.unsqueeze(0), b.unsqueeze(0))[0, 0]

        with suppress(RuntimeError, ValueError):  # what vmap cannot take
            return torch.vmap(one)(x1, x2)
        blocks = zip(x1.split(_PAIR_BLOCK), x2.split(_PAIR_BLOCK), strict=True)
        return torch.cat([self.evaluate(a, b).diagonal() for a, b in blocks])

    def derivatives(self, a: Tensor, b: Tensor) -> KernelDerivatives:
        """Derivatives of k(a, b) by single inputs: covariances of f with its partial derivatives.

        Args:
            a (..., d), b (..., d): inputs, whose leading dimensions are broadcast.

        By default by autograd of ``pairs``, which must be plain torch, and no constant at equal
        rows. ``gpx.kernels.derivatives.check_derivatives`` says whether they are right.

        Raises:
            ConfigError: the functions are not differentiable, or torch cannot differentiate k
                twice.
        """
        return ByAutograd(self, a, b)

    def _in_columns(
        self, a: Tensor, b: Tensor, make: Callable[[Tensor, Tensor], KernelDerivatives]
    ) -> KernelDerivatives:
        """``derivatives``, of what ``make`` gives for the active columns of a and b."""
        chosen = [self._select(x.reshape(-1, x.shape[-1])) for x in (a, b)]
        own, other = (
            part.reshape(*x.shape[:-1], part.shape[1])
            for part, x in zip(chosen, (a, b), strict=True)
        )
        found = make(own, other)
        if self.active_dims is None:
            return found
        return InColumns(a, b, found, self._columns)

    def diagonal(self, x: Tensor) -> Tensor:
        """Prior variance k(x, x) at each row: (n, d) -> (n,), differentiable.

        Raises ShapeError as ``evaluate`` does. Cost: O(n d) time and memory or less.
        """
        rows = self._select(x)
        found = at_precision_of(rows, self, lambda kernel: kernel.variance(rows))
        if found.shape != rows.shape[:1]:  # (n, 1) would be broadcast to a matrix
            raise ShapeError(
                f"{self.name}.variance gave a tensor of shape {tuple(found.shape)} for "
                f"{len(rows)} rows; it gives one value a row, (n,)"
            )
        return _as_precise(found, rows)

    def __call__(
        self,
        x1: Tensor,
        x2: Tensor | None = None,
        *,
        memory_budget: int = DEFAULT_BUDGET,
        backend: BackendName | None = None,
    ) -> KernelMatrix:
        """The kernel matrix as a lazy operator; nothing of size n1 x n2 is computed here.

        Args:
            x1 (n1, d), x2 (n2, d): as in ``evaluate``.
            memory_budget: bytes its products may hold at once.
            backend: "dense", "chunked", "keops" or "triton"; None chooses
                (``gpx.backends.choose_backend``).

        Raises:
            ShapeError, DTypeError: inputs are not matrices, or differ in dtype or device.
            ConfigError, BackendUnavailable: the backend does not exist, does not fit the kernel or
                is not installed.
        """
        return KernelMatrix.of(self, x1, x2, memory_budget=memory_budget, backend=backend)

    # --- for the backends ------------------------------------------------------------------------

    def tiles(self, x1: Tensor, x2: Tensor | None = None) -> TileSource:
        """The matrix as a source of tiles for ``gpx.backends``; no gradients."""
        return EvaluatedTiles(self.evaluate, x1, x2)

    @property
    def has_formula(self) -> bool:
        """Whether ``formula`` exists: the kernel is made of stationary parts."""
        return False

    def formula(
        self, squared_distance: Callable[[Tensor, Tensor], Any], x1: Tensor, x2: Tensor
    ) -> Any:
        """k as an expression of squared distances between rows of coordinates.

        Args:
            squared_distance: from coordinates (n1, q) and (n2, q) to a KeOps lazy tensor, or
                another object with the same arithmetic.
            x1 (n1, d), x2 (n2, d): inputs.

        Raises:
            ConfigError: the kernel has no such expression.
        """
        raise ConfigError(
            f"kernel {self.name} is no function of distances, so KeOps cannot compile it; "
            "choose backend=chunked"
        )

    @property
    def radial_profiles(self) -> tuple[RadialProfile, ...]:
        """Profiles of ``radial_parts``; empty where the kernel is no sum of such parts."""
        return ()

    def radial_parts(self, x1: Tensor, x2: Tensor | None = None) -> list[RadialPart]:
        """Radial parts whose sum is the matrix at x1 (n1, d) and x2 (n2, d), or square at x1 alone.

        Differentiable in parameters and inputs. Raises ConfigError: the kernel is not such a sum.
        """
        raise ConfigError(
            f"kernel {self.name} is no sum of RBF, Matern and rational quadratic kernels, and only "
            "these have Triton kernels; choose backend=chunked"
        )

    def _select(self, x: Tensor) -> Tensor:
        if x.ndim != 2:
            raise ShapeError(
                f"{self.name} kernel inputs must be a matrix (n, d), got shape "
                f"{tuple(x.shape)}; use x[:, None] for one input dimension"
            )
        if self.active_dims is None:
            return x
        known = x.is_cpu and not torch.compiler.is_exporting()
        if known and int(self.active_dims.max()) >= x.shape[1]:
            raise ShapeError(
                f"active_dims asks for column {int(self.active_dims.max())}, but the inputs have "
                f"only {x.shape[1]} columns, numbered from 0"
            )
        return x.index_select(1, self.active_dims)

    def _select_both(self, x1: Tensor, x2: Tensor | None) -> tuple[Tensor, Tensor]:
        """Active columns of two sets of inputs; the same object twice where x2 is x1 or None."""
        rows = self._select(x1)
        return rows, rows if x2 is None or x2 is x1 else self._select(x2)

    def _check_columns(self, x: Tensor, parameters: str = "lengthscales") -> None:
        if self.ard_num_dims is not None and x.shape[1] != self.ard_num_dims:
            has = parameters if self.ard_num_dims > 1 else parameters.removesuffix("s")
            raise ShapeError(
                f"{self.name} has {self.ard_num_dims} {has} but the inputs have {x.shape[1]} "
                "(active) columns; give one number, not in a list, for all columns "
                f"(ard_num_dims=None), or one for each (ard_num_dims={x.shape[1]})"
            )

    @property
    def local(self) -> bool:
        """Whether correlations fall to zero with distance, so that near rows matter most."""
        return False

    # --- spectrum (stationary kernels) -------------------------------------------------------

    def num_spectral_normals(self, num_inputs: int) -> int:
        """Standard normals that one random frequency in ``num_inputs`` dimensions needs."""
        raise self._no_spectrum()

    @property
    def spectral_normals(self) -> int:
        """Standard normals that one random frequency needs, for the kernel's own input dimension.

        Raises ConfigError when the kernel has no sampler, or does not know its input dimension
        (``ard_num_dims=None``; ask ``num_spectral_normals(d)``).
        """
        if self.ard_num_dims is None:
            self.num_spectral_normals(1)  # raises first for a kernel without a sampler
            raise ConfigError(
                f"{self.name} does not know its input dimension; set ard_num_dims "
                "(a parameter for each input) or ask num_spectral_normals(d)"
            )
        return self.num_spectral_normals(self.ard_num_dims)

    def spectral_frequencies(self, normals: Tensor) -> Tensor:
        """Random angular frequencies w (radians per unit of x) with k(tau) = k(0) E[cos(w . tau)].

        Args:
            normals (r, q): independent standard normals, q = ``num_spectral_normals(d)``.

        Returns:
            (r, d), differentiable in the lengthscales.
        """
        raise self._no_spectrum()

    def draw_frequencies(
        self, count: int, num_inputs: int, *, generator: torch.Generator
    ) -> Tensor:
        """Frequencies (r, d), r <= count, whose cosines average to the correlation; no gradient.

        Raises:
            ConfigError: no spectral sampler. Cost: O(count d).
        """
        like = next(self.parameters(), torch.empty(0))
        size = (count, self.num_spectral_normals(num_inputs))
        with torch.no_grad():
            return self.spectral_frequencies(like.new_empty(size).normal_(generator=generator))

    def summands(self) -> list[tuple[Kernel, Tensor | float]]:
        """Kernels and their multiples whose sum is this kernel; just itself unless it is a sum."""
        return [(self, 1.0)]

    def spectral_density(self, omega: Tensor) -> Tensor:
        """Spectral density s(omega), including the outputscale.

        Convention: frequencies in cycles per unit of x, not radians:
        k(tau) = int exp(2 pi i tau . omega) s(omega) d omega, so that s integrates to k(0).

        Args:
            omega (r, d): in cycles; an angular frequency w is omega = w / (2 pi).

        Returns:
            (r,)
        """
        raise self._no_spectrum()

    def log_spectral_density(self, omega: Tensor) -> Tensor:
        """log s(omega), (r,); for RBF and Matern also where s itself under- or overflows."""
        return self.spectral_density(omega).log()

    def _no_spectrum(self) -> NoSpectrum:
        return NoSpectrum(
            f"kernel {self.name} has no such spectral representation; for random Fourier "
            "features choose kernel=RBF(), Matern12(), Matern32() or Matern52()"
        )

    # --- algebra; ``gpx.kernels.algebra`` sets the classes of the results ------------------------

    sum_of: ClassVar[Callable[[list[Kernel]], Kernel]]
    product_of: ClassVar[Callable[[list[Kernel]], Kernel]]
    multiple_of: ClassVar[Callable[[Kernel, float], Kernel]]
    constant_of: ClassVar[Callable[[float], Kernel]]

    __array_ufunc__ = None
    """Makes NumPy's numbers defer to the kernel in sums and products."""

    def __add__(self, other: Kernel | float) -> Kernel:
        """Sum with a kernel, or with a learnable constant kernel that starts at a number."""
        if isinstance(other, Kernel):
            return Kernel.sum_of([self, other])
        number = _scalar_value(other)
        if number is None:
            return self._not_combined(other)
        return Kernel.sum_of([self, Kernel.constant_of(number)])

    def __radd__(self, other: Kernel | float) -> Kernel:
        """As ``k + other``; the zero with which ``sum([k1, k2])`` starts adds nothing."""
        if not isinstance(other, Kernel) and _scalar_value(other) == 0.0:
            return self
        return Kernel.__add__(self, other)

    def __mul__(self, other: Kernel | float) -> Kernel:
        """Product with a kernel, or with a learnable outputscale that starts at a number."""
        if isinstance(other, Kernel):
            return Kernel.product_of([self, other])
        number = _scalar_value(other)
        if number is None:
            return self._not_combined(other)
        return Kernel.multiple_of(self, number)

    __rmul__ = __mul__

    def _not_combined(self, other: object) -> Any:
        """NotImplemented; TypeError for a module of another kind, such as a mean of that name.

        A module that says itself how it is combined with what stands before it is asked.
        """
        asked = any(hasattr(type(other), name) for name in ("__radd__", "__rmul__"))
        if asked or not isinstance(other, torch.nn.Module):
            return NotImplemented
        raise TypeError(
            f"the kernel {self.name} is added to and multiplied by kernels and numbers, got "
            f"{class_name(other)} of {type(other).__module__}; kernels are in gpx.kernels"
        )

    def __pow__(self, power: int) -> Kernel:
        """Product with itself, with shared parameters.

        Raises:
            ConfigError: ``power`` is not a positive whole number; other powers need not be
                covariance functions.
        """
        if not isinstance(power, Integral) or power < 1:
            raise ConfigError(
                f"{self.name} ** {power!r} is no covariance function in general: powers of kernels "
                "are whole numbers from 1 on"
            )
        return Kernel.product_of([self] * int(power))


def _as_precise(values: Tensor, x: Tensor) -> Tensor:
    """Values of a kernel at inputs x, in float64 where these are."""
    return (
        values if values.dtype == x.dtype else values.to(torch.promote_types(values.dtype, x.dtype))
    )


def _scalar_value(value: object) -> float | None:
    """The value of a Python or NumPy number, or a 0-d array or tensor; None for anything else."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise ConfigError(
            "a number in a sum or product of kernels is the initial value of a new parameter, so a "
            "tensor that requires a gradient cannot be used: detach it"
        )
    one = isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0
    return float(value) if one or isinstance(value, Real) else None  # type: ignore[arg-type]
