"""Blocks of conjugate gradients: replays give the bits of the steps, or steps are made and say why.

Recording itself needs a GPU. Here it is imitated on tensors that claim to be on CUDA: a "recording"
runs the block's function again from the recording's own arrays, and is refused what CUDA refuses.
"""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from claimed_cuda import claimed_cuda
from launches import Launches, steps_of
from recordings import Capture, Recorder, Watched

from gpx.backends import Chunked
from gpx.backends.keops import KeOps
from gpx.inference.exact_solver import IterativeOptions
from gpx.inference.noisy_kernel import PreconditionedKernel
from gpx.kernels import RBF
from gpx.linalg import (
    EvidenceBound,
    LowRankPlusNoise,
    RelativeResidual,
    cholesky,
    conjugate_gradients,
)
from gpx.linalg.cg_iteration import CGIteration
from gpx.linalg.conjugate_gradients import CGResult
from gpx.linalg.processes import Processes, work_shared
from gpx.linalg.replayed import (
    EAGER_STEPS,
    Replayed,
    _recording_stream,
    record_cuda_graph,
    solve_recordings,
    solves_recorded,
)
from gpx.linalg.step_records import BLOCK_ROWS

FIRST = 10 * EAGER_STEPS
"""Steps of a solve that run as they are."""


@pytest.fixture
def states(monkeypatch):
    """The iterations that were begun, by weak references."""
    begun, begin = [], CGIteration.begin

    def watched(self):
        begun.append(weakref.ref(self))
        begin(self)

    monkeypatch.setattr(CGIteration, "begin", watched)
    return begun


def problem(n=150, columns=3, seed=0, factor=True):
    """K = C^T C + D with D from 1 to 400, right-hand sides of unlike difficulty, Q."""
    draw = torch.Generator().manual_seed(seed)
    root = torch.randn(8, n, generator=draw, dtype=torch.float64)
    matrix = root.mT @ root + torch.linspace(1.0, 400.0, n, dtype=torch.float64).diag()
    rhs = torch.randn(n, columns, generator=draw, dtype=torch.float64)
    rhs[:, -1] = matrix[:, 0] + matrix[:, 1]  # a side that ends long before the others
    matrix, rhs = matrix.cuda(), rhs.cuda()
    return matrix, rhs, LowRankPlusNoise(root.cuda(), 1.0, below_kernel=True) if factor else None


def assert_same(found, expected):
    for field in fields(CGResult):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        assert same, field.name


CASES = {
    "plain": {"factor": False},
    "preconditioned": {},
    "evidence": {"stop": EvidenceBound(1e-10)},
    "warm start": {"x0": 0.1},
    "cut short": {"max_iterations": 57, "on_failure": "return", "stop": RelativeResidual(1e-14)},
    "refreshed": {"refresh_every": 25, "factor": False},
    "restarted": {"refresh_every": 40, "restart": True, "stop": EvidenceBound(1e-9)},
    "in float32": {"product_dtype": torch.float32, "stop": RelativeResidual(1e-8)},
    "a vector": {"columns": 1, "vector": True},
    "unverified": {"verify": False, "keep_preconditioned": True},
    "stagnation": {"stop": RelativeResidual(1e-17), "on_failure": "return", "max_iterations": 400},
}


@pytest.mark.parametrize("name", CASES)
def test_replayed_blocks_give_the_bits_of_single_steps(name, states):
    options = {"stop": RelativeResidual(1e-10), **CASES[name]}
    columns, vector = options.pop("columns", 3), options.pop("vector", False)
    with claimed_cuda() as waits:
        matrix, rhs, q = problem(columns=columns, factor=options.pop("factor", True))
        if vector:
            rhs = rhs[:, 0].clone()
        if "x0" in options:
            options["x0"] = rhs * options["x0"]
        recorder = Capture(waits, lambda: [states[-1]().x, states[-1]().r, states[-1]().p])
        with solves_recorded(recorder):
            found = conjugate_gradients(matrix, rhs, preconditioner=q, **options)
        with solves_recorded(None):
            expected = conjugate_gradients(matrix, rhs, preconditioner=q, **options)
        assert recorder.recordings == 1
        assert recorder.replays >= 1
        assert found.report.iterations > FIRST
        assert_same(found, expected)


