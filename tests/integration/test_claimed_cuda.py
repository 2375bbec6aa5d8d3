"""Training as on a GPU where there is none: devices are told apart, and waits for them counted."""

from functools import partial

import numpy as np
import pytest
import torch
from claimed_cuda import DeviceMismatch, claimed_cuda
from recordings import Capture, FromTheHost
from torch import nn

from gpx import load
from gpx.bases import RandomFourier
from gpx.kernels import RBF, Kumaraswamy
from gpx.likelihoods import Gaussian, Ordinal
from gpx.linalg.replayed import EAGER_STEPS
from gpx.means import Zero
from gpx.methods.base import replayed_step
from gpx.methods.weight_space.group_solves import WeightGroup
from gpx.models import QSGP
from gpx.objectives import QuadruplyStochasticELBO
from gpx.training import FirstOrder, first_order, lbfgsb

ARM = [
    "data=robot_arm",
    "data.num_points=400",
    "trainer.tensorboard=false",
    "trainer.figures=false",
]
SHORT = {
    "exact": ["trainer.max_steps=3"],
    "sgpr": ["trainer.max_steps=3", "approx.num_inducing=20"],
    "sod selector=ivm": ["trainer.max_steps=3", "approx.num_points=40"],
    "sor": ["trainer.max_steps=3", "approx.num_inducing=20"],
    "fitc": ["trainer.max_steps=3", "approx.num_inducing=20"],
    "pic": ["trainer.max_steps=3", "approx.num_inducing=20"],
    "svgp optimizer=adam": ["trainer.max_steps=3", "approx.num_inducing=20"],
    # as many points as there are rows: chosen in another order on a GPU, which changes estimates
    "exact approx.solver=iterative": [
        *("trainer.max_steps=1", "approx.iterative.variance=exact", "approx.iterative.rank=360"),
    ],
    "swsgp": [
        "trainer.max_steps=3",
        "approx.num_inducing=20",
        "approx.num_neighbours=6",
        "trainer.batch_size=100",
    ],
    "vnngp": [
        *("trainer.max_steps=3", "approx.num_neighbours=6", "trainer.batch_size=100"),
        "init.neighbour_evaluations=2",
    ],
    "cnn_rf": [
        *("likelihood=gaussian", "approx.image_shape=[2,4]"),
        *("trainer.max_steps=3", "approx.predict_samples=3"),
    ],
    "deep_rf": ["trainer.max_steps=3", "approx.num_features=40", "approx.predict_samples=3"],
    "dkl": ["trainer.max_steps=3", "approx.num_inducing=20", "approx.pretrain_steps=3"],
    "svdkl": ["trainer.max_steps=3", "approx.grid_size=12", "approx.pretrain_steps=3"],
    "deep_svgp": [
        *("trainer.max_steps=3", "approx.num_inducing=20", "approx.predict_samples=3"),
    ],
    "svgp objective=predictive": ["trainer.max_steps=3", "approx.num_inducing=20"],
    "deep_svgp objective=predictive": [
        *("trainer.max_steps=3", "approx.num_inducing=20", "approx.predict_samples=3"),
    ],
    "gpdnn": [
        *("likelihood=gaussian", "approx.image_shape=[2,4]", "trainer.max_steps=3"),
        *("approx.num_inducing=20", "approx.pretrain_steps=3"),
    ],
    "conv_gp": [
        *("likelihood=gaussian", "approx.image_shape=[2,4]", "approx.patch_size=2"),
        *("trainer.max_steps=3", "approx.num_inducing=20"),
    ],
    "cnn_sorf": [
        *("likelihood=gaussian", "approx.image_shape=[2,4]"),
        *("trainer.max_steps=3", "approx.predict_samples=3"),
    ],
    "vecchia": ["trainer.max_steps=3", "approx.num_neighbours=20"],
    "cglb": ["trainer.max_steps=3", "approx.num_inducing=20"],
    "ssgp": ["trainer.max_steps=3", "approx.num_basis=20", "approx.draws=2"],
    "vssgp": ["trainer.max_steps=3", "approx.num_basis=20", "approx.draws=2"],
    "exact approx.solver=iterative approx.iterative.preconditioner=grief": [
        *("trainer.max_steps=1", "approx.iterative.variance=exact", "approx.iterative.rank=20"),
    ],
    "ski projection=unit": ["trainer.max_steps=2", "approx.grid_size=12"],
    "grief": [
        *("trainer.max_steps=2", "approx.num_eigenfunctions=30", "approx.trial_evaluations=3"),
    ],
    "committee": ["trainer.max_steps=3", "approx.num_experts=4"],
    "local_experts": ["trainer.max_steps=3", "approx.num_experts=4"],
    "local_experts approx.hyperparameters=shared": ["trainer.max_steps=3", "approx.num_experts=4"],
    "transductive": ["trainer.max_steps=3", "approx.num_experts=4"],
    "mixture_of_experts": ["trainer.max_steps=2"],
    "direct": ["trainer.max_steps=3", "approx.num_basis=20"],
    "direct optimizer=coordinate_ascent": ["optimizer.tolerance=1e3", "approx.num_basis=20"],
    "direct_network": [
        *("trainer.max_steps=3", "approx.starts=2", "approx.hidden=[2]", "approx.restarts=1"),
    ],
    "direct_mixture": ["trainer.max_steps=3", "approx.num_basis=20", "approx.sweeps=2"],
    "reweighted": [
        "approx.num_basis=40",
        "optimizer.burn_in=30",
        "optimizer.iterations=40",
        "optimizer.thin=10",
    ],
    "svgp optimizer=svgp_natural strategy=unwhitened": [
        *("trainer.max_steps=4", "approx.num_inducing=20", "trainer.batch_size=100"),
    ],
    "svgp": ["trainer.max_steps=4", "approx.num_inducing=20", "trainer.batch_size=100"],
    "qsgp": [
        "approx.num_basis=400",
        "approx.basis.block_frequencies=20",
        "approx.block_columns=100",
    ],
    "qsgp optimizer=qsgp": [
        "trainer.max_steps=3",
        "approx.num_basis=400",
        "approx.basis.block_frequencies=20",
        "approx.warm_start_size=100",
        "approx.block_solves=1",
    ],
    "qsgp_inducing": [],
    "qsgp_inducing approx.variance=augmented": [],
    "qsgp_inducing approx.variance=mean_field": ["approx.rank=360"],
    "qsrvm": ["approx.sweeps=2", "trainer.max_steps=3"],
}


