"""Arrays that callers give: float64 whatever they come as, or an error that names them."""

import numpy as np
import pytest
import torch

from gpx.errors import DTypeError
from gpx.training.arrays import real_array


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3, 4]],
        np.array([[1, 2], [3, 4]], dtype=np.int8),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16),
    ],
)
def test_anything_that_is_numbers(values):
    found = real_array(values, "x")
    assert found.dtype == np.float64
    assert found.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    "values",
    [["a", "b"], [1j], np.array(["2020-01-01"], dtype="datetime64[D]"), [[1.0], [1.0, 2.0]]],
)
def test_anything_else_is_refused_by_name(values):
    with pytest.raises(DTypeError, match="inputs must be an array of real numbers"):
        real_array(values, "inputs")
