"""Two classes under discrete weights: the bound, against a sum over every hypothesis."""

import pytest
import torch
from discrete_hypotheses import hypotheses, problem
from torch.autograd.functional import hessian, jacobian
from torch.nn.functional import logsigmoid

from gpx.bases import RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant
from gpx.methods.direct.logistic import logistic_fit
from gpx.models import DirectLogistic, WeightGrid
from gpx.objectives import DirectELBO, DirectLogisticBound

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def classes(n=9, seed=0):
    """Features (n, 4), labels -1 and 1 (n,), values (3,), log q (4, 3)."""
    features, targets, values, log_q, _ = problem(n, seed=seed)
    return features, targets.sign(), values, log_q


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_the_sum_over_hypotheses_and_below_the_expected_log_likelihood(seed):
    features, labels, values, log_q = classes(seed=seed)
    offset = 0.3 * labels
    found = logistic_fit(labels.unsqueeze(1) * features, offset, log_q, values)
    weights, log_mass = hypotheses(log_q, values)
    margins = labels * (0.3 + weights @ features.mT)
    mass = log_mass.exp()
    torch.testing.assert_close(found.value, -(mass @ (-margins).exp().sum(1)), **EXACT)
    assert float(found.value) < float(mass @ logsigmoid(margins).sum(1))


def test_the_bound_is_the_printed_one_whose_linear_terms_cancel():
    features, labels, values, log_q = classes()
    found = logistic_fit(labels.unsqueeze(1) * features, torch.zeros(9).double(), log_q, values)
    q = log_q.exp()
    means = q @ values
    zeros = labels > 0.0  # class 0 of the source has the sigmoid of +z
    printed = -means @ (features.mT @ (~zeros).double())
    for row, zero in zip(features, zeros, strict=True):
        sign = -1.0 if zero else 1.0
        product = (q * (sign * torch.outer(row, values)).exp()).sum(1).prod()
        printed = printed - (product - (0.0 if zero else row @ means))
    torch.testing.assert_close(found.value, printed, rtol=1e-10, atol=1e-10)


def test_the_gradient_is_that_of_the_bound_by_logits():
    features, labels, values, log_q = classes()
    signed, offset = labels.unsqueeze(1) * features, 0.1 * labels

    def bound(logits):
        factors = (-signed.unsqueeze(-1) * values).exp()
        logs = torch.einsum("mk,nmk->nm", logits.softmax(-1), factors).log()
        return -(logs.sum(1) - offset).exp().sum()

    want = jacobian(bound, log_q + 0.7)
    got = logistic_fit(signed, offset, log_q, values).by_logits
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_two_thousand_weights_of_large_features_neither_overflow_nor_vanish():
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(3, 2000, generator=draws, dtype=torch.float64) * 300.0
    log_q = torch.zeros(2000, 3).double()
    log_q[:, 1] = 2000.0  # all but certain zeros
    found = logistic_fit(
        features, torch.zeros(3).double(), log_q.log_softmax(-1), torch.arange(3.0) - 1.0
    )
    assert float(found.value) == pytest.approx(-3.0, rel=1e-9)
    assert bool(found.by_logits.isfinite().all())


def data(n=40):
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, generator=draws, dtype=torch.float64) * 4.0 - 2.0
    noise = torch.randn(n, generator=draws, dtype=torch.float64)
    return x, ((2.0 * x[:, 0]).sin() + 0.1 * noise).sign()


