import copy
import math

import pytest
import torch
from torch import nn

from gpx.constraints import (
    FLOOR,
    MARGIN,
    Positive,
    cached_parameters,
    fix,
    fixed_names,
    named_for_users,
    natural_parameters,
    positive_parameter,
    release,
    set_above_floor,
)
from gpx.errors import ConfigError
from gpx.kernels import RBF, Periodic
from gpx.means import Zero


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


@pytest.mark.parametrize("value", [3.0, [3.0, 3.0], torch.tensor([3.0]), torch.tensor(3).double()])
def test_a_number_or_one_for_each_is_assigned_and_keeps_shape_and_precision(value):
    holder = Holder([1.0, 2.0])
    raw = holder.parametrizations.scale.original
    holder.scale = value
    assert holder.scale.tolist() == pytest.approx([3.0, 3.0], rel=1e-6)
    assert holder.parametrizations.scale.original is raw
    assert (raw.dtype, raw.shape, raw.requires_grad) == (torch.float32, (2,), True)
    single = Holder(1.0)
    single.scale = torch.tensor([[3.0]])  # as GPyTorch has noise and outputscales
    assert single.scale.shape == ()


@pytest.mark.parametrize("value", [[1.0, 2.0, 3.0], torch.ones(2, 1), torch.ones(0)])
def test_values_of_another_shape_are_refused(value):
    holder = Holder([1.0, 2.0])
    with pytest.raises(
        ConfigError, match=r"scale was set to values of shape \(.*\); it has \(2,\)"
    ):
        holder.scale = value
    with pytest.raises(ConfigError, match="scale was set to 'wide'; it must be a number"):
        holder.scale = "wide"
    assert holder.scale.shape == (2,)


@pytest.mark.parametrize("value", ["wide", None, ["a"]])
def test_what_is_no_number_is_refused_by_name(value):
    with pytest.raises(ConfigError, match=r"scale was set to .* it must be a number or several"):
        Holder(value)


def test_what_was_read_can_be_assigned_at_the_floor():
    holder = Holder(0.5)
    holder.parametrizations.scale.original.data.fill_(-60.0)  # softplus is lost in rounding
    assert holder.scale.item() == torch.tensor(FLOOR).item()
    holder.scale = holder.scale.detach()
    assert holder.scale.item() == pytest.approx(FLOOR, rel=1e-5)
    assert holder.parametrizations.scale.original.isfinite()
    for wrong in (0.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=rf"scale was set to {wrong:g};"):
            holder.scale = torch.tensor(wrong)
        with pytest.raises(ConfigError, match=rf"scale was set to {wrong:g};"):
            Holder([2.0, 1.0]).scale = torch.tensor([3.0, wrong])


def test_stays_above_the_floor_whatever_the_optimiser_does():
    positive = Positive()
    raw = torch.tensor([-1e3, -50.0, 0.0, 50.0])
    assert (positive(raw) >= FLOOR).all()


def test_a_value_below_the_floor_is_set_to_where_it_still_moves():
    for dtype in (torch.float32, torch.float64):
        holder = Holder([0.5, 2.0]).to(dtype)
        for given in (0.1, [FLOOR / 3.0, 7.0], torch.tensor([0.1, -1.0], dtype=torch.float64)):
            set_above_floor(holder, "scale", torch.as_tensor(given))
            want = torch.as_tensor(given).to(dtype).clamp_min((1.0 + MARGIN) * FLOOR).expand(2)
            torch.testing.assert_close(holder.scale.detach(), want)
    set_above_floor(holder, "scale", 1.0 / 3.0)
    assert holder.scale[0].item() == pytest.approx(1.0 / 3.0, rel=1e-14)  # not by way of float32


def test_natural_parameters_use_the_names_people_read():
    tree = nn.ModuleDict({"kernel": Holder(0.5)})
    found = natural_parameters(tree)
    assert set(found) == {"kernel.scale", "kernel.shift"}
    assert found["kernel.scale"].item() == pytest.approx(0.5)
    assert not found["kernel.scale"].requires_grad


