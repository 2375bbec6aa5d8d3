"""Functions at inputs of their own, and derivatives of sampled functions."""

import public_models
import pytest
import torch
from draws import draws

from gpx.kernels import RBF, Matern32, Warped
from gpx.likelihoods import Gaussian
from gpx.means import Linear
from gpx.models import ExactGP
from gpx.sampling import Frequencies, evaluate_each, prior_functions

DIFFERENTIABLE = (
    "ExactGP",
    "ExactGP iterative",
    "SGPR",
    "SVGP",
    "SVGP of outputs",
    "CGLB",
    "EffectivePrior of degenerate rank",
    "LaplaceGP of classes",
    "SampledGP of classes",
    "ConvGP",
)


def inputs(*shape):
    return torch.rand(*shape, public_models.INPUTS, generator=draws(3)).double() - 0.5


@pytest.mark.parametrize("per_path", [False, True])
def test_prior_functions_at_inputs_of_their_own(per_path):
    kernel = (RBF(2, (0.7, 1.3), 1.7) + Matern32(2, 0.4, 0.6)).double()
    frequencies = Frequencies(50, per_path=per_path)
    functions = prior_functions(kernel, 3, 2, generator=draws(), frequencies=frequencies)
    x = torch.randn(3, 4, 2, generator=draws(1), dtype=torch.float64)
    want = torch.stack([functions(x[k])[k] for k in range(3)])
    torch.testing.assert_close(functions.each(x), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["ExactGP", "ExactGP iterative", "SGPR", "SVGP", "CGLB"])
def test_functions_at_inputs_of_their_own(name):
    model, x, y = public_models.prepared(name)
    paths = model.condition(x, y).sample_paths(3, generator=draws())
    x = inputs(3, 4)
    want = torch.stack([paths(x[k])[k] for k in range(3)])
    torch.testing.assert_close(evaluate_each(paths, x), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_are_those_of_finite_differences(name):
    model, x, y = public_models.prepared(name)
    paths = model.condition(x, y).sample_paths(2, generator=draws())
    assert not paths(inputs(3)).requires_grad  # of nothing that is held
    x = inputs(3).requires_grad_(True)
    assert torch.autograd.gradcheck(paths, (x,), eps=1e-6, atol=1e-5, rtol=1e-5)


def test_derivatives_go_through_a_network_that_warps_the_inputs():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    model = ExactGP(kernel=Warped(RBF(2), network), mean=Linear(2), likelihood=Gaussian(0.1))
    x = torch.randn(9, 2, generator=draws(2)).double()
    paths = model.double().condition(x, x.sin().sum(1)).sample_paths(2, generator=draws())
    own = torch.randn(2, 3, 2, generator=draws(4)).double()
    for functions, at in ((paths, own[0]), (paths.each, own)):
        at = at.detach().requires_grad_(True)
        assert torch.autograd.gradcheck(functions, (at,), eps=1e-6, atol=1e-5, rtol=1e-5)
