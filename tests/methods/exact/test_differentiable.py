"""Second derivatives of the exact evidence, and predictions as functions of hyperparameters."""

import pytest
import torch

from gpx.backends.entries import call_with
from gpx.errors import DataError, NotAvailable
from gpx.kernels import RBF, Linear, Matern52
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.means import Linear as LinearMean
from gpx.methods.exact import differentiable_prediction
from gpx.models import ExactGP
from gpx.objectives import ExactMLL


def data(n=8, d=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator).double()
    return x, x[:, 0].sin() + 0.1 * torch.randn(n, generator=generator).double()


def exact(kernel=None, mean=None):
    kernel = Matern52(ard_num_dims=2) if kernel is None else kernel
    mean = Constant() if mean is None else mean
    return ExactGP(kernel=kernel, mean=mean, likelihood=Gaussian(0.1)).double()


def of_parameters(model, function):
    """``function(model)`` as a function of the model's parameters, and their values."""
    names = [name for name, _ in model.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in model.parameters()]
    return lambda *v: call_with(model, dict(zip(names, v, strict=True)), function), values


@pytest.mark.parametrize(
    ("kernel", "mean"),
    [(None, None), (RBF() * Matern52() + Linear(), LinearMean(2))],
    ids=["usual", "composed"],
)
@pytest.mark.parametrize("known", [False, True], ids=["", "known noise"])
def test_hessians_of_the_evidence_are_those_of_differences(kernel, mean, known):
    model, (x, y) = exact(kernel, mean), data()
    if known:
        model.know_noise(torch.linspace(0.0, 0.5, len(x)).double())

    function, values = of_parameters(model, lambda m: ExactMLL().evidence(m, x, y).value)
    assert torch.autograd.gradcheck(function, values)
    assert torch.autograd.gradgradcheck(function, values)


def test_hessians_by_inputs_too():
    model, (x, y) = exact(mean=LinearMean(2)), data(n=5)

    def function(x, y):
        return ExactMLL().evidence(model, x, y).value

    assert torch.autograd.gradgradcheck(function, (x.requires_grad_(), y.requires_grad_()))


def test_what_is_fixed_is_left_out():
    model, (x, y) = exact(), data()
    model.kernel.parametrizations.outputscale.original.requires_grad_(False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    evidence = ExactMLL().evidence(model, x, y).value
    first = torch.autograd.grad(evidence, parameters, create_graph=True)
    assert first[0].requires_grad
    assert len(torch.autograd.grad(first[0].sum(), parameters)) == len(parameters)


@pytest.mark.parametrize("changed", ["inputs", "fixed"])
def test_what_was_changed_in_place_is_refused_and_not_wrong(changed):
    model, (x, y) = exact(), data()
    scale = model.kernel.parametrizations.outputscale.original.requires_grad_(False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    evidence = ExactMLL().evidence(model, x, y).value
    with torch.no_grad():
        (x if changed == "inputs" else scale).mul_(2.0)
    with pytest.raises(NotAvailable, match="changed in place"):
        torch.autograd.grad(evidence, parameters, create_graph=True)


def test_predictions_are_those_of_the_posterior():
    model, (x, y) = exact(), data()
    x_new, _ = data(n=5, seed=1)
    model.know_noise(torch.linspace(0.0, 0.5, len(x)).double())
    found, noise = differentiable_prediction(model, x, y, x_new)
    expected = model.condition(x, y).predict(x_new)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
    torch.testing.assert_close(noise, model.likelihood.noise_variance)


def test_losses_on_held_out_rows_have_gradients_and_hessians():
    model, (x, y) = exact(), data()
    x_new, y_new = data(n=5, seed=1)

    def loss(own):
        f, noise = differentiable_prediction(own, x, y, x_new)
        return (
            -torch.distributions.Normal(f.mean, (f.variance + noise).sqrt()).log_prob(y_new).sum()
        )

    function, values = of_parameters(model, loss)
    assert torch.autograd.gradcheck(function, values)
    assert torch.autograd.gradgradcheck(function, values)


def test_gradients_by_data_and_new_inputs():
    model, (x, y) = exact(), data(n=5)
    x_new, _ = data(n=2, seed=1)

    def mean(x, y, x_new):
        return differentiable_prediction(model, x, y, x_new)[0].mean

    places = tuple(each.requires_grad_() for each in (x, y, x_new))
    assert torch.autograd.gradcheck(mean, places)


def test_targets_that_are_not_finite_are_refused():
    x, y = data()
    y[2] = torch.nan
    with pytest.raises(DataError, match="finite"):
        differentiable_prediction(exact(), x, y, x)
