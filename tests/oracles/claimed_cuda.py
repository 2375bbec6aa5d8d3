"""A CUDA device that is not there: tensors in main memory that claim to be on it.

In ``claimed_cuda()`` code runs as on a GPU: ``torch.cuda.is_available()``, ``cuda()``,
``device="cuda"`` and ``to(device)`` work, values are those of the CPU, and most of what CUDA
tensors refuse is refused (``DeviceMismatch``): operations with tensors of the CPU that are more
than a number, generators of the other device, ``numpy()``. Where the host reads a result, or a
shape that depends on one (``READS``, masks, indices that are one number), is counted in ``waits``
by the line of gpx that asks for it. A parameter, buffer or submodule that joins a module whose
own are on the other device is refused as well, though CUDA itself would say so only where they
first meet: buffers that are only copied into never would.

It sees into gradients that are written in Python: what such a function saved, and what it is
handed, is where its inputs and results were. Those that torch has in C++ are not watched one by
one; they meet what was saved in a forward pass, which is watched, and gradients, which are where
they enter: from a caller (``grad_outputs``) and from a function written in Python, where torch's
engine refuses another device than the input's, too.

Copies to the device are counted apart, by line (``copies``): a recording of a step refuses them.

It does not see time, precision, compiled kernels, waits within other torch operations, and what
runs in ``torch.vmap``, whose results are where its arguments are.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._C import _FunctionBase
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from gpx.linalg.memory import working_memory

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")

READS = {
    Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__float__, Tensor.__int__,
    Tensor.__index__, Tensor.nonzero, torch.nonzero, torch.unique, Tensor.unique,
    torch.masked_select, Tensor.masked_select, torch.equal, Tensor.equal, torch.allclose,
    Tensor.allclose, torch.argwhere, Tensor.argwhere, torch.bincount, Tensor.bincount,
    torch.unique_consecutive, Tensor.unique_consecutive, torch.is_nonzero, Tensor.is_nonzero,
    Tensor.__contains__, torch.linalg.cholesky, torch.linalg.inv, torch.linalg.solve,
    torch.linalg.eigh, torch.linalg.eigvalsh, torch.linalg.svd, torch.linalg.lstsq,
    torch.cholesky_inverse, Tensor.coalesce,
}  # fmt: skip
"""Functions whose results, or whose shapes or errors, the host has to know."""

ACROSS = {
    Tensor.copy_, Tensor.__setitem__, Tensor.view_as, Tensor.expand_as, Tensor.reshape_as,
    torch._has_compatible_shallow_copy_type,
}  # fmt: skip
"""Functions that take tensors of both devices, or look at shapes alone."""

UNORDERED = {
    torch.cumsum, Tensor.cumsum, torch.kthvalue, Tensor.kthvalue, torch.histc, Tensor.histc,
    Tensor.put_, torch.bincount, Tensor.bincount, torch.median, Tensor.median,
}  # fmt: skip
"""Functions without a form that gives the same bits every time: running sums of floating-point
numbers, counts with weights, medians along a dimension."""

BACKWARD = {torch.autograd.grad, torch.autograd.backward, Tensor.backward}
"""What runs the engine: the tensors that it passes on between gradients have no claim."""

UNCHECKED = ACROSS | BACKWARD
UNKNOWN = BACKWARD - {torch.autograd.grad}
"""Functions whose results say nothing of where they computed."""


class DeviceMismatch(RuntimeError):
    """What CUDA would have refused."""


class NotDeterministic(RuntimeError):
    """What torch warns of on CUDA under ``use_deterministic_algorithms``."""


class Claimed(Tensor):
    """A tensor in main memory that claims to be on CUDA."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def detach(self) -> Tensor:
        return claim(Tensor.detach(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return release(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            with torch._C.DisableTorchFunction():
                copied = Tensor.detach(self).clone().as_subclass(Claimed)
                is_parameter, wanted = isinstance(self, nn.Parameter), self.requires_grad
            copied = nn.Parameter(copied, wanted) if is_parameter else copied.requires_grad_(wanted)
            memo[id(self)] = copied
        return memo[id(self)]


class ClaimedGenerator(torch.Generator):
    """Made on the CPU, says it is where it was asked to be."""

    claimed = False

    def __new__(cls, device: torch.device | str = "cpu") -> ClaimedGenerator:
        return super().__new__(cls, "cpu")

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.claimed = torch.device(device).type == "cuda"

    device = property(lambda self: CUDA if self.claimed else CPU)


def claim(value: Any) -> Any:
    """``value`` on the device; sparse tensors stay what they are, and pass for either."""
    if not isinstance(value, Tensor) or isinstance(value, Claimed):
        return value
    with torch._C.DisableTorchFunction():
        return value.as_subclass(Claimed) if value.layout == torch.strided else value


def release(value: Any) -> Any:
    """``value`` on the CPU."""
    with torch._C.DisableTorchFunction():
        return value.as_subclass(Tensor) if isinstance(value, Claimed) else value


def _sparse(tensor: Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return tensor.layout != torch.strided


def _place() -> str:
    """The line of gpx that is running, or else of anything."""
    frame: Any = sys._getframe(1)
    last = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__:
            if last is None or "/gpx/" in name:
                last = frame
            if "/gpx/" in name:
                break
        frame = frame.f_back
    assert last is not None
    name, line = last.f_code.co_filename, last.f_lineno
    return f"{name.rsplit('/gpx/', 1)[-1]}:{line} {linecache.getline(name, line).strip()}"


def _gather(value: Any, found: list[Tensor]) -> None:
    """Add every tensor of an argument; as ``tree_leaves``, which takes longer than most operations.

    Arguments of operations are nested in tuples, lists and dictionaries alone.
    """
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, tuple | list):
        for each in value:
            _gather(each, found)
    elif isinstance(value, dict):
        for each in value.values():
            _gather(each, found)


class ClaimedDevice(TorchFunctionMode):
    """Keeps count of where tensors are."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.host = False  # whether the function that is running has nothing to do with the device
        self.mapped = False  # whether it runs in torch.vmap, whose tensors have no claim
        super().__init__()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        foreign = [t for t in types if not issubclass(t, Tensor)]
        if foreign:  # a linear operator, whose own operations are watched as well
            with self:
                return foreign[0].__torch_function__(func, types, args, kwargs)
        if self.mapped:
            kwargs |= {"device": CPU} if kwargs.get("device") is not None else {}
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        seen = args[0] if func is Tensor.__deepcopy__ else (args, kwargs)  # not what was copied
        tensors: list[Tensor] = []
        _gather(seen, tensors)
        claimed = any(isinstance(t, Claimed) or _sparse(t) for t in tensors)
        if name == "_parse_to":  # of Module.to, which a tensor may tell where
            device, *rest = func(*args, **kwargs)
            return (CUDA if claimed else device, *rest)
        if name in ("__get__", "__set__"):
            found = func(*args, **kwargs)
            return claim(found) if claimed else found
        if func in (Tensor.to, Tensor.cuda, Tensor.cpu):
            return self._move(func, args, kwargs)
        if func is Tensor.numpy and claimed:
            raise DeviceMismatch(f"a CUDA tensor has no numpy(): {_place()}")
        if claimed and (func in READS or self._looks_up(func, args, kwargs)):
            self.waits[_place()] += 1
        if self._brings(func, args, kwargs, claimed):
            self.copies[_place()] += 1
        if claimed and func in UNORDERED and torch.are_deterministic_algorithms_enabled():
            self._in_order(name, args, kwargs)
        target = kwargs.get("device")
        if target is not None:
            claimed = torch.device(target).type == "cuda"
            kwargs["device"] = CPU
        elif claimed and func not in UNCHECKED:
            self._check(name, func, args, tensors)
        elif claimed and func in BACKWARD:
            self._check_gradients(name, func, args, kwargs)
        generator = kwargs.get("generator")
        if generator is not None and getattr(generator, "claimed", False) != claimed:
            raise DeviceMismatch(
                f"{name}: generator on another device than its numbers: {_place()}"
            )
        # a result on the CPU may have come from the device, inputs and results there did not
        before, self.host = self.host, not claimed and func not in UNKNOWN
        try:
            found = func(*args, **kwargs)
        finally:
            self.host = before
        changed = args[0] if args and name.endswith("_") and not name.endswith("__") else None
        if changed is not None and not isinstance(changed, Claimed):
            return found  # in place, on the CPU
        placed = claim if claimed else release
        return placed(found) if isinstance(found, Tensor) else tree_map(placed, found)

    def _move(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Tensor:
        """to, cuda and cpu: the same values, under the other claim and in other memory."""
        source = args[0]
        target = source.device if func is Tensor.to else CUDA if func is Tensor.cuda else CPU
        rest = []
        for argument in args[1:] if func is Tensor.to else ():
            if isinstance(argument, torch.device | str | Tensor):
                is_tensor = isinstance(argument, Tensor)
                target = argument.device if is_tensor else torch.device(argument)
                rest.append(argument.dtype if is_tensor else CPU)
            else:
                rest.append(argument)
        if kwargs.get("device") is not None:
            target, kwargs["device"] = torch.device(kwargs["device"]), CPU
        here = isinstance(source, Claimed)
        if here != (target.type == "cuda"):
            (self.waits if here else self.copies)[_place()] += 1
        before, self.host = self.host, not here and target.type == "cpu"
        try:
            moved = Tensor.to(source, *rest, **kwargs) if func is Tensor.to else source
        finally:
            self.host = before
        if here != (target.type == "cuda") and moved is source:
            moved = moved.clone()
        return claim(moved) if target.type == "cuda" else release(moved)

    @staticmethod
    def _in_order(name: str, args: Any, kwargs: dict[str, Any]) -> None:
        """Refuse sums whose order CUDA leaves open; those of whole numbers are the same in any."""
        if name == "median" and len(args) + len(kwargs) == 1:  # of all entries
            return
        weights = kwargs.get("weights", args[1] if len(args) > 1 else None)
        counted = args[0] if name != "bincount" else weights
        if isinstance(counted, Tensor) and counted.is_floating_point():
            raise NotDeterministic(f"{name} gives other bits every time: {_place()}")

    @staticmethod
    def _looks_up(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether an index is a mask or a single number, or repeats are counts of the device."""
        if func in (torch.where, Tensor.where):
            return len(args) + len(kwargs) == 1
        if func in (torch.repeat_interleave, Tensor.repeat_interleave):
            counted = isinstance((*args, kwargs.get("repeats"))[1], Tensor)
            return counted and kwargs.get("output_size") is None
        if func not in (Tensor.__getitem__, Tensor.__setitem__):
            return False
        indices = [i for i in tree_leaves(args[1]) if isinstance(i, Tensor)]
        return any(i.dtype == torch.bool or i.dim() == 0 for i in indices)

    @staticmethod
    def _brings(func: Callable[..., Any], args: Any, kwargs: dict[str, Any], claimed: bool) -> bool:
        """Whether numbers of the host, or indices that are a list or on the CPU, are copied."""

        def here(value: Any) -> bool:
            return isinstance(value, Tensor) and not isinstance(value, Claimed)

        if func in (torch.as_tensor, torch.asarray):  # of ``torch.tensor`` the dispatcher says so
            there = torch.device(kwargs.get("device") or CPU).type == "cuda"
            return there and not isinstance(args[0], Claimed)
        if not claimed or not isinstance(args[0] if args else None, Claimed):
            return False
        if func is Tensor.copy_:
            return here(args[1])
        if func not in (Tensor.__getitem__, Tensor.__setitem__):
            return False
        indices = args[1] if isinstance(args[1], tuple) else (args[1],)
        listed = any(isinstance(i, list) or (here(i) and i.dim() > 0) for i in indices)
        return listed or (func is Tensor.__setitem__ and here(args[2]))

    @staticmethod
    def _check_gradients(name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """The gradients that a backward pass begins with are where its outputs are."""
        place = 2 if func is torch.autograd.grad else 1
        word = {torch.autograd.grad: "grad_outputs", torch.autograd.backward: "grad_tensors"}
        given = args[place] if len(args) > place else kwargs.get(word.get(func, "gradient"))
        first = args[0] if args else kwargs.get("tensors", kwargs.get("outputs", ()))
        outputs, gradients = ([x] if isinstance(x, Tensor) else x for x in (first, given))
        for output, gradient in zip(outputs, gradients or (), strict=False):
            there = isinstance(output, Claimed), isinstance(gradient, Claimed)
            if gradient is not None and gradient.dim() and there[0] != there[1]:
                raise DeviceMismatch(
                    f"{name} of an output {tuple(output.shape)} with a gradient of the other "
                    f"device: {_place()}"
                )

    @staticmethod
    def _check(name: str, func: Callable[..., Any], args: Any, tensors: list[Tensor]) -> None:
        """Indices may be on the CPU, and numbers unless they are put together with others."""
        if func is Tensor.__getitem__:
            strangers = [] if isinstance(args[0], Claimed) else [args[0]]
        else:
            numbers = func not in (torch.cat, torch.stack)
            strangers = [
                t
                for t in tensors
                if not isinstance(t, Claimed) and not _sparse(t) and not (numbers and t.dim() == 0)
            ]
        if strangers:
            shapes = [tuple(t.shape) for t in strangers]
            raise DeviceMismatch(f"{name} of CUDA tensors with CPU {shapes}: {_place()}")


def _at_home(module: nn.Module, name: str, value: Any) -> None:
    """Refuse what joins ``module`` from the other device, empty or not.

    An empty buffer decides where a loaded state goes. Those that a module has itself do not count:
    a module of empty buffers alone is where the first one is filled.
    """
    joining = value if isinstance(value, Tensor | nn.Module) else None
    if joining is None or "_parameters" not in module.__dict__:  # not initialised yet
        return
    with torch._C.DisableTorchFunction():
        arriving = [joining] if isinstance(joining, Tensor) else _tensors(joining)
        there, here = (
            {isinstance(t, Claimed) for t in tensors if t.layout == torch.strided}
            for tensors in (arriving, [t for t in _tensors(module) if t.numel()])
        )
    if there and here and there != here:
        where = "CUDA" if here == {True} else "the CPU" if here == {False} else "both devices"
        raise DeviceMismatch(
            f"{name} joins {type(module).__name__}, which is on {where}, from elsewhere: {_place()}"
        )


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _watched(method: str, before: Callable[..., Any]) -> Callable[..., Any]:
    """``nn.Module.method`` that looks at what it is given: itself, a name, a value."""

    def watching(self: nn.Module, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        known = method != "__setattr__" or isinstance(value, nn.Module | nn.Parameter)
        if known or name in self.__dict__.get("_buffers", ()):
            _at_home(self, name, value)
        return before(self, name, value, *args, **kwargs)

    return watching


def _noted(save: Callable[..., None]) -> Callable[..., None]:
    """``save_for_backward`` that notes where the tensors are: the engine hands back plain ones."""

    def saving(ctx: Any, *tensors: Any) -> None:
        ctx.claims = [isinstance(t, Claimed) for t in tensors]
        save(ctx, *tensors)

    return saving


def _saved(ctx: Any) -> tuple[Any, ...]:
    """``saved_tensors`` where they were when they were saved."""
    found = _FunctionBase.saved_tensors.__get__(ctx)
    claims = ctx.__dict__.get("claims", [False] * len(found))
    return tuple(claim(t) if was else t for t, was in zip(found, claims, strict=True))


def _pulled(mode: ClaimedDevice, run: Callable[..., Any]) -> Callable[..., Any]:
    """A gradient written in Python, on the device where it saved anything."""

    def running(ctx: Any, *grads: Any) -> Any:
        if not ctx.__dict__.get("claims"):  # nothing says where it was
            return run(ctx, *grads)
        with mode:  # which does not watch what it calls itself: the engine
            found = run(ctx, *(map(claim, grads) if any(ctx.claims) else grads))
        strangers = [
            tuple(t.shape)
            for t in tree_leaves(found)
            if isinstance(t, Tensor) and t.dim() and not isinstance(t, Claimed) and not _sparse(t)
        ]
        if all(ctx.claims) and strangers:  # where all that was saved is, inputs are
            name = type(ctx).__name__.removesuffix("Backward")
            raise DeviceMismatch(f"{name} of CUDA tensors has gradients {strangers} on the CPU")
        return tree_map(release, found)

    return running


def _mapped(mode: ClaimedDevice, vmap: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.vmap`` with results where its arguments are; what it runs is not watched."""

    def mapping(function: Callable[..., Any], *options: Any, **named: Any) -> Callable[..., Any]:
        def running(*args: Any, **kwargs: Any) -> Any:
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            there = {isinstance(t, Claimed) for t in given}
            if len(there) > 1:
                shapes = [tuple(t.shape) for t in given if not isinstance(t, Claimed)]
                raise DeviceMismatch(f"vmap of CUDA tensors with CPU {shapes}: {_place()}")
            run = vmap(function, *options, **named)
            if there != {True} or mode.mapped:
                return run(*args, **kwargs)
            mode.mapped = True
            try:
                found = run(*tree_map(release, args), **tree_map(release, kwargs))
            finally:
                mode.mapped = False
            return tree_map(claim, found)

        return running

    return mapping


_modes: list[ClaimedDevice] = []


def copies() -> Counter[str]:
    """Lines of gpx that have copied something to the claimed device, in force now."""
    return _modes[-1].copies if _modes else Counter()


def on_host() -> bool:
    """Whether what runs now works on tensors of the CPU alone, beside a claimed device."""
    return bool(_modes) and _modes[-1].host


@contextlib.contextmanager
def claimed_cuda(memory: int = 2**33) -> Iterator[Counter[str]]:
    """One CUDA device of that many bytes; yields the counter of waits."""
    answers = {
        "is_available": True, "device_count": 1, "get_device_name": "claimed",
        "synchronize": None, "empty_cache": None, "max_memory_allocated": 0,
        "memory_allocated": 0, "memory_reserved": 0, "mem_get_info": (memory, memory),
        "reset_peak_memory_stats": None, "get_device_capability": (9, 0),
        "is_current_stream_capturing": False,
    }  # fmt: skip
    future = torch.__future__
    before = future.get_overwrite_module_params_on_conversion()
    future.set_overwrite_module_params_on_conversion(True)  # a parameter changes its claim
    mode = ClaimedDevice()
    _modes.append(mode)
    working_memory.cache_clear()  # of a device of another size
    try:
        with contextlib.ExitStack() as stack:
            for name, answer in answers.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, a=answer: a))
            stack.enter_context(mock.patch.object(torch, "Generator", ClaimedGenerator))
            stack.enter_context(mock.patch.object(torch, "vmap", _mapped(mode, torch.vmap)))
            for method in ("register_buffer", "register_parameter", "__setattr__"):
                watched = _watched(method, getattr(nn.Module, method))
                stack.enter_context(mock.patch.object(nn.Module, method, watched))
            gradients = BackwardCFunction
            for name, replaced in (
                ("apply", _pulled(mode, gradients.apply)),
                ("saved_tensors", property(_saved)),
                ("save_for_backward", _noted(gradients.save_for_backward)),
            ):
                stack.enter_context(mock.patch.object(gradients, name, replaced, create=True))
            stack.enter_context(mode)
            yield mode.waits
    finally:
        _modes.remove(mode)
        working_memory.cache_clear()
        future.set_overwrite_module_params_on_conversion(before)