def test_short_solves_pay_for_no_recording_and_blocks_fill_many_records(states):
    with claimed_cuda():
        matrix, rhs, q = problem()
        recorder = Recorder()
        with solves_recorded(recorder):
            loose = conjugate_gradients(
                matrix, rhs, preconditioner=q, stop=RelativeResidual(0.3), max_iterations=FIRST
            )
        assert loose.report.iterations <= FIRST
        assert recorder.recordings == 0
        with solves_recorded(recorder):
            tight = conjugate_gradients(matrix, rhs, stop=RelativeResidual(1e-12))
        assert tight.report.iterations > BLOCK_ROWS
        assert tight.history.shape[0] == tight.report.iterations + 1
        assert recorder.replays == -(-tight.report.iterations // 10) - EAGER_STEPS


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_the_host_looks_every_second_step_of_the_first_ten(steps):
    """A good start, or a good preconditioner, is not paid for with ten products."""
    values = torch.arange(1.0, steps + 1.0, dtype=torch.float64).repeat(20)
    with claimed_cuda():
        found = conjugate_gradients(values.diag().cuda(), torch.ones_like(values).cuda())
    assert found.report.iterations == steps
    assert found.products == steps + steps % 2 + 1  # the last one is the true residual


def test_another_operator_is_recorded_anew_and_solved_itself(states):
    with claimed_cuda():
        recorder = Recorder()
        for seed in (0, 1):
            matrix, rhs, q = problem(seed=seed)
            with solves_recorded(recorder):
                found = conjugate_gradients(
                    matrix, rhs, preconditioner=q, stop=RelativeResidual(1e-10)
                )
            error = torch.linalg.vector_norm(matrix @ found.solution - rhs, dim=0)
            assert bool((error <= 1e-9 * torch.linalg.vector_norm(rhs, dim=0)).all())
        assert recorder.recordings == 2


def test_the_recording_and_the_vectors_end_with_the_solve(states):
    with claimed_cuda():
        matrix, rhs, q = problem()
        recorder = Watched()
        with solves_recorded(Recorder()):  # what torch imports at first use leaves cycles of frames
            conjugate_gradients(matrix, rhs, preconditioner=q, stop=RelativeResidual(1e-10))
        states.clear()
        gc.collect()
        gc.disable()
        try:
            with solves_recorded(recorder):
                conjugate_gradients(matrix, rhs, preconditioner=q, stop=RelativeResidual(1e-10))
                assert recorder.recordings == 1
                assert recorder.alive == 0
                assert [state() for state in states] == [None]  # which has the operator, too
        finally:
            gc.enable()


def test_a_product_that_waits_falls_back_and_is_not_tried_again(states, caplog):
    with claimed_cuda() as waits:
        matrix, rhs, _ = problem()

        def product(vectors):
            return matrix @ vectors * (1.0 if bool((vectors == vectors).all()) else 2.0)

        recorder = Capture(waits, lambda: [states[-1]().x, states[-1]().r, states[-1]().p])
        with solves_recorded(recorder) as recordings:
            found = conjugate_gradients(product, rhs, stop=RelativeResidual(1e-10))
            again = conjugate_gradients(product, rhs, stop=RelativeResidual(1e-10))
        with solves_recorded(None):
            expected = conjugate_gradients(product, rhs, stop=RelativeResidual(1e-10))
        assert recorder.replays == 0
        assert_same(found, expected)
        assert_same(again, expected)
    assert caplog.text.count("no CUDA graph") == 1
    assert "not permitted" in caplog.text
    assert len(recordings.refused) == 1


def test_a_product_with_a_factorisation_is_not_replayed(states, caplog):
    """Where a jitter is needed the call is made again, and the vectors would have moved twice."""
    with claimed_cuda() as waits:
        matrix, rhs, _ = problem()

        def product(vectors):
            root, _ = cholesky(torch.eye(2, dtype=vectors.dtype, device=vectors.device))
            return matrix @ vectors * root[0, 0]

        recorder = Capture(waits, lambda: [states[-1]().x, states[-1]().r, states[-1]().p])
        with solves_recorded(recorder):
            conjugate_gradients(product, rhs, stop=RelativeResidual(1e-10))
        assert recorder.replays == 0
    assert "factorises" in caplog.text


def test_nothing_is_recorded_on_a_cpu_nor_where_processes_share_the_products(states):
    recorder = Recorder()
    with claimed_cuda(), solves_recorded(recorder):
        matrix, rhs, _ = problem()
        with work_shared(Processes(0, 2)):
            conjugate_gradients(matrix, rhs, stop=RelativeResidual(1e-10))
        conjugate_gradients(matrix.cpu(), rhs.cpu(), stop=RelativeResidual(1e-10), check_every=10)
        conjugate_gradients(matrix, rhs, stop=RelativeResidual(1e-10), check_every=1)
    assert recorder.recordings == 0


def test_keops_refuses_a_recording(monkeypatch):
    entries = RBF(2)(torch.rand(5, 2)).entries
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="KeOps launches its kernels itself"):
        KeOps().product(entries, torch.ones(5, 1), transposed=False)


