"""Arrays that callers give: float64 whatever they come as, or an error that names them."""

import numpy as np
import pytest
import torch
from frames import Column, Frame

from gpx.errors import DataError, DTypeError
from gpx.runs.arrays import column_names, columns_by_name, real_array


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
    [["a", "b"], [1j], np.array(["2020-01-01"], dtype="datetime64[D]"), [[1.0], [1.0, 2.0]], None],
)
def test_anything_else_is_refused_by_name(values):
    with pytest.raises(DTypeError, match="inputs must be an array of real numbers"):
        real_array(values, "inputs")


def test_names_of_columns():
    frame = Frame(a=[1.0, 2.0], b=[3.0, 4.0])
    assert column_names(frame) == ("a", "b")
    assert column_names(Frame(**{"a": [1.0]}, numbers=[0])) == ("a", "0")
    assert column_names(Column([1.0, 2.0], index=["a", "b"])) == ("a", "b")
    for unnamed in (
        np.ones((2, 2)),
        torch.ones(2),
        [[1.0]],
        (1.0,),
        Frame(numbers=[0, 1]),
        Column([1.0], index=[0]),
    ):
        assert column_names(unnamed) is None


def test_columns_are_taken_by_name():
    frame = Frame(b=[3.0, 4.0], other=[0.0, 0.0], a=[1.0, 2.0])
    assert np.asarray(columns_by_name(frame, ["a", "b"], "x")).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    row = Column([3.0, 1.0], index=["b", "a"])
    assert np.asarray(columns_by_name(row, ["a", "b"], "x")).tolist() == [1.0, 3.0]
    array = np.ones((2, 2))
    assert columns_by_name(array, ["a", "b"], "x") is array
    mixed = columns_by_name(Frame(a=[1.0, 2.0], numbers=[7]), ["7", "a"], "x")
    assert mixed.columns == [7, "a"]  # not "7", which a data frame does not have
    with pytest.raises(DataError, match=r"inputs have no column 'c', .* they have b, other, a"):
        columns_by_name(frame, ["a", "c"], "inputs")
    with pytest.raises(DataError, match="inputs have more than one column 'a'"):
        columns_by_name(Column([1.0, 2.0], index=["a", "a"]), ["a"], "inputs")


def test_what_pandas_calls_na_is_no_number():
    """Whole numbers of which some are missing, as pandas reads them from a table."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": pandas.array([1, None, 3], dtype="Int64"), "b": [0.5, 1.5, 2.5]})
    found = real_array(frame, "targets")
    np.testing.assert_array_equal(found, [[1.0, 0.5], [np.nan, 1.5], [3.0, 2.5]])
    np.testing.assert_array_equal(real_array(frame["a"], "targets"), [1.0, np.nan, 3.0])
    with pytest.raises(DTypeError, match="targets must be an array of real numbers"):
        real_array(pandas.DataFrame({"a": ["x", None]}), "targets")
