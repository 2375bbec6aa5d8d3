"""Classes in an order: dense integrals, tails, the two-class limit, runs from labels to metrics."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

import gpx
from gpx.errors import ConfigError, DataError, ShapeError
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Ordinal
from gpx.means import Zero
from gpx.models import ExpectationPropagationGP, LaplaceGP
from gpx.objectives import EPEvidence, LaplaceEvidence

LINE = torch.linspace(-12.0, 12.0, 24_001, dtype=torch.float64)
MASS = torch.exp(-0.5 * LINE.square()) / torch.exp(-0.5 * LINE.square()).sum()
LINKS = {"logit": stats.logistic.cdf, "probit": stats.norm.cdf}
Y = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)


def with_cuts(link, cuts, num_nodes=20):
    """A likelihood with these cut points."""
    likelihood = Ordinal(len(cuts) + 1, link, num_nodes).double()
    given = torch.tensor(cuts, dtype=torch.float64)
    with torch.no_grad():
        likelihood.first_cut.copy_(given[0])
        likelihood.gaps = given.diff()
    return likelihood


@pytest.mark.parametrize("link", LINKS)
def test_probabilities_are_differences_of_the_link(link):
    likelihood = with_cuts(link, [-1.0, 0.2, 1.5])
    f = torch.linspace(-3.0, 3.0, 7).double()
    edges = np.array([-np.inf, -1.0, 0.2, 1.5, np.inf])
    below = LINKS[link](edges[:, None] - f.numpy())
    for c in range(4):
        expected = torch.from_numpy(below[c + 1] - below[c])
        found = likelihood.log_prob(torch.full_like(f, c), f).exp().detach()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


def exact(link, label, f):
    """log P(y = label | f) for cut points -1, 0.2 and 1.5, with 400 digits."""
    below = mpmath.ncdf if link == "probit" else lambda z: 1 / (1 + mpmath.exp(-z))
    cuts = [-1, mpmath.mpf("0.2"), mpmath.mpf("1.5")]
    with mpmath.workdps(400):
        upper = below(cuts[label] - f) if label < 3 else mpmath.mpf(1)
        return mpmath.log(upper - (below(cuts[label - 1] - f) if label > 0 else 0))


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("far", [-30.0, -7.0, 7.0, 30.0])
def test_both_tails_keep_their_digits(link, far):
    likelihood = with_cuts(link, [-1.0, 0.2, 1.5])
    f = torch.full((4,), far, dtype=torch.float64, requires_grad=True)
    found = likelihood.log_prob(Y, f)
    (slopes,) = torch.autograd.grad(found.sum(), f)
    found = found.detach()
    expected = [float(exact(link, label, far)) for label in range(4)]
    # cut points were made of a first one and gaps in float64 by way of a softplus
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-15)
    with torch.no_grad():
        gradient, information = likelihood.curvature(Y, f)
    torch.testing.assert_close(slopes, gradient, rtol=1e-8, atol=1e-12)
    single = likelihood.float().log_prob(Y.float(), f.detach().float()).detach()
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-4, atol=1e-6)
    for label in range(4):
        with mpmath.workdps(400):
            step = mpmath.mpf(10) ** -60
            left, here, right = (exact(link, label, far + k * step) for k in (-1, 0, 1))
            second = (left - 2 * here + right) / step**2
        assert float(information[label]) == pytest.approx(-float(second), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("deviation", [0.2, 1.0, 1.9, 2.1, 5.0])
def test_expectations_and_predictions_against_dense_integrals(link, deviation):
    # the probit link has no rule of its own where f is wide
    likelihood = with_cuts(link, [-1.0, 0.2, 1.5], 20 if link == "logit" else 100)
    mean = torch.tensor([-1.2, 0.3, 1.0, -0.4]).double()
    variance = torch.full_like(mean, deviation**2)
    f = mean + deviation * LINE[:, None]
    with torch.no_grad():
        expected = MASS @ likelihood.log_prob(Y, f)
        found = likelihood.expected_log_prob(Y, mean, variance)
        torch.testing.assert_close(found, expected, rtol=0, atol=3e-5)
        law = likelihood.predictive(mean, variance)
        for c in range(4):
            label = torch.full_like(mean, c)
            dense = MASS @ likelihood.log_prob(label, f).exp()
            torch.testing.assert_close(law.probs[:, c], dense, rtol=0, atol=3e-5)


def test_a_cut_point_at_zero_is_bernoulli():
    """With the highest cut point far off, the two lower classes are the signs of a Bernoulli."""
    mean = torch.tensor([-0.4, 0.9]).double()
    variance = torch.tensor([0.3, 2.0]).double()
    for link in LINKS:
        three, two = with_cuts(link, [0.0, 60.0]), Bernoulli(link).double()
        for c, sign in ((0.0, -1.0), (1.0, 1.0)):
            label, signs = torch.full_like(mean, c), torch.full_like(mean, sign)
            for ask in ("log_prob", "expected_log_prob"):
                given = (mean,) if ask == "log_prob" else (mean, variance)
                torch.testing.assert_close(
                    getattr(three, ask)(label, *given).detach(), getattr(two, ask)(signs, *given)
                )


def test_cut_points_start_where_classes_are_about_as_likely():
    for link in LINKS:
        probs = Ordinal(5, link).predictive(torch.zeros(1), torch.ones(1)).probs
        assert (probs - 0.2).abs().max() < 0.02


def grades(rows=60, seed=0):
    """Inputs, and classes 0, 1, 2 by cut points -0.7 and 0.7 on 2 sin(2 x) seen through noise."""
    draws = np.random.default_rng(seed)
    x = draws.uniform(-2.0, 2.0, (rows, 1))
    seen = 2.0 * np.sin(2.0 * x[:, 0]) + draws.logistic(size=rows)
    return x, (seen > -0.7).astype(float) + (seen > 0.7)


def test_evidences_agree_with_importance_sampling():
    """Both approximations on few rows, against an average over draws of the prior."""
    x, y = (torch.from_numpy(part) for part in grades(6))
    kernel = RBF(lengthscale=1.0, outputscale=1.0)
    root = torch.linalg.cholesky(
        kernel.double().evaluate(x).detach() + 1e-9 * torch.eye(6).double()
    )
    draws = torch.randn(200_000, 6, generator=torch.Generator().manual_seed(0)).double()
    likelihood = with_cuts("probit", [-0.7, 0.7])
    with torch.no_grad():
        fit = likelihood.log_prob(y, draws @ root.mT).sum(1)
        truth = float(torch.logsumexp(fit, 0) - math.log(len(draws)))
        for model, objective, gap in (
            (LaplaceGP, LaplaceEvidence(), 0.1),
            (ExpectationPropagationGP, EPEvidence(), 0.02),
        ):
            made = model(kernel=kernel, mean=Zero(), likelihood=likelihood).double()
            assert float(objective.evidence(made, x, y).value) == pytest.approx(truth, abs=gap)


def test_the_gradient_of_the_evidence_reaches_the_cut_points():
    x, y = (torch.from_numpy(part) for part in grades(15))
    likelihood = with_cuts("logit", [-0.7, 0.7])
    model = LaplaceGP(kernel=RBF(), mean=Zero(), likelihood=likelihood).double()
    objective = LaplaceEvidence()
    objective.evidence(model, x, y).value.backward()
    found = float(likelihood.first_cut.grad)
    ends = []
    for move in (1e-4, -1e-4):
        with torch.no_grad():
            likelihood.first_cut.add_(move)
            ends.append(float(objective.evidence(model, x, y).value))
            likelihood.first_cut.sub_(move)
    assert found == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5)


NAMES = np.array(["low", "middle", "high"])
QUICK = ("approx=laplace", "kernel=rbf", "trainer.max_steps=8", "trainer.baselines=false")


def test_texts_in_an_order_become_labels_probabilities_and_metrics():
    x, y = grades(80)
    held = slice(50, None)
    texts = NAMES[y.astype(int)]
    fitted = gpx.fit(
        *(x[:50], texts[:50], *QUICK, "likelihood=ordinal", "likelihood.order=[low,middle,high]"),
        **{"test": (x[held], texts[held]), "quiet": True, "keep": False},
    )
    assert fitted.model.labels == ("low", "middle", "high")
    label, probability = fitted.predict_classes(x[held])
    np.testing.assert_allclose(probability.sum(1), 1.0, rtol=1e-12)
    code = np.array([list(NAMES).index(one) for one in label])
    assert (code == probability.argmax(1)).all()
    assert fitted.metrics["test.mae"] == pytest.approx(np.abs(code - y[held]).mean())
    assert fitted.metrics["test.accuracy"] == pytest.approx((code == y[held]).mean())
    assert fitted.metrics["test.mnlp"] < math.log(3.0)
    drawn = fitted.sample(x[held], 3, targets=True)
    assert set(drawn.ravel()) <= set(NAMES)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (None, "whose order is not known"),
        ("[low,high]", "likelihood.order lacks 'middle': name each"),
        ("[low,middle,high,top]", "likelihood.order has 'top', which no row has"),
        ("[low,low,middle,high]", "likelihood.order has 'low' 2 times"),
    ],
)
def test_orders_that_are_none_are_refused_in_a_sentence(order, said):
    x, y = grades(40)
    options = [*QUICK, "likelihood=ordinal"]
    options += [] if order is None else [f"likelihood.order={order}"]
    with pytest.raises(DataError, match=said):
        gpx.fit(x, NAMES[y.astype(int)], *options, quiet=True, keep=False)


def test_other_targets_are_refused_in_a_sentence():
    x, y = grades(40)
    fits = {
        "expected a class label": y + 0.5,
        "must be three or more, got 2": (y > 1.0).astype(float),
        "which are already ordered": None,
        "no training row is of class 3": np.where(np.arange(40) == 0, 3.0, y),
    }
    for said, targets in fits.items():
        extra = ["likelihood.order=[a,b,c]"] if targets is None else []
        given = y if targets is None else targets
        data, more = (x, given), {}
        if said.startswith("no training"):
            data, more = (x[1:], given[1:]), {"test": (x[:1], given[:1])}
        with pytest.raises((ConfigError, DataError), match=said):
            gpx.fit(*data, *QUICK, "likelihood=ordinal", *extra, **more, quiet=True, keep=False)


def test_labels_and_links_that_make_no_sense_are_refused():
    with pytest.raises(ShapeError, match="labels reach from 0 to 4, expected 0 to 3"):
        Ordinal(4).log_prob(Y + torch.tensor([0.0, 0, 0, 1]), Y)
    with pytest.raises(ConfigError, match="expected one of logit, probit"):
        Ordinal(3, "cauchit")
    with pytest.raises(ConfigError, match="order names 2 classes, and there are 3"):
        Ordinal(3, order=["a", "b"])


def test_certain_and_wrong_costs_its_logit():
    """P(y = c) for f at 40, of the lowest and of an inner class, far below float32 rounding."""
    likelihood = Ordinal(4)
    f = torch.tensor([40.0, -40.0])
    found = likelihood.predictive(f, torch.full_like(f, 1e-6))
    for label in range(4):
        y = torch.full_like(f, label)
        want = likelihood.log_prob(y, f)
        torch.testing.assert_close(found.log_prob(y), want, rtol=1e-3, atol=1e-3)


def test_the_probit_link_has_closed_moments():
    assert Ordinal(3, "probit").closed_moments
    assert not Ordinal(3).closed_moments