def made(x, y, *, num_basis=6, likelihood=None, outputscale=4.0, **options):
    model = DirectLogistic(
        kernel=RBF(1, lengthscale=0.7, outputscale=outputscale),
        mean=Constant(0.1),
        likelihood=Bernoulli() if likelihood is None else likelihood,
        basis=RandomFourier,
        num_basis=num_basis,
        **options,
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return model


def trained(model, x, y, steps=300):
    objective = DirectLogisticBound(len(x))
    optimiser = torch.optim.Adam([model.logits], lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        (-objective.evidence(model, x, y).value).backward()
        optimiser.step()
    return objective


def test_the_objective_is_below_the_log_evidence_and_batches_average_to_it():
    x, y = data(12)
    model = made(x, y, num_basis=4, weights=WeightGrid(3, 1.5))
    objective = trained(model, x, y, 50)
    whole = objective.full_evidence(model, x, y, batch_size=5)
    assert whole.kind == "lower_bound"
    model.zero_grad()
    exact = objective.evidence(model, x, y)
    exact.value.backward()
    slope = model.logits.grad.clone()
    torch.testing.assert_close(exact.value.detach(), whole.value, **EXACT)
    weights, log_prior = hypotheses(model.log_prior().expand(4, -1), model.values())
    latent = model.mean(x) + weights @ (model.basis(x) * model.scale).mT
    evidence = (log_prior + logsigmoid(y * latent).sum(1)).logsumexp(0)
    assert float(whole.value) < float(evidence.detach())
    # batches of four that part the rows: their mean is the whole, in value and gradient
    model.zero_grad()
    batches = [objective.evidence(model, x[i::3], y[i::3]).value for i in range(3)]
    torch.stack(batches).mean().backward()
    torch.testing.assert_close(torch.stack(batches).mean().detach(), whole.value, **EXACT)
    torch.testing.assert_close(model.logits.grad, slope, **EXACT)


def test_the_gradient_passes_finite_differences_under_a_mixture_of_priors():
    x, y = data(12)
    model = made(x, y, num_basis=4, weights=WeightGrid(5, 2.0, widths=[0.3, 1.0]))
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        model.logits += torch.randn(model.logits.shape, generator=draws, dtype=torch.float64)
    objective = DirectLogisticBound(12)
    objective.evidence(model, x, y).value.backward()
    way = torch.randn(model.logits.shape, generator=draws, dtype=torch.float64)
    ends = []
    for step in (1e-5, -2e-5):
        model.logits.data += step * way
        ends.append(float(objective.evidence(model, x, y).value.detach()))
    slope = (ends[0] - ends[1]) / 2e-5
    assert float((model.logits.grad * way).sum()) == pytest.approx(slope, rel=1e-6)


def test_second_derivatives_of_the_divergence_from_a_mixture_of_priors_are_right():
    x, y = data(12)
    model = made(x, y, num_basis=4, weights=WeightGrid(5, 2.0, widths=[0.6, 1.0]))
    grid = model.weights

    def known(logits):
        log_q = logits.log_softmax(-1)
        each = grid.log_shares + (log_q.exp() @ grid.log_components.mT).sum(0)
        return each.logsumexp(0) - (log_q.exp() * log_q).sum()

    def found(logits):
        model.logits = logits
        return model.bound_terms(x, y)["weights"]

    at = model.logits.detach().clone()
    del model.logits  # a parameter takes no tensor with a graph in its place
    torch.testing.assert_close(hessian(found, at), hessian(known, at), **EXACT)


def test_q_starts_at_the_prior_or_narrower_where_the_prior_is_far_too_wide():
    """Training gets below the bound of weights that are all zero, which charges one nat a row."""
    x, y = data()
    model = made(x, y)
    assert torch.equal(model.logits.detach(), model.log_prior().expand(6, -1))
    for outputscale in (100.0, 1e6):
        model = made(x, y, outputscale=outputscale)
        assert "starts narrower than the prior" in model.note
        zeros = -len(y) + 6.0 * float(model.log_prior()[model.weights.zero])
        started = DirectLogisticBound(len(y)).full_evidence(model, x, y, batch_size=40)
        assert float(started.value) > 10.0 * zeros
        trained(model, x, y)
        found = DirectLogisticBound(len(y)).full_evidence(model, x, y, batch_size=40)
        assert float(found.value) > zeros - 1.0
    with pytest.raises(ConfigError, match="overflows: give the kernel a smaller outputscale"):
        made(x, y, outputscale=1e8, weights=WeightGrid(values=[-1.0, 1.0], sparse=False))


def test_training_separates_the_classes_and_the_posterior_predicts_them():
    x, y = data()
    model = made(x, y, num_basis=20)
    before = float(DirectLogisticBound(len(x)).evidence(model, x, y).value.detach())
    trained(model, x, y)
    assert float(DirectLogisticBound(len(x)).evidence(model, x, y).value.detach()) > before + 5.0
    law = model.condition(x, y).predictive(x, model.likelihood)
    assert float((law.mode == y).double().mean()) >= 0.9
    assert 0.0 < model.sparsity() == model.facts()["sparsity"] < 1.0


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda: made(*data(), likelihood=Bernoulli("probit")), "link is probit"),
        (lambda: made(data()[0], (data()[1] + 1.0) / 2.0), "labels -1 and 1 of two classes"),
        (lambda: DirectLogisticBound(0), "num_data"),
        (
            lambda: DirectLogisticBound(40).evidence(made(*data(), likelihood=Gaussian()), *data()),
            "needs the Bernoulli likelihood, got Gaussian",
        ),
        (lambda: DirectELBO().evidence(made(*data()), *data()), "use model=DirectLogistic"),
    ],
)
def test_invalid_setups_are_refused(broken, words):
    with pytest.raises(ConfigError, match=words) as caught:
        broken()
    assert "\n" not in str(caught.value)
