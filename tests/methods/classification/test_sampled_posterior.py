"""Functions drawn from samples of latents and hyperparameters."""

import torch

from gpx.kernels import RBF
from gpx.means import Constant, Zero
from gpx.methods.base.hyper_position import HyperPosition
from gpx.methods.classification.sampled_posterior import SampledPosterior


def test_functions_follow_their_samples_in_the_order_drawn():
    """The first few of many functions are a fair draw: samples are not sorted among them."""
    kernel, mean = RBF(1, 0.5, 1.0).double(), Zero()
    x = torch.arange(4, dtype=torch.float64).unsqueeze(1)
    latents = torch.tensor([[-3.0], [0.0], [3.0]], dtype=torch.float64).expand(3, 4)
    place = HyperPosition([kernel, mean]).read()
    posterior = SampledPosterior(kernel, mean)
    posterior.keep(x, inputs=x, samples=place.expand(3, -1), latents=latents)
    drawn = torch.randint(3, (12,), generator=torch.Generator().manual_seed(1))
    assert not torch.equal(drawn, drawn.sort().values)
    paths = posterior.sample_paths(12, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(paths(x), latents[drawn], atol=1e-4, rtol=0.0)


def test_in_float32_every_sample_has_its_own_hyperparameters():
    """Those of the same posterior in float64."""

    def posterior(dtype):
        kernel, mean = RBF(1, 0.5, 1.0).to(dtype), Constant(0.1).to(dtype)
        made = SampledPosterior(kernel, mean)
        place = HyperPosition([kernel, mean]).read()
        samples = place + torch.tensor([[0.0], [0.0], [0.7]], dtype=torch.float64)
        latents = torch.tensor([[-1.0, 0.5, 0.3], [0.2, 0.1, -0.4], [0.6, 1.0, -0.2]])
        made.keep(x.to(dtype), inputs=x)
        made.keep(samples, samples=samples, latents=latents)
        return made

    x = torch.tensor([[0.0], [0.75], [2.0]])
    new = torch.tensor([[0.25], [1.5]])
    want = posterior(torch.float64).components(new.double())
    found = posterior(torch.float32).components(new)
    torch.testing.assert_close(found.mean.double(), want.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.variance.double(), want.variance, rtol=1e-4, atol=1e-5)
