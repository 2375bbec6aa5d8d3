import copy

import pytest
import torch
from torch import nn

from gpx.constraints import FLOOR, Positive, natural_parameters, positive_parameter
from gpx.errors import ConfigError


class Holder(nn.Module):
    def __init__(self, value=1.0):
        super().__init__()
        positive_parameter(self, "scale", value)
        self.shift = nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize("value", [1e-5, 1e-3, 0.1, 1.0, 30.0, 1e4])
def test_right_inverse_is_the_inverse(value):
    natural = torch.tensor(value, dtype=torch.float64)
    positive = Positive()
    assert positive(positive.right_inverse(natural)).item() == pytest.approx(value, rel=1e-9)


def test_reads_and_assigns_in_natural_units():
    holder = Holder([1.0, 2.0])
    holder.scale = torch.tensor([3.0, 4.0])
    assert torch.allclose(holder.scale, torch.tensor([3.0, 4.0]))
    with pytest.raises(ConfigError, match="above its floor"):
        holder.scale = torch.tensor([1.0, -1.0])


def test_what_was_read_can_be_assigned_at_the_floor():
    holder = Holder(0.5)
    holder.parametrizations.scale.original.data.fill_(-60.0)  # softplus is lost in rounding
    assert holder.scale.item() == torch.tensor(FLOOR).item()
    holder.scale = holder.scale.detach()
    assert holder.scale.item() == pytest.approx(FLOOR, rel=1e-5)
    assert holder.parametrizations.scale.original.isfinite()
    for wrong in (0.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="scale was set to"):
            holder.scale = torch.tensor(wrong)


def test_stays_above_the_floor_whatever_the_optimiser_does():
    positive = Positive()
    raw = torch.tensor([-1e3, -50.0, 0.0, 50.0])
    assert (positive(raw) >= FLOOR).all()


def test_natural_parameters_use_the_names_people_read():
    tree = nn.ModuleDict({"kernel": Holder(0.5)})
    found = natural_parameters(tree)
    assert set(found) == {"kernel.scale", "kernel.shift"}
    assert found["kernel.scale"].item() == pytest.approx(0.5)
    assert not found["kernel.scale"].requires_grad


def test_state_dict_and_deepcopy():
    source, target = Holder(2.5), Holder(1.0)
    target.load_state_dict(source.state_dict())
    assert target.scale.item() == pytest.approx(2.5)
    assert copy.deepcopy(source).scale.item() == pytest.approx(2.5)
