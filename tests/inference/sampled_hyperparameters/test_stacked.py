"""Predictions of all samples as one batch, against one process after the other."""

import pytest
import torch

from gpx.inference.sampled_hyperparameters import posterior as module
from gpx.inference.sampled_hyperparameters import stacked
from gpx.inference.sampled_hyperparameters.stacked import StackedProcesses
from gpx.kernels import RBF, ArcCosine, Linear, Matern52, Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Constant, Zero
from gpx.means import Linear as LinearMean
from gpx.models import FullyBayesianGP

PARTS = {
    "one lengthscale an input": lambda: (Matern52(ard_num_dims=2), Zero()),
    "composed": lambda: (RBF() * Periodic() + Linear(), LinearMean(2)),
    "without a fused profile": lambda: (ArcCosine(), Constant()),
}


def draws(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).double()


def mixture(parts, samples=6, known=False, n=20):
    kernel, mean = parts()
    model = FullyBayesianGP(kernel=kernel, mean=mean, likelihood=Gaussian(0.1)).double()
    x = draws(n, 2)
    if known:
        model.know_noise(torch.linspace(0.0, 0.5, n).double())
    place = model.hyper_position()
    model.samples = place.read() + 0.3 * draws(samples, len(place.read()))
    return model.condition(x, x[:, 0].sin() + 0.1 * draws(n, 1)[:, 0])


def with_gradient(posterior, x):
    x = x.clone().requires_grad_()
    found = posterior.predict(x)
    (gradient,) = torch.autograd.grad(found.mean.sum() + found.variance.log().sum(), x)
    return *(each.detach() for each in found), gradient


@pytest.mark.parametrize("known", [False, True], ids=["", "known noise"])
@pytest.mark.parametrize("parts", PARTS)
def test_a_batch_predicts_as_one_after_the_other(parts, known):
    batch, alone = (mixture(PARTS[parts], known=known) for _ in range(2))
    alone._stacked = False
    x = draws(9, 2)
    (found, noise), (want, its_noise) = batch.marginals(x), alone.marginals(x)
    assert batch._stacked
    assert batch._kept is None
    torch.testing.assert_close(noise, its_noise, rtol=1e-12, atol=0.0)
    for mine, theirs in zip(found, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)
    for mine, theirs in zip(with_gradient(batch, x), with_gradient(alone, x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)
    assert batch.predict(x[:0]).mean.shape == (0,)


def test_blocks_of_rows_do_not_change_predictions(monkeypatch):
    posterior, x = mixture(PARTS["composed"]), draws(9, 2)
    whole = posterior.predict(x)
    sizes = []
    one = StackedProcesses._marginals
    monkeypatch.setattr(stacked, "BLOCK_BYTES", 3 * 8 * 6 * 20)  # of one row
    monkeypatch.setattr(
        StackedProcesses, "_marginals", lambda self, x: sizes.append(len(x)) or one(self, x)
    )
    for mine, theirs in zip(posterior.predict(x), whole, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert sizes == [1] * 9


def test_a_batch_that_cannot_be_made_is_predicted_one_after_the_other(monkeypatch):
    """Coincident rows without noise, and more memory than is kept."""
    singular = mixture(PARTS["one lengthscale an input"])
    same, samples = singular.inputs[[0] * 20], singular.samples.clone()
    samples[:, 2] = 40.0  # of the outputscale, beside which the noise is lost
    assert singular.template.condition_all(samples, same, singular.targets) is None
    monkeypatch.setattr(module, "KEPT_BYTES", 6 * 20**2 * 8 - 1)
    large = mixture(PARTS["composed"])
    large.predict(draws(3, 2))
    assert large._stacked is False


def test_new_state_makes_a_new_batch():
    posterior, x = mixture(PARTS["composed"]), draws(4, 2)
    before = posterior.predict(x).mean
    posterior.fill(posterior.inputs, -posterior.targets, posterior.samples)
    after = posterior.predict(x).mean
    assert (before - after).abs().max() > 0.1
    other = mixture(PARTS["composed"], samples=3)
    posterior.load_state_dict(other.state_dict())
    torch.testing.assert_close(posterior.predict(x).mean, other.predict(x).mean)
