"""Checks of the arguments of models, objectives and posteriors, with messages of one sentence.

The base classes add these checks to the methods of every subclass when it is defined (``guard``),
so that subclasses need not call them.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, DataError, DTypeError, ShapeError, class_name
from gpx.lazy_rows import LazyRows

REAL = (torch.float32, torch.float64)
"""Supported precisions."""

WHOLE = (int, np.integer)
"""Classes of integers."""


def check_inputs(owner: nn.Module, x: Tensor, num_inputs: int | None = None) -> None:
    """Raise unless x is a real matrix (n, d) with the precision and device of ``owner``.

    Args:
        owner: model, posterior or kernel; one without tensors accepts either precision.
        x: inputs.
        num_inputs: number of columns of ``owner``; None if unknown.

    Raises:
        ShapeError: not a matrix, or another number of columns.
        DTypeError: not a tensor, or another dtype or device than the owner's.
    """
    name = class_name(owner)
    if not isinstance(x, (Tensor, LazyRows)):
        raise DTypeError(f"{name}: inputs must be a tensor (n, d), got a {type(x).__name__}")
    if x.ndim != 2:
        hint = "; use x[:, None] for one input" if x.ndim == 1 else ""
        raise ShapeError(
            f"{name}: inputs must be a matrix (n, d), got shape {tuple(x.shape)}{hint}"
        )
    if num_inputs is not None and x.shape[1] != num_inputs:
        raise ShapeError(
            f"{name}: inputs have {x.shape[1]} columns, but it is made for {num_inputs}"
        )
    _check_real(name, "inputs", x)
    own: Tensor | None = None
    # its own buffers first: the iteration over all parameters can take longer than a prediction
    for number in itertools.chain(owner._buffers.values(), owner.parameters(), owner.buffers()):
        if number is None or not number.is_floating_point() or not number.numel():
            continue
        own = number if own is None else own
        # some owners keep a part of their numbers in float64 for any data
        if number.dtype == x.dtype:
            break
    else:
        if own is None:
            return
        raise DTypeError(
            f"{name}: inputs are {_short(x.dtype)} and its own numbers {_short(own.dtype)}; "
            f"convert the inputs with .to(torch.{_short(own.dtype)}), or {name} with "
            f".to(torch.{_short(x.dtype)})"
        )
    if x.device != own.device:
        raise DTypeError(
            f"{name}: inputs are on {x.device} and its own numbers on {own.device}; "
            "move one of them with .to(...)"
        )


def own_number(owner: nn.Module) -> Tensor:
    """A tensor of ``owner``, whose dtype and device are those of its inputs; float64 without any.

    Parameters come first, since some buffers (caches) are float64 in any case.
    """
    numbers = itertools.chain(owner.parameters(), owner.buffers())
    found = (number for number in numbers if number.is_floating_point())
    return next(found, torch.zeros((), dtype=torch.float64))


def validation(batch: Tensor) -> bool | None:
    """``validate_args`` of a distribution: torch's validation fails on an empty batch."""
    return None if batch.numel() else False


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is an int or a float, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_whole(**sizes: object) -> None:
    """Raise ConfigError for a size that is no whole number; None is accepted.

    Args:
        sizes: values by the names of their arguments.
    """
    for name, size in sizes.items():
        if size is not None and (not isinstance(size, WHOLE) or isinstance(size, bool)):
            raise ConfigError(f"{name}={size!r}: expected a whole number")


def check_at_least(least: int, **sizes: object) -> None:
    """Raise ConfigError for a size that is no whole number of at least ``least``; None is accepted.

    Args:
        least: smallest valid size.
        sizes: values by the names of their arguments.
    """
    check_whole(**sizes)
    for name, size in sizes.items():
        if isinstance(size, WHOLE) and size < least:
            raise ConfigError(f"{name}={size} must be at least {least}")


def check_one_of(known: Iterable[object], **words: object) -> None:
    """Raise ConfigError for a word that is none of the known ones, with the nearest of these.

    Args:
        known: valid words.
        words: values by the names of their arguments.
    """
    valid = [*known]
    for name, word in words.items():
        if word not in valid:
            listed = [*map(str, valid)]
            near = difflib.get_close_matches(word, listed, n=1) if isinstance(word, str) else []
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{name}={word}: expected one of {', '.join(listed)}{hint}")


def check_widths(name: str, widths: object) -> None:
    """Raise ConfigError unless ``widths`` of the layers of a network are a list of whole numbers.

    Args:
        name: of the argument.
        widths: each at least 1; may be empty.
    """
    listed = list(widths) if isinstance(widths, Sequence) else [None]
    if any(not isinstance(w, int) or isinstance(w, bool) or w < 1 for w in listed):
        raise ConfigError(
            f"{name}={widths}: expected a list of whole numbers of at least 1, one for each hidden "
            "layer, like [64, 64]"
        )


def check_positive(*, finite: bool = False, **numbers: float | None) -> None:
    """Raise ConfigError for the first number that is not above 0, or NaN; None is accepted.

    Args:
        finite: whether to refuse infinity, too.
        numbers: values by the names of their arguments.
    """
    for name, number in numbers.items():
        if number is not None and not (number > 0.0 and (number < math.inf or not finite)):
            raise ConfigError(f"{name}={number} must be positive{' and finite' * finite}")


def check_not_negative(*, finite: bool = False, **numbers: float | None) -> None:
    """Raise ConfigError for the first number that is negative or NaN; None is accepted.

    Args:
        finite: whether to refuse infinity, too.
        numbers: values by the names of their arguments.
    """
    for name, number in numbers.items():
        if number is not None and not (number >= 0.0 and (number < math.inf or not finite)):
            raise ConfigError(f"{name}={number} must not be negative{' or infinite' * finite}")