def test_a_product_of_many_tiles_refuses_a_recording(monkeypatch):
    entries = RBF(2)(torch.rand(40, 2)).entries
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    few, many = (Chunked(budget) for budget in (2**20, 2**6))
    assert few.product(entries, torch.ones(40, 1), transposed=False).shape == (40, 1)
    with pytest.raises(RuntimeError, match=r"a product in \d+ tiles takes far longer"):
        many.product(entries, torch.ones(40, 1), transposed=False)


def test_a_buffer_that_is_replaced_is_held_as_long_as_the_recording():
    buffers = [torch.zeros(3)]
    given = torch.ones(3)
    replayed = Replayed(lambda x: torch.add(x, 1.0, out=buffers[-1]), Recorder(), eager=0)
    replayed(given)
    held = replayed._recorded.held
    assert len(held) == 2  # what comes in, and the buffer
    places = {t.untyped_storage().data_ptr() for t in held.values()}
    assert buffers[0].untyped_storage().data_ptr() in places
    replayed.release()
    assert replayed._recorded is None


def test_what_is_asked_of_solves_holds_in_every_thread():
    """torch computes gradients of CUDA tensors, with the solves in them, in its own threads."""
    with solves_recorded(None), ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: solve_recordings().record).result() is None
    assert solve_recordings().record is record_cuda_graph


def test_a_recording_is_made_on_the_device_of_what_it_is_given(monkeypatch):
    """On another one, as the first where a run is on cuda:1, it would have no kernels."""
    on = []

    class DeviceOf:
        def __init__(self, tensor):
            self.tensor = tensor

        def __enter__(self):
            on.append(self.tensor)

        def __exit__(self, *_):
            on.pop()

    def record(body):
        assert on == [given]
        return body

    monkeypatch.setattr(torch.cuda, "device_of", DeviceOf)
    given = torch.ones(3)
    assert Replayed(torch.sum, record, eager=0)(given) == 3.0


def test_every_device_has_a_stream_of_its_own_for_recordings(monkeypatch):
    used = []

    @contextmanager
    def graph(made, stream):
        used.append(stream)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=None))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(device=device))
    _recording_stream.cache_clear()
    for device in (0, 1, 0):
        monkeypatch.setattr(torch.cuda, "current_device", lambda device=device: device)
        record_cuda_graph(lambda: None)
    _recording_stream.cache_clear()
    assert [stream.device for stream in used] == [0, 1, 0]
    assert used[0] is used[2]


