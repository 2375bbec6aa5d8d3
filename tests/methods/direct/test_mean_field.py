"""The bound of discrete weights and its gradient, against a sum over every hypothesis."""

import pytest
import torch
from discrete_hypotheses import hypotheses, log_likelihood, problem, statistics_of
from torch.autograd.functional import jacobian

from gpx.methods.direct.mean_field import (
    bound,
    cumulants,
    discrete_noise_terms,
    draw_codes,
    known_noise_terms,
    squared_error,
)

EXACT = {"rtol": 1e-12, "atol": 1e-12}
VARIANCES = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
NOISE = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
NOISE_PRIOR = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64).log()


def enumerated(features, targets, values, log_q, log_prior, log_noise, variances, noise_prior):
    """E log p(y, w, s) - E log q, by all k^m k_s hypotheses."""
    weights, log_mass = hypotheses(log_q, values)
    log_prior_mass = hypotheses(log_prior.expand_as(log_q), values)[1]
    total = 0.0
    for log_share, prior, variance in zip(log_noise, noise_prior, variances.tolist(), strict=True):
        term = log_likelihood(features, targets, weights, variance)
        term = term + log_prior_mass - log_mass + prior - log_share
        total = total + (log_share.exp() * log_mass.exp() * term).sum()
    return total


def test_the_bound_is_the_sum_over_all_hypotheses_and_noise_variances():
    features, targets, values, log_q, log_prior = problem()
    sums = statistics_of(features, targets)
    noise = discrete_noise_terms(NOISE, VARIANCES, NOISE_PRIOR, len(targets))
    found = bound(sums, log_q, values, log_prior, noise, (VARIANCES, NOISE_PRIOR))
    want = enumerated(features, targets, values, log_q, log_prior, NOISE, VARIANCES, NOISE_PRIOR)
    torch.testing.assert_close(found.value, want, **EXACT)
    parts = found.fit + found.constant + found.weights + found.noise
    torch.testing.assert_close(found.value, parts, **EXACT)


def test_the_bound_of_a_known_noise_variance_is_that_of_a_grid_of_one():
    features, targets, values, log_q, log_prior = problem()
    sums = statistics_of(features, targets)
    one, certain = VARIANCES[1:2], torch.zeros(1).double()
    known = bound(sums, log_q, values, log_prior, known_noise_terms(one[0], len(targets)))
    noise = discrete_noise_terms(certain, one, certain, len(targets))
    grid = bound(sums, log_q, values, log_prior, noise, (one, certain))
    torch.testing.assert_close(known.value, grid.value, **EXACT)
    torch.testing.assert_close(known.by_logits, grid.by_logits, **EXACT)
    torch.testing.assert_close(grid.by_noise_logits, certain, **EXACT)
    want = enumerated(features, targets, values, log_q, log_prior, certain, one, certain)
    torch.testing.assert_close(known.value, want, **EXACT)


def test_the_bound_stays_below_the_log_evidence_of_all_hypotheses():
    features, targets, values, log_q, log_prior = problem()
    sums = statistics_of(features, targets)
    variance = VARIANCES[1]
    found = bound(sums, log_q, values, log_prior, known_noise_terms(variance, len(targets)))
    weights, log_mass = hypotheses(log_prior.expand_as(log_q), values)
    joint = log_likelihood(features, targets, weights, float(variance)) + log_mass
    assert float(found.value) < float(joint.logsumexp(0))


def test_gradients_are_those_of_the_enumerated_bound():
    features, targets, values, log_q, log_prior = problem(m=3)
    sums = statistics_of(features, targets)

    def enumerated_bound(logits, noise_logits, values):
        return enumerated(
            features,
            targets,
            values,
            logits.log_softmax(-1),
            log_prior,
            noise_logits.log_softmax(-1),
            VARIANCES,
            NOISE_PRIOR,
        )

    # the logits of a softmax are free up to a constant: shift them
    want = jacobian(enumerated_bound, (log_q + 0.3, NOISE - 1.0, values))
    noise = discrete_noise_terms(NOISE, VARIANCES, NOISE_PRIOR, len(targets))
    found = bound(sums, log_q, values, log_prior, noise, (VARIANCES, NOISE_PRIOR))
    got = found.by_logits, found.by_noise_logits, found.by_values.sum(0)
    for mine, oracle in zip(got, want, strict=True):
        torch.testing.assert_close(mine, oracle, **EXACT)


def test_components_are_a_leading_dimension_and_every_weight_may_have_values_of_its_own():
    features, targets, values, log_q, _ = problem()
    sums = statistics_of(features, targets)
    own = values + torch.arange(4.0).double().unsqueeze(1)
    both = torch.stack([log_q.exp(), log_q.roll(1, 0).exp()])
    found = squared_error(sums, both, own)
    for number, q in enumerate(both):
        alone = squared_error(sums, q, own)
        for mine, oracle in zip(found, alone, strict=True):
            torch.testing.assert_close(mine[number], oracle, **EXACT)
        weights, log_mass = hypotheses(q.log(), torch.arange(3))
        chosen = torch.stack([own[j][weights[:, j]] for j in range(4)], 1)
        error = (targets - chosen @ features.mT).square().sum(1)
        torch.testing.assert_close(found.value[number], log_mass.exp() @ error, **EXACT)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_cumulants_of_weighted_sums_are_those_of_all_hypotheses(order):
    features, _, values, log_q, _ = problem()
    weights, log_mass = hypotheses(log_q, values)
    latent = weights @ features.mT
    mean = log_mass.exp() @ latent
    want = mean if order == 1 else log_mass.exp() @ (latent - mean) ** order
    got = features**order @ cumulants(log_q.exp(), values)[order - 1]
    torch.testing.assert_close(got, want, **EXACT)


def test_draws_of_a_mixture_come_from_all_components_by_their_shares():
    shares = torch.tensor([0.3, 0.7], dtype=torch.float64)
    # the first component is all at the first value, the second all at the last
    sure = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    codes = draw_codes(
        shares, sure.unsqueeze(1).expand(2, 4, 3), 4000, torch.Generator().manual_seed(0)
    )
    assert bool((codes == codes[:, :1]).all())  # one component for all weights of a draw
    assert set(codes[:, 0].tolist()) == {0, 2}
    # four standard deviations of a share of 4,000 draws
    assert abs(float((codes[:, 0] == 2).double().mean()) - 0.7) < 4.0 * (0.21 / 4000) ** 0.5


def test_draws_of_one_component_have_its_probabilities():
    q = torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.05, 0.05]], dtype=torch.float64)
    codes = draw_codes(q.new_ones(1), q[None], 8000, torch.Generator().manual_seed(0))
    found = torch.stack([(codes == level).double().mean(0) for level in range(3)], 1)
    assert bool(((found - q).abs() < 4.0 * (q * (1.0 - q) / 8000).sqrt()).all())