def test_a_claimed_tensor_refuses_what_one_on_cuda_refuses():
    with claimed_cuda() as waits:
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        assert there.is_cuda
        assert (there + here[0]).device.type == "cuda"
        assert (there + there.cpu().cuda()).is_cuda
        for refused in (lambda: there + here, lambda: here[there.long()], lambda: there.numpy()):
            with pytest.raises(DeviceMismatch):
                refused()
        with pytest.raises(DeviceMismatch, match="generator"):
            torch.randn(3, device="cuda", generator=torch.Generator())
        before = waits.total()
        assert float(there.sum()) == 3.0
        assert waits.total() == before + 1
    assert not torch.ones(3).is_cuda
    assert torch.Generator().device.type == "cpu"


def test_copies_to_the_device_are_seen_by_a_recording():
    with claimed_cuda():
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        for copied in (
            lambda: here.to("cuda"),
            lambda: there.to(there) + here.to(there),
            lambda: there.copy_(here),
            lambda: there[[0, 2]],
            lambda: there[here.long()],
            lambda: there.__setitem__(slice(None), here),
            lambda: torch.as_tensor([1.0, 2.0], device="cuda"),
        ):
            with FromTheHost() as seen:
                copied()
            assert seen.names
        with FromTheHost() as seen:
            there.to(torch.float64)[1:] + there[there.long()][0]
            there.copy_(there + torch.zeros(3, device="cuda"))
        assert not seen.names


