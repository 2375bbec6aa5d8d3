"""Priors along eigenvectors and along axes turned from them, against dense algebra in float64."""

import math

import pytest
import torch
from linear_features import (
    assert_evidence_and_gradient,
    draw,
    expected_information,
    features_and_targets,
    log_density,
    position,
    reflectors_of,
    value,
)
from torch.distributions import MultivariateNormal

from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.errors import ConfigError
from gpx.linalg.householder import reflect, rotation_of
from gpx.methods.reweighted.evidence import joint_density
from gpx.methods.reweighted.orthogonal import OrthogonalForm, ReflectedForm
from gpx.methods.reweighted.weights import CompressedStatistics
from gpx.models import HyperPriors, LogNormal, WeightPriors

SIZES = [(30, 6), (6, 11)]
NOISE = torch.tensor(-0.7, dtype=torch.float64)


def problem(n, m):
    phi, y = features_and_targets(n, m)
    statistics = SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)
    return phi, y, CompressedStatistics(statistics)


@pytest.mark.parametrize("size", [(40, 7), (12, 30), (30, 30)])
def test_evidence_and_gradient_equal_dense_algebra(size):
    phi, y, compressed = problem(*size)
    u, s = position(compressed.rank)
    found = OrthogonalForm(compressed).weights(u, s)
    assert_evidence_and_gradient(found, phi @ compressed.vectors, y, u, s)


def test_expected_information_is_that_of_the_dense_covariance():
    phi, _, compressed = problem(12, 5)
    along, (u, s) = phi @ compressed.vectors, position(5)
    noise = s.exp() * torch.eye(12, dtype=torch.float64)
    slopes = [u[i].exp() * torch.outer(along[:, i], along[:, i]) for i in range(5)]
    want = expected_information(along * u.exp() @ along.mT + noise, [*slopes, noise])
    found = OrthogonalForm(compressed).weights(u, s).fisher()
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)


def test_features_keep_their_length():
    """Along what the data see, and the square of the rest."""
    phi, _, compressed = problem(6, 11)
    found = OrthogonalForm(compressed).prepare_features(phi)
    assert found.shape == (6, 7)
    torch.testing.assert_close(found[:, :-1] @ compressed.vectors.mT, phi)
    assert float(found[:, -1].abs().max()) < 1e-12  # training inputs have no rest
    other = torch.linspace(-1.0, 1.0, 11, dtype=torch.float64)[None]
    seen = OrthogonalForm(compressed).prepare_features(other)[0]
    torch.testing.assert_close(seen[:-1].square().sum() + seen[-1], other.square().sum())


def test_the_optimum_is_known():
    """Ascent finds g~ = max(0, b^2 - s) for functions of unit norm, lambda g in ours."""
    _, _, compressed = problem(40, 7)
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


# --- axes turned by reflections -------------------------------------------------------------------


def turned(n, m):
    phi, y = draw(n, m, seed=1), draw(n, seed=4)
    statistics = SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)
    return phi, y, statistics, ReflectedForm(CompressedStatistics(statistics))


def place(form, size=0.4):
    rank = form.sums.rank
    return torch.cat([draw(rank, seed=5), size * draw(form.num_tails, seed=6)])


def loop(reflectors):
    """U by the definition, one reflection after the other."""
    found = torch.eye(len(reflectors), dtype=torch.float64)
    for v in reflectors:
        found = found @ (torch.eye(len(v)).double() - 2.0 * torch.outer(v, v) / (v @ v))
    return found


def prior(form, u):
    """Covariance of the m weights, dense."""
    c, rank = form.sums, form.sums.rank
    root = c.vectors / c.values.sqrt() @ loop(form.reflectors(u[rank:]))
    inside = root * (c.values * u[:rank].exp()) @ root.mT
    unseen = torch.eye(len(c.vectors), dtype=torch.float64) - c.vectors @ c.vectors.mT
    return inside + u[:rank].exp().mean() * unseen


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_evidence_and_posterior_equal_dense_algebra(n, m):
    phi, y, _, form = turned(n, m)
    u = place(form)
    weights, covariance = form.weights(u, NOISE), prior(form, u)
    matrix = phi @ covariance @ phi.mT + NOISE.exp() * torch.eye(n, dtype=torch.float64)
    want = MultivariateNormal(torch.zeros(n, dtype=torch.float64), matrix).log_prob(y)
    torch.testing.assert_close(value(weights), want, rtol=1e-10, atol=0)
    gain = torch.linalg.solve(matrix, phi @ covariance).mT
    mean, left = gain @ y, covariance - gain @ phi @ covariance
    torch.testing.assert_close(weights.mean(), mean, rtol=1e-9, atol=1e-10)
    at = draw(5, m, seed=7)
    found = weights.marginals(form.prepare_features(at))
    torch.testing.assert_close(found.mean, at @ mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.variance, ((at @ left) * at).sum(1), rtol=1e-8, atol=1e-9)
    drawn = weights.draw(20_000, generator=torch.Generator().manual_seed(0))
    scale = float(left.diagonal().max())
    assert float((drawn.mean(0) - mean).abs().max()) < 0.05 * math.sqrt(scale)
    assert float((drawn.mT.cov() - left).abs().max()) < 0.06 * scale


