"""Kernel matrices as functions of tensors: what is put in the place of a kernel's parameters."""

import copy
from dataclasses import replace

import pytest
import torch
from draws import draw
from torch.nn.utils import parametrize

from gpx.backends import Entries
from gpx.backends.entries import Scratch, call_with, gradients, in_double
from gpx.kernels import RBF, AxisProduct, Kernel, Matern32, Warped
from gpx.kernels.warped import LinearWarp


def entries(square=False):
    kernel = RBF(2, [0.5, 2.0], 1.3).double()
    named = {n: p.detach().clone().requires_grad_() for n, p in kernel.named_parameters()}
    x1, x2 = draw(5, 2).requires_grad_(), draw(7, 2, seed=1)
    return kernel, Entries(
        kernel, tuple(named), tuple(named.values()), x1, x1 if square else x2, square
    )


def test_the_matrix_is_a_function_of_the_tensors_given_and_the_kernel_is_left_as_it_was():
    kernel, made = entries()
    before = {n: p.detach().clone() for n, p in kernel.named_parameters()}
    other = made.with_tensors(tuple(t + 0.5 for t in made.tensors))
    changed = RBF(2).double()
    for part, value in zip(changed.parameters(), other.parameters, strict=True):
        part.data = value.detach()
    torch.testing.assert_close(other.evaluate(), changed.evaluate(other.x1, other.x2))
    torch.testing.assert_close(made.evaluate(), kernel.evaluate(made.x1, made.x2))
    for name, part in kernel.named_parameters():
        assert torch.equal(part, before[name])
        assert part.grad is None


def test_other_users_of_the_kernel_do_not_see_the_values_of_a_call():
    shared = RBF(2, [0.5, 2.0], 1.3)
    kernel = (RBF() * shared + shared).double()
    named = dict(kernel.named_parameters())
    name = next(n for n, p in named.items() if p.shape == (2,))  # one of two places
    values = {name: named[name].detach() + 1.0}
    before = {n: p.detach().clone() for n, p in named.items()}

    def scales(used):
        return [k.lengthscale.detach() for k in used.modules() if isinstance(k, RBF)]

    inside, meanwhile = call_with(kernel, values, lambda k: (scales(k), scales(kernel)))
    for at, (new, old) in enumerate(zip(inside, meanwhile, strict=True)):
        assert torch.equal(new, old) == (at == 0)  # the other RBF
    for part, value in kernel.named_parameters():
        assert value is named[part]
        assert torch.equal(value, before[part])


def test_transposes_sizes_and_squares():
    _, made = entries()
    assert (made.shape, made.bytes()) == ((5, 7), 5 * 7 * 8)
    assert made.transposed().shape == (7, 5)
    torch.testing.assert_close(made.transposed().evaluate(), made.evaluate().mT)
    _, square = entries(square=True)
    assert square.transposed() is square
    found = replace(square, x2=torch.full_like(square.x1, torch.nan)).evaluate()  # not used
    torch.testing.assert_close(found, found.mT, rtol=1e-14, atol=0)
    torch.testing.assert_close(found.diagonal(), torch.full((5,), 1.3).double(), rtol=1e-7, atol=0)


def test_leaves_want_the_same_gradients_and_have_no_history():
    _, made = entries()
    grown = made.with_tensors(tuple(2.0 * t for t in made.tensors))
    leaves = grown.leaves()
    wanted = [t.requires_grad for t in grown.tensors]
    assert [t.requires_grad for t in leaves.tensors] == wanted == [True, False, True, True]
    assert all(t.is_leaf for t in leaves.tensors)


def test_gradients_are_zero_where_nothing_depends_and_none_where_nobody_asks():
    _, made = entries()
    weights = draw(5, 7, seed=2)
    found = gradients(made, [made.evaluate()], [weights])
    wanted = [t for t in made.tensors if t.requires_grad]
    expected = iter(torch.autograd.grad((weights * made.evaluate()).sum(), wanted))
    for gradient, tensor in zip(found, made.tensors, strict=True):
        if tensor.requires_grad:
            torch.testing.assert_close(gradient, next(expected))
        else:
            assert gradient is None
    (only, *rest) = gradients(made, [made.x1.sum(), torch.ones(2)], [torch.tensor(3.0), weights[0]])
    assert torch.equal(only, torch.full_like(made.x1, 3.0))
    assert rest[0] is None
    assert all(not g.any() for g in rest[1:])
    none = gradients(made, [torch.ones(2)], [weights[0]])
    assert [None if g is None else bool(g.any()) for g in none] == [False, None, False, False]