def check_share(**numbers: float | None) -> None:
    """Raise ConfigError for the first number that is not above 0 and below 1; None is accepted.

    Args:
        numbers: values by the names of their arguments.
    """
    for name, number in numbers.items():
        if number is not None and not 0.0 < number < 1.0:
            raise ConfigError(f"{name}={number} must be between 0 and 1")


def check_jitter(**jitters: float | None) -> None:
    """Raise ConfigError for a jitter that is not from 0 on and below 1, or NaN; None is accepted.

    From 1 on, which is most likely a mistyped exponent, more than half of every prior variance
    would be jitter.

    Args:
        jitters: values relative to the diagonal that they raise, by the names of their arguments.
    """
    check_not_negative(finite=False, **jitters)
    for name, jitter in jitters.items():
        if jitter is not None and not jitter < 1.0:
            raise ConfigError(
                f"{name}={jitter:g} must be below 1, as it is relative to the diagonal; for "
                f"example {name}=1e-6"
            )


def check_targets(owner: nn.Module, x: Tensor, y: Tensor, num_outputs: int = 1) -> None:
    """Raise unless y is (n,), or (n, p) for p > 1 outputs, and matches the inputs x (n, d).

    Targets of shape (n, 1) would broadcast against (n,) to n x n differences.

    Args:
        owner: model.
        x: inputs, which have passed ``check_inputs``.
        y: targets.
        num_outputs: p of the model.

    Raises:
        ShapeError: another shape, or another number of rows.
        DTypeError: not a tensor, or another dtype or device than x.
    """
    name, rows = class_name(owner), x.shape[0]
    if not isinstance(y, (Tensor, LazyRows)):
        raise DTypeError(f"{name}: targets must be a tensor (n,), got a {type(y).__name__}")
    wanted = (rows,) if num_outputs == 1 else (rows, num_outputs)
    if y.shape != wanted:
        hint = ""
        if num_outputs > 1:
            hint = f" and its likelihood {num_outputs} outputs"
        elif y.shape == (rows, 1):
            hint = "; use y.squeeze(1)"
        elif y.ndim == 2 and y.shape[0] == rows:
            hint = f"; it models one output, got {y.shape[1]}"
        raise ShapeError(
            f"{name}: targets have shape {tuple(y.shape)}, expected {wanted} as the inputs have "
            f"{rows} rows{hint}"
        )
    _check_real(name, "targets", y)
    if y.dtype != x.dtype or y.device != x.device:
        raise DTypeError(
            f"{name}: targets are {_short(y.dtype)} on {y.device} and inputs {_short(x.dtype)} on "
            f"{x.device}; give both alike, with y.to(x)"
        )


def check_finite_targets(owner: nn.Module, y: Tensor) -> None:
    """Raise DataError for an infinite target, and for NaN where a row has one target only.

    Of several targets of a row, NaN stands for a missing one.

    Args:
        owner: model or posterior.
        y (n,) or (n, p): targets, which have passed ``check_targets``.
    """
    bad = ~y.isfinite() if y.ndim == 1 else y.isinf()
    if bool(bad.any()):
        raise DataError(
            f"{class_name(owner)}: {int(bad.sum())} of {y.numel()} targets are not finite, the "
            f"first in row {int(bad.nonzero()[0, 0])}; remove those rows or fill them in"
        )


def check_alike(what: str, *parts: Any) -> None:
    """Raise DTypeError unless tensors, or operators, have the same dtype and device.

    Args:
        what: subject of the message, such as "the terms of a sum".
    """
    kinds = [(part.dtype, part.device) for part in parts]
    if any(kind != kinds[0] for kind in kinds):
        found = ", ".join(f"{_short(dtype)} on {device}" for dtype, device in kinds)
        raise DTypeError(f"{what} differ in dtype or device: {found}; convert them to one")


def check_num_data(expected: int, x: Tensor) -> None:
    """Raise ConfigError unless x (n, d) has the ``num_data`` rows that were announced."""
    if x.shape[0] != expected:
        raise ConfigError(f"num_data={expected} but there are {x.shape[0]} training rows")


def check_num_inputs(expected: int | None, x: Tensor) -> None:
    """Raise ConfigError unless x (n, d) has the ``num_inputs`` columns of a model; None: any."""
    if expected is not None and x.shape[1] != expected:
        raise ConfigError(
            f"the model was made for num_inputs={expected}, the data have {x.shape[1]}; set "
            f"num_inputs={x.shape[1]}"
        )


def guard(cls: type, method: str, check: Callable[..., None]) -> None:
    """Call ``check`` before ``method``, if ``cls`` itself defines it.

    Args:
        cls: class that is being defined.
        method: name.
        check: called with the same arguments, ``self`` first.
    """
    inner = vars(cls).get(method)
    if inner is None or getattr(inner, "__isabstractmethod__", False):
        return

    @functools.wraps(inner)
    def checked(*arguments: Any, **options: Any) -> Any:
        try:
            check(*arguments, **options)
        except TypeError:
            try:
                inspect.signature(inner).bind(*arguments, **options)
            except TypeError:  # arguments that ``method`` does not take: its own message names it
                return inner(*arguments, **options)
            raise
        return inner(*arguments, **options)

    setattr(cls, method, checked)


def _check_real(name: str, what: str, values: Tensor) -> None:
    if values.dtype not in REAL:
        raise DTypeError(
            f"{name}: {what} are {_short(values.dtype)}, expected float64 or float32; convert "
            "them, for example with .double()"
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
