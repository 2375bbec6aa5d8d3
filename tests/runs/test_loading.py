import torch
from omegaconf import OmegaConf

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
