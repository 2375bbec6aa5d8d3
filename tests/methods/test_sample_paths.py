"""Sampled functions of every posterior: consistent, and with its mean and variance."""

import weakref

import pytest
import torch

from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant, Zero
from gpx.methods.base.sampled_functions import functions_by_blocks
from gpx.models import QSGP, SGPR, SVGP, ExactGP
from gpx.sampling import Frequencies

NUM = 4000


def trained(name):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(60, 1, generator=generator, dtype=torch.float64) * 4
    y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(60, generator=generator, dtype=torch.float64)
    parts = {
        "kernel": RBF(lengthscale=0.7, outputscale=1.3, ard_num_dims=1),
        "mean": Zero() if name == "qsgp" else Constant(0.3),
        "likelihood": Gaussian(0.02),
    }
    models = {
        "exact": lambda: ExactGP(**parts),
        "sgpr": lambda: SGPR(**parts, num_inputs=1, num_inducing=12),
        "svgp": lambda: SVGP(**parts, num_inputs=1, num_inducing=12),
        "qsgp": lambda: QSGP(**parts, num_basis=200, warm_start_size=200),
    }
    model = models[name]().double()
    model.initialise(x, y, generator=generator)
    return model.condition(x, y)


@pytest.mark.parametrize("name", ["exact", "sgpr", "svgp", "qsgp"])
def test_paths_have_the_posteriors_mean_and_variance(name):
    posterior = trained(name)
    grid = torch.linspace(-1, 5, 25, dtype=torch.float64)[:, None]
    mean, variance = posterior.predict(grid)
    values = posterior.sample_paths(NUM, generator=torch.Generator().manual_seed(2))(grid)
    assert values.shape == (NUM, 25)
    # 5.5 standard errors over 25 points: false alarm about 1e-6
    assert ((values.mean(0) - mean).abs() < 5.5 * (variance / NUM).sqrt() + 1e-9).all()
    # the prior's features carry a relative covariance error of about 1 / sqrt(2048)
    slack = 5.5 * (2 / NUM) ** 0.5 * variance + 5 / 2048**0.5 * 1.3
    assert ((values.var(0) - variance).abs() < slack).all()


@pytest.mark.parametrize("name", ["exact", "sgpr", "svgp", "qsgp"])
def test_paths_are_functions(name):
    posterior = trained(name)
    paths = posterior.sample_paths(3, generator=torch.Generator().manual_seed(0))
    again = posterior.sample_paths(3, generator=torch.Generator().manual_seed(0))
    grid = torch.linspace(0, 4, 9, dtype=torch.float64)[:, None]
    whole = paths(grid)
    pieces = torch.cat([paths(grid[:4]), paths(grid[4:])], dim=1)
    assert torch.allclose(whole, pieces, rtol=0, atol=1e-9)  # whatever the batch
    assert torch.equal(whole, again(grid))


def test_paths_of_sums_and_with_frequencies_of_their_own():
    """A sum of kernels through the exact model, each path with its own few frequencies.

    1,000 paths; the variance of a square of at most 3 k(0)^2: 5.5 standard errors, 1e-6.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(20, 1, generator=generator, dtype=torch.float64) * 4
    y = torch.sin(2 * x[:, 0])
    kernel = RBF(1, lengthscale=0.7, outputscale=0.8) + Matern32(
        1, lengthscale=0.3, outputscale=0.5
    )
    for model in (
        ExactGP(kernel=kernel, mean=Zero(), likelihood=Gaussian(0.02)),
        SGPR(kernel=kernel, mean=Zero(), likelihood=Gaussian(0.02), num_inputs=1, num_inducing=12),
        SVGP(kernel=kernel, mean=Zero(), likelihood=Gaussian(0.02), num_inputs=1, num_inducing=12),
    ):
        model.double().initialise(x, y, generator=generator)
        posterior = model.condition(x, y)
        grid = torch.linspace(-1, 5, 25, dtype=torch.float64)[:, None]
        mean, variance = posterior.predict(grid)
        num = 1000
        paths = posterior.sample_paths(
            num, generator=generator, frequencies=Frequencies(30, per_path=True)
        )
        values = paths(grid)
        assert ((values.mean(0) - mean).abs() < 5.5 * (variance / num).sqrt() + 1e-9).all()
        slack = 5.5 * (3 / num) ** 0.5 * 1.3
        assert ((values.var(0) - variance).abs() < slack).all()


def test_no_more_than_one_block_is_held_beside_the_values_of_paths():
    posterior, made, held = trained("exact"), [], []

    def blocks(x):
        for row in x:
            held.append(sum(block() is not None for block in made))
            block = row.expand(2, 1).clone()
            made.append(weakref.ref(block))
            yield block

    x = torch.arange(5.0, dtype=torch.float64).unsqueeze(1)
    found = functions_by_blocks(posterior, 2, blocks, Constant(0.5).double())(x)
    assert torch.equal(found, x.mT.expand(2, 5) + 0.5)
    assert max(held) == 1
