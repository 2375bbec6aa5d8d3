"""The bound of discrete weights and its gradient, against a sum over every hypothesis."""

import pytest
import torch
from discrete_hypotheses import (
    hypotheses,
    log_likelihood,
    mean_field_terms,
    problem,
    statistics_of,
)
from torch.autograd.functional import hessian, jacobian

from gpx.methods.direct.mean_field import (
    cumulants,
    discrete_noise_terms,
    draw_codes,
    known_noise_terms,
    squared_error,
    total,
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
    noise = discrete_noise_terms(NOISE, VARIANCES, NOISE_PRIOR, len(targets))
    terms = mean_field_terms(statistics_of(features, targets), log_q, values, log_prior, noise)
    want = enumerated(features, targets, values, log_q, log_prior, NOISE, VARIANCES, NOISE_PRIOR)
    torch.testing.assert_close(total(terms), want, **EXACT)
    assert list(terms) == ["fit", "constant", "weights", "noise"]


def test_the_bound_of_a_known_noise_variance_is_that_of_a_grid_of_one():
    features, targets, values, log_q, log_prior = problem()
    sums = statistics_of(features, targets)
    one, certain = VARIANCES[1:2], torch.zeros(1).double()
    known = known_noise_terms(one[0], len(targets))
    grid = discrete_noise_terms(certain, one, certain, len(targets))
    want = enumerated(features, targets, values, log_q, log_prior, certain, one, certain)
    for noise in (known, grid):
        found = total(mean_field_terms(sums, log_q, values, log_prior, noise))
        torch.testing.assert_close(found, want, **EXACT)


def test_the_bound_stays_below_the_log_evidence_of_all_hypotheses():
    features, targets, values, log_q, log_prior = problem()
    noise = known_noise_terms(VARIANCES[1], len(targets))
    terms = mean_field_terms(statistics_of(features, targets), log_q, values, log_prior, noise)
    weights, log_mass = hypotheses(log_prior.expand_as(log_q), values)
    joint = log_likelihood(features, targets, weights, float(VARIANCES[1])) + log_mass
    assert float(total(terms)) < float(joint.logsumexp(0))


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

    def bound(logits, noise_logits, values):
        log_noise = noise_logits.log_softmax(-1)
        noise = discrete_noise_terms(log_noise, VARIANCES, NOISE_PRIOR, len(targets))
        return total(mean_field_terms(sums, logits, values, log_prior, noise))

    # the logits of a softmax are free up to a constant: shift them
    at = log_q + 0.3, NOISE - 1.0, values
    found, want = jacobian(bound, at), jacobian(enumerated_bound, at)
    for mine, oracle in zip(found, want, strict=True):
        torch.testing.assert_close(mine, oracle, **EXACT)


def test_second_derivatives_are_those_of_the_enumerated_error():
    features, targets, values, log_q, _ = problem(m=3)
    sums = statistics_of(features, targets)

    def enumerated_error(logits, values):
        weights, log_mass = hypotheses(logits.log_softmax(-1), values)
        return log_mass.exp() @ (targets - weights @ features.mT).square().sum(1)

    at = log_q, values
    found = hessian(lambda logits, v: squared_error(sums, logits.softmax(-1), v), at)
    want = hessian(enumerated_error, at)
    for mine, oracle in zip(sum(found, ()), sum(want, ()), strict=True):
        torch.testing.assert_close(mine, oracle, **EXACT)


def test_components_are_a_leading_dimension_and_every_weight_may_have_values_of_its_own():
    features, targets, values, log_q, _ = problem()
    sums = statistics_of(features, targets)
    own = values + torch.arange(4.0).double().unsqueeze(1)
    both = torch.stack([log_q.exp(), log_q.roll(1, 0).exp()])
    found = squared_error(sums, both, own)
    slopes = jacobian(lambda q, values: squared_error(sums, q, values).sum(), (both, own))
    each = [jacobian(lambda q, v: squared_error(sums, q, v), (q, own)) for q in both]
    torch.testing.assert_close(slopes[0], torch.stack([by_q for by_q, _ in each]), **EXACT)
    torch.testing.assert_close(slopes[1], sum(by_values for _, by_values in each), **EXACT)
    for number, q in enumerate(both):
        torch.testing.assert_close(found[number], squared_error(sums, q, own), **EXACT)
        weights, log_mass = hypotheses(q.log(), torch.arange(3))
        chosen = torch.stack([own[j][weights[:, j]] for j in range(4)], 1)
        error = (targets - chosen @ features.mT).square().sum(1)
        torch.testing.assert_close(found[number], log_mass.exp() @ error, **EXACT)


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
