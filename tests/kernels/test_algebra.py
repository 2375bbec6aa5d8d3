"""Sums, products and multiples."""

import numpy as np
import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF, Constant, Linear, Matern32, Product, Scale, Sum
from gpx.likelihoods import Gaussian
from gpx.means import Linear as LinearMean

X = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def evaluate(kernel):
    return kernel.double().evaluate(X)


def test_operators_give_sums_products_and_multiples():
    a, b = RBF(2, 0.7, 1.3), Matern32(None, 0.9)
    ka, kb = evaluate(a), evaluate(b)
    torch.testing.assert_close(evaluate(a + b), ka + kb)
    torch.testing.assert_close(evaluate(a * b), ka * kb)
    torch.testing.assert_close(evaluate(2.5 * a), 2.5 * ka, rtol=1e-6, atol=0)
    torch.testing.assert_close(evaluate(0.5 + a), ka + 0.5, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(evaluate(a * b + a), ka * kb + ka)


def test_sums_and_products_are_flattened_and_keep_parameters_shared():
    a, b, c = RBF(), Matern32(), Linear()
    assert [type(k) for k in (a + b + c).parts] == [type(a), type(b), type(c)]
    assert len((a * b * c).parts) == 3
    assert len((a + b * c).parts) == 2
    assert len(list((a + a).parameters())) == 2


def test_a_float_becomes_a_learnable_part():
    assert isinstance(RBF() * 2.0, Scale)
    assert isinstance((RBF() + 2.0).parts[1], Constant)
    assert len(list((RBF() * 2.0).parameters())) == 3


@pytest.mark.parametrize(
    "number", [2, 2.0, np.float32(2), np.float64(2), np.int64(2), np.array(2.0), torch.tensor(2.0)]
)
def test_numbers_of_any_library_multiply_and_add_on_either_side(number):
    kernel = RBF(2, 0.7, 1.3)
    wanted = evaluate(kernel)
    for multiple in (number * kernel, kernel * number):
        assert isinstance(multiple, Scale)
        torch.testing.assert_close(evaluate(multiple), 2 * wanted, rtol=1e-6, atol=0)
    for total in (number + kernel, kernel + number):
        assert {part.name for part in total.parts} == {"RBF", "Constant"}
        torch.testing.assert_close(evaluate(total), wanted + 2, rtol=1e-6, atol=1e-6)


def test_kernels_in_a_list_are_summed_by_python():
    kernels = [RBF(), Matern32(), Linear()]
    total = sum(kernels)
    assert isinstance(total, Sum)
    assert total.parts == kernels


def test_powers_are_products_with_itself():
    kernel = RBF(2, 0.7, 1.3)
    cube = kernel**3
    torch.testing.assert_close(evaluate(cube), evaluate(kernel) ** 3)
    assert len(list(cube.parameters())) == len(list(kernel.parameters()))
    cube(X).to_dense().sum().backward()
    log_scale = kernel.parametrizations.outputscale.original
    # s^3 (...): the derivative in s is three times the value over s
    (slope,) = torch.autograd.grad(kernel.outputscale, log_scale)
    wanted = 3.0 * evaluate(kernel).pow(3).sum() / kernel.outputscale * slope
    torch.testing.assert_close(log_scale.grad, wanted)
    torch.testing.assert_close(evaluate(kernel ** np.int64(1)), evaluate(kernel))


def test_what_multiplies_no_kernel_is_refused():
    for power in (0, -1, 0.5, 2.0, "2"):
        with pytest.raises(ConfigError, match=r"RBF \*\* .* whole numbers from 1 on"):
            RBF() ** power
    with pytest.raises(ConfigError, match="detach it"):
        RBF() * torch.tensor(2.0, requires_grad=True)
    for several in (np.ones(2), torch.ones(2), [2.0]):
        for act in (lambda k, s=several: k * s, lambda k, s=several: s * k):
            with pytest.raises(TypeError, match=r"operand|sequence"):
                act(RBF())


def test_a_mean_of_the_name_of_a_kernel_is_told_apart():
    said = r"kernel RBF is added to and multiplied .* got Linear of gpx.means.linear"
    for act in (lambda: RBF() * LinearMean(2), lambda: RBF() + LinearMean(2)):
        with pytest.raises(TypeError, match=said):
            act()


def test_a_module_that_combines_itself_with_kernels_is_asked():
    class Own(torch.nn.Module):
        def __radd__(self, other):
            return "sum"

        def __rmul__(self, other):
            return "product"

    assert RBF() + Own() == "sum"
    assert RBF() * Own() == "product"


def test_each_part_selects_its_own_columns():
    kernel = RBF(active_dims=[0]) * RBF(active_dims=[1])
    torch.testing.assert_close(evaluate(kernel), evaluate(RBF()), rtol=1e-6, atol=0)


def test_what_is_no_kernel_is_refused():
    for bad in (lambda: Sum([]), lambda: Sum([RBF(), 1.0]), lambda: Scale(1.0)):
        with pytest.raises(ConfigError, match="kernel"):
            bad()
    # torch renames the class of a module whose parameters are constrained
    with pytest.raises(ConfigError, match="Sum combines kernels, got a Gaussian;"):
        Sum([RBF(), Gaussian()])
    with pytest.raises(ConfigError, match=r"multiplies a kernel, got a Gaussian$"):
        Scale(Gaussian())
    with pytest.raises(ConfigError, match="must be above its floor"):
        RBF() * -1.0
    with pytest.raises(TypeError):
        RBF() + "linear"
    assert isinstance(Product([RBF()]), Product)
