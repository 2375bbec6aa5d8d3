"""Definition of a kernel matrix: a kernel, its parameters as tensors, and two sets of inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

T = TypeVar("T")


class CovarianceFunction(Protocol):
    """The part of ``gpx.kernels.Kernel`` that a kernel matrix needs, without importing it."""

    @property
    def name(self) -> str:
        """For messages."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Differentiable parameters, with dotted names."""


class TileSource(Protocol):
    """A prepared kernel matrix whose tiles can be written into a buffer; no gradients.

    Attributes:
        scale: factor of all tiles, None for one. Products apply it to the thin result instead of
            every entry.
    """

    @property
    def scale(self) -> Tensor | None:
        """The common factor; None for one."""

    def fill_(self, rows: slice, columns: slice, out: Tensor, scratch: Scratch) -> None:
        """Write rows x columns of the matrix, divided by ``scale``, into ``out``.

        Called by several threads at once, each with its own ``out`` and ``scratch``.
        """


class Scratch:
    """Reusable tile buffers of one thread: newly allocated pages would cost more than the exp.

    Args:
        like: tensor whose dtype and device are used.
        size: entries of the largest tile.
    """

    def __init__(self, like: Tensor, size: int) -> None:
        self._like, self._size = like, size
        self._free: list[Tensor] = []

    def take(self, rows: int, columns: int) -> Tensor:
        """An uninitialised contiguous (rows, columns) tile; return it with ``give``."""
        flat = self._free.pop() if self._free else self._like.new_empty(self._size)
        return flat[: rows * columns].view(rows, columns)

    def give(self, tile: Tensor) -> None:
        """Return a tile from ``take``."""
        self._free.append(tile.as_strided((self._size,), (1,), 0))


class _AsForward(nn.Module):
    """A function of a module as a forward method, as ``functional_call`` requires."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *args: Any) -> Any:
        return self.function(self.module, *args)


def call_with(
    module: Any, values: Mapping[str, Tensor], function: Callable[..., T], *args: Any
) -> T:
    """``function(module, *args)`` with parameters and buffers of the module replaced by ``values``.

    The function gets a copy of the modules that hold these tensors, which shares everything
    else: other threads may use the module meanwhile, except within ``cached_parameters`` on a GPU,
    where the values are exchanged in place and put back.

    Args:
        module: a kernel, mean function or likelihood; unchanged.
        values: by dotted name of the parameter (``parametrizations.lengthscale.original``) or
            buffer.
        function, args: the call.
    """
    if parametrize._cache_enabled:  # its keys are addresses of modules, which copies would reuse
        named = {f"module.{name}": value for name, value in values.items()}
        found: T = functional_call(_AsForward(module, function), named, args)
        return found
    replaced: dict[int, Tensor] = {}
    for name, value in values.items():
        *path, leaf = name.split(".")
        part = module
        for step in path:
            part = part._modules[step]
        held = part._parameters if leaf in part._parameters else part._buffers
        replaced[id(held[leaf])] = value
    return function(_with_tensors(module, replaced, {}), *args)


def in_double(module: Any, function: Callable[..., T], *args: Any) -> T:
    """``function(module, *args)`` with the module's parameters and buffers in float64.

    Differentiable in the parameters. A module in float64 is taken as it is; of any other, only the
    modules that hold tensors are copied, as in ``call_with``. The caller converts ``args``. Within
    ``cached_parameters`` nothing is read from the cache or added to it.
    """
    wide = {name: tensor.double() for name, tensor in _lower_precision(module)}
    if not wide:
        return function(module, *args)
    with _no_cached_parameters():
        return call_with(module, wide, function, *args)


def at_precision_of(x: Tensor, module: Any, function: Callable[..., T]) -> T:
    """``function(module)`` at inputs x, whose dtype may be float64 where the module has float32.

    Sums and products of both dtypes are float64, but torch refuses matrix products of them. Where
    it does, the function is called again with the module ``in_double``.

    Args:
        x: the inputs that ``function`` uses.
        module: a kernel or a part of one.
        function: not called twice unless it raised RuntimeError.
    """
    if x.dtype != torch.float64:
        return function(module)
    try:
        return function(module)
    except RuntimeError as refused:
        again = not isinstance(refused, torch.OutOfMemoryError)
        if not again or next(_lower_precision(module), None) is None:
            raise
    return in_double(module, function)


def _lower_precision(module: Any) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, by name, that are floating-point numbers but not float64."""
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if tensor.is_floating_point() and tensor.dtype != torch.float64:
            yield name, tensor


