"""Weights of a fixed basis from statistics against dense Gaussian processes in float64."""

import math

import pytest
import torch

from gpx.models.compressed_statistics import CompressedStatistics
from gpx.models.reweighted_form import reweighted_form
from gpx.models.reweighted_orthogonal import OrthogonalForm
from gpx.models.reweighted_weights import CompressedForm, CovarianceForm
from gpx.models.sufficient_statistics import SufficientStatistics

SIZES = [(40, 7), (12, 30), (30, 30)]


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def problem(n, m, rank=None):
    phi = draw(n, m, seed=1)
    if rank is not None:
        phi = draw(n, rank, seed=2) @ draw(rank, m, seed=3)
    y = draw(n, seed=4)
    return phi, y, SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)


def forms(statistics):
    compressed = CompressedStatistics(statistics)
    found = {"covariance": CovarianceForm(statistics), "compressed": CompressedForm(compressed)}
    return found, compressed


def dense(phi, y, variances, noise):
    """log N(y; 0, phi diag(g) phi^T + s I), by the textbook."""
    n = len(y)
    matrix = phi * variances @ phi.mT + noise * torch.eye(n, dtype=torch.float64)
    factor = torch.linalg.cholesky(matrix)
    half = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
    logs = factor.diagonal().log().sum()
    return -0.5 * half.square().sum() - logs - 0.5 * n * math.log(2.0 * math.pi)


def value(weights):
    constant = weights.num_data * math.log(2.0 * math.pi)
    return -0.5 * (weights.fit + weights.log_determinant + constant)


def at(count):
    log_variances = draw(count, seed=5).requires_grad_()
    log_noise = torch.tensor(-0.7, dtype=torch.float64, requires_grad=True)
    return log_variances, log_noise


