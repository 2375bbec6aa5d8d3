"""Hyperparameters as one vector: positions are read, set and differentiated alike."""

import torch

from gpx.kernels import RBF
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
