"""``Matern(nu=...)`` makes a kernel of the class of that smoothness."""

import copy
import inspect
import pickle

import numpy as np
import pytest
import torch

from gpx.errors import ConfigError, class_name
from gpx.kernels import Matern, Matern12, Matern32, Matern52, MaternNu
from gpx.options.module_node import node_of

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    ("nu", "kind"),
    [(0.5, Matern12), (1.5, Matern32), (np.float32(2.5), Matern52), (2, MaternNu), (3.5, MaternNu)],
)
def test_the_class_is_that_of_the_smoothness(nu, kind):
    made = Matern(3, [0.5, 1.0, 2.0], outputscale=1.7, nu=nu).double()
    plain = MaternNu(3, [0.5, 1.0, 2.0], outputscale=1.7, nu=nu).double()
    assert isinstance(made, kind)
    assert isinstance(made, Matern)
    assert class_name(made) == kind.__name__
    assert made.nu == nu
    torch.testing.assert_close(made.evaluate(X), plain.evaluate(X), rtol=1e-7, atol=1e-7)


def test_what_is_made_is_copied_pickled_and_recorded_as_its_own_class():
    made = Matern(nu=1.5, lengthscale=2.0)
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert class_name(again) == "Matern32"
        torch.testing.assert_close(again.lengthscale, made.lengthscale)
    node = node_of(made, "kernel")
    assert node["_target_"] == "gpx.kernels.Matern32"
    assert "nu" not in node
    assert node_of(Matern(nu=3.5), "kernel")["nu"] == 3.5


def test_classes_of_ones_own_keep_their_constructors():
    class Deep(Matern52):
        def __init__(self, depth):
            super().__init__(lengthscale=depth)
            self.depth = depth

    assert Deep(2.0).depth == 2.0
    assert list(inspect.signature(Deep).parameters) == ["depth"]
    assert "nu" not in inspect.signature(Matern32).parameters
    assert "nu" in inspect.signature(Matern).parameters


@pytest.mark.parametrize("options", [{}, {"nu": "rough"}, {"nu": [1.5]}, {"nu": None}])
def test_without_a_smoothness_the_classes_are_named(options):
    with pytest.raises(ConfigError, match=r"Matern needs a smoothness.*Matern12.*32.*52.*MaternNu"):
        Matern(**options)
    with pytest.raises(ConfigError, match="nu=-1: the smoothness"):
        Matern(nu=-1)
