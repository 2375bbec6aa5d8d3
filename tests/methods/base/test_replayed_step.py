"""Replayed steps: what is recorded, when, and what happens where a recording does not do.

Recording itself needs a GPU. Here a "recording" runs the step's function again at every replay,
from the recording's own arrays: what is tested is everything around ``torch.cuda.graph``.
"""

import gc
import math
import weakref
from functools import partial

import pytest
import torch
from claimed_cuda import claimed_cuda
from recordings import FromTheHost, Recorder, Watched

from gpx.bases import RandomFourier
from gpx.errors import NotPositiveDefinite
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian
from gpx.linalg import cholesky
from gpx.linalg.cholesky import checks_deferred
from gpx.linalg.replayed import EAGER_STEPS, MAX_FAILURES, record_cuda_graph
from gpx.means import Constant, Zero
from gpx.methods.base.batch import Batch
from gpx.methods.base.replayed_step import ReplayedStep
from gpx.models import QSGP, SVGP, SWSGP, VNNGP
from gpx.objectives import SVGPELBO, VNNGPELBO, QuadruplyStochasticELBO, SWSGPObjective
from gpx.training.indexed_steps import IndexedAdagrad


def model_and_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    model = SVGP(
        kernel=Matern32(2), mean=Constant(), likelihood=Gaussian(0.1), num_inputs=2, num_inducing=8
    ).double()
    model.place(x[:8].clone())
    return model, x, x[:, 0].sin()


def trained(record, steps=8):
    """Losses and parameters of Adam on batches, by replays or not."""
    model, x, y = model_and_data()
    objective = SVGPELBO(60)

    def loss_of(x, y):
        evidence = objective.evidence(model, x, y)
        return -evidence.value / 60, evidence.parts

    parameters = list(model.parameters())
    optimiser, losses = torch.optim.Adam(parameters, lr=0.05), []
    evaluate = ReplayedStep(loss_of, parameters, record)
    for step in range(steps):
        rows = torch.arange(20) * (step + 1) % 60
        loss, parts = evaluate(x[rows], y[rows])
        optimiser.step()
        losses.append(float(loss))
        assert set(parts) == {"fit", "complexity"}
        assert not any(part.requires_grad for part in (loss, *parts.values()))
    return losses, [p.detach().clone() for p in parameters], evaluate


def test_replays_train_as_steps_that_run_as_they_are():
    recorder = Recorder()
    losses, parameters, evaluate = trained(recorder)
    expected, right, _ = trained(None)
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(parameters, right, strict=True))
    assert (recorder.recordings, recorder.replays) == (1, 8 - EAGER_STEPS)
    assert evaluate.replays == 8 - EAGER_STEPS


def quadratic(w, calls):
    def loss_of(x, y):
        calls.append(x.shape)
        root, _ = cholesky(w[0] * torch.eye(2, dtype=w.dtype) - y.sum() * torch.ones(2, 2).double())
        return root.sum() + (w * x).sum(), {"part": root.sum()}

    return loss_of


def test_another_batch_or_other_parameters_are_another_recording():
    w, recorder = torch.nn.Parameter(torch.ones(1, dtype=torch.float64)), Recorder()
    evaluate = ReplayedStep(quadratic(w, []), [w], recorder)
    few, many, y = torch.ones(2), torch.ones(3), torch.zeros(1)
    for x, expected in ((few, 1), (many, 2), (few, 3)):
        for _ in range(EAGER_STEPS + 2):
            evaluate(x, y)
        assert recorder.recordings == expected
        assert float(w.grad) == pytest.approx(1.0 + x.sum())


def test_a_parameter_that_is_assigned_is_another_recording():
    """Assigning a natural value puts other memory behind the parameter."""
    kernel, recorder = RBF(1).double(), Recorder()
    parameters = list(kernel.parameters())

    def loss_of(x):
        return kernel.evaluate(x).sum(), {}

    evaluate, x = ReplayedStep(loss_of, parameters, recorder), torch.ones(2, 1).double().cumsum(0)
    for expected in (1, 2):
        for _ in range(EAGER_STEPS + 1):
            loss, _ = evaluate(x)
        assert recorder.recordings == expected
        assert float(loss) == pytest.approx(float(kernel.evaluate(x).sum().detach()))
        kernel.lengthscale = 0.5


