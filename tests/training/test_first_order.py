import pickle
from functools import partial

import pytest
import torch
from claimed_cuda import claimed_cuda
from omegaconf import OmegaConf
from torch import nn

import gpx
from gpx.bases import RandomFourier
from gpx.constraints import FLOOR, positive_parameter
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import QSGP, ExactGP
from gpx.objectives import QuadruplyStochasticELBO
from gpx.training.first_order import FirstOrder
from gpx.training.indexed_steps import IndexedSparseAdam, summed_rows_dense
from gpx.training.role_settings import schedule_factor


def test_schedules_start_at_one_and_end_at_final():
    for name in ("exponential", "cosine"):
        assert schedule_factor(name, 0.1, 0.0) == pytest.approx(1.0)
        assert schedule_factor(name, 0.1, 1.0) == pytest.approx(0.1)
    assert schedule_factor("exponential", 0.01, 0.5) == pytest.approx(0.1)
    assert schedule_factor("cosine", 0.0, 0.5) == pytest.approx(0.5)
    assert schedule_factor("constant", 0.1, 0.7) == 1.0
    with pytest.raises(ConfigError, match="expected constant, exponential or cosine"):
        schedule_factor("linear", 0.1, 0.0)


def quadratic_run(steps, freeze):
    w = nn.Parameter(torch.tensor([2.0]))
    v = nn.Parameter(torch.tensor([2.0]))
    optimizer = FirstOrder(
        {
            "variational": {"algorithm": "sgd", "lr": 0.1},
            "hyperparameters": {"algorithm": "sgd", "lr": 0.1, "freeze_steps": freeze},
        }
    )
    optimizer.bind({"variational": [w], "hyperparameters": [v]}, steps)
    for step in range(steps):
        optimizer.before_step(step)
        (w.square() + v.square()).sum().backward()
        optimizer.step(step)
    optimizer.release()
    return w.item(), v.item(), v.requires_grad


def test_freezing_and_groups():
    w, v, trainable = quadratic_run(5, freeze=3)
    assert w == pytest.approx(2 * 0.8**5)
    assert v == pytest.approx(2 * 0.8**2)
    assert trainable


def test_a_parameter_that_needs_no_gradient_stays():
    """Such as inducing points that are to stay where they were placed."""
    held, free = (torch.nn.Parameter(torch.full((2,), 2.0)) for _ in range(2))
    held.requires_grad_(False)
    optimizer = FirstOrder({"hyperparameters": {"algorithm": "sgd", "lr": 0.1}})
    optimizer.bind({"hyperparameters": [held, free]}, 3)
    for step in range(3):
        optimizer.before_step(step)
        (held.square() + free.square()).sum().backward()
        optimizer.step(step)
    optimizer.release()
    assert not held.requires_grad
    assert torch.equal(held, torch.full((2,), 2.0))
    assert bool((free < 2.0).all())


def bound(algorithm="adam", **options):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = FirstOrder({"hyperparameters": {"algorithm": algorithm, "lr": 0.1, **options}})
    optimizer.bind({"hyperparameters": [parameter]}, 5)
    return optimizer, parameter


@pytest.mark.parametrize("algorithm", ["adam", "sgd"])
def test_changed_settings_hold_in_a_resumed_run(algorithm, caplog):
    optimizer, parameter = bound(weight_decay=0.01)
    optimizer.before_step(0)
    parameter.sum().backward()
    optimizer.step(0)
    again, same = bound(algorithm, weight_decay=0.1)
    again.load_state_dict(optimizer.state_dict())
    (group,) = again.optimisers["hyperparameters"].param_groups
    assert group["weight_decay"] == 0.1
    kept = bool(again.optimisers["hyperparameters"].state)
    assert kept == (algorithm == "adam")
    assert ("moments of another algorithm are dropped" in caplog.text) != kept
    again.before_step(1)
    same.sum().backward()
    again.step(1)
    assert bool((same < 1.0).all())


