import math

import pytest
import torch
from torch import nn

from gpx.bounds import at_their_floor, lower_limits
from gpx.constraints import FLOOR, MARGIN, Positive, fix, positive_parameter


class Holder(nn.Module):
    def __init__(self, value):
        super().__init__()
        positive_parameter(self, "scale", value)
        self.shift = nn.Parameter(torch.zeros(2))


def test_limits_keep_a_gradient_on_the_logarithm():
    tree = nn.ModuleDict({"kernel": Holder([0.5, 2.0])})
    positive = tree["kernel"].parametrizations.scale.original
    parameters = [tree["kernel"].shift, positive]
    assert lower_limits(tree, parameters) == [-math.inf, Positive().lowest_raw]
    assert lower_limits(tree, [nn.Parameter(torch.zeros(2))]) == [-math.inf]
    raw = torch.tensor(Positive().lowest_raw, dtype=torch.float64, requires_grad=True)
    value = Positive()(raw)
    assert value.item() == pytest.approx((1 + MARGIN) * FLOOR, rel=1e-12)
    (slope,) = torch.autograd.grad(value.log(), raw)
    assert slope.item() == pytest.approx(MARGIN / (1 + MARGIN), rel=1e-5)
    assert Positive(floor=0.0).lowest_raw == -math.inf


def test_parameters_at_their_floor_are_named():
    tree = nn.ModuleDict({"kernel": Holder([0.5, 2.0])})
    parameters = list(tree.parameters())
    assert at_their_floor(tree, parameters) == []
    raw = tree["kernel"].parametrizations.scale.original
    raw.data[1] = Positive().lowest_raw
    assert at_their_floor(tree, parameters) == ["kernel.scale (1e-06)"]
    assert at_their_floor(tree, [p for p in parameters if p is not raw]) == []
    raw.requires_grad_(False)
    assert at_their_floor(tree, parameters) == []  # fixed: it was put there


def test_what_is_fixed_has_no_limit():
    holder = Holder(1.0)
    fix(holder, "scale")
    assert lower_limits(holder, list(holder.parameters())) == [-math.inf, -math.inf]
