"""Coregionalised outputs against a dense Gaussian process over all outputs."""

import pytest
import torch

import gpx
from gpx.errors import ConfigError, class_name
from gpx.kernels import RBF
from gpx.likelihoods import MixedOutputs, target_marginals
from gpx.means import Zero
from gpx.models import SVGP
from gpx.objectives import SVGPELBO
from gpx.training.first_order import FirstOrder


def draws(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("latents", [2, 3])
def test_it_is_the_dense_process_where_its_posterior_factorises(latents):
    """Orthogonal columns and one noise variance: the latent functions stay independent."""
    x, y, new = draws(12, 1), draws(12, 3, seed=1), draws(4, 1, seed=2)
    likelihood = MixedOutputs(3, latents, noise_variance=0.2)
    scales = torch.tensor([1.5, 0.7, 0.3], dtype=torch.float64)[:latents]
    model = SVGP(
        kernel=RBF(lengthscale=0.8, outputscale=1.3),
        mean=Zero(),
        likelihood=likelihood,
        num_inputs=1,
        num_inducing=12,
        jitter=0.0,
    ).double()
    with torch.no_grad():
        likelihood.mixing.mul_(scales)
    model.place(x)
    rates = {"variational": 1.0, "inducing": 0.0, "hyperparameters": 0.0}
    optimizer = FirstOrder(
        {
            role: {"algorithm": "natural" if rate else "sgd", "lr": rate}
            for role, rate in rates.items()
        }
    )
    objective = SVGPELBO(12)
    optimizer.bind(model.parameter_groups(), 1, model, 12)
    optimizer.before_step(0)
    objective.loss(objective.evidence(model, x, y), model, x).backward()
    optimizer.step(0)

    mixing = likelihood.mixing.detach()
    kernel = model.kernel.evaluate(x).detach()
    outputs = mixing @ mixing.mT
    noise = likelihood.noise_variance.detach().repeat(12)
    dense = torch.distributions.MultivariateNormal(
        torch.zeros(36, dtype=torch.float64), torch.kron(kernel, outputs) + torch.diag(noise)
    )
    value = objective.evidence(model, x, y).value
    torch.testing.assert_close(value, dense.log_prob(y.flatten()), rtol=1e-7, atol=1e-7)

    cross = torch.kron(model.kernel.evaluate(new, x).detach(), outputs)
    solved = torch.linalg.solve(dense.covariance_matrix, cross.mT)
    variance = model.kernel.diagonal(new).detach()[:, None] * outputs.diagonal()
    variance = variance - (cross * solved.mT).sum(1).view(4, 3)
    with torch.no_grad():
        found = model.condition(x, y).predictive(new, likelihood)
    torch.testing.assert_close(
        found.mean, (solved.mT @ y.flatten()).view(4, 3), rtol=1e-6, atol=1e-7
    )
    torch.testing.assert_close(found.variance, variance + noise[:3], rtol=1e-6, atol=1e-7)
    marginals = target_marginals(found)
    torch.testing.assert_close(
        marginals.stddev, (variance + noise[:3]).sqrt(), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("outputs", [2, 5])
@pytest.mark.parametrize("latents", [2, None])
def test_outputs_start_with_the_variance_of_the_kernel(outputs, latents):
    mixing = MixedOutputs(outputs, latents).double().mixing.detach()
    squares = mixing.mT @ mixing
    count = latents or outputs
    expected = torch.eye(count, dtype=torch.float64) * outputs / count
    torch.testing.assert_close(squares, expected, rtol=1e-6, atol=1e-6)


def test_a_noisy_output_leans_on_the_others():
    """Two outputs are one function; the second has twenty times the noise of the first."""
    x = torch.linspace(-3, 3, 60, dtype=torch.float64)[:, None]
    truth = torch.sin(2 * x[:, 0])
    y = torch.stack([truth, truth], 1) + draws(60, 2) * torch.tensor([0.05, 1.0])
    options = ["trainer.baselines=false", "approx=svgp", "approx.num_inducing=20", "kernel=rbf"]
    options += ["optimizer=svgp_natural", "optimizer.settled=null", "trainer.dtype=float64"]
    error = {}
    for likelihood, steps in (("gaussian_outputs", 150), ("mixed_outputs", 600)):  # both settle
        own = [f"likelihood={likelihood}", f"trainer.max_steps={steps}"]
        fitted = gpx.fit(x, y, *options, *own, quiet=True, keep=False)
        mean = torch.as_tensor(fitted.predict(x).mean)
        assert mean.shape == (60, 2)
        error[likelihood] = float((mean[:, 1] - truth).square().mean().sqrt())
    assert error["mixed_outputs"] < 0.8 * error["gaussian_outputs"]


@pytest.mark.parametrize("latents", [2, 3])
def test_functions_without_noise_are_those_of_the_outputs(latents):
    """Not the latent functions, which have no unit of any target."""
    x = draws(40, 1)
    scale = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    y = torch.stack([x.sin(), x.cos(), x.sin() - x.cos()], 1).squeeze(2) * scale + 5.0 * scale
    options = [
        "trainer.baselines=false",
        "approx=svgp",
        "approx.num_inducing=10",
        "kernel=rbf",
        "likelihood=mixed_outputs",
    ]
    options += [f"likelihood.num_latents={latents}", "trainer.max_steps=5", "trainer.dtype=float64"]
    fitted = gpx.fit(x, y, *options, quiet=True, keep=False)
    targets, known = fitted.predict(x[:4]), fitted.latent(x[:4])
    noise = fitted.model.likelihood.noise_variance.detach() * fitted.model.scaler.target_scale**2
    assert known.mean == pytest.approx(targets.mean, rel=1e-9)
    assert known.std**2 + noise.numpy() == pytest.approx(targets.std**2, rel=1e-9)
    functions = fitted.sample(x[:4], 400)
    assert functions.shape == (400, 4, 3)
    # of 12 means of normals each is within five standard errors but for one in 100 000 runs
    wrong = abs(functions.mean(0) - known.mean) / (functions.std(0) / 20.0)
    assert wrong.max() < 5.0


def test_a_kernel_is_chosen_for_them():
    """Not as for one target whose noise is not Gaussian."""
    x = draws(60, 1)
    y = torch.cat([x.sin(), x.cos()], 1) + 0.1 * draws(60, 2, seed=1)
    options = ["kernel=auto", "kernel.candidates=[rbf]", "kernel.rounds=0", "trainer.max_steps=2"]
    fitted = gpx.fit(x, y, *options, likelihood="mixed_outputs", quiet=True, keep=False)
    assert class_name(fitted.model.posterior.kernel) == "RBF"


@pytest.mark.parametrize(("outputs", "latents"), [(3, 1), (3, 4), (1, None)])
def test_sizes_that_make_no_sense_are_refused(outputs, latents):
    with pytest.raises(ConfigError, match="outputs"):
        MixedOutputs(outputs, latents)
    assert MixedOutputs(3).mixing.shape == (3, 3)


def in_a_plane(noise):
    """Five outputs of two functions of x (n, 1), with noise of deviations ``noise`` (5,)."""
    draws = torch.Generator().manual_seed(4)
    x = torch.rand(200, 1, generator=draws, dtype=torch.float64) * 6.0
    functions = torch.cat([(2.0 * x).sin(), (3.0 * x).cos()], 1)
    mixing = torch.randn(5, 2, generator=draws, dtype=torch.float64)
    errors = torch.randn(200, 5, generator=draws, dtype=torch.float64)
    return x, functions @ mixing.mT + errors * noise, mixing


def test_fewer_latents_start_at_the_axes_of_the_targets_and_at_the_noise_these_leave():
    noise = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]).double()
    _, y, mixing = in_a_plane(noise)
    made = MixedOutputs(5, num_latents=2, noise_variance=0.001).double()
    made.start(y)
    w = made.mixing.detach()
    outside = y - y @ w @ torch.linalg.pinv(w)
    torch.testing.assert_close(
        made.noise_variance.detach(), outside.square().mean(0), rtol=1e-9, atol=0
    )
    # of all planes that one which leaves least
    other = y - y @ mixing @ torch.linalg.pinv(mixing)
    assert outside.square().sum() <= other.square().sum()
    assert w.square().sum().item() == pytest.approx(5.0, rel=1e-12)
    # noise that is larger already stays, and as many latents as outputs leave nothing
    large = MixedOutputs(5, num_latents=2, noise_variance=2.0).double()
    large.start(y)
    torch.testing.assert_close(large.noise_variance.detach(), torch.full((5,), 2.0).double())
    whole = MixedOutputs(5, noise_variance=0.001).double()
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    whole.start(y)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_mixing_that_is_not_trained_stays_and_the_noise_is_what_it_leaves():
    _, y, _ = in_a_plane(torch.full((5,), 0.3).double())
    made = MixedOutputs(5, num_latents=2, noise_variance=0.001).double()
    w = made.mixing.requires_grad_(False).clone()
    made.start(y)
    assert torch.equal(made.mixing, w)
    outside = (y - y @ w @ torch.linalg.pinv(w)).square().mean(0)
    torch.testing.assert_close(made.noise_variance.detach(), outside, rtol=1e-9, atol=0)


