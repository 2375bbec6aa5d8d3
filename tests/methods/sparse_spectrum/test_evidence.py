"""Evidence and bound of learned waves: dense oracles, gradients, streaming, orderings."""

import math

import pytest
import torch
from draws import draws
from torch.distributions import MultivariateNormal

from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32, Periodic
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant
from gpx.methods.sparse_spectrum import evidence as streamed
from gpx.methods.sparse_spectrum.evidence import spectral_evidence
from gpx.methods.sparse_spectrum.spectrum import SpectralPoints, UncertainSpectrum
from gpx.models import SSGP, VSSGP
from gpx.objectives import SparseSpectrumEvidence

pytestmark = pytest.mark.usefixtures("float64_by_default")


def data(n=40, d=2):
    x = torch.randn(n, d, generator=draws(1))
    y = (2.0 * x[:, 0]).sin() + 0.3 * x[:, -1] + 0.1 * torch.randn(n, generator=draws(2))
    return x, y


def rbf(d=2):
    return RBF(d, [0.7, 1.2][:d], 1.3)


def points(m=12, kernel=None):
    spectrum = SpectralPoints(kernel or rbf(), m, 2)
    spectrum.draw(draws())
    return spectrum


def uncertain(m=9, std=0.3):
    spectrum = UncertainSpectrum(rbf(), m, 2, std)
    spectrum.draw(draws())
    return spectrum


@pytest.mark.parametrize("kernel", [RBF, Matern32])
@pytest.mark.parametrize("m", [12, 70])
def test_evidence_is_that_of_the_dense_kernel(kernel, m):
    x, y = data()
    spectrum = points(m, kernel(2, [0.7, 1.2], 1.3))
    with torch.no_grad():
        angles = x @ spectrum.frequencies().T
        waves = torch.cat([angles.cos(), angles.sin()], 1)
        dense = 1.3 / (m / 2) * waves @ waves.T + 0.07 * torch.eye(40)
        value, terms = spectral_evidence(spectrum, x, y, torch.tensor(0.07))
    want = MultivariateNormal(torch.zeros(40), dense).log_prob(y)
    torch.testing.assert_close(value, want, rtol=1e-12, atol=0)
    torch.testing.assert_close(sum(terms), value, rtol=1e-14, atol=0)


