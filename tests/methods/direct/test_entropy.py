"""Entropy bounds and sampled gradients of mixtures, against a sum over every hypothesis."""

import itertools

import pytest
import torch

from gpx.methods.direct.mixture_elbo import entropy_bound, entropy_surrogate, log_density

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def mixture(r=3, m=4, k=3, seed=0):
    """Logits of shares (r,), of components (r, m, k) and of a tangent (m, k)."""
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draws).double() for shape in ((r,), (r, m, k), (m, k))]


def normalised(shares, logits):
    return shares.log_softmax(0), logits.log_softmax(-1)


def all_codes(m=4, k=3):
    return torch.tensor(list(itertools.product(range(k), repeat=m)))


def entropy(log_shares, log_q):
    logs = log_density(log_shares, log_q, all_codes(*log_q.shape[1:]))
    return -(logs.exp() * logs).sum()


def test_the_density_sums_to_one_and_is_that_of_kronecker_products():
    shares, log_q = normalised(*mixture()[:2])
    logs = log_density(shares, log_q, all_codes())
    want = 0.0
    for share, parts in zip(shares.exp(), log_q.exp(), strict=True):
        whole = torch.ones(1).double()
        for part in parts:
            whole = torch.kron(whole, part)
        want = want + share * whole
    torch.testing.assert_close(logs.exp(), want, **EXACT)
    assert float(logs.exp().sum()) == pytest.approx(1.0, abs=1e-14)


def test_the_bound_is_the_tangent_at_every_hypothesis_and_below_the_entropy():
    shares, logits, tangent = mixture()
    shares, log_q = normalised(shares, logits)
    q = log_density(shares, log_q, all_codes()).exp()
    log_a = tangent[torch.arange(4), all_codes()].sum(1)
    want = 1.0 - q @ log_a - (q.square() / log_a.exp()).sum()
    torch.testing.assert_close(entropy_bound(shares, log_q, tangent), want, **EXACT)
    marginals = (shares.exp().view(-1, 1, 1) * log_q.exp()).sum(0).log()
    bounds = [float(entropy_bound(shares, log_q, a)) for a in (tangent, marginals)]
    assert bounds[0] < bounds[1] < float(entropy(shares, log_q))


def test_the_bound_is_the_entropy_where_the_mixture_is_its_tangent():
    _, logits, _ = mixture()
    shares, log_q = normalised(torch.zeros(1).double(), logits[:1])
    torch.testing.assert_close(
        entropy_bound(shares, log_q, log_q[0]), entropy(shares, log_q), **EXACT
    )
    twice = torch.zeros(2).double().log_softmax(0), log_q.expand(2, -1, -1)
    torch.testing.assert_close(entropy_bound(*twice, log_q[0]), entropy(shares, log_q), **EXACT)


def test_two_thousand_weights_neither_overflow_nor_vanish():
    shares, logits, _ = mixture(m=2000, k=15)
    shares, log_q = normalised(shares, logits)
    alone = entropy_bound(shares[:1] * 0.0, log_q[:1], log_q[0])
    want = -(log_q[0].exp() * log_q[0]).sum()
    torch.testing.assert_close(alone, want, rtol=1e-12, atol=0.0)
    codes = torch.randint(15, (1, 2000), generator=torch.Generator().manual_seed(0))
    each = log_q[:, torch.arange(2000), codes[0]].sum(1) + shares  # far below the smallest number
    torch.testing.assert_close(
        log_density(shares, log_q, codes)[0], each.logsumexp(0), rtol=1e-12, atol=0.0
    )


@pytest.mark.parametrize("baseline", [1.0, -3.7])
def test_the_expected_gradient_of_the_surrogate_is_that_of_the_entropy(baseline):
    shares, logits, _ = mixture(r=2, m=3)
    shares.requires_grad_()
    logits.requires_grad_()
    exact = torch.autograd.grad(entropy(*normalised(shares, logits)), (shares, logits))
    expected = [torch.zeros_like(shares), torch.zeros_like(logits)]
    for code in all_codes(3, 3):
        logs = log_density(*normalised(shares, logits), code[None])
        found = torch.autograd.grad(entropy_surrogate(logs, baseline), (shares, logits))
        for total, part in zip(expected, found, strict=True):
            total += float(logs.detach().exp()) * part
    for mine, oracle in zip(expected, exact, strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-10, atol=1e-12)


def test_gradients_of_the_bound_pass_finite_differences():
    logits = [part.requires_grad_() for part in mixture()]

    def bound(shares, logits, tangent):
        return entropy_bound(*normalised(shares, logits), tangent)

    assert torch.autograd.gradcheck(bound, logits)


def test_where_log_q_is_constant_the_baseline_takes_all_of_the_gradient_away():
    logits = torch.zeros(1, 4, 3).double().requires_grad_()
    logs = log_density(*normalised(torch.zeros(1).double(), logits), all_codes()[[5, 17, 60]])
    surrogate = entropy_surrogate(logs, 4.0 * torch.tensor(3.0).double().log())
    (gradient,) = torch.autograd.grad(surrogate, logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0.0, atol=1e-14)
