"""Covariance matrices are differentiable twice, in hyperparameters and inputs."""

import pytest
import torch

from gpx.backends.entries import call_with
from gpx.errors import NotAvailable
from gpx.kernels import (
    RBF,
    ArcCosine,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Stationary,
    Wendland,
)


class Rough(Stationary):
    """A profile over the root of r2."""

    def of_squared_distance(self, r2):
        return 1.0 / (1.0 + r2.sqrt())


def inputs(n=5, d=2, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).double()


KERNELS = {
    "rbf": RBF(2),
    "matern32": Matern32(2),
    "matern52": Matern52(lengthscale=0.7),
    "columns": Matern52(active_dims=[1]),
    "periodic": Periodic(2),
    "rational quadratic": RationalQuadratic(2),
    "composed": RBF(2) * Matern52() + Linear() + Constant(),
    "arc-cosine": ArcCosine(order=2),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("square", [True, False], ids=["square", "cross"])
def test_second_derivatives_are_those_of_differences(name, square):
    kernel, x, z = KERNELS[name].double(), inputs(), inputs(3, seed=1)
    x[3] = x[1]
    z[0] = x[0]
    weights = torch.randn(5, 5 if square else 3, generator=torch.Generator().manual_seed(2))
    names = [parameter for parameter, _ in kernel.named_parameters()]

    def weighed(x, z, *values):
        columns = x if square else z
        replaced = dict(zip(names, values, strict=True))
        return (call_with(kernel, replaced, lambda k: k.evaluate(x, columns)) * weights).sum()

    values = [p.detach().clone().requires_grad_() for p in kernel.parameters()]
    places = [x.requires_grad_(), z.requires_grad_(not square)]
    assert torch.autograd.gradgradcheck(weighed, [*places, *values])


def test_the_mixed_derivative_of_coincident_inputs_is_that_of_the_process():
    """d2 k / dx dx' at x = x', the variance of the derivative: 5 / (3 l^2) of Matern 5/2."""
    kernel = Matern52(lengthscale=0.5).double()
    x, z = (torch.tensor([[0.3]]).double().requires_grad_() for _ in range(2))
    (slope,) = torch.autograd.grad(kernel.evaluate(x, z).sum(), x, create_graph=True)
    (found,) = torch.autograd.grad(slope.sum(), z)
    assert float(found) == pytest.approx(5.0 / (3.0 * 0.5**2))


def test_arc_cosines_of_coincident_inputs_that_round_above_one_have_it_too():
    """Of order 1 it is outputscale / lengthscale^2 times one: k is u . v next to the diagonal."""
    kernel = ArcCosine(lengthscale=0.5, outputscale=1.7, order=1).double()
    x = inputs(50, 3).requires_grad_()
    z = x.detach().clone().requires_grad_()
    unit = x.detach() / x.detach().norm(dim=1, keepdim=True)
    assert bool(((unit @ unit.mT).diagonal() > 1.0).any())
    (slope,) = torch.autograd.grad(kernel.evaluate(x, z).diagonal().sum(), x, create_graph=True)
    mixed = [torch.autograd.grad(slope[:, j].sum(), z, retain_graph=True)[0] for j in range(3)]
    expected = 1.7 / 0.5**2 * torch.eye(3).double()
    torch.testing.assert_close(torch.stack(mixed, 1), expected.expand(50, 3, 3))


@pytest.mark.parametrize("name", [*KERNELS, "wendland"])
def test_pairs_of_coincident_inputs_have_them_too(name):
    kernel = KERNELS.get(name, Wendland(2, lengthscale=4.0)).double()
    x, z = inputs(), inputs(seed=1)
    z[1:3] = x[1:3]
    assert torch.autograd.gradgradcheck(
        lambda x, z: kernel.pairs(x, z).square().sum(), (x.requires_grad_(), z.requires_grad_())
    )


def test_pairs_of_coincident_inputs_under_a_kink_are_refused_and_not_wrong():
    kernel, x = Matern12(2).double(), inputs().requires_grad_()
    value = kernel.pairs(x, inputs()).sum()
    (slope,) = torch.autograd.grad(value, x, create_graph=True)
    assert not slope.any()
    with pytest.raises(NotAvailable, match="second derivative"):
        torch.autograd.grad(slope.sum(), x)
    apart = (x, inputs(seed=1).requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x, z: kernel.pairs(x, z).sum(), apart)


def test_inputs_computed_from_each_other_count_once():
    kernel, x = RBF(2).double(), inputs().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: kernel.evaluate(x.sin(), x).square().sum(), (x,))


@pytest.mark.parametrize("kernel", [Matern12(2), Rough(2)], ids=["matern12", "of one's own"])
def test_profiles_with_a_kink_at_zero_are_refused_and_not_wrong(kernel):
    kernel, x = kernel.double(), inputs()
    first = torch.autograd.grad(
        kernel.evaluate(x).square().sum(), list(kernel.parameters()), create_graph=True
    )
    with pytest.raises(NotAvailable, match="second derivative"):
        torch.autograd.grad(sum(each.sum() for each in first), list(kernel.parameters()))
