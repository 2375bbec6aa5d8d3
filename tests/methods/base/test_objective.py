"""The record of an evidence."""

import torch

from gpx.objectives import Evidence


def test_parts_for_monitoring_hold_no_graph():
    value = 2.0 * torch.ones((), requires_grad=True)
    found = Evidence(value, "exact", {"fit": value, "constant": torch.ones(())})
    assert found.value.requires_grad
    assert not any(part.requires_grad for part in found.parts.values())
    assert found.parts["fit"] == value.detach()