@pytest.mark.parametrize("deterministic", [False, True])
def test_cut_points_of_ordered_classes_have_the_same_bits_every_time(deterministic):
    expected = Ordinal(5).cut_points
    torch.use_deterministic_algorithms(deterministic)
    try:
        with claimed_cuda():
            found = Ordinal(5).cuda().cut_points.cpu()
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(found, expected)


def test_a_warp_copies_nothing_to_the_device():
    with claimed_cuda() as waits:
        warp, x = Kumaraswamy(2).cuda(), torch.ones(3, 2, device="cuda")
        waits.clear()
        with FromTheHost() as seen:
            warp(x).sum().backward()
        assert not seen.names
        assert not waits


def test_a_group_of_no_weights_is_zero_everywhere():
    """As of relevance vectors before the first one is taken."""
    with claimed_cuda():
        basis, x = RandomFourier(RBF(2), 8).cuda(), torch.ones(3, 2, device="cuda")
        none = torch.empty(0, dtype=torch.long, device="cuda")
        group = WeightGroup.of_columns(basis, none)
        assert group.values(x.new_empty(0), x).tolist() == [0.0] * 3
        assert group.column_squares(x).shape == (0,)


class _Tabulated(torch.autograd.Function):
    """x times two, whose gradient meets a table that may be elsewhere."""

    @staticmethod
    def forward(ctx, x, table):
        ctx.save_for_backward(x)
        ctx.table = table
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if bool((grad == 0).all()):
            raise AssertionError("no gradient")
        return grad * x * ctx.table, None


def test_a_gradient_in_python_runs_where_its_inputs_were():
    with claimed_cuda() as waits:
        x = torch.ones(3, device="cuda").requires_grad_()
        before = waits.total()
        _Tabulated.apply(x, torch.full((3,), 4.0, device="cuda")).sum().backward()
        assert x.grad.tolist() == [4.0] * 3
        assert waits.total() == before + 2  # bool() in the gradient, and tolist()
        with pytest.raises(DeviceMismatch, match=r"mul of CUDA tensors with CPU \[\(3,\)\]"):
            _Tabulated.apply(x, torch.ones(3)).sum().backward()
        here = torch.ones(3).requires_grad_()
        _Tabulated.apply(here, torch.ones(3)).sum().backward()
        assert not here.grad.is_cuda


def test_what_joins_a_module_from_the_other_device_is_refused():
    with claimed_cuda():
        there, here = torch.ones(2, device="cuda"), torch.ones(2)
        module = torch.nn.Linear(2, 1)
        module.register_buffer("first", here)
        module = module.cuda()
        for name, stranger in (
            ("first", here),
            ("child", torch.nn.Linear(2, 1)),
            ("own", torch.nn.Parameter(here)),
        ):
            with pytest.raises(DeviceMismatch, match=f"{name} joins Linear, which is on CUDA"):
                setattr(module, name, stranger)
        for stranger in (here, torch.zeros(0)):  # an empty one would take a loaded state with it
            with pytest.raises(DeviceMismatch, match="stranger joins Linear"):
                module.register_buffer("stranger", stranger)
        module.register_buffer("second", there)
        module.first = there + 1.0
        module.register_buffer("empty", there[:0])
        empty = torch.nn.Module()
        empty.register_buffer("filled", here[:0])
        empty.filled = there  # where it is was not decided yet
        module.cpu().register_buffer("third", here)
    module.register_buffer("fourth", torch.ones(1, device="meta"))  # elsewhere nothing is watched


