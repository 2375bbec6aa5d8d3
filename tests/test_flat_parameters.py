import numpy as np
import torch
from torch import nn

from gpx.flat_parameters import assign, limits_of, value_and_gradient, values_of


def parameters():
    return [
        nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]])),
        nn.Parameter(torch.tensor(5.0, dtype=torch.float64)),
    ]


def test_entries_are_a_copy_in_double_precision():
    given = parameters()
    found = values_of(given)
    assert found.dtype == torch.float64
    assert found.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    found += 1.0
    assert given[1].item() == 5.0
    alone = values_of(given[1:])
    alone += 1.0
    assert given[1].item() == 5.0


def test_assigning_keeps_shape_and_precision():
    given = parameters()
    assign(given, torch.arange(5, dtype=torch.float64))
    assert given[0].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert [p.dtype for p in given] == [torch.float32, torch.float64]
    assert given[1].item() == 4.0
    assert given[1].requires_grad


def test_a_parameter_without_a_gradient_has_zeros():
    given = parameters()
    (given[1] ** 2).backward()
    assert value_and_gradient(torch.zeros(()), given)[1].tolist() == [0.0, 0.0, 0.0, 0.0, 10.0]


def test_limits_are_of_every_entry():
    assert limits_of(parameters(), [1.0, -2.0]).tolist() == [1.0, 1.0, 1.0, 1.0, -2.0]
    assert np.isneginf(limits_of(parameters(), None)).all()