def check_against(found, want, u, s):
    slopes = torch.autograd.grad(want, [u, s])
    torch.testing.assert_close(value(found), want.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.weight_gradient(), slopes[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.noise_gradient(), slopes[1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["covariance", "compressed"])
def test_evidence_and_gradient_equal_dense_algebra(size, name):
    phi, y, statistics = problem(*size)
    u, s = at(size[1])
    found = forms(statistics)[0][name].weights(u.detach(), s.detach())
    check_against(found, dense(phi, y, u.exp(), s.exp()), u, s)


@pytest.mark.parametrize("size", SIZES)
def test_orthogonal_form_equals_dense_algebra(size):
    phi, y, statistics = problem(*size)
    compressed = CompressedStatistics(statistics)
    u, s = at(compressed.rank)
    found = OrthogonalForm(compressed).weights(u.detach(), s.detach())
    check_against(found, dense(phi @ compressed.vectors, y, u.exp(), s.exp()), u, s)


def test_gradient_equals_central_differences():
    _, _, statistics = problem(40, 7)
    form = CovarianceForm(statistics)
    u, s = (t.detach() for t in at(7))
    step = 1e-5
    slopes = form.weights(u, s).weight_gradient()
    for i in range(7):
        move = torch.zeros(7, dtype=torch.float64)
        move[i] = step
        up, down = value(form.weights(u + move, s)), value(form.weights(u - move, s))
        assert float((up - down) / (2 * step)) == pytest.approx(float(slopes[i]), rel=1e-5)


@pytest.mark.parametrize("structure", ["diagonal", "orthogonal"])
@pytest.mark.parametrize("size", SIZES)
def test_posterior_equals_function_space(size, structure):
    phi, y, statistics = problem(*size)
    features = draw(5, size[1], seed=6)
    form = reweighted_form(statistics, structure)
    u, s = (t.detach() for t in at(form.num_weights))
    found = form.weights(u, s)
    if structure == "diagonal":
        prior = u.exp().diag()
    else:
        vectors = CompressedStatistics(statistics).vectors
        unseen = torch.eye(size[1], dtype=torch.float64) - vectors @ vectors.mT
        prior = vectors * u.exp() @ vectors.mT + u.exp().mean() * unseen
    train = phi @ prior @ phi.mT + s.exp() * torch.eye(size[0], dtype=torch.float64)
    cross = features @ prior @ phi.mT
    solve = torch.linalg.solve(train, cross.mT)
    covariance = features @ prior @ features.mT - cross @ solve
    marginals = found.marginals(form.at(features))
    torch.testing.assert_close(marginals.mean, solve.mT @ y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(marginals.variance, covariance.diagonal(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(features @ found.mean(), solve.mT @ y, rtol=1e-9, atol=1e-9)
    drawn = found.draw(40_000, generator=torch.Generator().manual_seed(0)) @ features.mT
    scale = covariance.diagonal().max()
    # 40,000 draws: standard errors below 1 % of the largest variance
    assert float((drawn.mean(0) - marginals.mean).abs().max()) < 0.03 * float(scale.sqrt())
    assert float((drawn.mT.cov() - covariance).abs().max()) < 0.05 * float(scale)


def test_weights_that_are_pruned_leave_everything_finite():
    phi, y, statistics = problem(40, 7)
    u, s = (t.detach().clone() for t in at(7))
    u[2] = -700.0
    keep = [i for i in range(7) if i != 2]
    want = dense(phi[:, keep], y, u[keep].exp(), s.exp())
    for form in forms(statistics)[0].values():
        found = form.weights(u, s)
        torch.testing.assert_close(value(found), want, rtol=1e-10, atol=0)
        assert bool(found.weight_gradient().isfinite().all())
        assert float(found.weight_gradient()[2].abs()) < 1e-100


def test_expected_information_is_that_of_the_dense_covariance():
    phi, _, statistics = problem(12, 5)
    u, s = (t.detach() for t in at(5))
    matrix = phi * u.exp() @ phi.mT + s.exp() * torch.eye(12, dtype=torch.float64)
    slopes = [u[i].exp() * torch.outer(phi[:, i], phi[:, i]) for i in range(5)]
    slopes.append(s.exp() * torch.eye(12, dtype=torch.float64))
    solved = [torch.linalg.solve(matrix, slope) for slope in slopes]
    want = torch.stack([0.5 * (a @ a).trace() for a in solved])
    for form in forms(statistics)[0].values():
        torch.testing.assert_close(form.weights(u, s).fisher(), want, rtol=1e-9, atol=1e-12)
    compressed = CompressedStatistics(statistics)
    rotated, _, statistics = problem(12, 5)
    rotated = rotated @ compressed.vectors
    slopes[:5] = [u[i].exp() * torch.outer(rotated[:, i], rotated[:, i]) for i in range(5)]
    matrix = sum(slopes)
    want = [0.5 * (a @ a).trace() for a in (torch.linalg.solve(matrix, b) for b in slopes)]
    found = OrthogonalForm(compressed).weights(u, s).fisher()
    torch.testing.assert_close(found, torch.stack(want), rtol=1e-9, atol=1e-12)


def test_the_path_follows_the_rank_and_is_named():
    _, _, wide = problem(12, 30)
    assert reweighted_form(wide, "diagonal").path == "compressed"
    _, _, deficient = problem(60, 30, rank=9)
    form = reweighted_form(deficient, "diagonal")
    assert form.path == "compressed"
    assert form.compressed.rank == 9
    _, _, tall = problem(60, 30)
    assert reweighted_form(tall, "diagonal").path == "covariance"
    assert reweighted_form(tall, "orthogonal").path == "orthogonal"


def test_optimum_of_the_orthogonal_form_is_known():
    """Ascent finds g~ = max(0, b^2 - s) for functions of unit norm, lambda g in ours."""
    _, _, statistics = problem(40, 7)
    compressed = CompressedStatistics(statistics)
    form = OrthogonalForm(compressed)
    noise = torch.tensor(0.4, dtype=torch.float64)
    u = torch.zeros(7, dtype=torch.float64)
    for _ in range(4000):
        u = u + form.weights(u, noise.log()).weight_gradient()
    want = (compressed.targets.square() - noise).clamp_min(0.0)
    assert 0 < int((want > 0).sum()) < 7  # both kinds are there
    torch.testing.assert_close(compressed.values * u.exp(), want, rtol=0, atol=2e-3)
    inner = want > 0
    torch.testing.assert_close(
        (compressed.values * u.exp())[inner], want[inner], rtol=1e-6, atol=1e-6
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("structure", ["diagonal", "orthogonal"])
def test_cuda_agrees_with_cpu(structure):
    phi, y, statistics = problem(40, 30)
    form = reweighted_form(statistics, structure)
    u, s = (t.detach() for t in at(form.num_weights))
    phi, y = phi.cuda(), y.cuda()
    there = SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, 40)
    got = reweighted_form(there, structure).weights(u.cuda(), s.cuda())
    torch.testing.assert_close(value(got).cpu(), value(form.weights(u, s)), rtol=1e-9, atol=0)
