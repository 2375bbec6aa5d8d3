"""Products with features that are never stored equal those with the feature matrix."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpx.bases.counter_random import standard_normals
from gpx.bases.fourier.native import fourier_pass
from gpx.bases.fourier.products import FourierForm, FourierProducts, FourierSquares
from gpx.errors import GPXError


def problem(n=13, d=3, frequencies=7, k=1, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    x, omega, weights = normal(n, d), normal(frequencies, d), normal(2, frequencies, k)
    return x, omega, torch.tensor(0.7, dtype=dtype), weights, normal(n, k)


def dense(x, omega, scale):
    angles = x @ omega.T
    return scale * torch.stack((angles.cos(), angles.sin()))  # (2, n, R)


def product(x, omega, scale, weights):
    features = dense(x, omega, scale)
    return features[0] @ weights[0] + features[1] @ weights[1]


@pytest.mark.parametrize(("n", "d", "frequencies"), [(0, 3, 7), (0, 20, 7), (5, 20, 0), (1, 1, 1)])
def test_no_rows_and_no_frequencies(road, n, d, frequencies, monkeypatch):
    # memory that nobody writes must not be returned
    for name in ("empty_like", "new_empty"):
        owner = torch if name == "empty_like" else torch.Tensor
        plain = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, _f=plain, **k: _f(*a, **k).fill_(7.0))
    x, omega, scale, weights, u = problem(n, d, frequencies)
    weights.requires_grad_()
    expected = product(x, omega, scale, weights)
    (grad,) = torch.autograd.grad((u * expected).sum(), weights)
    found = FourierProducts.apply(x, omega, scale, weights, None)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad((u * found).sum(), weights)[0], grad)
    value, _ = FourierForm.apply(x, omega, scale, weights, u, None)
    torch.testing.assert_close(torch.autograd.grad(value, weights)[0], grad)
    squares = FourierSquares.apply(x, omega, scale)
    torch.testing.assert_close(squares, dense(x, omega, scale).square().sum(1))


@pytest.mark.parametrize("wrong", ["dtype", "inputs", "weights", "device", "keep"])
def test_arrays_that_do_not_fit_are_not_read(wrong):
    if fourier_pass(torch.zeros(1)) is None:
        pytest.skip("no C compiler")
    x, omega, scale, weights, _ = problem()
    keep = None
    if wrong == "keep":
        keep = x.new_empty(2, 13, 7).mT
    elif wrong == "dtype":
        weights = weights.float()
    elif wrong == "inputs":
        omega = omega[:, :2]
    elif wrong == "weights":
        weights = weights[:, :4]
    else:
        omega = omega.to("meta")
    with pytest.raises(GPXError, match="must have matching sizes"):
        FourierProducts.apply(x, omega, scale, weights, keep)


def test_traced_tensors_are_not_read():
    with FakeTensorMode():
        x, omega, scale, weights, _ = (torch.zeros_like(t) for t in problem())
        assert FourierProducts.apply(x, omega, scale, weights, None).shape == (13, 1)
        assert standard_normals(0, torch.arange(5), 3).shape == (5, 3)


@pytest.mark.parametrize("moving_x", [True, False])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(("n", "d"), [(13, 3), (600, 6), (30, 20)])
def test_values_gradients_and_kept_features(road, n, d, k, moving_x):
    # 600 rows are more than a strip of the compiled pass, 20 inputs more than it projects itself;
    # without the gradient of x it takes that of the frequencies itself
    x, omega, scale, weights, u = problem(n, d, k=k)
    leaves = [t.clone().requires_grad_() for t in (x, omega, scale, weights)]
    direction = u.clone().requires_grad_()
    leaves[0].requires_grad_(moving_x)
    moving = [t for t in (*leaves, direction) if t.requires_grad]
    expected = product(*leaves)
    grads = torch.autograd.grad((direction * expected).sum(), moving)

    kept = torch.empty(2, 7, n, dtype=x.dtype)
    found = FourierProducts.apply(*leaves, kept)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(scale * kept.mT, dense(x, omega, scale))
    for keep in (None, kept):
        found = FourierProducts.apply(*leaves, keep)
        again = torch.autograd.grad((direction * found).sum(), moving)
        torch.testing.assert_close(again, grads)

    value, left = FourierForm.apply(*leaves, direction, None)
    torch.testing.assert_close(value, (direction * expected).sum())
    torch.testing.assert_close(left, expected)
    assert not left.requires_grad
    again = torch.autograd.grad(value, moving)
    torch.testing.assert_close(again, grads)


def test_weights_in_any_layout(road):
    x, omega, scale, weights, u = problem()
    strided = weights.permute(1, 2, 0).contiguous().permute(2, 0, 1).requires_grad_()
    assert not strided.is_contiguous()
    value, _ = FourierForm.apply(x, omega, scale, strided, u, None)
    (found,) = torch.autograd.grad(value, strided)
    torch.testing.assert_close(found, (dense(x, omega, scale) * u).sum(1)[..., None])


@pytest.mark.parametrize("needed", [(3,), (1, 3), (0, 2)])
def test_gradcheck(road, needed):
    x, omega, scale, weights, u = problem(n=5, d=2, frequencies=9)
    arguments = [x, omega, scale, weights, u]
    for index in needed:
        arguments[index].requires_grad_()
    torch.autograd.gradcheck(lambda *a: FourierProducts.apply(*a[:4], None), arguments)
    torch.autograd.gradcheck(lambda *a: FourierForm.apply(*a, None)[0], arguments)


def test_column_squares(road):
    x, omega, scale, *_ = problem(n=6, d=2)
    leaves = [t.requires_grad_() for t in (x, omega, scale)]
    torch.testing.assert_close(FourierSquares.apply(*leaves), dense(*leaves).square().sum(1))
    for moving_x in (True, False):
        x.requires_grad_(moving_x)
        torch.autograd.gradcheck(FourierSquares.apply, leaves)


def test_no_gradient_is_computed_without_need(road):
    x, omega, scale, weights, u = problem()
    with torch.no_grad():
        value, _ = FourierForm.apply(x, omega, scale, weights.requires_grad_(), u, None)
    torch.testing.assert_close(value, (u * product(x, omega, scale, weights)).sum())
    assert not value.requires_grad


def test_compiled_sums_do_not_depend_on_threads_beyond_rounding(road):
    x, omega, scale, weights, u = problem(n=600, frequencies=40)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 3, 3):
            torch.set_num_threads(count)
            w = weights.clone().requires_grad_()
            value, left = FourierForm.apply(x, omega, scale, w, u, None)
            found.append((left, *torch.autograd.grad(value, w)))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[1], found[2], rtol=0, atol=0)
