"""A scalar with a gradient given by hand behaves as any other in the graph."""

import pytest
import torch

from gpx.linalg import with_gradient


def test_gradients_flow_on_into_the_graph_of_the_inputs():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    inputs = x.square()
    value = with_gradient(torch.tensor(5.0), [inputs], [torch.tensor([3.0, 4.0])])
    assert float(value.detach()) == 5.0
    (2.0 * value).backward()
    torch.testing.assert_close(x.grad, 2.0 * torch.tensor([3.0, 4.0]) * 2.0 * x.detach())


def test_the_gradient_of_a_double_value_keeps_the_dtype_of_its_input():
    x = torch.ones(3, requires_grad=True)
    value = with_gradient(torch.tensor(1.0, dtype=torch.float64), [x], [torch.full((3,), 7.0)])
    value.backward()
    assert x.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad, torch.full((3,), 7.0))


def test_gradcheck():
    def function(x):
        return with_gradient(x.detach().pow(3).sum(), [x], [3 * x.detach().square()])

    x = torch.randn(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.autograd.gradcheck(function, (x.requires_grad_(),))


def test_second_derivatives_are_refused():
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    value = with_gradient(torch.tensor(1.0, dtype=torch.float64), [x], [x.detach()])
    (grad,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad.sum().backward()