class _ElsewhereAgain(torch.autograd.Function):
    """x times two, whose gradient is made on the CPU."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2.0 * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.full((len(x),), 2.0)


def test_what_vmap_makes_is_where_its_arguments_are():
    with claimed_cuda():
        x, own = torch.ones(3, 2).cuda(), nn.Parameter(torch.ones(2).cuda())
        found = torch.vmap(lambda row: row @ own + torch.ones((), device=row.device))(x)
        assert found.is_cuda
        (gradient,) = torch.autograd.grad(found.sum(), own)
        assert gradient.tolist() == [3.0, 3.0]
        assert not torch.vmap(torch.sum)(x.cpu()).is_cuda
        with pytest.raises(DeviceMismatch, match="vmap of CUDA tensors with CPU"):
            torch.vmap(torch.dot)(x, torch.ones(3, 2))


def test_gradients_enter_a_backward_pass_on_the_device_of_what_they_belong_to():
    """From a function written in Python, and from the caller: torch's own are in between."""
    with claimed_cuda():
        x = torch.ones(3, device="cuda", requires_grad=True)
        with pytest.raises(DeviceMismatch, match=r"_ElsewhereAgain .* gradients \[\(3,\)\] on the"):
            _ElsewhereAgain.apply(x.exp()).sum().backward()
        _ElsewhereAgain.apply(torch.ones(3, requires_grad=True)).sum().backward()
        with pytest.raises(DeviceMismatch, match="of the other device"):
            torch.autograd.grad(x.exp(), x, torch.ones(3))
        with pytest.raises(DeviceMismatch, match="of the other device"):
            x.exp().backward(torch.ones(3))
        with pytest.raises(DeviceMismatch, match="of the other device"):
            torch.autograd.backward([x.exp()], grad_tensors=[torch.ones(3)])
        (found,) = torch.autograd.grad(x.exp(), x, torch.ones(3, device="cuda"))
        assert found.is_cuda


def test_gradients_and_optimisers_stay_on_the_device():
    with claimed_cuda():
        layer = torch.nn.Linear(2, 1).cuda()
        layer(torch.ones(4, 2, device="cuda")).sum().backward()
        torch.optim.Adam(layer.parameters()).step()
        assert layer.weight.grad.is_cuda
        assert layer.weight.is_cuda
        assert not layer.cpu().weight.is_cuda


@pytest.mark.parametrize("approx", SHORT)
def test_a_run_on_cuda_is_that_on_the_cpu(train, approx):
    options = [*ARM, *f"approx={approx}".split(), *SHORT[approx]]
    expected, _ = train(*options, "trainer.device=cpu", folder="cpu")
    with claimed_cuda():
        found, folder = train(*options, "trainer.device=cuda", folder="cuda")
    assert found["test.rmse"] == pytest.approx(expected["test.rmse"], rel=1e-4)
    assert found["train.evidence"] == pytest.approx(expected["train.evidence"], rel=1e-4)
    assert load(folder.path).predict(torch.zeros(2, 8).numpy()).mean.shape == (2,)  # on the CPU


@pytest.mark.parametrize(
    ("approx", "module"),
    [
        *(("svgp", first_order), ("swsgp", first_order)),
        *(("deep_rf", first_order), ("deep_svgp", first_order), ("cnn_rf", first_order)),
        *(("dkl", first_order), ("gpdnn", first_order), ("conv_gp", first_order)),
        ("svgp objective=predictive", first_order),
        ("deep_svgp objective=predictive", first_order),
        *(("sgpr", lbfgsb), ("fitc", lbfgsb), ("sor", lbfgsb), ("ssgp", lbfgsb), ("vssgp", lbfgsb)),
    ],
)
def test_a_run_of_recorded_steps_is_that_of_steps_as_they_are(train, monkeypatch, approx, module):
    options = [*ARM, *f"approx={approx}".split(), *SHORT[approx], "data.num_points=120"]
    options += ["trainer.max_steps=6", "trainer.batch_size=30", "trainer.device=cuda"]
    with claimed_cuda() as waits:
        recorder = Capture(waits)
        name = "replayed_batches" if module is first_order else "ReplayedStep"
        monkeypatch.setattr(module, name, partial(getattr(module, name), record=recorder))
        found, _ = train(*options, folder="replayed")
        assert (recorder.recordings, recorder.replays) == (1, 6 - EAGER_STEPS)
        expected, _ = train(*options, "trainer.cuda_graphs=false", folder="as_they_are")
    assert recorder.replays == 6 - EAGER_STEPS
    for name in ("test.rmse", "train.evidence"):
        assert found[name] == pytest.approx(expected[name], rel=1e-12)


