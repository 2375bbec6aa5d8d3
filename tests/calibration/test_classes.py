"""Recalibration of class probabilities: what it may change, what it must not, what it finds."""

import math
import warnings

import pytest
import torch
from draws import draws
from torch.distributions import Bernoulli, Categorical, Normal
from torch.nn.functional import one_hot

from gpx.calibration import Isotonic, Platt, Temperature, held_out_rows
from gpx.calibration.base import in_words
from gpx.errors import ConfigError, DataError
from gpx.likelihoods.bernoulli import Sign

pytestmark = pytest.mark.usefixtures("float64_by_default")


def several(temperature=3.0, n=2000, seed=0):
    """Predictions that are ``temperature`` times too sharp, and classes drawn from true ones."""
    logits = torch.randn(n, 4, generator=draws(seed))
    classes = torch.multinomial(logits.softmax(1), 1, generator=draws(seed + 1)).squeeze(1)
    return Categorical(logits=temperature * logits), classes.to(logits)


def two(slope=3.0, shift=0.5, n=2000, seed=0):
    """P(y = 1) = sigmoid(z), predicted as sigmoid(slope z + shift)."""
    z = torch.randn(n, generator=draws(seed))
    y = 2.0 * torch.bernoulli(z.sigmoid(), generator=draws(seed + 1)) - 1.0
    return Sign((slope * z + shift).sigmoid()), y


@pytest.mark.parametrize("temperature", [0.3, 3.0])
def test_a_temperature_is_found_again(temperature):
    """The standard error of log T at 2,000 rows is about 0.05: false alarm 1e-4."""
    predictive, y = several(temperature)
    made = Temperature()
    made.fit(predictive, y)
    assert made.facts()["temperature"] == pytest.approx(temperature, rel=0.2)
    again = Temperature()
    again.fit(made(predictive), y)
    # below one the prior still pulls, by the square of its share of the information
    assert again.facts()["temperature"] == pytest.approx(1.0, abs=1e-4 if temperature > 1 else 0.01)


def test_a_temperature_is_where_the_gradient_vanishes():
    predictive, y = several()
    made = Temperature()
    made.fit(predictive, y)
    log_temperature = made.log_temperature.clone().requires_grad_()
    logits = predictive.logits * torch.exp(-log_temperature)
    loss = -Categorical(logits=logits).log_prob(y).mean()
    below = log_temperature.clamp_max(0.0)
    loss = loss + 0.5 * (below / math.log(2.0)).square() / len(y)  # of the prior
    (gradient,) = torch.autograd.grad(loss, log_temperature)
    assert abs(float(gradient)) < 1e-6


