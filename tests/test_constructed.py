"""What a module's constructor was given, by name, whatever becomes of the values afterwards."""

import copy
import pickle

import numpy as np
import torch
from torch.nn.utils import parametrize

from gpx.constructed import Constructed, Unrecorded


class Base(Constructed):
    def __init__(self, size, *, rate=0.5, **others):
        super().__init__()
        self.size, self.rate = size, rate
        self.weight = torch.nn.Parameter(torch.ones(size))


class Child(Base):
    def __init__(self, sizes, label="a"):
        super().__init__(len(sizes), rate=2.0)


class Heir(Child):
    """Without a constructor of its own."""


class Bare(Constructed):
    """Without any."""


class Many(Constructed):
    def __init__(self, *sizes):
        super().__init__()


def test_arguments_have_their_names_and_defaults():
    assert Base(3).construction() == {"size": 3, "rate": 0.5}
    assert Base(size=3, rate=1.0, more=7).construction() == {"size": 3, "rate": 1.0, "more": 7}
    assert Bare().construction() == {}
    assert Many(1, 2).construction() is None


def test_the_outermost_constructor_is_the_one_that_counts():
    for kind in (Child, Heir):
        assert kind([4, 5], label="b").construction() == {"sizes": [4, 5], "label": "b"}


def test_values_are_copies_that_a_config_could_hold():
    sizes = {"first": (1, [2])}
    made = Child(sizes, label=np.float64(0.25))
    sizes["first"][1].append(9)
    assert made.construction() == {"sizes": {"first": [1, [2]]}, "label": 0.25}
    assert type(made.construction()["label"]) is float
    assert Child(np.arange(2)).construction()["sizes"] == [0, 1]
    inner = Bare()
    assert Child([1], label=inner).construction()["label"] is inner


def test_what_no_config_holds_is_noted_without_being_kept():
    made = Child([1], label=lambda: 3)
    found = made.construction()["label"]
    assert isinstance(found, Unrecorded)
    assert repr(found) == "a function"
    assert repr(pickle.loads(pickle.dumps(made)).construction()["label"]) == "a function"


def test_parametrizations_and_copies_leave_it():
    made = Base(2)
    parametrize.register_parametrization(made, "weight", torch.nn.Softplus())
    assert copy.deepcopy(made).construction() == {"size": 2, "rate": 0.5}


def test_a_constructor_that_came_later_is_not_known():
    class Late(Base):
        pass

    def init(self, size):
        Base.__init__(self, size)

    Late.__init__ = init
    assert Late(1).construction() is None
