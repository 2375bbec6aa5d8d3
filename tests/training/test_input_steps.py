"""Lengthscales that are too short for the steps of an input."""

import torch

from gpx.kernels import RBF, Matern32, Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import SVGP, ExactGP
from gpx.objectives import SVGPELBO, ExactMLL
from gpx.training.input_steps import lengthen_below_steps


def test_lengthscales_far_below_the_steps_of_an_input_are_raised_and_others_kept():
    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(200, 2, generator=generator)
    x = torch.cat([numbers, (numbers[:, :1] > 0.5).float(), torch.full((200, 1), 2.0)], 1)
    short = [0.3, 1e-4, 1e-5, 1e-5]  # a step of 1 in the third, none in the constant fourth
    kernel = 2.0 * RBF(ard_num_dims=4, lengthscale=short) * Periodic(
        lengthscale=1e-5, active_dims=[2]
    ) + Matern32(lengthscale=1e-5, active_dims=[2])
    model = ExactGP(kernel=kernel, mean=Constant(), likelihood=Gaussian(0.1))
    lines = []
    lengthen_below_steps(model, x, lines.append)
    found = model.hyperparameters().kernel
    by_name = dict(found.named_modules())
    rbf = next(k for k in by_name.values() if isinstance(k, RBF))
    matern = next(k for k in by_name.values() if isinstance(k, Matern32))
    torch.testing.assert_close(
        rbf.lengthscale, torch.tensor([0.3, 1e-4, 0.2, 1e-5]), rtol=1e-3, atol=0
    )
    torch.testing.assert_close(matern.lengthscale, torch.tensor(0.2))
    periodic = next(k for k in by_name.values() if isinstance(k, Periodic))
    assert periodic.lengthscale.item() < 1e-4  # not a distance between inputs
    assert (
        lines
        == ["lengthscale of input 3 raised from 1e-05 to 0.2, which keeps its values apart as well"]
        * 2
    )
    fixed = RBF(ard_num_dims=4, lengthscale=short).requires_grad_(False)
    lengthen_below_steps(
        ExactGP(kernel=fixed, mean=Constant(), likelihood=Gaussian(0.1)), x, lines.append
    )
    torch.testing.assert_close(fixed.lengthscale, torch.tensor(short), rtol=1e-3, atol=0)


def test_a_short_lengthscale_of_a_binary_input_does_not_cost_a_sparse_model_its_evidence():
    """In float32 a lengthscale of 1e-5 rounds away the distances along all other inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, 2, generator=generator)
    x[:, 1] = (x[:, 1] > 0.5).float()
    y = torch.sin(6.0 * x[:, 0] + 2.0 * x[:, 1]) + 0.1 * torch.randn(200, generator=generator)
    bounds = []
    for raised in (False, True):
        kernel = RBF(ard_num_dims=2, lengthscale=[0.3, 1e-5])
        model = SVGP(
            kernel=kernel, mean=Constant(), likelihood=Gaussian(0.01), num_inducing=20, num_inputs=2
        )
        if raised:
            lengthen_below_steps(model, x, lambda _: None)
        model.initialise(x, y, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            bounds.append(SVGPELBO(num_data=200).evidence(model, x, y).value.item() / 200)
    exact = ExactGP(
        kernel=RBF(ard_num_dims=2, lengthscale=[0.3, 0.2]),
        mean=Constant(),
        likelihood=Gaussian(model.likelihood.noise_variance.item()),
    ).double()
    with torch.no_grad():
        evidence = ExactMLL().evidence(exact, x.double(), y.double()).value.item() / 200
    assert bounds[0] < evidence - 0.5
    assert abs(bounds[1] - evidence) < 1e-3
