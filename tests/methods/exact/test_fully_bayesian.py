"""The exact process averaged over its hyperparameters, as a model; its law: tests/inference."""

import pytest
import torch

import gpx
from gpx.inference.sampled_hyperparameters import SampledHyperparameters
from gpx.kernels import RBF, Linear, Matern52, Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Constant, Zero
from gpx.means import Linear as LinearMean
from gpx.methods.exact import fully_bayesian
from gpx.models import FullyBayesianGP
from gpx.objectives import ExactMLL

SHORT = ("optimizer.chains=2", "optimizer.burn_in=30", "optimizer.iterations=40")
QUIET = {"quiet": True, "keep": False}


def test_many_rows_are_told_what_they_cost(monkeypatch):
    monkeypatch.setattr(fully_bayesian, "MANY_ROWS", 10)
    model = FullyBayesianGP(kernel=RBF(), mean=Constant(), likelihood=Gaussian(0.1))
    model.check(torch.zeros(10, 1))
    with pytest.warns(UserWarning, match=r"factorisation of 11 rows.*FullyBayesianSGPR\(\)"):
        model.check(torch.zeros(11, 1))


@pytest.mark.filterwarnings("ignore:the 2 chains have not converged")
def test_known_noise_of_rows_is_taken():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20, 1, generator=generator).double()
    y = (6.0 * x[:, 0]).sin()
    y[0] += 5.0
    options = ("kernel=rbf", "approx=fully_bayesian", "data.test_fraction=0", *SHORT)
    noise = torch.full((20,), 1e-4)
    noise[0] = 100.0
    fitted = gpx.fit(x, y, *options, "trainer.figures=false", noise=noise, **QUIET)
    found = float(fitted.latent(x[:1]).mean[0])
    assert found == pytest.approx(float((6.0 * x[0, 0]).sin()), abs=0.2)
    assert fitted.hyperparameters["kernel.lengthscale"].shape == (6, 1)


def several_chains(kernel, mean, fixed=(), n=12):
    """A model, its hyperparameters at four places, and data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator).double()
    y = (6.0 * x[:, 0]).sin() + 0.1 * torch.randn(n, generator=generator).double()
    model = FullyBayesianGP(kernel=kernel, mean=mean, likelihood=Gaussian(0.1)).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in fixed))
    place = model.hyper_position()
    around = torch.randn(4, place.size, generator=generator).double()
    return model, place, place.read() + 0.5 * around, x, y


@pytest.mark.parametrize(
    ("kernel", "mean", "fixed"),
    [
        (Matern52(ard_num_dims=2), Constant(), ()),
        (Matern52(ard_num_dims=2), Zero(), ("noise",)),
        (RBF() * Periodic() + Linear(), LinearMean(2), ("outputscale",)),
        (RBF(), Constant(), ("kernel", "mean")),
    ],
    ids=["usual", "fixed noise", "composed", "noise alone"],
)
@pytest.mark.parametrize("known", [False, True], ids=["", "known noise"])
def test_chains_in_one_batch_have_the_densities_of_each(kernel, mean, fixed, known):
    model, place, positions, x, y = several_chains(kernel, mean, fixed)
    if known:
        model.know_noise(torch.linspace(0.0, 0.5, len(x)).double())
    values, gradients = model.log_likelihoods(ExactMLL(), place, positions, x, y)
    alone = SampledHyperparameters.log_likelihoods(model, ExactMLL(), place, positions, x, y)
    torch.testing.assert_close(values, alone[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients, alone[1], rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:the kernel matrix of 30")
def test_a_chain_whose_matrix_needs_jitter_gets_it_in_a_batch_too():
    model, place, positions, x, y = several_chains(RBF(), Constant(), ("noise",), n=30)
    model.likelihood.noise_variance = 2e-6
    assert place.names[:2] == ["lengthscale", "outputscale"]
    positions[2, :2] = torch.tensor([12.0, 30.0])  # one number in all entries, and a large one
    values, gradients = model.log_likelihoods(ExactMLL(), place, positions, x, y)
    alone = SampledHyperparameters.log_likelihoods(model, ExactMLL(), place, positions, x, y)
    assert values.isfinite().all()
    model.kernel.lengthscale, model.kernel.outputscale = positions[2].exp()[:2]
    assert ExactMLL().evidence(model, x, y).report.relative > 0.0
    for found, expected in ((values, alone[0]), (gradients, alone[1])):
        torch.testing.assert_close(found[2], expected[2], rtol=0.0, atol=0.0)  # evaluated alone
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-4)
