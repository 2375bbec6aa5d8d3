from __future__ import annotations

import numpy as np
import pytest
import torch

from gpx.data import DataSource, GridStress, RobotArm, Table, Toy1D
from gpx.errors import ConfigError, DataError


class Rows(DataSource):
    def __init__(self, rows: int, masks: np.ndarray | None = None, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.rows, self.masks = rows, masks

    def table(self) -> Table:
        x = np.arange(self.rows, dtype=np.float64)
        return Table("rows", x[:, None], x, ("x",), "y", test_masks=self.masks)


def split(source: Rows) -> tuple[np.ndarray, np.ndarray]:
    return source.split_rows(source.table())


@pytest.mark.parametrize(("rows", "fraction", "folds"), [(103, 0.1, 10), (50, 0.2, 5), (7, 0.5, 2)])
def test_every_row_is_tested_exactly_once(rows: int, fraction: float, folds: int) -> None:
    tested = np.zeros(rows, dtype=int)
    for s in range(folds):
        train, test = split(Rows(rows, split=s, test_fraction=fraction))
        assert sorted([*train, *test]) == list(range(rows))
        assert abs(len(test) - rows / folds) < 1
        tested[test] += 1
    assert (tested == 1).all()


def test_split_depends_on_its_own_seed_only() -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    first = split(Rows(100))[1]
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    assert (split(Rows(100))[1] == first).all()
    assert not np.array_equal(split(Rows(100, split_seed=1))[1], first)


def test_rows_are_shuffled() -> None:
    test = split(Rows(1000))[1]
    assert test.max() - test.min() > 900


def test_published_masks_are_used() -> None:
    masks = np.zeros((6, 3), dtype=bool)
    masks[[1, 4], 2] = True
    train, test = split(Rows(6, masks, split=2, test_fraction=0.5))
    assert test.tolist() == [1, 4]
    assert train.tolist() == [0, 2, 3, 5]


@pytest.mark.parametrize("number", [10, -1])
@pytest.mark.parametrize("masks", [None, np.ones((40, 10), dtype=bool)])
def test_split_out_of_range_names_the_range(masks: np.ndarray | None, number: int) -> None:
    with pytest.raises(DataError, match=rf"split={number} does not exist: .* 10 splits, 0 to 9"):
        split(Rows(40, masks, split=number))


def test_too_few_rows() -> None:
    with pytest.raises(DataError, match="has 9 rows, fewer than the 10 that 10 splits need"):
        split(Rows(9))


def test_too_few_rows_to_test_on_may_all_be_trained_on() -> None:
    with pytest.raises(DataError, match=r"test_fraction= \(now 0.1; 0: train on all rows\)"):
        split(Rows(3))


def test_mask_that_leaves_nothing_to_train_on() -> None:
    with pytest.raises(DataError, match="leaves 0 training and 5 test rows"):
        split(Rows(5, np.ones((5, 1), dtype=bool)))


def test_no_test_rows() -> None:
    train, test = split(Rows(12, test_fraction=0.0))
    assert train.tolist() == list(range(12))
    assert len(test) == 0
    with pytest.raises(DataError, match=r"split=1 does not exist: .* has one split, split=0"):
        split(Rows(12, test_fraction=0.0, split=1))
    with pytest.raises(DataError, match="has 1 training row; expected at least 2"):
        split(Rows(1, test_fraction=0.0))
    with pytest.raises(ConfigError, match=r"test_fraction=0.0 is not between 0 and 0.5"):
        GridStress(test_fraction=0.0)


@pytest.mark.parametrize("fraction", [-0.1, 0.6, float("nan")])
def test_test_fraction_out_of_range(fraction: float) -> None:
    with pytest.raises(ConfigError, match=r"is not between 0 and 0.5"):
        Rows(40, test_fraction=fraction)


def test_seeds_count_from_zero() -> None:
    with pytest.raises(ConfigError, match=r"split_seed=-4 must be at least 0"):
        Rows(50, split_seed=-4)
    for made in (Toy1D, RobotArm, GridStress):
        with pytest.raises(ConfigError, match=r"seed=-1 must be at least 0"):
            made(seed=-1)
