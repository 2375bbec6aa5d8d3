"""Hyperparameters as one vector: positions are read, set and differentiated alike."""

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpx.kernels import RBF, Matern52
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.methods.base.hyper_position import HyperPosition


def test_the_gradient_is_by_logarithms_of_positive_values():
    kernel, mean, likelihood = RBF(2).double(), Constant().double(), Gaussian(0.3).double()
    place = HyperPosition([kernel, mean, likelihood])
    u = torch.tensor([0.4, -0.3, 0.7, -1.2, -2.0]).double()
    x = torch.tensor([[0.1, 0.5], [0.9, -0.4]]).double()

    def value():
        noise = likelihood.noise_variance
        return kernel.evaluate(x, x).sum() * noise + mean(x).square().sum()

    place.move(u)
    found, wanted, step = place.gradient(value()), [], 1e-6
    for entry in torch.eye(5).double():
        sides = []
        for _ in place.visit(torch.stack([u + step * entry, u - step * entry])):
            sides.append(value().detach())
        wanted.append((sides[0] - sides[1]) / (2.0 * step))
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-7, atol=1e-8)


def test_parameters_that_the_value_does_not_use_have_no_gradient():
    kernel, mean = RBF(1).double(), Constant().double()
    place = HyperPosition([kernel, mean])
    x = torch.tensor([[0.1], [0.9]]).double()
    found = dict(zip(place.names, place.gradient(kernel.evaluate(x, x).sum()), strict=True))
    assert float(found["constant"]) == 0.0
    assert float(found["lengthscale"]) > 0.0


def test_a_parameter_that_two_modules_share_is_one_entry():
    kernel, mean = RBF(1).double(), Constant().double()
    kernel.shared = mean.constant
    place = HyperPosition([kernel, mean])
    assert place.names == ["shared", "lengthscale", "outputscale"]
    x = torch.tensor([[0.1], [0.9]]).double()
    place.move(torch.tensor([0.3, 0.2, 0.1]).double())
    value = kernel.evaluate(x, x).sum() * kernel.shared + mean(x).sum()
    expected = kernel.evaluate(x, x).sum() + 2.0
    torch.testing.assert_close(place.gradient(value)[0], expected.detach())


def test_positions_are_allowed_above_floors_and_within_any_scale():
    place = HyperPosition([RBF(1).double(), Constant().double(), Gaussian(0.1).double()])
    u = torch.zeros(4).double()
    allowed = {"as made": u}
    for name, entry, value in [
        ("a mean of any size", place.names.index("constant"), 1e6),
        ("beyond any scale", 0, 51.0),
        ("no number", 0, math.nan),
        ("below the floor of the noise", 3, -20.0),
    ]:
        allowed[name] = u.clone()
        allowed[name][entry] = value
    found = place.allows(torch.stack([*allowed.values()])).tolist()
    assert dict(zip(allowed, found, strict=True)) == {
        name: name in ("as made", "a mean of any size") for name in allowed
    }


def test_bounds_are_copied_to_the_device_once():
    class Copies(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += function is torch.ops.aten._to_copy.default
            return function(*args, **(kwargs or {}))

    place = HyperPosition([RBF(2).double(), Gaussian(0.1).double()])
    positions = torch.zeros(3, place.size, dtype=torch.float64, device="meta")
    place.allows(positions)
    with Copies() as copies:
        place.allows(positions)
    assert copies.count == 0
    # positions elsewhere have bounds of their own
    assert place.allows(torch.zeros(place.size).double())


def test_stacks_are_the_parameters_at_each_position():
    kernel = Matern52(ard_num_dims=2, lengthscale=[0.5, 2.0]).double()
    kernel.parametrizations.outputscale.original.requires_grad_(False)
    place = HyperPosition([kernel])
    positions = torch.randn(3, 2).double().requires_grad_()
    stacks = place.stacks(positions, kernel)
    assert stacks.keys() == {id(parameter) for parameter in kernel.parameters()}
    for row, _ in enumerate(place.visit(positions.detach())):
        for parameter in kernel.parameters():
            torch.testing.assert_close(stacks[id(parameter)][row], parameter, rtol=0.0, atol=0.0)
    assert stacks[id(place.entries[0][0])].requires_grad


def test_coordinates_without_floors_are_logarithms_of_the_distance_from_them():
    place = HyperPosition([RBF().double(), Constant().double(), Gaussian(0.1).double()])
    lowest = place.lowest()
    assert lowest.isfinite().tolist() == place.logarithms.tolist()
    free = torch.tensor([[-30.0, 0.0, -2.0, -14.0], [1.0, -20.0, 3.0, 2.0]]).double()
    assert free.shape[1] == place.size
    position = place.above_floors(free)
    want = torch.where(place.logarithms, (free.exp() + lowest.exp()).log(), free)
    torch.testing.assert_close(position, want)
    assert place.allows(position).all()
    torch.testing.assert_close(place.free(position), free, rtol=1e-4, atol=1e-4)
