"""Buffers whose sizes the data decide."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from gpx.data_sized import DataSized, InDoublePrecision


class Holder(DataSized):
    data_sized = ("found", "later", "weights", "absent")

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("found", torch.zeros(0))
        self.register_buffer("later", None)
        self.register_buffer("fixed", torch.zeros(2))
        self.weights = nn.Parameter(torch.zeros(1))


class Squares(DataSized):
    data_sized = ("found",)
    derived = ("kept",)

    def __init__(self) -> None:
        super().__init__()
        self.register_data_sized()
        self.kept = None

    def squares(self) -> torch.Tensor:
        if self.kept is None:
            self.kept = self.found.square()
        return self.kept


def test_what_is_derived_is_worked_out_anew_from_another_state_and_in_another_precision():
    holder, other = Squares(), Squares()
    holder.keep(torch.zeros(1).double(), found=torch.tensor([2.0]))
    other.keep(torch.zeros(1).double(), found=torch.tensor([3.0, 1.0]))
    for one in (holder, other):
        one.squares()
    holder.load_state_dict(other.state_dict())
    assert torch.equal(holder.squares(), torch.tensor([9.0, 1.0]).double())
    assert holder.float().squares().dtype == torch.float32


def test_what_is_empty_waits_where_the_parameters_are():
    holder = Squares()
    holder.weight = nn.Parameter(torch.zeros(1, device="meta"))
    holder.register_data_sized()
    assert holder.found.is_meta


def filled() -> Holder:
    holder = Holder()
    holder.found = torch.arange(6, dtype=torch.float64).view(2, 3)
    holder.later = torch.ones(4)
    holder.weights.data = torch.full((5,), 2.0)
    return holder


def test_named_buffers_and_parameters_load_at_any_size_and_keep_their_dtype():
    fresh = Holder()
    parameter = fresh.weights
    fresh.load_state_dict(filled().state_dict())
    assert torch.equal(fresh.found, filled().found)
    assert fresh.found.dtype == torch.float64
    assert torch.equal(fresh.later, torch.ones(4))
    assert fresh.weights is parameter  # an optimiser may hold it
    assert torch.equal(parameter, torch.full((5,), 2.0))


def test_inside_another_module():
    outer = nn.ModuleDict({"inner": Holder()})
    outer.load_state_dict(nn.ModuleDict({"inner": filled()}).state_dict())
    assert torch.equal(outer["inner"].found, filled().found)


def test_loaded_tensors_are_copies():
    state = filled().state_dict()
    fresh = Holder()
    fresh.load_state_dict(state)
    state["found"].zero_()
    assert torch.equal(fresh.found, filled().found)


def test_other_buffers_still_refuse_another_size():
    state = filled().state_dict()
    state["fixed"] = torch.zeros(3)
    with pytest.raises(RuntimeError, match="fixed"):
        Holder().load_state_dict(state)


class Sums(InDoublePrecision):
    data_sized = ("sums",)
    in_double = ("weights",)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.full((2,), 1.0 / 3.0, dtype=torch.float64))
        self.register_buffer("other", torch.zeros(2, dtype=torch.float64))
        self.weights = nn.Parameter(torch.full((2,), 1.0 / 3.0, dtype=torch.float64))


def test_what_is_in_double_precision_keeps_every_digit_where_the_rest_is_cast():
    made = Sums()
    parameter = made.weights
    made.float()
    assert made.other.dtype == torch.float32
    third = torch.full((2,), 1.0 / 3.0, dtype=torch.float64)
    assert torch.equal(made.sums, third)
    assert torch.equal(made.weights, third)
    assert made.weights is parameter  # an optimiser may hold it


def test_a_pickle_of_a_version_with_fewer_attributes_is_completed():
    held = pickle.loads(pickle.dumps(Squares()))
    state = held.__getstate__()
    for name in Squares.derived:
        state.pop(name)
    state["_buffers"] = {k: v for k, v in state["_buffers"].items() if k not in Squares.data_sized}
    again = Squares.__new__(Squares)
    again.__setstate__(state)
    assert all(getattr(again, name) is None for name in Squares.derived)
    assert all(getattr(again, name).numel() == 0 for name in Squares.data_sized)


class Copied(DataSized):
    derived = ("wide",)

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)
        self.wide: nn.Module | None = None


def test_a_derived_module_is_no_part_of_the_state() -> None:
    used = Copied()
    used.wide = nn.Linear(1, 1).double()
    assert list(used.state_dict()) == ["line.weight", "line.bias"]
    Copied().load_state_dict(used.state_dict())


def test_states_and_pickles_that_hold_a_derived_module_load() -> None:
    """Posteriors on grids saved after a prediction in float32 had their copy in float64 inside."""
    used = Copied()
    stored = {**used.state_dict(), "wide.weight": torch.zeros(1, 1)}
    Copied().load_state_dict(stored)
    assert "wide.weight" in stored
    pickled = used.__getstate__()
    pickled["_modules"] = {**pickled["_modules"], "wide": nn.Linear(1, 1)}
    again = Copied.__new__(Copied)
    again.__setstate__(pickled)
    assert again.wide is None
    assert list(again.state_dict()) == ["line.weight", "line.bias"]


def test_a_gradient_of_the_size_before_is_dropped_with_it():
    holder, other = Holder(), filled()
    holder.weights.grad = torch.zeros(1)
    other.weights.data = torch.ones(3)
    holder.load_state_dict(other.state_dict())
    holder.weights.sum().backward()
    assert torch.equal(holder.weights.grad, torch.ones(3, dtype=holder.weights.dtype))
