"""The loop itself, with a model and objectives that know no Gaussian process."""

import itertools
import os
import signal
import time

import pytest
import torch
from torch import nn

from gpx.constraints import positive_parameter
from gpx.errors import CheckpointError, ConfigError, DidNotConverge, NotPositiveDefinite
from gpx.likelihoods.row_noise import RowNoise
from gpx.objectives import Evidence, Objective
from gpx.training import (
    LBFGSB,
    FirstOrder,
    Monitor,
    OwnSteps,
    StopTraining,
    Trainer,
    TrainerConfig,
)
from gpx.training.checkpoint import load_checkpoint, save_checkpoint
from gpx.training.interrupt import Interrupted


class Line(nn.Module):
    """Slope of a line; stands in for a model."""

    num_rounds = 1
    rounds_argument = "reinitialise"
    note = ""
    hyperpriors = None
    row_noise = None

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def parameter_groups(self):
        return {"hyperparameters": [self.slope]}

    def rate_factors(self):
        return {}

    def keep_best(self, loss):
        pass

    def rounds_state(self):
        return {}

    def load_rounds_state(self, state):
        pass

    def next_round(self, x, y, loss, *, generator):
        return False


class Squares(Objective):
    batching = "full"

    def evidence(self, model, x, y, *, generator=None):
        fit = -((y - model.slope * x[:, 0]) ** 2).sum() * len(X) / len(x)
        return Evidence(fit, "exact", {"fit": fit.detach()})


class SampledSquares(Squares):
    batching = "minibatch"

    def num_data(self, x):
        return len(X)


class Estimate(Objective):
    """Of one's own, from mini-batches: it counts the rows by ``num_data``."""

    batching = "minibatch"

    def evidence(self, model, x, y, *, generator=None):
        fit = -((y - model.slope * x[:, 0]) ** 2).mean()
        return Evidence(self.num_data(x) * (fit - 1.0), "unbiased")


class Quartic(Squares):
    """Whose minimum a quasi-Newton method nears step by step."""

    def evidence(self, model, x, y, *, generator=None):
        return Evidence(-((model.slope - 3.0) ** 4), "exact")


class Waves(Squares):
    """Whose line searches step too far."""

    def evidence(self, model, x, y, *, generator=None):
        return Evidence(-len(X) * (model.slope.sin() + 0.01 * (model.slope - 30.0) ** 2), "exact")


class Diverging(SampledSquares):
    def evidence(self, model, x, y, *, generator=None):
        return Evidence(model.slope * float("nan"), "exact")


X = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
Y = 3.0 * X[:, 0]


class Watcher:
    def __init__(self):
        self.seen, self.tested = [], []

    def progress(self, progress, model):
        self.seen.append(progress)

    def metrics(self, step, metrics):
        self.tested.append(step)


def fit(tmp_path, objective, optimizer, watcher=None, x=X, y=Y, **options):
    model = Line()
    settings = {"max_steps": 40, "batch_size": 10, "log_every": 10, **options}
    trainer = Trainer(TrainerConfig(**settings), 0, tmp_path / "c.pt", [watcher] if watcher else [])
    started = []
    result = trainer.fit(
        model, objective, optimizer, x, y, lambda: {"rmse": 1.0}, lambda watch: started.append(1)
    )
    return model.slope.item(), result, started


def sgd(**options):
    return FirstOrder({"hyperparameters": {"algorithm": "sgd", "lr": 0.5, **options}})


def test_minibatches_full_batches_and_quasi_newton_find_the_slope(tmp_path):
    for name, objective, optimizer in (
        ("a", SampledSquares(), sgd()),
        ("b", Squares(), sgd()),
        ("c", Squares(), LBFGSB()),
    ):
        slope, result, started = fit(tmp_path / name, objective, optimizer)
        assert slope == pytest.approx(3.0, abs=1e-3)
        assert result.steps <= 40
        assert started == [1]


def test_a_mini_batch_objective_of_ones_own_is_told_the_number_of_rows(tmp_path):
    watcher, objective = Watcher(), Estimate()
    fit(tmp_path, objective, sgd(), watcher)
    assert objective.num_data(X[:10]) == len(X)
    fit(tmp_path / "fewer", objective, sgd(), x=X[:30], y=Y[:30])
    assert objective.num_data(X[:10]) == 30
    assert watcher.seen[-1].evidence_per_point == pytest.approx(-1.0, abs=1e-4)