def test_posterior_is_that_of_the_dense_kernel():
    x, y = data()
    new = torch.randn(6, 2, generator=draws(3))
    model = SSGP(
        kernel=rbf(),
        mean=Constant(0.2),
        likelihood=Gaussian(0.07),
        num_inputs=2,
        num_basis=16,
        draws=3,
    )
    model.initialise(x, y, generator=draws())
    with torch.no_grad():
        phi, star = (model.spectrum.moments(rows)[0] for rows in (x, new))
        noisy = phi @ phi.T + model.likelihood.noise_variance * torch.eye(40)
        gain = torch.linalg.solve(noisy, phi @ star.T)
        mean = 0.2 + gain.T @ (y - 0.2)
        variance = (star @ star.T - star @ phi.T @ gain).diagonal()
    found = model.condition(x, y).predict(new)
    torch.testing.assert_close(found.mean, mean, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.variance, variance, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("noise", [3e-5, 1e-6])
def test_in_float32_the_value_is_that_of_its_features_whatever_the_noise(noise):
    """Rounding of float32 sums is near the first noise variance and above the second one."""
    x, y = (values.float() for values in data(1500, 1))
    spectrum = SpectralPoints(rbf(1), 60, 1)
    spectrum.draw(draws())
    spectrum.float()
    with torch.no_grad():
        phi = spectrum.moments(x)[0].double()
        dense = phi @ phi.T + noise * torch.eye(1500)
        value, _ = spectral_evidence(spectrum, x, y, torch.tensor(noise, dtype=torch.float32))
    want = MultivariateNormal(torch.zeros(1500), dense).log_prob(y.double())
    torch.testing.assert_close(value, want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("make", [points, uncertain])
def test_noise_and_mean_are_learned_for_a_fixed_spectrum(make):
    x, y = data(23)
    residual, noise = y.clone().requires_grad_(), torch.tensor(0.07, requires_grad=True)
    free, fixed = make(), make()
    want = torch.autograd.grad(spectral_evidence(free, x, residual, noise)[0], [residual, noise])
    fixed.requires_grad_(False)
    found = torch.autograd.grad(spectral_evidence(fixed, x, residual, noise)[0], [residual, noise])
    torch.testing.assert_close(found, want)


def test_phases_are_learned_for_fixed_frequencies():
    """Means and variances of features depend on phases; the variances alone on nothing fixed."""
    x, y = data(23)
    free, fixed = uncertain(), uncertain()
    noise = torch.tensor(0.07)
    (want,) = torch.autograd.grad(spectral_evidence(free, x, y, noise)[0], [free.phases])
    fixed.requires_grad_(False)
    fixed.phases.requires_grad_(True)
    (found,) = torch.autograd.grad(spectral_evidence(fixed, x, y, noise)[0], [fixed.phases])
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("make", [points, uncertain])
def test_gradients(make, monkeypatch):
    # blocks of five rows
    monkeypatch.setattr(streamed, "block_bytes", lambda device: 5 * 4 * 8 * 12)
    x, y = data(23)
    spectrum = make()
    residual, noise = y.clone().requires_grad_(), torch.tensor(0.07, requires_grad=True)
    inputs = [residual, noise, *spectrum.parameters()]
    found = torch.autograd.grad(spectral_evidence(spectrum, x, residual, noise)[0], inputs)

    def value():
        with torch.no_grad():
            return float(spectral_evidence(spectrum, x, residual, noise)[0])

    step = 1e-6
    for tensor, gradient in zip(inputs, found, strict=True):
        flat = tensor.data.view(-1)
        for i in range(min(flat.numel(), 6)):
            kept = flat[i].item()
            flat[i] = kept + step
            above = value()
            flat[i] = kept - step
            below = value()
            flat[i] = kept
            want = (above - below) / (2.0 * step)
            assert gradient.reshape(-1)[i].item() == pytest.approx(want, rel=2e-6, abs=2e-6)


def test_blocks_of_float32_are_as_long_as_those_of_float64(monkeypatch):
    """Sums over them are taken in float64."""
    monkeypatch.setattr(streamed, "block_bytes", lambda device: 5 * 4 * 8 * 12)
    seen, spectrum, (x, y) = [], points().float(), data(23)
    moments = SpectralPoints.moments
    monkeypatch.setattr(
        SpectralPoints, "moments", lambda self, x: seen.append(len(x)) or moments(self, x)
    )
    streamed.spectral_sums(spectrum, x.float(), y.float())
    assert max(seen) <= 5


def test_blocks_do_not_change_the_value(monkeypatch):
    x, y = data()
    for spectrum in (points(), uncertain()):
        noise = torch.tensor(0.07)
        whole = spectral_evidence(spectrum, x, y, noise)[0]
        monkeypatch.setattr(streamed, "block_bytes", lambda device: 1)
        torch.testing.assert_close(
            spectral_evidence(spectrum, x, y, noise)[0], whole, rtol=1e-13, atol=0
        )


def test_moments_are_those_of_draws():
    spectrum, x = uncertain(4, 0.6), data(5)[0]
    with torch.no_grad():
        mean, variance = spectrum.moments(x)
        rest = 1.0 / spectrum.scale()
        noise = torch.randn(400_000, 4, 2, generator=draws(5))
        drawn = (spectrum.points + spectrum.log_std.exp() * noise) / spectrum.kernel.lengthscale
        for row in range(5):
            cosines = torch.cos(drawn @ x[row] + spectrum.phases)
            # five standard errors of a number in [-1, 1] are 8e-3 at most, of a narrow one less
            error = 5.0 * cosines.std(0) / math.sqrt(400_000) + 1e-12
            assert bool(((rest * mean[row] - cosines.mean(0)).abs() < error).all())
            second = rest**2 * (variance[row] + mean[row].square())
            error = 5.0 * cosines.square().std(0) / math.sqrt(400_000) + 1e-12
            assert bool(((second - cosines.square().mean(0)).abs() < error).all())


def test_certain_frequencies_give_the_evidence_of_their_waves():
    x, y = data()
    spectrum = uncertain(std=1e-9)
    with torch.no_grad():
        noise = torch.tensor(0.07)
        waves = torch.cos(x @ spectrum.frequencies().T + spectrum.phases)
        dense = 2.0 * 1.3 / 9 * waves @ waves.T + 0.07 * torch.eye(40)
        value = spectral_evidence(spectrum, x, y, noise)[0] + spectrum.penalty()
    want = MultivariateNormal(torch.zeros(40), dense).log_prob(y)
    torch.testing.assert_close(value, want, rtol=1e-8, atol=0)


def test_the_penalty_is_a_divergence():
    spectrum = uncertain()
    prior = torch.distributions.Normal(0.0, 1.0)
    q = torch.distributions.Normal(spectrum.points, spectrum.log_std.exp())
    want = torch.distributions.kl_divergence(q, prior).sum()
    torch.testing.assert_close(spectrum.penalty(), want)


@pytest.mark.parametrize("trained", [False, True])
def test_the_bound_is_below_the_evidence(trained):
    # with two waves in one input the evidence is a mean over two frequencies: drawn often enough,
    # its error is far below the gap
    x, y = data(8, 1)
    y = (1.5 * x[:, 0]).cos()
    spectrum = UncertainSpectrum(RBF(1, 1.0, 1.3), 2, 1, 0.5)
    spectrum.draw(draws())
    noise = torch.tensor(0.2)
    if trained:
        q = spectrum.distribution()
        steps = torch.optim.Adam(q, lr=0.05)
        for _ in range(150):
            steps.zero_grad()
            (-spectral_evidence(spectrum, x, y, noise)[0]).backward(inputs=q)
            steps.step()
    with torch.no_grad():
        bound = float(spectral_evidence(spectrum, x, y, noise)[0])
        drawn = torch.randn(100_000, 1, 2, generator=draws(7))
        waves = spectrum.scale() * torch.cos(x * drawn + spectrum.phases)
        covariance = waves @ waves.mT + 0.2 * torch.eye(8)
        logs = MultivariateNormal(torch.zeros(8), covariance).log_prob(y)
        weights = (logs - logs.max()).exp()
        estimate = float(weights.mean().log() + logs.max())
        error = float(weights.std() / weights.mean()) / math.sqrt(len(logs))
    assert error < 0.02
    assert bound < estimate + 5.0 * error
    assert bound > estimate - (1.5 if trained else 50.0)


def test_over_fitting_is_reported():
    x, y = data(30)
    model = SSGP(
        kernel=rbf(),
        mean=Constant(),
        likelihood=Gaussian(0.05),
        num_inputs=2,
        num_basis=20,
        draws=2,
    )
    model.initialise(x, y, generator=draws())
    facts = SparseSpectrumEvidence().full_evidence(model, x, y, batch_size=10).facts
    law = model.condition(x, y).predictive(x, model.likelihood)
    assert facts == {"mnlp": pytest.approx(-float(law.log_prob(y).mean()))}


def test_the_best_of_several_draws_is_taken():
    x, y = data()
    parts = {"mean": Constant(), "likelihood": Gaussian(0.05), "num_inputs": 2, "num_basis": 10}
    values = []
    for seed in range(4):
        one = SSGP(kernel=rbf(), **parts, draws=1)
        generator = draws()
        for _ in range(seed + 1):  # the stream goes on
            one.likelihood.noise_variance = torch.tensor(0.05)
            one.initialise(x, y, generator=generator)
        values.append(float(SparseSpectrumEvidence().evidence(one, x, y).value.detach()))
    best = SSGP(kernel=rbf(), **{**parts, "likelihood": Gaussian(0.05)}, draws=4)
    best.initialise(x, y, generator=draws())
    found = float(SparseSpectrumEvidence().evidence(best, x, y).value.detach())
    assert found == pytest.approx(max(values), rel=1e-12)
    assert max(values) > min(values)
    assert best.note.startswith("frequencies of draw")


@pytest.mark.parametrize("model_type", [SSGP, VSSGP])
def test_the_noise_variance_starts_where_the_evidence_of_the_waves_is_largest(model_type):
    x, y = data()
    parts = {"mean": Constant(), "num_inputs": 2, "num_basis": 10, "draws": 2}
    model = model_type(kernel=rbf(), likelihood=Gaussian(1e-4), **parts)
    model.initialise(x, y, generator=draws())
    found, residual = model.likelihood.noise_variance.detach(), y - model.mean(x)
    with torch.no_grad():
        below, at, above = (
            float(spectral_evidence(model.spectrum, x, residual, factor * found)[0])
            for factor in (0.9, 1.0, 1.1)
        )
    assert at > max(below, above)
    held = model_type(kernel=rbf(), likelihood=Gaussian(1e-4), **parts, fit_noise=False)
    held.initialise(x, y, generator=draws())
    assert float(held.likelihood.noise_variance.detach()) == pytest.approx(1e-4)


def test_invalid_arguments_are_refused():
    parts = {"mean": Constant(), "likelihood": Gaussian(), "num_inputs": 2}
    with pytest.raises(ConfigError, match="num_basis=5: every frequency has a cosine and a sine"):
        SSGP(kernel=rbf(), **parts, num_basis=5)
    with pytest.raises(ConfigError, match="draws=0 must be at least 1"):
        SSGP(kernel=rbf(), **parts, draws=0)
    with pytest.raises(ConfigError, match="those of an RBF kernel of all inputs, got Matern32"):
        VSSGP(kernel=Matern32(2), **parts)
    with pytest.raises(ConfigError, match="RBF or Matern kernel of all inputs, got RBF"):
        SSGP(kernel=RBF(1, active_dims=[0]), **parts)
    with pytest.raises(ConfigError, match="RBF or Matern kernel of all inputs, got Periodic"):
        SSGP(kernel=Periodic(2), **parts)
    with pytest.raises(ConfigError, match=r"std=0.0 must be positive"):
        VSSGP(kernel=rbf(), **parts, std=0.0)
    with pytest.raises(ConfigError, match="needs the Gaussian likelihood, got Bernoulli"):
        SSGP(kernel=rbf(), mean=Constant(), likelihood=Bernoulli(), num_inputs=2)
