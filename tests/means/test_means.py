"""Mean functions."""

import pytest
import torch

from gpx.errors import ShapeError
from gpx.means import Constant, Linear, Zero

X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 0.5]])


def test_values():
    assert torch.equal(Zero()(X), torch.zeros(3))
    assert torch.equal(Constant(0.5)(X), torch.full((3,), 0.5))
    mean = Linear(2, bias=0.25)
    assert torch.equal(mean(X), torch.full((3,), 0.25))
    with torch.no_grad():
        mean.weight.copy_(torch.tensor([2.0, -1.0]))
    torch.testing.assert_close(mean(X), torch.tensor([0.25, 7.25, -0.25]))


def test_dtype_follows_the_module_and_zero_follows_the_input():
    assert Zero()(X.double()).dtype == torch.float64
    assert Constant().double()(X.double()).dtype == torch.float64
    assert Linear(2).double()(X.double()).dtype == torch.float64


def test_gradients_reach_parameters_and_inputs():
    mean = Linear(2).double()
    x = X.double().requires_grad_()
    mean(x).sum().backward()
    torch.testing.assert_close(mean.weight.grad, x.detach().sum(0))
    assert mean.bias.grad.item() == 3.0
    assert torch.equal(x.grad, mean.weight.detach().expand(3, 2))
    constant = Constant()
    constant(X).sum().backward()
    assert constant.constant.grad.item() == 3.0


def test_linear_names_a_wrong_number_of_columns():
    with pytest.raises(ShapeError, match=r"set Linear\.num_inputs .* the features"):
        Linear(3)(X)


def test_a_mean_may_take_further_arguments():
    class Shifted(Constant):
        def forward(self, x, shift=0.0):
            return super().forward(x) + shift

    assert torch.equal(Shifted(1.0)(X, shift=2.0), torch.full((3,), 3.0))