@pytest.mark.parametrize(("rows", "recordings"), [(360, 1), (359, 0)])
def test_steps_of_more_rows_than_a_recording_is_for_are_not_recorded(
    train, monkeypatch, rows, recordings
):
    monkeypatch.setattr(replayed_step, "MOST_RECORDED_ROWS", rows)
    with claimed_cuda() as waits:
        recorder = Capture(waits)
        replayed = partial(first_order.replayed_batches, record=recorder)
        monkeypatch.setattr(first_order, "replayed_batches", replayed)
        options = ["approx=sgpr", "approx.num_inducing=20", "optimizer=adam"]  # all rows at once
        options += ["trainer.max_steps=4", "trainer.device=cuda"]
        train(*ARM, *options)
    assert recorder.recordings == recordings


def test_a_run_in_float64_on_a_device_that_is_slow_at_it_says_so(train, monkeypatch, capsys):
    options = ["approx=sod", "approx.num_points=20", "trainer.max_steps=1", "trainer.device=cuda"]
    words = "note: float64 runs at a small part of the rate of float32 on claimed (compute capabili"
    for capability, dtype in (((9, 0), "float64"), ((8, 9), "float32"), ((8, 9), "float64")):
        with claimed_cuda():
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, c=capability: c)
            train(*ARM, *options, f"trainer.dtype={dtype}", folder=f"{dtype}{capability[1]}")
        said = capsys.readouterr().err
        assert (words in said) == (capability == (8, 9) and dtype == "float64")
    assert "where their rounding will do (trainer.dtype=float32)" in said


CLASSES = ["data=npz", "data.path=@classes"]
DIGITS = ["data=digits", "data.train_size=60"]
OTHER_DATA = {
    # one input: low-rank parts from the strongest waves of the axis
    "ski": ["data=toy1d", "approx.grid_size=40", "trainer.max_steps=2"],
    "grid": [
        *("data=grid_stress", "data.field=rastrigin", "data.shape=[8,8]", "data.gap_share=0.2"),
        "trainer.max_steps=2",
    ],
    "laplace": [*CLASSES, "trainer.max_steps=2"],
    "ep": [*CLASSES, "trainer.max_steps=2"],
    "vgp": [*CLASSES, "trainer.max_steps=2"],
    "direct_logistic": [*CLASSES, "approx.num_basis=20", "trainer.max_steps=2"],
    "swsgp likelihood=bernoulli": [
        *(*CLASSES, "approx.num_inducing=20", "approx.num_neighbours=6", "trainer.max_steps=2"),
    ],
    "vnngp likelihood=bernoulli": [*CLASSES, "approx.num_neighbours=6", "trainer.max_steps=2"],
    "deep_rf likelihood=softmax": [
        *(*DIGITS, "approx.num_features=20", "approx.predict_samples=2", "trainer.max_steps=2"),
    ],
    "cnn_mcd": [*DIGITS, "approx.predict_samples=2", "trainer.max_steps=2"],
}


@pytest.mark.parametrize("approx", OTHER_DATA)
def test_a_run_on_other_data_on_cuda_is_that_on_the_cpu(train, approx, tmp_path):
    x = torch.randn(80, 2, generator=torch.Generator().manual_seed(0)).numpy()
    np.savez(tmp_path / "classes.npz", x=x, y=(x[:, 0] * x[:, 1] > 0.1).astype(int))
    options = [*OTHER_DATA[approx], *ARM[2:], *f"approx={approx}".split()]
    options = [option.replace("@classes", f"{tmp_path / 'classes.npz'}") for option in options]
    expected, _ = train(*options, "trainer.device=cpu", folder="cpu")
    with claimed_cuda():
        found, _ = train(*options, "trainer.device=cuda", folder="cuda")
    compared = {"test.rmse", "test.mnlp", "test.mnlp_classes", "train.evidence"} & expected.keys()
    assert compared
    for name in compared:
        assert found[name] == pytest.approx(expected[name], rel=1e-4)


