"""When stochastic training ends, and how: the rule, its errors, and a run that is stopped in it."""

import numpy as np
import pytest
import torch
from stopped_runs import stopped_at

import gpx
from gpx.errors import ConfigError
from gpx.runs import resume
from gpx.training import FirstOrder
from gpx.training.settling import MIN_STRETCH, NUM_STRETCHES, Settling

QUICK = ("approx=svgp", "approx.num_inducing=8", "trainer.max_steps=800", "init=constants")
QUICK += ("trainer.figures=false", "trainer.tensorboard=false", "trainer.device=cpu")
QUICK += ("trainer.baselines=false", "trainer.eval_every=0", "optimizer.settled=0.05")


def settled_at(losses, tolerance, start=0):
    """The rule as its sentence says it, over all losses at once."""
    length = max(MIN_STRETCH, len(losses) // NUM_STRETCHES)
    parts = [np.asarray(losses[i : i + length]) for i in range(start, len(losses), length)]
    for place in range(1, len(parts)):
        before, now = parts[place - 1], parts[place]
        if len(now) < length:
            return None
        error = np.sqrt((before.var() + now.var()) / length)
        if before.mean() - now.mean() + error < tolerance:
            return start + (place + 1) * length
    return None


def run(losses, tolerance, start=0):
    rule = Settling(tolerance, len(losses), start)
    steps = [
        step
        for step, loss in enumerate(losses, 1)
        if rule.add(torch.tensor(loss, dtype=torch.float64), step)
    ]
    assert len(steps) <= 1
    assert rule.at == (steps[0] if steps else None)
    return rule.at


@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("start", [0, 30])
def test_the_rule_is_what_it_says(tolerance, start):
    generator = np.random.default_rng(0)
    losses = np.exp(-np.arange(1000) / 100.0) + 1e-3 * generator.normal(size=1000)
    at = run(losses, tolerance, start)
    assert at == settled_at(losses, tolerance, start)
    assert (at is None) == (tolerance < 1e-3)  # not to be told from the scatter


def test_a_loss_that_rises_has_settled():
    assert run(np.linspace(0.0, 1.0, 1000), 1e-3) == 200


def test_short_runs_are_never_cut():
    assert run(np.zeros(2 * MIN_STRETCH - 1), 1.0) is None
    assert run(np.zeros(2 * MIN_STRETCH), 1.0) == 2 * MIN_STRETCH  # their last step


def test_a_fall_of_the_tolerance_is_missed_one_time_in_six():
    """Normal scatter: the estimate must be an error low, of probability 0.159 per comparison.

    400 comparisons; outside 0.09 to 0.23 with probability below 1e-3.
    """
    generator, length, early = np.random.default_rng(1), 200, 0
    for _ in range(400):
        losses = generator.normal(size=2 * length)
        losses[length:] -= 0.5
        rule = Settling(0.5, NUM_STRETCHES * length)
        for step, loss in enumerate(losses, 1):
            rule.add(torch.tensor(loss), step)
        early += rule.at is not None
    assert 0.09 < early / 400 < 0.23


def test_state_goes_on_anywhere():
    losses = np.exp(-np.arange(1000) / 100.0)
    whole = Settling(1e-3, 1000)
    for step, loss in enumerate(losses, 1):
        state = whole.state_dict()
        whole = Settling(1e-3, 1000)
        whole.load_state_dict(state)
        whole.add(torch.tensor(loss, dtype=torch.float64), step)
    assert whole.at == settled_at(losses, 1e-3)


def test_rates_go_through_the_rest_of_their_schedule():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = FirstOrder(
        {"variational": {"lr": 0.1}}, {"name": "exponential", "final": 0.01}, settled=1e-3
    )
    optimizer.bind({"variational": [weight]}, 1000)
    before = optimizer.learning_rate("variational", 300)
    optimizer.settling.at = 300
    assert optimizer.learning_rate("variational", 300) == before
    assert optimizer.learning_rate("variational", 400) == pytest.approx(0.001)
    middle = optimizer.learning_rate("variational", 350)
    assert middle == pytest.approx((before * 0.001) ** 0.5)


def test_the_rule_waits_for_frozen_parameters():
    weight, other = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    groups = {"variational": {"lr": 0.1}, "hyperparameters": {"lr": 0.1, "freeze_steps": 70}}
    optimizer = FirstOrder(groups, settled=1e-3)
    optimizer.bind({"variational": [weight], "hyperparameters": [other]}, 1000)
    assert optimizer.settling.start == 70
    optimizer.bind({"variational": [weight], "hyperparameters": [other]}, 60)
    assert optimizer.settling.start == 0  # never free in this run


@pytest.mark.parametrize("value", [-1.0, "a", float("nan")])
def test_no_tolerance(value):
    with pytest.raises(ConfigError, match=r"optimizer\.settled="):
        FirstOrder({"variational": {"lr": 0.1}}, settled=value)


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    x = generator.uniform(-2.0, 2.0, (60, 1))
    return x, np.sin(x[:, 0]) + 0.1 * generator.normal(size=60)


def test_a_run_ends_says_so_and_is_resumed_bit_for_bit(arrays, tmp_path, capsys):
    whole = gpx.fit(*arrays, *QUICK, folder=tmp_path / "whole").metrics
    text = capsys.readouterr().err
    assert whole["train.steps"] < 800
    assert whole["train.steps"] % 80 == 0
    assert "the evidence settled" in whole["train.stopped"]
    assert text.count("the evidence has settled (the last 80 steps gained less than 0.05") == 1
    assert "optimizer.settled=null takes all steps" in text
    with stopped_at(whole["train.steps"] - 30):  # the rates are falling
        gpx.fit(*arrays, *QUICK, folder=tmp_path / "stopped")
    resumed = resume(tmp_path / "stopped")
    for name in ("train.steps", "train.evidence", "test.rmse", "train.stopped"):
        assert resumed[name] == whole[name], name


def test_a_settled_run_goes_on_only_where_it_is_told_not_to_settle(arrays, tmp_path, capsys):
    folder = tmp_path / "run"
    before = gpx.fit(*arrays, *QUICK, folder=folder).metrics["train.steps"]
    capsys.readouterr()
    more = [f"trainer.max_steps={before + 400}"]
    assert resume(folder, options=more)["train.steps"] == before
    said = capsys.readouterr().err
    assert "the evidence has settled" in said
    assert "training ends; optimizer.settled=null takes all steps" in said
    limited = ["optimizer.settled=null", "trainer.budget=600"]
    found = resume(folder, options=[f"trainer.max_steps={before + 90}", *limited])
    assert found["train.steps"] == before + 90
    found = resume(folder, options=[*more, "optimizer.settled=null"])
    assert found["train.steps"] == before + 400


def test_off_by_one_option(arrays, tmp_path):
    options = (*QUICK, "optimizer.settled=null", "trainer.max_steps=300")
    metrics = gpx.fit(*arrays, *options, folder=tmp_path / "run").metrics
    assert metrics["train.steps"] == 300
    assert metrics["train.stopped"] == "trainer.max_steps=300 steps done"


def test_time_runs_out_once_and_what_is_left_is_kept():
    rule = Settling(None, 1000)
    assert not rule.add(torch.tensor(0.0), 100)
    assert not rule.run_out(100, seconds=7.9, of_start=2.0, budget=10.0)
    assert rule.end(1000) == 1000
    assert rule.run_out(120, seconds=8.0, of_start=2.0, budget=10.0)
    assert rule.end(1000) == 160  # 6 s made 120 steps, 2 s will make 40
    assert not rule.run_out(121, seconds=8.1, of_start=2.0, budget=10.0)
    again = Settling(None, 1000)
    again.load_state_dict(rule.state_dict())
    assert (again.at, again.end(1000), again.ran_out) == (120, 160, True)
    again.given_more_time(121, 8.1, 2.0, 10.0)
    assert again.end(1000) == 160
    again.given_more_time(160, 9.9, 2.0, 10.0)  # no more time than before
    assert again.end(1000) == 160
    again.given_more_time(160, 10.0, 2.0, 12.0)  # had ended there; 8 s made 160 steps
    assert (again.at, again.end(1000), again.ran_out) == (160, 200, True)
    again.given_more_time(161, 8.1, 2.0, 20.0)
    assert (again.at, again.end(1000), again.ran_out) == (None, 1000, False)


def falling(rule, first, last):
    """Where a loss that falls by 0.004 nats a step is said to have settled."""
    for step in range(first, last + 1):
        if rule.add(torch.tensor(10.0 - 0.004 * step, dtype=torch.float64), step):
            return step
    return None


@pytest.mark.parametrize("resumed", [130, 150])
def test_more_time_in_the_middle_of_a_stretch_settles_nothing(resumed):
    rule = Settling(1e-3, 500)
    assert falling(rule, 1, 120) is None
    assert rule.run_out(120, seconds=85.0, of_start=0.0, budget=100.0)
    assert falling(rule, 121, resumed) is None
    rule.given_more_time(resumed, 100.0, 0.0, 1000.0)
    saved = Settling(1e-3, 500)  # once more before the next stretch begins
    saved.load_state_dict(rule.state_dict())
    assert falling(saved, resumed + 1, 500) is None
    saved.before = (0.0, 0.0)  # and stretches are compared
    assert falling(saved, 501, 550) == 550


def test_more_steps_in_the_middle_of_a_stretch_settle_nothing():
    rule = Settling(1e-3, 1000)
    assert falling(rule, 1, 1000) is None
    longer = Settling(1e-3, 1700)  # whose stretches of 170 end at step 1020
    longer.load_state_dict(rule.state_dict())
    assert falling(longer, 1001, 1700) is None


def test_a_rule_switched_off_forgets_that_a_run_settled():
    rule = Settling(1e-3, 1000)
    rule.load_state_dict({"sums": None, "before": (0.5, 0.0), "at": 300})
    off = Settling(None, 1000)
    off.load_state_dict(rule.state_dict())
    assert off.end(1000) == 1000


def test_a_rule_switched_on_in_the_middle_of_a_stretch_settles_nothing():
    off = Settling(None, 1000)
    assert falling(off, 1, 325) is None
    rule = Settling(1e-3, 1000)
    rule.load_state_dict(off.state_dict())
    assert falling(rule, 326, 1000) is None


def test_other_steps_at_which_parameters_thaw_settle_nothing():
    rule = Settling(1e-3, 1000, start=30)
    assert falling(rule, 1, 320) is None
    other = Settling(1e-3, 1000)
    other.load_state_dict(rule.state_dict())
    assert falling(other, 321, 1000) is None


def test_a_state_of_before_there_were_budgets_goes_on():
    rule = Settling(1e-3, 1000)
    rule.load_state_dict({"sums": None, "before": (0.5, 0.0), "at": 300})
    assert (rule.end(1000), rule.ran_out) == (400, False)