@pytest.mark.parametrize("rows", [20, 2000])
def test_rows_that_are_all_right_do_not_make_a_temperature_of_zero(rows):
    made = Temperature()
    made.fit(Sign(torch.full((rows,), 0.9).double()), torch.ones(rows))
    mistake = float(made(Sign(torch.tensor([0.9]).double())).log_prob(-torch.ones(1)))
    assert -2.0 * math.log(rows) < mistake < math.log(0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_most_probable_class_stays_under_a_temperature(dtype):
    predictive, y = several()
    predictive = Categorical(probs=predictive.probs.to(dtype))
    made = Temperature()
    made.fit(predictive, y)
    found = made(predictive)
    assert found.probs.dtype == dtype
    assert torch.equal(found.probs.argmax(1), predictive.probs.argmax(1))


MADE = {
    "Temperature": (Temperature, several),
    "Temperature of signs": (Temperature, two),
    "Platt": (Platt, two),
    "Platt of several": (Platt, several),
    "Isotonic": (Isotonic, several),
    "Isotonic of signs": (Isotonic, two),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_held_out_rows_become_no_less_likely(name, seed):
    make, problem = MADE[name]
    predictive, y = problem(seed=seed)
    made = make()
    made.fit(predictive, y)
    after, before = made(predictive), predictive
    assert after.log_prob(y).mean() >= before.log_prob(y).mean() - 1e-12
    if after.probs.ndim == 2:
        torch.testing.assert_close(after.probs.sum(1), torch.ones(len(y)))
    # and none the worse where the model was right
    predictive, y = problem(1.0, 0.0, seed=seed) if problem is two else problem(1.0, seed=seed)
    made.fit(predictive, y)
    assert made(predictive).log_prob(y).mean() >= predictive.log_prob(y).mean() - 1e-12


@pytest.mark.parametrize("name", MADE)
def test_others_are_predicted_better(name):
    make, problem = MADE[name]
    made = make()
    made.fit(*problem())
    predictive, y = problem(seed=40)
    assert float(made(predictive).log_prob(y).mean() - predictive.log_prob(y).mean()) > 0.1


@pytest.mark.parametrize("make", [Temperature, Platt, Isotonic])
def test_the_order_of_two_class_probabilities_stays(make):
    predictive, y = two()
    made = make()
    made.fit(predictive, y)
    p = torch.linspace(0.001, 0.999, 500)
    found = made(Sign(p)).probs
    assert bool((found.diff() >= 0.0).all())
    assert make is Isotonic or bool((found.diff() > 0.0).all())


def test_slopes_and_offsets_of_several_classes_are_found_again():
    """Four standard errors of 0.06 at most at 20,000 rows: a false alarm once in 2,000."""
    slopes, offsets = torch.tensor([0.5, 1.0, 2.0, 1.5]), torch.tensor([1.0, -0.5, 0.0, -0.5])
    log_probabilities = torch.randn(20_000, 4, generator=draws()).log_softmax(1)
    true = (slopes * log_probabilities + offsets).softmax(1)
    classes = torch.multinomial(true, 1, generator=draws(1)).squeeze(1).double()
    made = Platt()
    made.fit(Categorical(logits=log_probabilities), classes)
    torch.testing.assert_close(made.coefficients[0], slopes, rtol=0, atol=0.24)
    torch.testing.assert_close(made.coefficients[1], offsets, rtol=0, atol=0.24)
    assert made.facts()["slope.2"] == float(made.coefficients[0, 2])


def test_a_class_without_a_held_out_row_keeps_a_probability():
    predictive, y = several(n=60)
    seen = y != 3.0
    some = Categorical(probs=predictive.probs[seen])
    made = Platt()
    made.fit(some, y[seen])
    assert bool(made.coefficients.isfinite().all())
    assert bool((made(predictive).probs[:, 3] > 0.0).all())


def test_twenty_rows_of_each_of_ten_classes_are_enough():
    """Targets of a class must not be drawn in so far that nothing fits them better."""
    logits = 2.0 * torch.randn(1200, 10, generator=draws())
    y = torch.multinomial(logits.softmax(1), 1, generator=draws(1)).squeeze(1).double()
    sharp = Categorical(logits=2.0 * logits)
    made = Platt()
    made.fit(Categorical(probs=sharp.probs[:200]), y[:200])
    before, after = sharp.log_prob(y)[200:].mean(), made(sharp).log_prob(y)[200:].mean()
    assert float(after) > 0.9 * float(before)


def test_a_confident_model_of_many_classes_is_still_recalibrated():
    """Sixteen rows of a class say nothing against 97 % of its rows being right."""
    draw = draws(3)
    classes = torch.randint(10, (160,), generator=draw)
    logits = 5.0 * one_hot(classes, 10).double() + torch.randn(160, 10, generator=draw).double()
    predictive, y = Categorical(logits=0.7 * logits), classes.double()
    made = Platt()
    made.fit(predictive, y)
    assert float(made.coefficients[0].min()) > 1.0
    assert made(predictive).log_prob(y).mean() > predictive.log_prob(y).mean() + 0.01


def test_facts_of_many_classes_are_a_few_words():
    assert in_words({"temperature": 0.60261}) == "temperature 0.6026"
    facts = {"slope.0": 1.5, "slope.1": 0.5, "intercept.0": -1.0, "intercept.1": 2.0}
    assert in_words(facts) == "slope 0.5 to 1.5, intercept -1 to 2"


def test_isotonic_says_where_rows_are_few():
    with pytest.warns(UserWarning, match="162 held-out rows"):
        Isotonic().require_enough(162)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Isotonic().require_enough(1000)


def test_isotonic_is_the_least_squares_rising_function():
    """Against pooled means worked out by hand: 0 | 1 0 -> 1/2 | 1 1 0 -> 2/3."""
    p = torch.tensor([0.1, 0.3, 0.4, 0.6, 0.7, 0.9])
    y = torch.tensor([-1.0, 1.0, -1.0, 1.0, 1.0, -1.0])
    made = Isotonic()
    made.fit(Sign(p), y)
    want = torch.tensor([1 / 8, 1 / 2, 1 / 2, 2 / 3, 2 / 3, 2 / 3])
    torch.testing.assert_close(made(Sign(p)).probs, want)
    torch.testing.assert_close(made(Sign(torch.tensor([0.35, 0.5]))).probs[0], torch.tensor(0.5))
    torch.testing.assert_close(made(Sign(torch.tensor([0.5]))).probs, torch.tensor([7 / 12]))


@pytest.mark.parametrize("name", MADE)
def test_what_was_fitted_is_its_state(name):
    make, problem = MADE[name]
    predictive, y = problem()
    made, other = make(), make()
    made.fit(predictive, y)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(predictive).probs, made(predictive).probs)
    assert other.facts() == made.facts()


def test_separated_classes_keep_it_finite():
    p, y = torch.tensor([0.2, 0.4, 0.6, 0.8]), torch.tensor([-1.0, -1.0, 1.0, 1.0])
    for make in (Temperature, Platt, Isotonic):
        made = make()
        made.fit(Sign(p), y)
        assert bool(made(Sign(p)).log_prob(y).isfinite().all())


@pytest.mark.parametrize("make", [Temperature, Platt, Isotonic])
def test_what_was_impossible_and_happened_becomes_possible(make):
    """Probabilities of exactly 0 and 1, each of which is wrong once: a coin would have log 2."""
    p, y = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.3, 0.7]), torch.tensor([1.0, -1.0, -1, 1, -1, 1])
    for law, classes in (
        (Bernoulli(probs=p), y),
        (Categorical(probs=torch.stack([1.0 - p, p], 1)), (y > 0).double()),
    ):
        made = make()
        made.fit(law, classes)
        assert float(-made(law).log_prob(classes).mean()) < 1.0


