from __future__ import annotations

import numpy as np
import pytest

from gpx.data import Table
from gpx.errors import DataError


def table(x: np.ndarray, y: np.ndarray, **options: object) -> Table:
    names = tuple(f"a{i}" for i in range(x.shape[1])) if x.ndim == 2 else ()
    return Table("toy", x, y, names, "b", **options)  # type: ignore[arg-type]


def test_shapes_must_agree() -> None:
    with pytest.raises(DataError, match=r"inputs of shape \(3, 2\) and a target of shape \(4,\)"):
        table(np.zeros((3, 2)), np.zeros(4))


def test_rows_and_inputs_must_exist() -> None:
    with pytest.raises(DataError, match="0 rows and 2 inputs"):
        table(np.zeros((0, 2)), np.zeros(0))


def test_mask_must_have_as_many_rows() -> None:
    with pytest.raises(DataError, match="has 3 rows but its test mask has 5"):
        table(np.zeros((3, 2)), np.zeros(3), test_masks=np.zeros((5, 10), dtype=bool))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_must_be_finite(value: float) -> None:
    x = np.zeros((4, 2))
    x[2, 1] = value
    with pytest.raises(DataError, match=r"here.npz, data row 3, column 2 \('a1'\): found .*1 such"):
        table(x, np.zeros(4), origin="here.npz")
    with pytest.raises(DataError, match=r"data set toy, data row 3, the target \('b'\)"):
        table(np.zeros((4, 2)), x[:, 1])


def test_several_targets_have_names() -> None:
    x, y = np.zeros((4, 2)), np.arange(8.0).reshape(4, 2)
    assert table(x, y, target_names=("b", "c")).target_names == ("b", "c")
    for names in ((), ("b",), ("b", "c", "d")):
        with pytest.raises(DataError, match=rf"shape \(4, 2\) and {len(names)} target names"):
            table(x, y, target_names=names)
    with pytest.raises(DataError, match="1 target names"):
        table(x, y[:, 0], target_names=("b",))
    with pytest.raises(DataError, match="two targets named 'b'"):
        table(x, y, target_names=("b", "b"))
    with pytest.raises(DataError, match=r"shape \(4, 1\); expected"):
        table(x, y[:, :1])


def test_some_of_several_targets_may_be_missing() -> None:
    x, y = np.zeros((4, 2)), np.arange(8.0).reshape(4, 2)
    y[2, 1] = np.nan
    assert np.isnan(table(x, y, target_names=("b", "c")).y).sum() == 1
    y[0, 1] = np.inf
    with pytest.raises(DataError, match=r"row 1, the target \('c'\): found inf.*1 such"):
        table(x, y, target_names=("b", "c"))
    y[0, 1], y[2, 0] = 1.0, np.nan
    with pytest.raises(DataError, match=r"row 3, the target \('b'\): found nan"):
        table(x, y, target_names=("b", "c"))