def test_without_tails_it_is_the_orthogonal_prior():
    _, _, statistics, form = turned(30, 6)
    logs = draw(6, seed=5)
    plain = OrthogonalForm(CompressedStatistics(statistics))
    want, found = (f.weights(u, NOISE) for f, u in ((plain, logs), (form, place(form, 0.0))))
    torch.testing.assert_close(found.fit, want.fit, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.log_determinant, want.log_determinant, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.mean(), want.mean(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_every_prior_covariance_is_reached(n, m):
    """From any S: the spectrum and the axes of the covariance of the functions of unit norm."""
    phi, y, _, form = turned(n, m)
    root = draw(m, m, seed=8) + 2.0 * torch.eye(m, dtype=torch.float64)
    carried = root.mT @ form.sums.vectors * form.sums.values.sqrt()
    variances, rotation = torch.linalg.eigh(carried.mT @ carried)
    logs, reflectors = variances.log(), reflectors_of(rotation)
    scaled = reflectors / reflectors.diagonal().where(reflectors.diagonal() != 0.0, 1.0)[:, None]
    tails = scaled[form.rows, form.columns]
    found = form.weights(torch.cat([logs - form.sums.values.log(), tails]), NOISE)
    matrix = phi @ root @ root.mT @ phi.mT + NOISE.exp() * torch.eye(n, dtype=torch.float64)
    torch.testing.assert_close(value(found), log_density(y, matrix), rtol=1e-9, atol=0)


def test_gradient_equals_central_differences():
    _, _, _, form = turned(30, 6)
    priors = HyperPriors(
        LogNormal(1.0, 100.0), LogNormal(0.1, 0.04), torch.full((form.num_tails,), 0.05).double()
    )
    u = torch.cat([place(form), NOISE[None]])
    found = joint_density(form, priors, u)
    assert len(found.gradient) == form.num_weights + 1 == 22
    for i in range(22):
        move = torch.zeros(22, dtype=torch.float64)
        move[i] = 1e-5
        up, down = (joint_density(form, priors, u + sign * move) for sign in (1, -1))
        slope = float(up.likelihood + up.prior - down.likelihood - down.prior) / 2e-5
        assert slope == pytest.approx(float(found.gradient[i]), rel=1e-5, abs=1e-6)


def test_expected_information_of_the_tails_at_zero():
    """tr(C^-1 dC C^-1 dC) / 2 with C = U diag(1 + ratio) U^T along every tail, by differences."""
    _, _, statistics, form = turned(30, 6)
    u = place(form, 0.0)
    weights = form.weights(u, NOISE)
    whole = weights.fisher()
    found = whole[6:-1]
    plain = OrthogonalForm(CompressedStatistics(statistics)).weights(u[:6], NOISE).fisher()
    torch.testing.assert_close(torch.cat([whole[:6], whole[-1:]]), plain, rtol=1e-12, atol=0)

    def covariance(tails):
        rotation = loop(form.reflectors(tails))
        return rotation * (1.0 + weights.ratio) @ rotation.mT

    inverse = covariance(u[6:]).inverse()
    for i in range(form.num_tails):
        move = torch.zeros(form.num_tails, dtype=torch.float64)
        move[i] = 1e-5
        slope = inverse @ (covariance(move) - covariance(-move)) / 2e-5
        assert float(found[i]) == pytest.approx(0.5 * float((slope @ slope).trace()), rel=1e-6)


def test_the_hyper_prior_rotates_all_axes_by_the_same_angle():
    """Entries below the diagonal of the axes, eigenvalues over ten orders of magnitude.

    20 draws: the mean square along a diagonal has a relative standard deviation of 5 % (one place
    off the main one) to 10 % (30 places off). One scale for all tails is off by powers of ten.
    """
    rank, angle = 40, 0.1
    phi = torch.linalg.qr(draw(60, rank, seed=1)).Q * torch.logspace(0, -5, rank).double()
    form = ReflectedForm(
        CompressedStatistics(SufficientStatistics(phi.mT @ phi, phi[0], phi[0] @ phi[0], 60))
    )
    values = form.sums.values
    assert float(values[-1] / values[0]) == pytest.approx(1e-10, rel=1e-3)
    scales = WeightPriors(rotation=angle).tail_variances(values).sqrt()
    logs = torch.zeros(rank, dtype=torch.float64)
    squares = torch.stack(
        [
            form.weights(torch.cat([logs, scales * draw(len(scales), seed=seed)]), NOISE)
            .axes.tril(-1)
            .square()
            for seed in range(20)
        ]
    ).mean(0)
    for places in (1, 4, 10, 20, 30):
        mean = float(squares.diagonal(-places).mean())
        assert mean == pytest.approx(angle**2 / (rank - 1), rel=0.25), places
    assert float(squares[:, 0].sum().sqrt()) == pytest.approx(angle, rel=0.1)
    with pytest.raises(ConfigError, match="is an angle in radians"):
        WeightPriors(rotation=0.0)


def test_the_rotation_is_the_applied_one():
    _, _, _, form = turned(30, 6)
    reflectors, vector = form.reflectors(place(form)[6:]), draw(6, seed=9)
    torch.testing.assert_close(rotation_of(reflectors), loop(reflectors), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        rotation_of(reflectors).mT @ vector, reflect(reflectors, vector), rtol=0, atol=1e-12
    )