def test_a_law_of_logits_alone_is_calibrated():
    class Logits:
        def __init__(self, logits):
            self.logits = logits

    found = Temperature()(Logits(torch.tensor([[0.0, 1.0], [2.0, -1.0]])))
    torch.testing.assert_close(found.logits, torch.tensor([[0.0, 1.0], [2.0, -1.0]]).log_softmax(1))


def test_what_cannot_be_calibrated():
    with pytest.raises(DataError, match="no held-out rows to calibrate on"):
        Temperature().fit(Sign(torch.zeros(0)), torch.zeros(0))
    with pytest.raises(DataError, match="all 3 held-out rows are of one class"):
        Platt().fit(Sign(torch.full((3,), 0.4)), torch.ones(3))
    with pytest.raises(DataError, match="all 3 held-out rows are of one class"):
        Platt().fit(Categorical(torch.full((3, 4), 0.25)), torch.ones(3))
    for make in (Temperature, Platt, Isotonic):
        with pytest.raises(DataError, match="no held-out rows to calibrate on"):
            make().fit(Categorical(torch.zeros(0, 4)), torch.zeros(0))
    with pytest.raises(ConfigError, match="Platt is for binary, multiclass and ordinal targets"):
        Platt().require_task("regression")
    with pytest.raises(ConfigError, match=r"fraction=0\.7 of the training rows cannot be held out"):
        Isotonic(fraction=0.7)
    with pytest.raises(ConfigError, match="a Normal has no class probabilities"):
        Temperature().fit(Normal(torch.zeros(2), torch.ones(2)), torch.ones(2))


def test_rows_that_are_held_out():
    mask = held_out_rows(50, 0.1, draws())
    assert int(mask.sum()) == 5
    assert torch.equal(mask, held_out_rows(50, 0.1, draws()))
    assert not torch.equal(mask, held_out_rows(50, 0.1, draws(1)))
    with pytest.raises(DataError, match=r"0\.1 of 10 training rows are 1 rows to calibrate on"):
        held_out_rows(10, 0.1, draws())