def test_a_recording_goes_with_the_last_reference_to_its_step():
    w, recorder = torch.nn.Parameter(torch.ones(1, dtype=torch.float64)), Watched()
    warm = ReplayedStep(quadratic(w, []), [w], Recorder())
    for _ in range(EAGER_STEPS + 1):  # what torch imports at first use leaves cycles of frames
        warm(torch.ones(2), torch.zeros(1))
    gc.collect()
    gc.disable()
    try:
        evaluate = ReplayedStep(quadratic(w, []), [w], recorder)
        for _ in range(EAGER_STEPS + 1):
            evaluate(torch.ones(2), torch.zeros(1))
        assert (recorder.replays, recorder.alive) == (1, 1)
        left = weakref.ref(evaluate)
        del evaluate
        assert left() is None
        assert recorder.alive == 0
    finally:
        gc.enable()


def test_a_failed_factorisation_is_evaluated_again_and_its_gradient_never_used():
    w, recorder, calls = torch.nn.Parameter(torch.ones(1).double()), Recorder(), []
    evaluate = ReplayedStep(quadratic(w, calls), [w], recorder)
    x, fine = torch.ones(2).double(), torch.zeros(1).double()
    bad = fine + 0.5 + 1e-9
    for _ in range(EAGER_STEPS + 1):
        evaluate(x, fine)
    replays = evaluate.replays
    loss, _ = evaluate(x, bad)  # jitter of 1e-8 is needed, which a recording cannot choose
    assert evaluate.replays == replays
    assert math.isfinite(float(loss))
    assert torch.isfinite(w.grad).all()
    evaluate(x, fine)
    assert evaluate.replays == replays + 1  # the recording serves again
    with pytest.raises(NotPositiveDefinite):
        evaluate(x, torch.ones(1).double())
    for _ in range(MAX_FAILURES):
        evaluate(x, bad)
    assert "to raise a jitter" in evaluate.given_up


class Normalised(torch.nn.Module):
    """A factor beside features whose running statistics a step changes."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)
        self.w = torch.nn.Parameter(torch.ones(1))

    def stepped(self, recorder):
        """A function of x (n, 2) and y (), as ``quadratic``."""
        root = quadratic(self.w, [])

        def loss_of(x, y):
            loss, parts = root(x, y)
            return loss + self.norm(x).square().sum(), parts

        return ReplayedStep(loss_of, list(self.parameters()), recorder, owners=(self,))


def test_a_discarded_replay_leaves_running_statistics_as_they_were():
    found, replays, x = [], [], torch.arange(8.0).view(4, 2).double()
    fine = torch.zeros(1).double()
    for recorder in (Recorder(), None):
        model = Normalised().double()
        evaluate = model.stepped(recorder)
        for step in range(EAGER_STEPS + 4):
            bad = step == EAGER_STEPS + 2  # it needs a jitter, which a recording cannot choose
            evaluate(x + step, fine + 0.5 + 1e-9 if bad else fine)
        found.append(list(model.norm.buffers()))
        replays.append(evaluate.replays)
    assert replays == [3, 0]  # all but the one that failed
    assert all(map(torch.equal, *found))
    assert int(model.norm.num_batches_tracked) == EAGER_STEPS + 4


def test_another_mode_of_a_module_is_another_recording():
    model, recorder = Normalised().double(), Recorder()
    evaluate, x = model.stepped(recorder), torch.arange(8.0).view(4, 2).double()
    for expected in (1, 2):
        for _ in range(EAGER_STEPS + 1):
            evaluate(x, torch.zeros(1).double())
        assert recorder.recordings == expected
        model.eval()


def test_a_step_that_cannot_be_recorded_runs_as_it_is(caplog):
    def refuse(body):
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors")

    losses, parameters, evaluate = trained(refuse)
    expected, right, _ = trained(None)
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(parameters, right, strict=True))
    assert "operation not permitted" in evaluate.given_up
    assert caplog.text.count("no CUDA graph") == 1


def test_deferred_checks_ask_nobody_and_note_what_failed():
    eye = torch.eye(3, dtype=torch.float64)
    with checks_deferred() as noted:
        factor, report = cholesky(eye)
        cholesky(-eye)
    assert [bool(n) for n in noted] == [False, True]
    assert torch.equal(factor, eye)
    assert report.jitter == 0.0
    with pytest.raises(NotPositiveDefinite):
        cholesky(-eye)


def test_an_svgp_step_under_recording_neither_waits_nor_copies_from_the_host():
    """What ``torch.cuda.graph`` would refuse, on tensors that claim to be on CUDA."""
    with claimed_cuda() as waits:
        model, x, y = model_and_data()
        model = model.cuda()
        x, y = x.cuda(), y.cuda()
        waits.clear()
        with FromTheHost() as seen, checks_deferred() as noted:
            (-SVGPELBO(60).evidence(model, x, y).value).backward()
        assert not waits
        assert len(noted) == 1
        assert not seen.names
        with seen:
            torch.tensor(1.0, device="cuda").item()
        assert len(seen.names) == 2


def weights_on_waves(device="cpu", drift_interval=0, coefficient="auto"):
    """QSGP on 40 waves with sampled gradients, made ready for its first step."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = QSGP(
        kernel=RBF(2, 0.8),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_basis=80,
        warm_start_size=16,
        basis=partial(RandomFourier, block_frequencies=4),
    ).double()
    model, x = model.to(device), x.to(device)
    y = x[:, 0].sin()
    model.initialise(x, y, generator=generator)
    objective = QuadruplyStochasticELBO(
        60, columns=24, diagonal_columns=16, support_rows=20, coefficient=coefficient,
        drift_interval=drift_interval,
    )  # fmt: skip
    objective.prepare(model, x, y, generator=generator)
    return model, objective, x, y, generator