@contextmanager
def _no_cached_parameters() -> Iterator[None]:
    """Suspend ``cached_parameters``: it holds values in the dtype in which they were first read."""
    enabled = parametrize._cache_enabled
    parametrize._cache_enabled = 0
    try:
        yield
    finally:  # a count, as of torch: another thread may have added its own meanwhile
        parametrize._cache_enabled += enabled


def _with_tensors(
    module: nn.Module, replaced: Mapping[int, Tensor], made: dict[int, nn.Module]
) -> nn.Module:
    """The module with other parameters and buffers (by identity), copied where it differs."""
    if id(module) in made:
        return made[id(module)]
    changed: dict[str, dict[str, Any]] = {}
    for kind in ("_parameters", "_buffers", "_modules"):
        held = getattr(module, kind)
        if not held:
            continue
        new = {
            name: _with_tensors(value, replaced, made)
            if isinstance(value, nn.Module)
            else replaced.get(id(value), value)
            for name, value in held.items()
        }
        if any(new[name] is not value for name, value in held.items()):
            changed[kind] = new
    found = module
    if changed:
        found = type(module).__new__(type(module))
        found.__dict__.update(module.__dict__, **changed)
    made[id(module)] = found
    return found


@dataclass(frozen=True)
class Entries:
    """K_ij = k(x1_i, x2_j) with the given tensors in place of the kernel's parameters.

    Attributes:
        kernel: its structure and buffers are used, not its parameters.
        names: dotted names of the parameters.
        parameters: their values, in the order of ``names``.
        x1 (n1, d), x2 (n2, d): inputs of rows and columns.
        square: x2 is x1: only x1 is used; the matrix is symmetric with an exact diagonal.
    """

    kernel: Any
    names: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    x1: Tensor
    x2: Tensor
    square: bool

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """x1, x2 and the parameters: everything the matrix depends on."""
        return (self.x1, self.x2, *self.parameters)

    @property
    def shape(self) -> tuple[int, int]:
        """(n1, n2)."""
        return self.x1.shape[-2], self.x2.shape[-2]

    def transposed(self) -> Entries:
        """The transposed matrix."""
        return self if self.square else replace(self, x1=self.x2, x2=self.x1)

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> Entries:
        """The same matrix as a function of other tensors, in the order of ``tensors``."""
        return replace(self, x1=tensors[0], x2=tensors[1], parameters=tuple(tensors[2:]))

    def leaves(self) -> Entries:
        """The same matrix as a function of detached tensors with the same ``requires_grad``."""
        return self.with_tensors(
            tuple(t.detach().requires_grad_(t.requires_grad) for t in self.tensors)
        )

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """``function(kernel, *args)`` with the kernel's parameters replaced by ``parameters``."""
        values = dict(zip(self.names, self.parameters, strict=True))
        return call_with(self.kernel, values, function, *args)

    def evaluate(self) -> Tensor:
        """The matrix itself, (n1, n2), differentiable."""
        x2 = None if self.square else self.x2
        return self.call(lambda kernel: kernel.evaluate(self.x1, x2))

    def bytes(self) -> int:
        """Size of the matrix if it were stored."""
        n1, n2 = self.shape
        return n1 * n2 * self.x1.element_size()


def gradients(
    entries: Entries, outputs: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Gradient of sum_i <weights_i, outputs_i> for every tensor of ``entries``.

    Zero if no output depends on the tensor; None if it requires no gradient.
    """
    wanted = [t for t in entries.tensors if t.requires_grad]
    pairs = [(o, w) for o, w in zip(outputs, weights, strict=True) if o.requires_grad]
    found = iter(
        torch.autograd.grad(
            [o for o, _ in pairs],
            wanted,
            [w for _, w in pairs],
            allow_unused=True,
            materialize_grads=True,
        )
        if wanted and pairs
        else [torch.zeros_like(t) for t in wanted]
    )
    return tuple(next(found) if t.requires_grad else None for t in entries.tensors)
