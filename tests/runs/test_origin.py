"""What a checkpoint remembers of its run, and what may differ when it is used again."""

import math

import pytest
import torch
from omegaconf import OmegaConf

import gpx
from gpx.errors import CheckpointError
from gpx.runs.origin import (
    changes,
    origin_of,
    require_same_model,
    version_note,
    version_of,
    with_changes,
)
from gpx.training.checkpoint import load_checkpoint, save_checkpoint

CPU = torch.device("cpu")


def config(**changed):
    made = OmegaConf.create(
        {
            "seed": 0,
            "data": {"_target_": "gpx.data.CSVFile", "path": "/a.csv", "root": None, "split": 0},
            "kernel": {"_target_": "gpx.kernels.RBF", "lengthscale": [1.0, 2.0], "nu": math.nan},
            "mean": {"_target_": "gpx.means.Zero"},
            "likelihood": {"_target_": "gpx.likelihoods.Gaussian"},
            "approx": {
                "_target_": "gpx.models.SGPR",
                "num_inputs": "${facts.num_inputs}",
                "memory_budget": 2**30,
            },
            "objective": {"probes": 3},
            "optimizer": {"groups": {"q": {"lr": 0.1}}},
            "trainer": {"dtype": "float64", "max_steps": 3},
            "facts": {"num_inputs": 2},
        }
    )
    for name, value in changed.items():
        OmegaConf.update(made, name.replace("__", "."), value, force_add=True)
    return made


@pytest.fixture
def state(tmp_path):
    """Contents of a checkpoint that has been to disk."""
    save_checkpoint(tmp_path / "c.pt", {"origin": origin_of(config(), CPU), "x": torch.ones(3)})
    return load_checkpoint(tmp_path / "c.pt")


def test_a_look_at_a_checkpoint_reads_the_same(tmp_path, state):
    looked = load_checkpoint(tmp_path / "c.pt", mapped=True)
    assert repr(looked["origin"]) == repr(state["origin"])  # a NaN equals nothing else
    assert torch.equal(looked["x"], state["x"])


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"data__path": "/elsewhere/a.csv"},
        {"data__root": "/elsewhere"},
        {"trainer__max_steps": 9},
        {"approx__memory_budget": 2**20},
        {"objective__probes": 9},
        {"optimizer__groups__q__lr": 0.5},
        {"weights": {"spread": 2}},
        {"kernel__lengthscale": [1, 2.0]},  # two texts, one number
    ],
)
def test_what_may_differ(state, changed):
    require_same_model(state, config(**changed), "run")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 1}, "run has seed=1, but its checkpoint was trained with 0: restore that value"),
        ({"data__split": 1}, "data.split=1, .* with 0"),
        ({"fixed": ["kernel.period"]}, r"fixed=\[.kernel.period.\], .* trained without"),
        ({"kernel__lengthscale": [1.0, 2.5]}, r"kernel.lengthscale=\[1.0, 2.5\], .* \[1.0, 2.0\]"),
        ({"kernel___target_": "gpx.kernels.Matern32"}, 'kernel._target_="gpx.kernels.Matern32"'),
        ({"kernel__period": 3}, "has kernel.period=3, .* trained without: restore the file"),
        (
            {"kernel": None},
            r"lacks kernel\._target_, .* with \"gpx.kernels.RBF\": restore that value",
        ),
        ({"facts__num_inputs": 3}, "approx.num_inputs=3, .* with 2"),
        ({"trainer__dtype": "float32"}, 'trainer.dtype="float32", .* with "float64"'),
    ],
)
def test_what_may_not(state, changed, words):
    with pytest.raises(CheckpointError, match=words):
        require_same_model(state, config(**changed), "run")


@pytest.mark.parametrize("origin", [None, 3, {}, {"config": 7}])
def test_checkpoints_without_a_record_pass(origin):
    state = {} if origin is None else {"origin": origin}
    require_same_model(state, config(), "run")
    assert changes(state, origin_of(config(), CPU)) == []
    assert version_of(state) is None


def test_changes_are_lines(state):
    now = origin_of(config(trainer__max_steps=9, optimizer__groups__q__lr=0.5), CPU)
    assert changes(state, origin_of(config(), CPU)) == []
    assert changes(state, now) == [
        "note: optimizer.groups.q.lr is 0.5 from now on, it was 0.1",
        "note: trainer.max_steps is 9 from now on, it was 3",
    ]
    now = {**state["origin"], "num_threads": state["origin"]["num_threads"] + 3}
    (line,) = changes(state, now)
    assert "results may differ in the fourth digit" in line
    now = {**now, "device": "cuda"}  # where threads decide nothing
    (line,) = changes(state, now)
    assert line.startswith("note: the device is cuda from now on, it was cpu")


def test_versions():
    assert version_note(None) == version_note(gpx.__version__) == ""
    assert version_note("9.9") == f" (trained with gpx 9.9, this is gpx {gpx.__version__})"


@pytest.mark.parametrize("given", ["1MiB", "1048576", "null"])
def test_a_changed_memory_budget_reaches_all_that_took_it_from_the_trainer(given):
    parts = {"experts": [{"memory_budget": 2**30}], "solver": {"memory_budget": 2**25}}
    before = config(trainer__memory_budget=2**30, objective__parts=parts)
    after = with_changes(before, [f"trainer.memory_budget={given}"])
    assert after.approx.memory_budget == after.trainer.memory_budget != 2**30
    assert after.objective.parts.experts[0].memory_budget == after.trainer.memory_budget
    assert after.objective.parts.solver.memory_budget == 2**25  # a number of its own
    assert before.approx.memory_budget == 2**30