def test_monitors_see_logged_steps_and_metrics_at_intervals(tmp_path):
    watcher = Watcher()
    fit(tmp_path, SampledSquares(), sgd(), watcher, eval_every=15)
    assert [p.step for p in watcher.seen] == [1, 10, 20, 30, 40]
    assert watcher.tested == [15, 30]
    last = watcher.seen[-1]
    assert last.evidence_per_point == pytest.approx(0.0, abs=1e-4)
    assert last.parts["fit"] == pytest.approx(last.evidence_per_point, abs=1e-4)
    assert last.learning_rates == {"hyperparameters": 0.5}


def test_metrics_can_be_left_to_the_end(tmp_path):
    watcher = Watcher()
    fit(tmp_path, SampledSquares(), sgd(), watcher, eval_every=0)
    assert watcher.tested == []


class Walled(Squares):
    """Of which slopes above 2 have no evidence."""

    def evidence(self, model, x, y, *, generator=None):
        if model.slope.item() > 2.0:
            raise DidNotConverge("too steep")
        return super().evidence(model, x, y, generator=generator)


@pytest.mark.parametrize("kind", [NotPositiveDefinite, DidNotConverge])
def test_a_trial_point_that_cannot_be_tested_does_not_end_the_run(tmp_path, kind):
    model, watcher, said = Line(), Watcher(), []
    config = TrainerConfig(max_steps=40, eval_every=1)
    trainer = Trainer(config, 0, tmp_path / "c.pt", [watcher], say=said.append)

    def evaluate():
        if model.slope.item() > 2.0:
            raise kind("no posterior")
        return {"rmse": 1.0}

    result = trainer.fit(model, Walled(), LBFGSB(), X, Y, evaluate, lambda watch: None)
    assert 1.5 < model.slope.item() <= 2.0
    failed = [line for line in said if line.endswith("training goes on: no posterior")]
    assert failed
    assert len(watcher.tested) + len(failed) in (result.steps, result.steps - 1)


def test_a_finished_checkpoint_is_not_trained_again(tmp_path):
    first, result, _ = fit(tmp_path, SampledSquares(), sgd())
    again, repeated, started = fit(tmp_path, SampledSquares(), sgd())
    assert (again, repeated.steps, started) == (first, result.steps, [])


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(DidNotConverge, match="lower the learning rates"):
        fit(tmp_path, Diverging(), sgd())


class DivergingLater(SampledSquares):
    def evidence(self, model, x, y, *, generator=None):
        self.calls = getattr(self, "calls", 0) + 1
        fit = super().evidence(model, x, y).value
        trace = torch.tensor(float("inf") if self.calls >= 12 else 0.0)
        return Evidence(fit - trace, "exact", {"fit": fit.detach(), "trace": trace})


def test_a_diverging_run_names_its_term_and_keeps_the_last_good_checkpoint(tmp_path):
    with pytest.raises(DidNotConverge, match=r"step 12 \(its term trace is not finite\)") as caught:
        fit(tmp_path, DivergingLater(), sgd(), checkpoint_seconds=0)
    assert "the checkpoint of step 11 is kept" in str(caught.value)
    state = torch.load(tmp_path / "c.pt", weights_only=True)
    assert state["step"] == 11
    assert torch.isfinite(state["model"]["slope"])


@pytest.mark.parametrize(
    ("wanted", "known", "told"),
    [(0.5, None, False), (-1.0, None, True), (-1.0, 0.0, True), (-1.0, 0.2, True)],
)
def test_a_parameter_that_ends_at_its_floor_is_told_once(tmp_path, wanted, known, told):
    class Pulled(Objective):
        batching = "full"

        def evidence(self, model, x, y, *, generator=None):
            return Evidence(-len(X) * (model.noise_variance - wanted) ** 2, "exact")

    model = Line()
    positive_parameter(model, "noise_variance", 1.0, floor=0.1)
    raw = model.parametrizations.noise_variance.original
    model.parameter_groups = lambda: {"hyperparameters": [raw]}
    if known is not None:
        model.row_noise = RowNoise.of_variances(torch.full((len(X),), known))
    lines = []
    trainer = Trainer(TrainerConfig(max_steps=200), 0, tmp_path / "c.pt", [], say=lines.append)
    trainer.fit(model, Pulled(), sgd(), X, Y, lambda: {"rmse": 1.0}, lambda watch: None)
    said = [line for line in lines if "lower limit" in line]
    why = "the model takes the targets as nearly free of noise, and over-fits if not so"
    if known:  # there is noise beside the learned
        why = "the model takes the targets to have the noise that is known, and no more"
    sentence = f"note: noise_variance (1e-01) ended at its lower limit: {why}"
    assert said == [sentence] * told


