"""Relevance vectors from statistics: coordinate optima, expectation maximisation, sparsity."""

import math

import pytest
import torch

from gpx.errors import ConfigError
from gpx.inference.sufficient_statistics import SufficientStatistics
from gpx.kernels import RBF
from gpx.methods.reweighted.cached_relevance import (
    LEFT_OUT,
    active_weights,
    coordinate_factors,
    em_update,
    noise_update,
    relevant,
    select_relevance_vectors,
)
from gpx.methods.reweighted.evidence import joint_density
from gpx.methods.reweighted.statistics_evidence import covariance_evidence, log_marginal_likelihood
from gpx.methods.reweighted.weights import CovarianceForm
from gpx.models import HyperPriors, InverseGamma, LogNormal


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def problem(n=40, m=8):
    phi = draw(n, m, seed=1)
    y = phi[:, 0] - 0.5 * phi[:, 3] + 0.4 * draw(n, seed=2)
    return SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)


NOISE = torch.tensor(0.16, dtype=torch.float64)


def evidence(statistics, variances):
    return float(covariance_evidence(statistics, variances.sqrt().diag(), NOISE))


def test_coordinate_optimum_beats_a_grid_and_the_gain_is_the_evidence_gained():
    statistics = problem()
    variances = draw(8, seed=3).exp()
    variances[[2, 5]] = 0.0
    factors = coordinate_factors(statistics, variances, NOISE)
    before = evidence(statistics, variances)
    assert int((factors.optimum == 0.0).sum()) > 0  # both kinds are there
    assert int((factors.optimum > 0.0).sum()) > 1
    for i in range(8):
        moved = variances.clone()
        moved[i] = factors.optimum[i]
        best = evidence(statistics, moved)
        assert best - before == pytest.approx(float(factors.gain[i]), abs=1e-9)
        for value in [0.0, *torch.logspace(-6.0, 3.0, 60).tolist()]:
            moved[i] = value
            assert evidence(statistics, moved) <= best + 1e-9


def test_expectation_maximisation_never_lowers_the_evidence():
    form = CovarianceForm(problem())
    u = torch.zeros(8, dtype=torch.float64)
    values = []
    for _ in range(200):
        values.append(float(log_marginal_likelihood(form.weights(u, NOISE.log()))))
        u = em_update(form, u, NOISE.log())
    steps = torch.tensor(values).diff()
    assert float(steps.min()) > -1e-9
    assert values[-1] > values[0] + 1.0
    best, _ = select_relevance_vectors(problem(), NOISE, tolerance=1e-10)
    assert values[-1] == pytest.approx(evidence(problem(), best), abs=0.05)


def test_with_a_gamma_hyper_prior_the_joint_density_never_falls_and_ends_at_its_maximum():
    """Student-t weights: every function keeps a variance, and the gradient there is zero."""
    priors = HyperPriors(InverseGamma(0.5, 2.0), LogNormal(0.16, 0.04))
    form = CovarianceForm(problem())
    u = torch.zeros(8, dtype=torch.float64)
    values = []
    for _ in range(400):
        position = torch.cat([u, NOISE.log()[None]])
        found = joint_density(form, priors, position)
        values.append(float(found.likelihood + found.prior))
        u = em_update(form, u, NOISE.log(), priors.weight)
    assert float(torch.tensor(values).diff().min()) > -1e-9
    assert float(found.gradient[:-1].abs().max()) < 1e-6
    assert float(u.min()) > math.log(0.05)


def test_the_noise_update_never_lowers_the_evidence_and_ends_at_a_maximum():
    statistics, variances = problem(), draw(8, seed=3).exp()
    variances[[2, 5]] = 0.0
    for start in (1e-4, 0.16, 50.0):
        noise = torch.tensor(start, dtype=torch.float64)
        last = float(covariance_evidence(statistics, variances.sqrt().diag(), noise))
        for _ in range(30):
            noise = noise_update(statistics, variances, noise)
            value = float(covariance_evidence(statistics, variances.sqrt().diag(), noise))
            assert value > last - 1e-9
            last = value
        weights = active_weights(statistics, variances, noise)
        assert float(weights.noise_gradient().abs()) < 1e-5
    none = noise_update(statistics, torch.zeros_like(variances), NOISE)
    assert float(none) == pytest.approx(float(statistics.squared) / 40)


def test_relevant_functions_are_those_of_any_sample():
    logs = torch.tensor([[0.0, LEFT_OUT, -40.0, -3.0], [LEFT_OUT, LEFT_OUT, 0.0, -30.0]]).double()
    samples = torch.cat([logs, torch.zeros(2, 1)], 1)
    assert relevant(samples).tolist() == [0, 2, 3]
    assert relevant(torch.full((1, 4), LEFT_OUT).double()).tolist() == [0]


def test_noisy_sinc_needs_few_vectors():
    x = torch.linspace(-10.0, 10.0, 100, dtype=torch.float64)[:, None]
    y = torch.sinc(x[:, 0] / math.pi) + 0.1 * draw(100, seed=4)
    phi = RBF(1, lengthscale=2.0).double().evaluate(x, x).detach()
    statistics = SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, 100)
    noise = torch.tensor(0.01, dtype=torch.float64)
    variances, report = select_relevance_vectors(statistics, noise)
    assert report.converged
    assert report.residual < 1e-3
    assert len(report.gains) == report.steps
    assert 3 <= int((variances > 0.0).sum()) <= 15
    gained = float(covariance_evidence(statistics, variances.sqrt().diag(), noise))
    none = -0.5 * float(y @ y / noise + 100 * (noise.log() + math.log(2.0 * math.pi)))
    assert gained - none == pytest.approx(sum(report.gains), rel=1e-6)
    weights = CovarianceForm(statistics).weights(variances.clamp_min(1e-300).log(), noise.log())
    fitted = phi @ weights.mean()
    assert float((fitted - torch.sinc(x[:, 0] / math.pi)).square().mean().sqrt()) < 0.06


def test_limits_are_reported_and_mistakes_explained():
    variances, report = select_relevance_vectors(problem(), NOISE, max_steps=1)
    assert not report.converged
    assert int((variances > 0.0).sum()) == report.steps == 1
    with pytest.raises(ConfigError, match="tolerance=0"):
        select_relevance_vectors(problem(), NOISE, tolerance=0.0)