def test_any_module_can_be_called_with_other_values():
    layer = torch.nn.Linear(2, 1).double()
    values = {"weight": torch.ones(1, 2).double(), "bias": torch.full((1,), 0.5).double()}
    found = call_with(layer, values, lambda module, x, more: module(x) + more, draw(3, 2), 2.0)
    torch.testing.assert_close(found, draw(3, 2).sum(1, keepdim=True) + 2.5)


class AlongDirection(Kernel):
    """k(x, x') = w^T x x'^T w k_1(x, x') with w that is not learned."""

    def __init__(self):
        super().__init__()
        self.register_buffer("direction", torch.tensor([0.6, 0.8]))
        self.inner = RBF(2)

    def covariance(self, x1, x2):
        projected = (x1 @ self.direction).unsqueeze(1) * (x2 @ self.direction)
        return projected * self.inner.evaluate(x1, x2)

    def variance(self, x):
        return (x @ self.direction).square() * self.inner.diagonal(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RBF(2, [0.3, 0.7]) * Matern32(active_dims=[1]) + 2.0,
        lambda: AxisProduct("matern32", 2),
        lambda: Warped(RBF(), LinearWarp(2)),
        AlongDirection,
    ],
)
def test_a_call_in_double_is_that_of_a_copy_in_double_with_gradients(make):
    kernel = make()
    with torch.no_grad():
        for part in kernel.parameters():
            part += 0.01  # the copy does not restore initial values in full precision
    held = {**dict(kernel.named_parameters()), **dict(kernel.named_buffers())}
    before = {name: tensor.detach().clone() for name, tensor in held.items()}
    x, weights = draw(5, 2), draw(5, 5, seed=1)
    wide = copy.deepcopy(kernel).double()
    want, found = wide.evaluate(x), in_double(kernel, lambda k: k.evaluate(x))
    assert torch.equal(found, want)
    gradients = torch.autograd.grad((weights * found).sum(), list(kernel.parameters()))
    expected = torch.autograd.grad((weights * want).sum(), list(wide.parameters()))
    for gradient, value in zip(gradients, expected, strict=True):
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient.double(), value, rtol=1e-6, atol=1e-6)
    after = {**dict(kernel.named_parameters()), **dict(kernel.named_buffers())}
    assert all(after[name] is held[name] for name in held)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert in_double(wide, lambda k: k) is wide
    with parametrize.cached():  # positive parameters that were read before are used as they are
        narrow = kernel.evaluate(x.float())
        kept = in_double(kernel, lambda k: k.evaluate(x))
        again = kernel.evaluate(x.float())
    assert again.dtype == torch.float32
    assert torch.equal(again, narrow)
    assert kept.dtype == torch.float64
    torch.testing.assert_close(kept, want, rtol=1e-5, atol=1e-6)
    assert all(after[name] is held[name] for name in held)


def test_parameters_that_another_thread_caches_meanwhile_stay_cached_as_long_as_it_says():
    kernel, others = RBF(), parametrize.cached()
    with parametrize.cached():
        in_double(kernel, lambda _: others.__enter__())
        assert parametrize._cache_enabled == 2
        others.__exit__(None, None, None)
    assert parametrize._cache_enabled == 0


def test_scratch_is_used_again():
    scratch = Scratch(draw(1), 12)
    first, second = scratch.take(3, 4), scratch.take(2, 2)
    assert first.data_ptr() != second.data_ptr()
    scratch.give(second)
    again = scratch.take(4, 3)  # the whole of a tile of which a part was used
    assert again.data_ptr() == second.data_ptr()
    assert (again.shape, again.is_contiguous(), again.dtype) == ((4, 3), True, torch.float64)
