"""A scalar with a gradient given by hand behaves as any other in the graph."""

import ast
from pathlib import Path

import pytest
import torch

import gpx
from gpx.bases.fourier.products import FourierForm
from gpx.errors import NotAvailable
from gpx.inference.variational.moments import factor_terms
from gpx.kernels import RBF, MaternNu
from gpx.likelihoods.gaussian import expected_log_normal
from gpx.linalg import khatri_rao_columns, with_gradient
from gpx.linalg.householder import reflect
from gpx.linalg.stable_eigh import stable_eigh
from gpx.operators import Kronecker, LowRankPlusDiagonal, Toeplitz


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


def test_second_derivatives_come_from_the_function_that_is_given():
    def function(x, y):
        value = (x.detach().pow(3) * y.detach()).sum()
        gradients = [3 * x.detach().square() * y.detach(), x.detach().pow(3)]
        return with_gradient(value, [x, y], gradients, lambda x, y: (x.pow(3) * y).sum())

    x, z = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, z = x.requires_grad_(), z.requires_grad_()
    assert torch.autograd.gradcheck(function, (x, z))
    assert torch.autograd.gradgradcheck(function, (x, z))
    # an input that was computed from the other one
    assert torch.autograd.gradgradcheck(lambda x: function(x, x.sin()), (x,))


def factor(x):
    """A low-rank factor, a grid factor or a column that depends on x (3,)."""
    return x.unsqueeze(0) * torch.tensor([[1.0], [2.0], [0.5], [1.5]], dtype=x.dtype)


def positive(x):
    return factor(x).mT @ factor(x) + torch.eye(3, dtype=x.dtype)


def column(x):
    return torch.cat([8.0 + x[:1].square(), x[1:].tanh()])


def moments(x):
    projection, mean = factor(x)[:3].mT @ factor(x)[:3], x.unsqueeze(0)
    return sum(part.sum() for part in factor_terms(projection, mean, factor(x)[None, :3]))


FUNCTIONS = {
    "with_gradient": lambda x: with_gradient(x.detach().pow(3).sum(), [x], [3 * x.detach() ** 2]),
    "product": lambda x: (Toeplitz(column(x)) @ x).sum(),
    "solve": lambda x: Toeplitz(column(x)).solve(x).sum(),
    "toeplitz logdet": lambda x: Toeplitz(column(x)).logdet(),
    "low-rank logdet": lambda x: LowRankPlusDiagonal(factor(x), x[:1].exp()).logdet(),
    "kronecker logdet": lambda x: Kronecker(positive(x)).add_diagonal(x[0].exp()).logdet(),
    "kernel matrix": lambda x: (RBF(1).double()(x.unsqueeze(1)) @ x).sum(),
    "any smoothness": lambda x: MaternNu(nu=1.7).double().evaluate(x.unsqueeze(1)).sum(),
    "reflections": lambda x: reflect(factor(x)[:2], x).sum(),
    "columns": lambda x: khatri_rao_columns([factor(x)] * 2, torch.tensor([[0, 1]])).sum(),
    "features": lambda x: FourierForm.apply(
        factor(x), factor(x), x[0], torch.ones(2, 4, 1).double() * x[1], factor(x)[:, :1], None
    )[0],
    "expectation": lambda x: expected_log_normal(x, x.cos(), x.exp(), x[0].exp()).sum(),
    "moments": moments,
    "eigenvectors": lambda x: stable_eigh(positive(x))[0].log().sum(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_hessians_are_refused_and_not_wrong(name):
    """Where another term has a second derivative nothing but a refusal would show."""
    x = torch.tensor([0.7, -0.4, 0.2], dtype=torch.float64)
    with pytest.raises(NotAvailable, match="second derivative"):
        torch.autograd.functional.hessian(lambda x: FUNCTIONS[name](x) + x.square().sum(), x)


DIFFERENTIABLE = {"_Angular", "_MeanError", "_Value"}
"""Functions whose backward pass is made of differentiable operations; the tests of the arc-cosine
kernel, of the bound of discrete weights and of kernels compare their second derivatives."""


def test_every_gradient_written_by_hand_refuses_second_derivatives_or_has_them():
    seen = 0
    for path in Path(gpx.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef) or node.name in DIFFERENTIABLE | {"_Refusing"}:
                continue
            if [ast.unparse(base) for base in node.bases] != ["torch.autograd.Function"]:
                continue
            (backward,) = (f for f in node.body if getattr(f, "name", "") == "backward")
            found = [ast.unparse(decorator) for decorator in backward.decorator_list]
            once = found == ["staticmethod", "first_derivative_only"]
            twice = found[0] == "staticmethod" and found[1].startswith("twice_differentiable(")
            assert once or twice, f"{path}: {node.name}"
            seen += 1
    assert seen >= 20
