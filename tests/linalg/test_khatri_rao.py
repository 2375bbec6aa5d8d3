"""Columns of Khatri-Rao products in the log domain."""

import math

import pytest
import torch
from draws import draw

from gpx.errors import DTypeError, IndexOutOfRange, ShapeError
from gpx.linalg.khatri_rao import khatri_rao_columns


def direct(factors, index, log_scale):
    out = log_scale.exp()
    for position, f in enumerate(factors):
        out = out * f[..., index[:, position]]
    return out


def problem(n=6, sizes=(4, 3, 5), p=7):
    factors = [draw(n, m, seed=i) for i, m in enumerate(sizes)]
    generator = torch.Generator().manual_seed(9)
    index = torch.stack([torch.randint(m, (p,), generator=generator) for m in sizes], 1)
    return factors, index, draw(p, seed=8)


def test_equals_the_direct_product_and_its_gradient():
    factors, index, scale = problem()
    leaves = [t.requires_grad_() for t in (scale, *factors)]
    found = khatri_rao_columns(factors, index, scale)
    torch.testing.assert_close(found, direct(factors, index, scale), rtol=1e-12, atol=1e-13)
    assert torch.autograd.gradcheck(lambda s, *f: khatri_rao_columns(f, index, s), leaves)


@pytest.mark.parametrize("zeros", [1, 2])
def test_exact_zeros_have_exact_gradients(zeros):
    """One zero leaves the product of the others as gradient, two leave none."""
    factors, index, scale = problem()
    for position in range(zeros):
        factors[position][2, :] = 0.0
    leaves = [t.requires_grad_() for t in (scale, *factors)]
    weights = draw(6, 7, seed=5)
    ours, expected = (
        torch.autograd.grad((columns * weights).sum(), leaves)
        for columns in (khatri_rao_columns(factors, index, scale), direct(factors, index, scale))
    )
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    assert (ours[1][2] != 0).any() == (zeros == 1)


def test_finite_where_the_direct_product_is_zero_over_zero():
    """A hundred factors of about 1e-5: the product is 1e-500, its scaled value is not."""
    factors = [1e-5 * (draw(3, 4, seed=i).abs() + 0.5) for i in range(100)]
    index = torch.zeros(2, 100, dtype=torch.long)
    scale = torch.full((2,), 100 * math.log(1e5), dtype=torch.float64)
    leaves = [t.requires_grad_() for t in factors]
    found = khatri_rao_columns(leaves, index, scale)
    scaled = direct([f.detach() * 1e5 for f in factors], index, torch.zeros(2).double())
    torch.testing.assert_close(found, scaled, rtol=1e-10, atol=0)
    plain = direct([f.detach() for f in factors], index, torch.zeros(2).double())
    assert float(plain.abs().max()) == 0.0
    found.sum().backward()
    assert all(torch.isfinite(f.grad).all() for f in leaves)


def test_shapes_are_checked():
    factors, index, scale = problem()
    with pytest.raises(ShapeError, match=r"expected \(p, 3\)"):
        khatri_rao_columns(factors, index[:, :2])
    with pytest.raises(ShapeError, match=r"log_scale is \(6,\)"):
        khatri_rao_columns(factors, index, scale[:6])


def test_zero_times_infinity_is_nan_as_in_the_direct_product():
    infinite = torch.tensor([[0.0, math.inf, math.nan, 2.0]], dtype=torch.float64)
    index = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    factors = [infinite, infinite]
    none = torch.zeros(16, dtype=torch.float64)
    found = khatri_rao_columns(factors, index)
    expected = direct(factors, index, none)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0.0, equal_nan=True)
    nothing = khatri_rao_columns(factors, index[:1], torch.tensor([-math.inf]).double())
    assert nothing.item() == 0.0  # 0 * 0 * exp(-inf)


def test_an_unused_entry_has_no_gradient_even_where_its_derivative_overflows():
    """d / d 1e-300 of 1e-300 * 1e300 * 1e300 is 1e600."""
    factors = [torch.tensor([[v, 3.0]]).double().requires_grad_() for v in (1e-300, 1e300, 1e300)]
    found = khatri_rao_columns(factors, torch.tensor([[0, 0, 0], [1, 1, 1]]))
    found[0, 1].backward()
    for f in factors:
        torch.testing.assert_close(f.grad, torch.tensor([[0.0, 9.0]]).double())


def test_indices_and_factors_that_do_not_fit_are_one_clear_error_each():
    factors, index, _ = problem()
    for wrong in (torch.full_like(index, -1), torch.full_like(index, 4)):
        with pytest.raises(IndexOutOfRange, match=r"range from .* \[4, 3, 5\] columns"):
            khatri_rao_columns(factors, wrong)
    with pytest.raises(ShapeError, match="equal numbers of rows"):
        khatri_rao_columns([factors[0], factors[1][1:], factors[2]], index)
    with pytest.raises(DTypeError, match="float32"):
        khatri_rao_columns([factors[0], factors[1].float(), factors[2]], index)
    with pytest.raises(DTypeError, match="float32"):
        khatri_rao_columns(factors, index, torch.zeros(index.shape[0]))