def trained_by_samples(record, steps=9):
    """Losses, parameters and buffers after sparse AdaGrad, by replays or not."""
    model, objective, x, y, generator = weights_on_waves(drift_interval=5)
    groups = [p for group in model.parameter_groups().values() for p in group]
    optimiser, losses = IndexedAdagrad(groups, lr=0.05), []
    torch.sparse.check_sparse_tensor_invariants.disable()  # as FirstOrder says it aloud

    def loss_of(x, y, *drawn):
        evidence = objective.evidence_given(model, Batch(x, y), drawn)
        return evidence.value / -60, evidence.parts

    evaluate = ReplayedStep(loss_of, groups, record, owners=(model, objective), state=objective)
    for step in range(steps):
        rows = torch.arange(20) * (step + 1) % 60
        drawn = objective.step_draws(model, x, generator=generator)
        losses.append(float(evaluate(x[rows], y[rows], *drawn)[0]))
        optimiser.step()
        objective.after_step(model)
    state = [*model.parameters(), *model.buffers(), *objective.buffers()]
    return losses, [t.detach().clone() for t in state], evaluate


def test_replays_of_sampled_gradients_carry_the_control_variate_along():
    recorder = Recorder()
    losses, state, evaluate = trained_by_samples(recorder)
    expected, right, _ = trained_by_samples(None)
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(state, right, strict=True))
    # the check of the drift, at the fifth step, leaves the arrays where they are
    assert (recorder.recordings, evaluate.replays) == (1, 9 - EAGER_STEPS)