def test_quasi_newton_needs_a_deterministic_objective(tmp_path):
    with pytest.raises(ConfigError, match="needs a deterministic objective"):
        fit(tmp_path, SampledSquares(), LBFGSB())


def test_a_checkpoint_of_another_model(tmp_path):
    fit(tmp_path, SampledSquares(), sgd())
    state = torch.load(tmp_path / "c.pt", weights_only=True)
    state["model"] = {"other": torch.zeros(2)}
    torch.save(state, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=r"does not fit this run's config.yaml"):
        fit(tmp_path, SampledSquares(), sgd())


class Rounds(Line):
    """Starts again at ``starts`` in turn; ``undone`` goes back to the first end at the last."""

    def __init__(self, starts, undone=False):
        super().__init__()
        self.starts, self.undone, self.losses, self.ends = starts, undone, [], []

    @property
    def num_rounds(self):
        return 1 + len(self.starts)

    def rounds_state(self):
        return {"losses": self.losses, "ends": self.ends}

    def load_rounds_state(self, state):
        self.losses, self.ends = list(state["losses"]), list(state["ends"])

    def next_round(self, x, y, loss, *, generator):
        self.losses.append(loss)
        self.ends.append(self.slope.item())
        if len(self.losses) > len(self.starts):
            return False
        with torch.no_grad():
            if self.undone and len(self.losses) == 2:
                self.slope.fill_(self.ends[0])
                return False
            self.slope.fill_(self.starts[len(self.losses) - 1])
        return True


class Quartics(Squares):
    """Slow to minimise: every round uses up its budget."""

    def evidence(self, model, x, y, *, generator=None):
        fit = -((y - model.slope * x[:, 0]) ** 4).sum()
        return Evidence(fit, "exact", {"fit": fit.detach()})


def train_in_rounds(path, model, max_steps):
    trainer = Trainer(TrainerConfig(max_steps=max_steps, log_every=1), 0, path, [])
    return trainer.fit(
        model,
        Quartics(),
        LBFGSB(gtol=0.0, ftol=0.0),
        X,
        Y,
        lambda: {"rmse": 1.0},
        lambda watch: None,
    )


def test_rounds_share_the_evaluations(tmp_path):
    model = Rounds([-5.0, 9.0])
    result = train_in_rounds(tmp_path / "c.pt", model, 12)
    assert result.steps == 12
    assert result.reason == "max_steps=12 evaluations reached"
    assert len(model.losses) == 3
    for start, end in zip((0.0, -5.0, 9.0), model.ends, strict=True):
        assert abs(end - 3.0) < 0.6 * abs(start - 3.0)
    assert model.slope.item() == model.ends[-1]


def test_an_undone_round_leaves_its_evaluations_to_what_is_kept(tmp_path):
    model = Rounds([-5.0, 9.0], undone=True)
    result = train_in_rounds(tmp_path / "c.pt", model, 12)
    assert result.steps == 12
    assert len(model.losses) == 3
    assert model.losses[2] < model.losses[0]
    assert abs(model.ends[2] - 3.0) < abs(model.ends[0] - 3.0)


def test_a_model_content_after_its_first_round_is_trained_on_without_a_break(tmp_path):
    class Content(Rounds):
        def next_round(self, x, y, loss, *, generator):
            self.losses.append(loss)
            return False

    model, straight = Content([0.0]), Line()
    in_rounds = train_in_rounds(tmp_path / "a.pt", model, 10)
    whole = train_in_rounds(tmp_path / "b.pt", straight, 10)
    assert in_rounds.steps == whole.steps == 10
    assert len(model.losses) == 2
    assert model.slope.item() == straight.slope.item()  # the curvature is not forgotten either