def test_a_recording_that_fails_is_followed_by_one_that_does_not(monkeypatch):
    """Otherwise draws from torch's default generator on the device would fail from then on."""
    recorded = []

    @contextmanager
    def graph(made, stream):
        yield
        recorded.append(stream)

    def refused():
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=None))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: SimpleNamespace(device="cpu"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    _recording_stream.cache_clear()
    with pytest.raises(RuntimeError, match="not permitted"):
        record_cuda_graph(refused)
    _recording_stream.cache_clear()
    assert len(recorded) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_draws_go_on_after_a_recording_that_failed():
    number = torch.ones((), device="cuda")
    with pytest.raises(RuntimeError):
        record_cuda_graph(lambda: float(number))
    assert torch.rand(3, device="cuda").isfinite().all()


@pytest.mark.parametrize("asked", [True, False])
def test_one_option_rules_over_the_solves_of_a_run(monkeypatch, asked):
    seen = []

    def watched():
        seen.append(solve_recordings().record)
        return solve_recordings()

    monkeypatch.setattr("gpx.linalg.cg_blocks.solve_recordings", watched)
    steps_of(
        *("approx=exact", "approx.solver=iterative", "approx.iterative.rank=20"),
        *("data.num_points=100", "trainer.max_steps=2", f"trainer.cuda_graphs={asked}"),
    )
    assert set(seen) == {record_cuda_graph if asked else None}


@pytest.mark.parametrize(("budget", "reduced"), [(2**30, None), (2**14, None), (2**30, "float32")])
def test_a_kernel_matrix_and_its_preconditioner_can_be_recorded(states, budget, reduced):
    """Stored, in chunks and with float32 products: no waits and nothing from the host inside, and
    ten launches and one wait for ten steps."""
    with claimed_cuda() as waits:
        draw = torch.Generator().manual_seed(0)
        x = torch.rand(90, 2, generator=draw, dtype=torch.float64).cuda()
        options = IterativeOptions(rank=10, memory_budget=budget, product_dtype=reduced)
        kernel = RBF(2, 0.1).double().cuda()
        system = PreconditionedKernel(
            kernel, x, torch.tensor(1e-3, dtype=torch.float64).cuda(), options
        )
        rhs = torch.randn(90, 4, generator=draw, dtype=torch.float64).cuda()
        launches = Launches()
        recorder = Capture(
            waits, lambda: [states[-1]().x, states[-1]().r, states[-1]().p], launches
        )
        counts = []

        def solve(steps):
            waits.clear()
            launches.counts.clear()
            with solves_recorded(recorder), launches:
                conjugate_gradients(
                    system.matmul,
                    rhs,
                    preconditioner=system.preconditioner,
                    stop=RelativeResidual(1e-30),
                    product_dtype=system.product_dtype,
                    refresh_every=10**6,
                    max_iterations=steps,
                    verify=False,
                    on_failure="return",
                )
            counts.append((launches.counts.total(), waits.total()))

        system.matmul(rhs)  # which makes what is stored
        solve(FIRST + 10)
        solve(FIRST + 30)
        assert recorder.recordings == 2
        assert recorder.replays == 1 + 3
        more = [(b - a) / 2 for a, b in zip(*counts, strict=True)]
        assert more[0] <= 10
        assert more[1] <= 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_a_recording_on_a_gpu_gives_the_bits_of_single_steps(name):
    options = {"stop": RelativeResidual(1e-10), **CASES[name]}
    columns, vector = options.pop("columns", 3), options.pop("vector", False)
    matrix, rhs, q = problem(columns=columns, factor=options.pop("factor", True))
    if vector:
        rhs = rhs[:, 0].clone()
    if "x0" in options:
        options["x0"] = rhs * options["x0"]
    with solves_recorded() as recordings:
        found = conjugate_gradients(matrix, rhs, preconditioner=q, **options)
    assert not recordings.refused
    with solves_recorded(None):
        expected = conjugate_gradients(matrix, rhs, preconditioner=q, **options)
    assert_same(found, expected)