@pytest.mark.parametrize("basis", ["laplacian", "ski"])
def test_a_run_that_learns_the_kernel_from_sums_on_cuda_is_that_on_the_cpu(train, basis):
    options = ["data=toy1d", *ARM[2:], "approx=reweighted", "inference=type2", f"basis={basis}"]
    options += ["approx.priors=null", "approx.num_basis=60", "trainer.max_steps=4"]
    expected, _ = train(*options, "trainer.device=cpu", folder="cpu")
    with claimed_cuda():
        found, folder = train(*options, "trainer.device=cuda", folder="cuda")
    for name in ("test.rmse", "train.evidence"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)
    assert load(folder.path).predict(torch.zeros(2, 1).numpy()).mean.shape == (2,)


def test_a_run_of_several_outputs_on_cuda_is_that_on_the_cpu(train, tmp_path):
    x = torch.randn(80, 2, generator=torch.Generator().manual_seed(0)).numpy()
    y = np.stack([x[:, 0], 9.0 + x[:, 1] ** 2], 1)
    # without noise the start would amplify what the two devices round in another order
    y += 0.2 * torch.randn(80, 2, generator=torch.Generator().manual_seed(1)).numpy()
    np.savez(tmp_path / "two.npz", x=x, y=y)
    options = [
        "data=npz",
        f"data.path={tmp_path / 'two.npz'}",
        *ARM[2:],
        "approx=svgp",
        *SHORT["svgp"],
    ]
    options += ["likelihood=gaussian_outputs", "trainer.baselines=true", "trainer.dtype=float64"]
    expected, _ = train(*options, "trainer.device=cpu", folder="cpu")
    with claimed_cuda():
        found, folder = train(*options, "trainer.device=cuda", folder="cuda")
    for name in ("test.rmse_original.y1", "test.mnlp_original.y2", "baseline.linear.rmse.y2"):
        assert found[name] == pytest.approx(expected[name], rel=1e-8)
    assert load(folder.path).predict(x[:3]).mean.shape == (3, 2)


@pytest.mark.parametrize("sampling", ["stratified", "with_replacement", "without_replacement"])
@pytest.mark.parametrize("family", [{}, {"covariance": "chevron", "num_dense": 3}])
def test_sampled_steps_never_wait_for_the_device(sampling, family):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 3, generator=generator), torch.randn(60, generator=generator)
    with claimed_cuda() as waits:
        x, y = x.cuda(), y.cuda()
        draws = torch.Generator("cuda").manual_seed(1)
        model = QSGP(
            kernel=RBF(3),
            mean=Zero(),
            likelihood=Gaussian(0.1),
            num_basis=80,
            warm_start=False,
            basis=partial(RandomFourier, block_frequencies=4),
            **family,
        ).cuda()
        model.initialise(x, y, generator=draws)
        objective = QuadruplyStochasticELBO(
            60, columns=16, diagonal_columns=16, support_rows=10, sampling=sampling
        )
        objective.prepare(model, x, y, generator=draws)
        groups = model.parameter_groups()
        algorithms = {"variational": "adagrad", "hyperparameters": "adam"}
        optimiser = FirstOrder({r: {"algorithm": algorithms[r], "lr": 0.01} for r in groups})
        optimiser.bind(groups, 3, model)
        waits.clear()
        for step in range(3):
            optimiser.before_step(step)
            rows = torch.randint(60, (12,), generator=draws, device="cuda")
            objective(model, x[rows], y[rows], generator=draws).backward()
            optimiser.step(step)
            objective.after_step(model)
        assert not waits