def near_values(kind, device="cpu"):
    """A model on nearest neighbours and its objective, made ready for its first step."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    parts = {"kernel": Matern32(2, 0.8), "mean": Constant(), "likelihood": Gaussian(0.1)}
    if kind == "vnngp":
        model = VNNGP(**parts, num_inputs=2, num_data=60, num_neighbours=5)
        objective = VNNGPELBO(60, refresh=4)
    else:
        sizes = {"num_inputs": 2, "num_inducing": 16, "num_neighbours": 5}
        model = SWSGP(**parts, **sizes, learn_inducing=kind == "swsgp")
        objective = SWSGPObjective(60, refresh=0 if kind == "swsgp" else 4)
    model, x = model.double().to(device), x.to(device)
    y = (3.0 * x[:, 0]).sin()
    model.initialise(x, y, generator=generator)
    objective.prepare(model, x, y, generator=generator)
    return model, objective.to(device), x, y


KINDS = ("swsgp", "swsgp, fixed points", "vnngp")


def trained_near(kind, record, steps=10):
    """Losses and parameters of plain gradient steps, by replays or not."""
    model, objective, x, y = near_values(kind)

    def loss_of(x, y, rows):
        evidence = objective.evidence_given(model, Batch(x, y, rows), ())
        return evidence.value / -60, evidence.parts

    moving = [p for p in model.parameters() if p.requires_grad]
    evaluate, losses = ReplayedStep(loss_of, moving, record, owners=(model, objective)), []
    for step in range(steps):
        rows = torch.arange(20) * (step + 1) % 60
        objective.before_step(model, x, y, rows)
        losses.append(float(evaluate(x[rows], y[rows], rows)[0]))
        with torch.no_grad():
            for p in moving:
                p.sub_(0.01 * p.grad)
        objective.after_step(model)
    return losses, [t.detach().clone() for t in (*model.parameters(), *model.buffers())], evaluate


@pytest.mark.parametrize("kind", KINDS)
def test_replays_on_nearest_neighbours_follow_new_neighbours_and_refits(kind):
    recorder = Recorder()
    losses, state, evaluate = trained_near(kind, recorder)
    expected, right, _ = trained_near(kind, None)
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(state, right, strict=True))
    assert (recorder.recordings, evaluate.replays) == (1, 10 - EAGER_STEPS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_on_nearest_neighbours_under_recording_neither_waits_nor_copies(kind):
    with claimed_cuda() as waits:
        model, objective, x, y = near_values(kind, "cuda")
        assert model.fixed_shapes
        assert objective.fixed_shapes
        rows = torch.arange(20, device="cuda")
        waits.clear()
        with FromTheHost() as seen, checks_deferred() as noted:
            (-objective.evidence_given(model, Batch(x[:20], y[:20], rows), ()).value).backward()
        assert not waits
        assert len(noted) == 1
        assert not seen.names
    assert not SWSGPObjective(60, scope="batch").fixed_shapes  # as many neighbours as happen to be


def test_a_buffer_that_is_replaced_is_another_recording():
    model, objective, x, y, generator = weights_on_waves(coefficient=1.0)
    groups = [p for group in model.parameter_groups().values() for p in group]
    recorder = Recorder()

    def loss_of(x, y, *drawn):
        evidence = objective.evidence_given(model, Batch(x, y), drawn)
        return evidence.value / -60, evidence.parts

    evaluate = ReplayedStep(loss_of, groups, recorder, owners=(objective,), state=objective)
    for expected in (1, 2):
        for _ in range(EAGER_STEPS + 2):
            drawn = objective.step_draws(model, x, generator=generator)
            loss, _ = evaluate(x[:20], y[:20], *drawn)
            wanted = objective.evidence_given(model, Batch(x[:20], y[:20]), drawn).value / -60
            assert float(loss) == pytest.approx(float(wanted.detach()), rel=1e-12)
        assert recorder.recordings == expected
        objective.anchor = objective.anchor + 0.1


def test_a_step_of_sampled_gradients_under_recording_neither_waits_nor_copies_from_the_host():
    with claimed_cuda() as waits:
        model, objective, x, y, generator = weights_on_waves("cuda")
        for _ in range(2):  # the first one makes what is kept
            drawn = objective.step_draws(model, x, generator=generator)
            waits.clear()
            with FromTheHost() as seen, checks_deferred() as noted:
                (-objective.evidence_given(model, Batch(x, y), drawn).value).backward()
        assert not waits
        assert not noted
        assert not seen.names


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_recording_on_a_gpu_trains_as_steps_that_run_as_they_are():
    def losses(steps, recording):
        model, x, y = model_and_data()
        model, x, y = model.cuda(), x.cuda(), y.cuda()
        objective, parameters = SVGPELBO(60), list(model.parameters())

        def loss_of(x, y):
            evidence = objective.evidence(model, x, y)
            return -evidence.value / 60, evidence.parts

        evaluate = ReplayedStep(loss_of, parameters, record_cuda_graph if recording else None)
        optimiser = torch.optim.Adam(parameters, lr=0.05)
        found = []
        for step in range(steps):
            rows = torch.arange(20, device="cuda") * (step + 1) % 60
            found.append(float(evaluate(x[rows], y[rows])[0]))
            optimiser.step()
        assert (evaluate.replays > 0) == recording
        return found

    assert losses(20, True) == pytest.approx(losses(20, False), rel=1e-12)