def test_rounds_need_an_optimiser_that_ends(tmp_path):
    model = Rounds([1.0])
    trainer = Trainer(TrainerConfig(max_steps=5), 0, tmp_path / "c.pt", [])
    with pytest.raises(ConfigError, match=r"reinitialise=1 needs optimizer=LBFGSB"):
        trainer.fit(model, Squares(), sgd(), X, Y, lambda: {}, lambda watch: None)


def test_checks_of_sparse_tensors_are_off_in_steps_alone(tmp_path):
    """On a GPU they would wait for every gradient, which no recorded step may."""
    seen = []

    class Looks(Squares):
        def evidence(self, model, x, y, *, generator=None):
            seen.append(torch.sparse.check_sparse_tensor_invariants.is_enabled())
            return super().evidence(model, x, y)

    with torch.sparse.check_sparse_tensor_invariants():
        fit(tmp_path, Looks(), sgd(), max_steps=2)
        assert torch.sparse.check_sparse_tensor_invariants.is_enabled()
    assert seen == [False, False]


@pytest.fixture
def a_second_a_look(monkeypatch):
    """The clock of training goes on by a second with every look at it."""
    seconds = itertools.count()
    monkeypatch.setattr("gpx.training.session.time.perf_counter", lambda: float(next(seconds)))