def test_targets_in_a_plane_need_no_more_noise():
    _, y, mixing = in_a_plane(torch.zeros(5).double())
    made = MixedOutputs(5, num_latents=2, noise_variance=0.01).double()
    made.start(y)
    torch.testing.assert_close(made.noise_variance.detach(), torch.full((5,), 0.01).double())
    w = made.mixing.detach()
    torch.testing.assert_close(w @ torch.linalg.pinv(w) @ mixing, mixing, rtol=1e-8, atol=1e-8)


def test_a_model_starts_its_likelihood():
    x, y, _ = in_a_plane(torch.full((5,), 0.3).double())
    made = SVGP(
        kernel=RBF(1),
        mean=Zero(),
        likelihood=MixedOutputs(5, num_latents=2, noise_variance=0.001),
        num_inputs=1,
        num_inducing=10,
    ).double()
    made.initialise(x, y, generator=torch.Generator())
    assert made.likelihood.noise_variance.min() > 0.02


def test_two_outputs_have_one_number_of_latents():
    with pytest.raises(ConfigError, match=r"num_latents=1 of 2 mixed outputs: expected 2$"):
        MixedOutputs(2, num_latents=1)
    with pytest.raises(ConfigError, match=r"expected 2 to 3$"):
        MixedOutputs(3, num_latents=1)
