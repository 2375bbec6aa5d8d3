import numpy as np
import torch
from omegaconf import OmegaConf

import gpx
from gpx.runs import loading


def test_budgets_of_a_larger_machine_are_lowered(monkeypatch):
    monkeypatch.setattr(loading, "available_memory", lambda device: 2**33)
    here = torch.device("cpu")
    made = {"approx": {"memory_budget": 2**40, "iterative": {"memory_budget": 2**32}}}
    found = loading.within_memory(OmegaConf.create(made), here)
    assert found.approx.memory_budget == 2**31
    assert found.approx.iterative.memory_budget == 2**32
    monkeypatch.setattr(loading, "available_memory", lambda device: None)
    assert loading.within_memory(OmegaConf.create(made), here) == made


def test_budgets_of_zero_are_automatic():
    made = {"approx": {"memory_budget": 0, "iterative": {"memory_budget_gib": 0}}}
    found = loading.within_memory(OmegaConf.create(made), torch.device("cpu"))
    assert found.approx.memory_budget >= 2**20
    assert found.approx.iterative.memory_budget_gib is None


def test_a_run_of_an_earlier_version_with_a_memory_budget_of_zero_predicts(tmp_path):
    x = np.linspace(0.0, 1.0, 20)
    options = ("init=constants", "trainer.max_steps=2", "trainer.figures=false")
    fitted = gpx.fit(
        x,
        np.sin(6.0 * x),
        "approx=exact",
        "approx.solver=iterative",
        "trainer.tensorboard=false",
        *options,
        folder=tmp_path / "run",
    )
    path = tmp_path / "run" / "config.yaml"
    config = OmegaConf.load(path)
    config.trainer.memory_budget = 0
    config.approx.iterative.memory_budget = 0
    OmegaConf.save(config, path)
    found = gpx.load(tmp_path / "run").predict(x)
    np.testing.assert_allclose(found.mean, fitted.predict(x).mean, rtol=1e-6)
    for option in ("trainer.max_steps=3", "trainer.memory_budget=1GiB"):  # and goes on
        OmegaConf.save(config, path)
        gpx.runs.resume(tmp_path / "run", options=[option])
        now = OmegaConf.load(path)
        assert now.approx.iterative.memory_budget == now.trainer.memory_budget >= 2**20
    assert now.trainer.memory_budget == 2**30