def test_hyperparameters_of_a_weight_space_model_wait_until_they_are_free():
    """Held to the bit in every step before, moved by the first one after; weights always move."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 2, generator=generator), torch.randn(40, generator=generator)
    single = partial(RandomFourier, block_frequencies=1)
    model = QSGP(
        kernel=RBF(2),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_basis=20,
        warm_start=False,
        basis=single,
    )
    model.initialise(x, y, generator=generator)
    objective = QuadruplyStochasticELBO(40, columns=8, diagonal_columns=8, support_rows=10)
    objective.prepare(model, x, y, generator=generator)
    groups = model.parameter_groups()
    optimizer = FirstOrder(
        {
            "variational": {"algorithm": "adagrad", "lr": 0.1},
            "hyperparameters": {"algorithm": "adam", "lr": 1e-3, "freeze_steps": 3},
        }
    )
    optimizer.bind(groups, 5, model)
    held = [p.detach().clone() for p in groups["hyperparameters"]]
    assert len(held) == 3  # lengthscales, outputscale, noise
    for step in range(4):
        before = groups["variational"][0].detach().clone()
        optimizer.before_step(step)
        assert (optimizer.learning_rates(step)["hyperparameters"] == 0.0) == (step < 3)
        # no backward pass is spent on what does not move
        assert [p.requires_grad for p in groups["hyperparameters"]] == [step >= 3] * 3
        objective(model, x, y, generator=generator).backward()
        optimizer.step(step)
        objective.after_step(model)
        assert not torch.equal(groups["variational"][0], before)
        still = [torch.equal(p, h) for p, h in zip(groups["hyperparameters"], held, strict=True)]
        assert still == [step < 3] * 3


@pytest.mark.parametrize("algorithm", ["adam", "adagrad", "sgd"])
@pytest.mark.parametrize("limited", [True, False])
def test_a_positive_parameter_pushed_to_its_floor_comes_back(algorithm, limited):
    module = nn.Module()
    positive_parameter(module, "scale", torch.tensor(1.0, dtype=torch.float64))
    optimizer = FirstOrder({"hyperparameters": {"algorithm": algorithm, "lr": 1.0}})
    groups = {"hyperparameters": list(module.parameters())}
    optimizer.bind(groups, 600, module if limited else None)
    with torch.no_grad():
        module.parametrizations.scale.original.fill_(-60.0)
    for step in range(600):
        optimizer.before_step(step)
        (module.scale.log() ** 2).backward()  # smallest at 1
        optimizer.step(step)
    if limited:
        assert module.scale.item() > 1e-3
    else:
        assert module.scale.item() == pytest.approx(FLOOR)


def test_adagrad_moves_only_sampled_rows():
    table = nn.Parameter(torch.zeros(10, 1))
    optimizer = FirstOrder({"variational": {"algorithm": "adagrad", "lr": 0.1}})
    optimizer.bind({"variational": [table]}, 3)
    optimizer.before_step(0)
    rows = torch.tensor([2, 7])
    nn.functional.embedding(rows, table, sparse=True).sum().backward()
    optimizer.step(0)
    moved = (table.detach().squeeze() != 0).nonzero().squeeze().tolist()
    assert moved == [2, 7]


@pytest.mark.parametrize("options", [{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.5}])
def test_adagrad_on_a_gpu_never_waits_and_gives_the_sparse_steps(options):
    start = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    setting = {"variational": {"algorithm": "adagrad", "lr": 0.1, **options}}

    def trained(device):
        table = nn.Parameter(start.clone().to(device))
        optimizer = FirstOrder(setting)
        optimizer.bind({"variational": [table]}, 4)
        for step in range(4):
            optimizer.before_step(step)
            rows = ((torch.arange(5, device=device) * (step + 2)) % 12)[torch.arange(5) % 4]
            found = nn.functional.embedding(rows, table, sparse=True)
            (found.square() + found).sum().backward()
            optimizer.step(step)
        return table.detach()

    here = trained("cpu")
    with claimed_cuda() as waits:
        there = trained("cuda")
        assert not waits
        there = there.cpu()
    torch.testing.assert_close(there, here, rtol=1e-13, atol=1e-15)
    assert torch.equal(there[1], start[1])  # never sampled


def test_a_sparse_gradient_with_repeated_rows_is_added_up():
    table = nn.Parameter(torch.zeros(4, 2))
    nn.functional.embedding(torch.tensor([3, 1, 3]), table, sparse=True).sum().backward()
    assert summed_rows_dense(table.grad, table).tolist() == [[0, 0], [1, 1], [0, 0], [2, 2]]


@pytest.mark.parametrize("maximize", [False, True])
def test_sparse_adam_on_a_gpu_takes_torchs_steps_without_waiting(maximize):
    start = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).view(6, 2)
    options = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "maximize": maximize}

    def trained(kind, device):
        table = nn.Parameter(start.clone().to(device))
        optimiser = kind([table], **options)
        for step, rows in enumerate(([0, 3, 3], [5, 0, 1], [3, 1, 1], [5, 5, 5])):
            optimiser.zero_grad()
            chosen = torch.tensor(rows, device=device)
            weights = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64, device=device)
            (
                nn.functional.embedding(chosen, table, sparse=True).sin() * weights[:, None]
            ).sum().backward()
            optimiser.param_groups[0]["lr"] = 0.1 / (1 + step)
            optimiser.step()
            assert table.grad.is_sparse
        return table.detach(), optimiser.state_dict()["state"][0]

    right, state = trained(torch.optim.SparseAdam, "cpu")
    here, _ = trained(IndexedSparseAdam, "cpu")
    assert torch.equal(here, right)
    with claimed_cuda() as waits:
        found, moments = trained(IndexedSparseAdam, "cuda")
        assert not waits
        found = found.cpu()
        assert moments["step"] == state["step"] == 4
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(moments[name].cpu(), state[name], rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(found, right, rtol=1e-13, atol=1e-15)
    assert torch.equal(found[2], start[2])
    assert torch.equal(found[4], start[4])


def test_adam_on_sparse_gradients_is_one_sentence():
    table = nn.Parameter(torch.zeros(10, 1))
    optimizer = FirstOrder({"variational": {"algorithm": "adam", "lr": 0.1}})
    optimizer.bind({"variational": [table]}, 3)
    optimizer.before_step(0)
    nn.functional.embedding(torch.tensor([2]), table, sparse=True).sum().backward()
    with pytest.raises(ConfigError, match="not known to leave entries alone that were not"):
        optimizer.step(0)


@pytest.mark.parametrize("name", ["Adagrad", "SGD", "SparseAdam"])
def test_sparse_gradients_by_classes_of_torch(name):
    table = nn.Parameter(torch.zeros(10, 1))
    optimizer = FirstOrder({"variational": {"algorithm": f"torch.optim.{name}", "lr": 0.1}})
    optimizer.bind({"variational": [table]}, 3)
    optimizer.before_step(0)
    nn.functional.embedding(torch.tensor([2, 5]), table, sparse=True).sum().backward()
    optimizer.step(0)
    assert table.detach().nonzero().tolist() == [[2, 0], [5, 0]]


def test_no_step_leaves_a_value_beyond_its_bounds():
    model = ExactGP(kernel=RBF(1, 1.0, 1.0), mean=Zero(), likelihood=Gaussian(0.5)).double()
    groups = {"hyperparameters": {"algorithm": "sgd", "lr": 1.0}}
    bounds = [
        ("kernel.lengthscale", 0.8, 1.25),
        ("kernel.outputscale", 1.0, 1.0),
        ("likelihood.noise_variance", 0.2, 9.0),
    ]
    optimizer = FirstOrder(groups, bounds=bounds)
    optimizer.bind(model.parameter_groups(), 2, model)
    seen = []
    for step, gradient in enumerate((-5.0, 5.0)):
        optimizer.before_step(step)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step(step)
        values = model.kernel.lengthscale, model.kernel.outputscale, model.likelihood.noise_variance
        seen.append([value.item() for value in values])
    assert seen[0] == [pytest.approx(1.25), pytest.approx(1.0), seen[0][2]]
    assert 2.0 < seen[0][2] < 9.0
    assert seen[1] == [pytest.approx(0.8), pytest.approx(1.0), pytest.approx(0.5)]
    with pytest.raises(ConfigError, match="no such positive parameter; there are kernel"):
        FirstOrder(groups, bounds=[("lengthscale", 1, 2)]).bind(model.parameter_groups(), 2, model)


@pytest.mark.parametrize("checked", [True, False])
def test_sparse_steps_leave_the_checks_of_sparse_tensors_as_they_were(checked):
    checks = torch.sparse.check_sparse_tensor_invariants
    table = nn.Parameter(torch.zeros(10, 1))
    optimizer = FirstOrder({"variational": {"algorithm": "adagrad", "lr": 0.1}})
    with checks(checked):
        optimizer.bind({"variational": [table]}, 3)
        optimizer.before_step(0)
        nn.functional.embedding(torch.tensor([2]), table, sparse=True).sum().backward()
        optimizer.step(0)
        assert checks.is_enabled() is checked


@pytest.mark.parametrize("name", ["sparse_adam", "torch.optim.SparseAdam"])
def test_dense_gradients_are_none_for_sparse_adam(name):
    weights = nn.Parameter(torch.zeros(10))
    optimizer = FirstOrder({"variational": {"algorithm": name, "lr": 0.1}})
    optimizer.bind({"variational": [weights]}, 3)
    optimizer.before_step(0)
    weights.sum().backward()
    with pytest.raises(ConfigError, match=f"groups.variational.algorithm={name} takes sparse"):
        optimizer.step(0)


def test_stretches_are_compared_after_a_freeze_however_long_the_warmup():
    parts = {
        "network": [nn.Parameter(torch.zeros(1))],
        "variational": [nn.Parameter(torch.ones(1))],
    }
    groups = {"network": {"lr": 0.1}, "variational": {"lr": 0.1, "freeze_steps": 500}}
    for warmup, least in ((0, 500), (300, 800), (600, 600), (2000, 500)):
        optimizer = FirstOrder(groups, {"warmup": warmup}, settled=1e-3)
        optimizer.bind(parts, 1000)
        assert optimizer.settling.start >= least


def test_missing_role_and_unknown_algorithm():
    parameter = [nn.Parameter(torch.zeros(1))]
    with pytest.raises(ConfigError, match=r"add optimizer.groups.inducing"):
        FirstOrder({"hyperparameters": {"lr": 0.1}}).bind({"inducing": parameter}, 1)
    with pytest.raises(ConfigError, match="expected one of adam, adagrad, sgd"):
        FirstOrder({"hyperparameters": {"algorithm": "adamm", "lr": 0.1}}).bind(
            {"hyperparameters": parameter}, 1
        )
    with pytest.raises(ConfigError, match=r"optimizer.groups.hyperparameters"):
        FirstOrder({"hyperparameters": {"lr": 0.1, "momentun": 0.9}}).bind(
            {"hyperparameters": parameter}, 1
        )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"algorithm": None, "lr": 0.1}, "algorithm=null: expected one of adam, adagrad, sgd"),
        ({"algorithm": ["adam"], "lr": 0.1}, "expected one of adam, adagrad, sgd"),
        ({"algorithm": "adamw", "lr": 0.1}, "or the name of a class, such as torch.optim.AdamW"),
        ({"algorithm": "torch.optim.Adaw", "lr": 0.1}, "Adaw: nothing has that name"),
        ({"algorithm": "torch.nn.Linear", "lr": 0.1}, "is no subclass of torch.optim.Optimizer"),
        ({"algorithm": "torch.optim.LBFGS", "lr": 0.1}, "evaluates the loss several times"),
        ({"algorithm": "torch.optim.Optimizer", "lr": 0.1}, "has no option lr"),
        ({"algorithm": "torch.optim.RMSprop", "lr": 0.1, "alfa": 1.0}, "did you mean alpha?"),
        ({"algorithm": "torch.optim.RMSprop", "lr": 0.1, "alpha": "x"}, "alpha=x: expected a numb"),
        ({"lr": True}, "lr=True: expected a number, 0 or more"),
        ({"lr": -1.0}, "lr=-1.0: expected a number, 0 or more"),
        ({}, "lr=null: expected a number, 0 or more"),
        ({"lr": 0.1, "freeze_steps": True}, "freeze_steps=True: expected a whole number"),
        ({"lr": 0.1, "freeze_steps": None}, "freeze_steps=null: expected a whole number"),
        ({"lr": 0.1, "betas": 3}, "betas=3: expected a list of 2 numbers"),
        ({"lr": 0.1, "betas": [0.9, "x"]}, "expected a list of 2 numbers"),
        ({"lr": 0.1, "eps": "abc"}, "eps=abc: expected a number, 0 or more"),
        ({"lr": 0.1, "weight_decay": -1}, "weight_decay=-1: expected a number, 0 or more"),
        ({"lr": 0.1, "amsgrad": 5}, "amsgrad=5: expected true or false"),
        ({"lr": 0.1, "momentum": 0.9}, "algorithm=adam has no such option; it has betas"),
        ({"lr": 0.1, "params": 3}, "algorithm=adam has no such option"),
        ({"lr": 0.1, "freeze_step": 3}, "did you mean freeze_steps"),
    ],
)
def test_a_wrong_option_of_a_group_is_one_sentence_before_any_step(setting, message):
    with pytest.raises(ConfigError, match=r"optimizer.groups.inducing\.") as caught:
        FirstOrder({"inducing": setting})
    assert message in str(caught.value)


class Counted(torch.optim.Optimizer):
    """Steps that shrink, counted in the group, as some published optimisers have it."""

    def __init__(self, weights, lr, decay=0.5):
        super().__init__(weights, {"lr": lr, "decay": decay, "count": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                p -= group["lr"] * group["decay"] ** group["count"] * p.grad


@pytest.mark.parametrize(
    "setting",
    [
        {"algorithm": "torch.optim.AdamW", "betas": [0.5, 0.9]},
        {"algorithm": "torch.optim.Rprop", "etas": [0.4, 1.3]},
        {"algorithm": f"{__name__}.Counted"},
    ],
)
def test_a_class_of_torch_or_of_ones_own_steps_and_is_resumed_exactly(setting):
    group = {"lr": 0.1, **setting}

    def run(stop_after):
        w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
        optimizer = FirstOrder({"network": group}, {"warmup": 3})
        optimizer.bind({"network": [w]}, 8)
        for step in range(8):
            if step == stop_after:
                state = pickle.loads(pickle.dumps(optimizer.state_dict()))
                optimizer = FirstOrder({"network": group}, {"warmup": 3})
                optimizer.bind({"network": [w]}, 8)
                optimizer.load_state_dict(state)
            optimizer.before_step(step)
            (w**4 - w).sum().backward()
            optimizer.step(step)
        return w.detach()

    whole = run(None)
    assert bool((whole.abs() < torch.tensor([1.0, 2.0])).all())
    assert torch.equal(whole, run(3))


def test_moments_of_one_class_are_not_those_of_another(caplog):
    before, w = bound("torch.optim.AdamW")
    before.before_step(0)
    w.sum().backward()
    before.step(0)
    now, _ = bound(f"{__name__}.Counted")
    now.load_state_dict(before.state_dict())
    assert "moments of another algorithm are dropped" in caplog.text


def test_a_shape_that_a_class_does_not_take_is_one_sentence():
    """Muon steps along matrices only."""
    with pytest.raises(
        ConfigError, match=r"^optimizer\.groups\.hyperparameters: Muon only supports"
    ):
        bound("torch.optim.Muon")


def test_rates_rise_over_the_warm_up_of_each_role():
    groups = {"network": {"lr": 0.8}, "variational": {"lr": 0.4, "freeze_steps": 2}}
    optimizer = FirstOrder(groups, {"name": "exponential", "final": 0.5, "warmup": 4})
    optimizer.bind({role: [nn.Parameter(torch.zeros(1))] for role in groups}, 10)
    found = [optimizer.learning_rates(step) for step in range(10)]
    decay = [0.5 ** (step / 10) for step in range(10)]
    rise = [0.25, 0.5, 0.75, *[1.0] * 7]
    rates = [0.8 * r * d for r, d in zip(rise, decay, strict=True)]
    assert [each["network"] for each in found] == pytest.approx(rates)
    rates = [0.4 * r * d for r, d in zip([0.0, 0.0, *rise[:8]], decay, strict=True)]
    assert [each["variational"] for each in found] == pytest.approx(rates)
    with pytest.raises(ConfigError, match=r"schedule\.warmup=-1: expected a whole number"):
        FirstOrder(groups, {"warmup": -1})


def test_a_list_of_a_config_is_an_option_that_a_checkpoint_can_hold():
    groups = {"hyperparameters": {"lr": 0.1, "betas": [0.5, 0.9]}}
    optimizer = FirstOrder(OmegaConf.create(groups))
    optimizer.bind({"hyperparameters": [nn.Parameter(torch.zeros(1))]}, 3)
    (group,) = optimizer.state_dict()["hyperparameters"]["param_groups"]
    assert group["betas"] == (0.5, 0.9)
    assert type(group["betas"]) is tuple


def test_groups_that_move_nothing_or_belong_to_nothing_are_refused():
    groups = {"inducing": [nn.Parameter(torch.zeros(1))]}
    with pytest.raises(
        ConfigError, match="nothing would be trained: the learning rate of every group"
    ):
        FirstOrder({"inducing": {"lr": 0.0}}).bind(groups, 1)
    mistyped = {"inducing": {"lr": 0.1}, "inducin": {"lr": 0.2}}
    with pytest.raises(ConfigError, match=r"groups.inducin: .* did you mean inducing"):
        FirstOrder(mistyped).bind(groups, 1)
    # out of the range of torch's class, and settings of a role that other models have
    with pytest.raises(ConfigError, match=r"optimizer.groups.inducing: .*beta"):
        FirstOrder({"inducing": {"lr": 0.1, "betas": [0.9, 2.0]}}).bind(groups, 1)
    FirstOrder({"inducing": {"lr": 0.1}, "precisions": {"lr": 0.0}}).bind(groups, 1)


def test_state_round_trip_continues_exactly():
    def run(stop_after):
        torch.manual_seed(0)
        w = nn.Parameter(torch.randn(4, dtype=torch.float64))
        make = lambda: FirstOrder(  # noqa: E731
            {"hyperparameters": {"algorithm": "adam", "lr": 0.1}},
            {"name": "cosine", "final": 0.1},
        )
        optimizer = make()
        optimizer.bind({"hyperparameters": [w]}, 20)
        for step in range(20):
            if step == stop_after:
                state = optimizer.state_dict()
                optimizer = make()
                optimizer.bind({"hyperparameters": [w]}, 20)
                optimizer.load_state_dict(state)
            optimizer.before_step(step)
            (w**4 - w).sum().backward()
            optimizer.step(step)
        return w.detach()

    assert torch.equal(run(None), run(7))


def test_a_run_goes_on_where_a_parameter_that_was_trained_is_fixed_now(caplog):
    """Without the moments of its role: those of the others cannot be told apart."""
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    before = FirstOrder({"hyperparameters": {"algorithm": "adam", "lr": 0.1}})
    before.bind({"hyperparameters": [a, b]}, 3)
    before.before_step(0)
    (a.square().sum() + b.square().sum()).backward()
    before.step(0)
    now = FirstOrder({"hyperparameters": {"algorithm": "adam", "lr": 0.1}})
    now.bind({"hyperparameters": [b]}, 3)
    now.load_state_dict(before.state_dict())
    assert "moments of another algorithm are dropped, or of other parameters" in caplog.text
    now.before_step(1)
    b.square().sum().backward()
    now.step(1)
    torch.testing.assert_close(b.detach(), torch.full((3,), 0.8))


@pytest.mark.parametrize("option", ["momentum", "weight_decay"])
def test_dense_options_on_sparse_gradients_are_one_sentence(option):
    table = nn.Parameter(torch.zeros(10, 1))
    optimizer = FirstOrder({"variational": {"algorithm": "sgd", "lr": 0.1, option: 0.9}})
    optimizer.bind({"variational": [table]}, 3)
    optimizer.before_step(0)
    nn.functional.embedding(torch.tensor([2]), table, sparse=True).sum().backward()
    with pytest.raises(ConfigError, match=f"{option}=0.9 would move entries"):
        optimizer.step(0)
    assert not table.detach().any()


def test_rate_decay_is_exact_for_an_entry_that_was_not_sampled_for_long():
    # row 0 is sampled at every step, row 1 only at the last: it moves by that step's rate
    settings = {"variational": {"algorithm": "sgd", "lr": 0.5}}
    table = nn.Parameter(torch.zeros(2, 3))
    optimizer = FirstOrder(settings, {"name": "exponential", "final": 0.1})
    optimizer.bind({"variational": [table]}, 10)
    for step in range(10):
        optimizer.before_step(step)
        rows = torch.tensor([0, 1] if step == 9 else [0])
        nn.functional.embedding(rows, table, sparse=True).sum().backward()
        optimizer.step(step)
    rates = [0.5 * 0.1 ** (step / 10) for step in range(10)]
    assert table.detach()[:, 0].tolist() == pytest.approx([-sum(rates), -rates[-1]])


@pytest.mark.parametrize(
    ("group", "schedule", "words"),
    [
        ({"lr": None}, {}, "groups.inducing.lr=null: expected a number"),
        ({}, {}, "groups.inducing.lr=null"),
        ({"lr": "fast"}, {}, "groups.inducing.lr=fast: expected a number"),
        ({"lr": float("nan")}, {}, "groups.inducing.lr=nan"),
        ({"lr": 0.1, "freeze_steps": -1}, {}, "freeze_steps=-1: expected a whole number"),
        ({"lr": 0.1, "freeze_steps": "x"}, {}, "freeze_steps=x: expected a whole number"),
        ({"lr": 0.1}, {"final": "x"}, "schedule.final=x: expected a number"),
        ({"lr": 0.1}, {"fnal": 0.1}, "schedule has no option fnal"),
        ({"lr": 0.1}, {"name": "linear"}, "expected constant, exponential or cosine"),
    ],
)
def test_settings_that_mean_nothing_are_named(group, schedule, words):
    with pytest.raises(ConfigError, match=words):
        FirstOrder({"inducing": group}, schedule)


def test_something_must_move_from_the_first_step_on():
    one, two = [nn.Parameter(torch.zeros(1))], [nn.Parameter(torch.zeros(1))]
    settings = {"a": {"lr": 0.1, "freeze_steps": 9}, "b": {"lr": 0.1}}
    FirstOrder(settings).bind({"a": one, "b": two}, 100)
    with pytest.raises(
        ConfigError, match=r"nothing would be trained in the first 9 steps.*groups\.a\."
    ):
        FirstOrder(settings).bind({"a": one, "b": []}, 100)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (({"hyperparameters": 3},), r"optimizer\.groups\.hyperparameters=3"),
        ((None,), r"optimizer\.groups=null"),
        ((3,), r"optimizer\.groups=3"),
        (({"hyperparameters": {"lr": 0.1}}, 3), r"optimizer\.schedule=3"),
    ],
)
def test_what_is_no_list_of_options_is_refused_by_name(arguments, named):
    with pytest.raises(ConfigError, match=f"^{named}: expected options by name"):
        FirstOrder(*arguments)


def test_steps_of_weights_are_in_units_of_the_targets(tmp_path):
    """Without the factor f jumps about by seven deviations of the targets in these 20 steps."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator)
    y = x[:, 0].sin() + 0.7 * torch.randn(400, generator=generator)
    fitted = gpx.fit(
        x,
        y,
        *("approx=qsgp", "optimizer=qsgp_paper", "init=constants", "approx.num_basis=2000"),
        *("objective.columns=200", "kernel.lengthscale=100.0", "kernel.outputscale=5e4"),
        *("likelihood.noise_variance=0.5", "trainer.max_steps=20", "trainer.batch_size=50"),
        *("trainer.figures=false", "trainer.tensorboard=false", "trainer.eval_every=0"),
        folder=tmp_path / "run",
    )
    assert fitted.metrics["test.rmse"] < 1.5


def test_rate_factors_are_kept_for_a_resumed_run():
    w = nn.Parameter(torch.zeros(1))
    optimizer = FirstOrder({"variational": {"algorithm": "sgd", "lr": 0.1}})
    optimizer.bind({"variational": [w]}, 10)
    assert optimizer.learning_rate("variational", 0) == pytest.approx(0.1)
    optimizer.factors = {"variational": 0.25}
    resumed = FirstOrder(optimizer.settings)
    resumed.bind({"variational": [w]}, 10)
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.learning_rate("variational", 0) == pytest.approx(0.025)


def test_settings_for_roles_of_other_models_are_left_unused():
    """optimizer=swsgp with a full covariance of q(u) has nothing that is touched row by row."""
    optimizer = FirstOrder(
        {"touched": {"algorithm": "sparse_adam", "lr": 0.1}, "inducing": {"lr": 0.1}}
    )
    optimizer.bind({"inducing": [nn.Parameter(torch.zeros(1))]}, 1)
    assert set(optimizer.optimisers) == {"inducing"}