def test_what_is_fixed_keeps_its_value_and_unknown_names_fix_nothing():
    kernel = RBF(2) + RBF(1, active_dims=[1])
    fix(kernel, "kernels.0.lengthscale", "kernels.1.outputscale")
    learned = [name for name, p in named_for_users(kernel).items() if p.requires_grad]
    assert learned == ["kernels.0.outputscale", "kernels.1.lengthscale"]
    holder = Holder()
    with pytest.raises(ConfigError, match="no parameter scales to fix; there are shift, scale"):
        fix(holder, "scale", "scales")
    with pytest.raises(ConfigError, match="Zero has no parameter constant to fix; there are none"):
        fix(Zero(), "constant")
    assert all(parameter.requires_grad for parameter in holder.parameters())


@pytest.mark.parametrize("name", ["kernels.0.lengthscale", "kernels.1.lengthscale"])
def test_a_shared_parameter_is_fixed_by_any_of_its_names(name):
    kernel = RBF(1)
    fix(kernel + kernel, name)
    assert [n for n, p in named_for_users(kernel).items() if p.requires_grad] == ["outputscale"]


def test_state_dict_and_deepcopy():
    source, target = Holder(2.5), Holder(1.0)
    target.load_state_dict(source.state_dict())
    assert target.scale.item() == pytest.approx(2.5)
    assert copy.deepcopy(source).scale.item() == pytest.approx(2.5)


def test_the_given_value_survives_a_change_of_precision():
    given = [0.2, 1.0 / 3.0]
    single = Holder(given)
    assert single.scale.dtype == torch.float32
    exact = torch.tensor(given, dtype=torch.float64)
    for made in (copy.deepcopy(single).double(), nn.ModuleList([Holder(given)]).double()[0]):
        torch.testing.assert_close(made.scale.detach(), exact, rtol=1e-15, atol=0)
    again = Holder(given).double().float().double()
    torch.testing.assert_close(again.scale.detach(), exact, rtol=1e-15, atol=0)


def test_a_value_that_was_moved_is_converted_as_it_is():
    moved = Holder([0.2, 0.7])
    with torch.no_grad():
        moved.parametrizations.scale.original.add_(0.25)
    raw = moved.parametrizations.scale.original.detach().clone()
    moved.double()
    assert torch.equal(moved.parametrizations.scale.original, raw.double())
    assigned = Holder(0.2)
    assigned.scale = torch.tensor(0.7)
    assert assigned.double().scale.item() == pytest.approx(0.7, rel=1e-7)
    loaded = Holder([0.2, 0.7]).double()
    loaded.load_state_dict(moved.state_dict())
    assert torch.equal(loaded.scale, moved.scale)


@pytest.mark.parametrize("floor", [-1.0, math.inf, math.nan])
def test_a_floor_below_zero_is_refused(floor):
    with pytest.raises(ConfigError, match=r"the floor of noise was set to .*; it must be 0"):
        Positive(floor, "noise")


def test_values_made_together_are_those_made_apart():
    def kernel():
        made = RBF(3, [0.5, 1.0, 2.0], 1.7) + RBF(None, 3.0, 0.2)
        return made.double()

    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    apart, together = kernel(), kernel()
    apart.evaluate(x, x).square().sum().backward()
    device = torch.device("meta")  # any but the CPU
    with cached_parameters(device, together, "no module"):
        first = together.evaluate(x, x)
        with torch.no_grad():
            together.evaluate(x, x)
        first.square().sum().backward()
    for one, other in zip(apart.parameters(), together.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=0)
    with torch.no_grad():
        for parameter in together.parameters():
            parameter.add_(1.0)
    assert not torch.equal(together.evaluate(x, x), first)  # nothing is kept afterwards


def test_what_was_fixed_can_be_asked_and_released():
    kernel = RBF() + Periodic()
    fix(kernel, "kernels.0.lengthscale", "kernels.1.period")
    assert fixed_names(kernel) == ["kernels.0.lengthscale", "kernels.1.period"]
    release(kernel, "kernels.1.period")
    assert fixed_names(kernel) == ["kernels.0.lengthscale"]
    with pytest.raises(ConfigError, match=r"no parameter period to release; there are kernels\.0"):
        release(kernel, "kernels.0.lengthscale", "period")
    assert fixed_names(kernel) == ["kernels.0.lengthscale"]