OPTIMIZERS = {
    "first order": lambda: FirstOrder(
        {"hyperparameters": {"algorithm": "sgd", "lr": 0.01}}, {"name": "cosine", "final": 0.0}
    ),
    "quasi-Newton": lambda: LBFGSB(ftol=0.0, gtol=0.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_ends_with_its_budget(name, tmp_path, a_second_a_look):
    options = {"max_steps": 100_000, "checkpoint_seconds": 1e9, "budget": 30.0}
    _, result, _ = fit(tmp_path, Quartic(), OPTIMIZERS[name](), **options)
    assert result.reason.startswith("trainer.budget=30 seconds: ")
    assert 5 < result.steps < 40
    assert result.seconds < 33.0
    assert result.state["step"] == result.steps  # the checkpoint is that of the end


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_more_seconds_make_more_steps(name, tmp_path, a_second_a_look):
    options = {"max_steps": 100_000, "checkpoint_seconds": 1e9}
    _, first, _ = fit(tmp_path, Quartic(), OPTIMIZERS[name](), budget=30.0, **options)
    _, second, _ = fit(tmp_path, Quartic(), OPTIMIZERS[name](), budget=90.0, **options)
    assert second.reason.startswith("trainer.budget=90 seconds: ")
    assert second.steps > 2 * first.steps


def test_rates_fall_to_their_end_in_the_last_of_the_budget(tmp_path, a_second_a_look):
    optimizer, watcher = OPTIMIZERS["first order"](), Watcher()
    options = {"max_steps": 100_000, "log_every": 1, "budget": 50.0}
    fit(tmp_path, Squares(), optimizer, watcher, **options)
    rates = [each.learning_rates["hyperparameters"] for each in watcher.seen]
    assert rates[len(rates) // 2] == pytest.approx(0.01, rel=1e-3)
    assert rates[-1] < 0.001
    assert rates == sorted(rates, reverse=True)


def test_one_step_is_made_whatever_the_budget_and_said(tmp_path, a_second_a_look):
    said, config = [], TrainerConfig(max_steps=9, budget=0.5)
    trainer = Trainer(config, 0, tmp_path / "c.pt", say=said.append)
    result = trainer.fit(Line(), Squares(), sgd(), X, Y, dict, lambda watch: None)
    assert result.steps == 1
    told = "above trainer.budget=0.5: at least one step is taken, and a step is always finished"
    assert [told in line for line in said if line.startswith("note: ")] == [True]


def test_a_run_goes_on_with_a_generator_of_another_kind_of_device(tmp_path):
    """As a run of a GPU does on a CPU: the states of their generators have other sizes."""
    fit(tmp_path, SampledSquares(), sgd(), max_steps=4)
    state = load_checkpoint(tmp_path / "c.pt")
    state["generator"] = torch.zeros(16, dtype=torch.uint8)
    save_checkpoint(tmp_path / "c.pt", state)
    _, result, started = fit(tmp_path, SampledSquares(), sgd(), max_steps=6)
    assert (result.steps, started) == (6, [])


class Stopping(Watcher):
    """Sends a signal once step ``at`` is reported."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def progress(self, progress, model):
        super().progress(progress, model)
        if progress.step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def finish(tmp_path, result, optimizer):
    """As the end of a run leaves its checkpoint."""
    optimizer.finish()
    ended = {"optimizer": optimizer.state_dict(), "ended": result.reason}
    save_checkpoint(tmp_path / "c.pt", result.state | ended)


def test_a_continued_search_stopped_at_its_last_evaluation_ends_as_if_never_stopped(tmp_path):
    found = {}
    for name in ("whole", "stopped"):
        folder, optimizer = tmp_path / name, OPTIMIZERS["quasi-Newton"]()
        _, result, _ = fit(folder, Waves(), optimizer, max_steps=4)
        finish(folder, result, optimizer)
        options = {"max_steps": 12, "log_every": 1}
        if name == "stopped":
            with pytest.raises(Interrupted):
                fit(folder, Waves(), OPTIMIZERS["quasi-Newton"](), Stopping(12), **options)
        slope, result, _ = fit(folder, Waves(), OPTIMIZERS["quasi-Newton"](), **options)
        found[name] = slope, result.steps, result.reason
    assert found["stopped"] == found["whole"]
    assert found["whole"][1:] == (12, "max_steps=12 evaluations reached")


class Undoing(Rounds):
    """After its last round it goes back to the end of its first, once."""

    def next_round(self, x, y, loss, *, generator):
        again = super().next_round(x, y, loss, generator=generator)
        if len(self.losses) == self.num_rounds:
            with torch.no_grad():
                self.slope.fill_(self.ends[0])
        return again


def test_a_run_killed_after_its_last_round_was_undone_keeps_what_was_restored(tmp_path):
    whole, again = Undoing([-5.0]), Undoing([-5.0])
    first = train_in_rounds(tmp_path / "c.pt", whole, 12)
    second = train_in_rounds(tmp_path / "c.pt", again, 12)
    assert whole.slope.item() == whole.ends[0] != whole.ends[1]
    assert again.slope.item() == whole.slope.item()
    assert (second.steps, second.reason) == (first.steps, first.reason)


def test_what_is_restored_after_the_last_round_is_where_further_training_begins(tmp_path):
    whole, again = Undoing([-5.0]), Undoing([-5.0])
    train_in_rounds(tmp_path / "c.pt", whole, 12)
    result = train_in_rounds(tmp_path / "c.pt", again, 13)
    assert result.steps == 13
    assert again.slope.item() == whole.slope.item()  # the first evaluation is at the start


def test_a_signal_after_the_last_step_stops_the_run_once_its_end_is_saved(tmp_path):
    class Signalled(Rounds):
        def next_round(self, x, y, loss, *, generator):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().next_round(x, y, loss, generator=generator)

    model, again = Signalled([]), Line()
    with pytest.raises(Interrupted):
        train_in_rounds(tmp_path / "c.pt", model, 6)
    result = train_in_rounds(tmp_path / "c.pt", again, 6)
    assert (again.slope.item(), result.steps) == (model.slope.item(), 6)


class Stalling(DivergingLater):
    """Whose 13th evaluation takes a hundred seconds of ``a_second_a_look``; finite if asked."""

    def __init__(self, finite):
        super().__init__()
        self.finite = finite

    def evidence(self, model, x, y, *, generator=None):
        found = super().evidence(model, x, y)
        for _ in range(100 * (self.calls == 13)):
            time.perf_counter()
        return SampledSquares.evidence(self, model, x, y) if self.finite else found


def test_the_last_step_before_the_budget_ends_is_reported(tmp_path, a_second_a_look):
    watcher, options = Watcher(), {"max_steps": 100, "log_every": 50, "budget": 90.0}
    _, result, _ = fit(tmp_path, Stalling(finite=True), sgd(), watcher, **options)
    assert [progress.step for progress in watcher.seen] == [1, 13]
    assert result.steps == 13


def test_a_loss_that_diverged_before_the_budget_ended_replaces_no_checkpoint(
    tmp_path, a_second_a_look
):
    options = {"max_steps": 100, "log_every": 50, "budget": 90.0, "checkpoint_seconds": 1e9}
    with pytest.raises(DidNotConverge, match=r"step 13 \(its term trace is not finite\)"):
        fit(tmp_path, Stalling(finite=False), sgd(), **options)
    assert not (tmp_path / "c.pt").exists()


class _Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        raise NotPositiveDefinite("in the backward pass")


class WalledLate(Squares):
    """Of which slopes above 2 have an evidence without a gradient, or none that is finite."""

    def __init__(self, finite):
        super().__init__()
        self.finite = finite

    def evidence(self, model, x, y, *, generator=None):
        found = super().evidence(model, x, y, generator=generator)
        if model.slope.item() <= 2.0:
            return found
        value = _Failing.apply(found.value) if self.finite else found.value * torch.nan
        return Evidence(value, "exact", found.parts)


@pytest.mark.parametrize("objective", [Walled(), WalledLate(True), WalledLate(False)])
def test_trial_points_without_a_value_are_not_reported_as_evidence(tmp_path, objective):
    watcher = Watcher()
    slope, _, _ = fit(tmp_path, objective, LBFGSB(), watcher, log_every=1)
    assert 1.5 < slope <= 2.0
    assert watcher.seen
    assert min(progress.evidence_per_point for progress in watcher.seen) > -4.0


class Stopper(Monitor):
    """Ends training at the second test."""

    def __init__(self):
        self.tests = 0

    def metrics(self, step, metrics):
        self.tests += 1
        if self.tests == 2:
            raise StopTraining(f"rmse {metrics['rmse']}")


class Uphill(OwnSteps):
    """A step of a fixed length."""

    model_type = Line

    def bind(self, model, x, seed):
        self.model = model

    def step(self, step, x, y, *, generator):
        self.model.slope.data += 0.01
        return self.session.objective.evidence(self.model, x, y)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("objective", "optimizer"),
    [
        (SampledSquares, lambda: FirstOrder({"hyperparameters": {"algorithm": "sgd", "lr": 0.01}})),
        (Quartic, LBFGSB),
        (Squares, Uphill),
    ],
)
def test_a_monitor_ends_training_with_the_model_of_then(tmp_path, objective, optimizer):
    """A run resumed between that and its results is not trained on without the monitor."""
    options = {"eval_every": 4, "max_steps": 20}
    slope, result, _ = fit(tmp_path, objective(), optimizer(), Stopper(), **options)
    assert result.steps == 8
    assert result.reason == "a monitor ended training after 8 steps: rmse 1.0"
    again, resumed, _ = fit(tmp_path, objective(), optimizer(), None, **options)
    assert (again, resumed.steps, resumed.reason) == (slope, 8, result.reason)


def test_a_signal_in_the_step_that_a_monitor_made_the_last_one_leaves_a_finished_run(tmp_path):
    class Both(Stopper):
        def metrics(self, step, metrics):
            os.kill(os.getpid(), signal.SIGTERM)
            super().metrics(step, metrics | {"rmse": step})

    def steps():
        return FirstOrder({"hyperparameters": {"algorithm": "sgd", "lr": 0.01}})

    options = {"eval_every": 4, "max_steps": 20}
    watcher = Both()
    watcher.tests = 1
    with pytest.raises(Interrupted):
        fit(tmp_path, SampledSquares(), steps(), watcher, **options)
    _, result, _ = fit(tmp_path, SampledSquares(), steps(), **options)
    assert (result.steps, result.reason) == (4, "a monitor ended training after 4 steps: rmse 4")


def test_another_error_of_a_monitor_leaves_a_run_to_resume(tmp_path):
    class Failing(Monitor):
        def progress(self, progress, model):
            if progress.step == 20:
                raise OSError("the server is gone")

    def steps():
        return FirstOrder({"hyperparameters": {"algorithm": "sgd", "lr": 0.01}})

    (tmp_path / "failed").mkdir()
    options = {"checkpoint_seconds": 0.0}
    with pytest.raises(OSError, match="the server is gone"):
        fit(tmp_path / "failed", SampledSquares(), steps(), Failing(), **options)
    slope, result, _ = fit(tmp_path / "failed", SampledSquares(), steps(), **options)
    whole, _, _ = fit(tmp_path, SampledSquares(), steps())
    assert (slope, result.steps) == (whole, 40)
