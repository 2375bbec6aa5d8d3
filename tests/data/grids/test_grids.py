"""Grids from archives, frames and generators: rows, folds, and every refusal in one sentence."""

import re

import numpy as np
import pytest
import torch

from gpx.data import ExtraGrid, GridFile, GridStress, load
from gpx.data.grids import values as grid_values
from gpx.data.grids.stress import membrane, rastrigin
from gpx.errors import ConfigError, DataError
from gpx.methods.grid.axes import find_grid

A, B = np.array([0.0, 1.0, 4.0]), np.array([3.0, 2.0, 1.0, -1.0])


def archive(tmp_path, **arrays):
    random = np.random.default_rng(0)
    values = random.standard_normal((3, 4))
    values[1, 2] = np.nan
    content = {"values": values, "axis0": A, "axis1": B} | arrays
    np.savez(tmp_path / "own.npz", **{k: v for k, v in content.items() if v is not None})
    return str(tmp_path / "own.npz"), content


def test_observed_cells_become_rows_in_the_order_of_the_grid(tmp_path):
    path, content = archive(tmp_path)
    table = GridFile(path).table()
    assert table.input_names == ("axis0", "axis1")
    want = [
        (a, b, v)
        for a, row in zip(A, content["values"], strict=True)
        for b, v in zip(B, row, strict=True)
    ]
    want = np.array([w for w in want if not np.isnan(w[2])])
    np.testing.assert_array_equal(np.column_stack([table.x, table.y]), want)


def test_a_mask_marks_gaps_and_another_what_is_tested(tmp_path):
    mask, held = np.ones((3, 4), dtype=bool), np.zeros((3, 4), dtype=bool)
    mask[0, 0], mask[1, 2], held[2, 1], held[1, 2] = False, False, True, True
    path, content = archive(tmp_path, seen=mask, held=held)
    data = load(GridFile(path, mask="seen", test="held", hold_out="mask"), task="regression")
    assert (data.num_train, data.num_test) == (9, 1)
    shift, scale = data.scaler.target_mean, data.scaler.target_scale
    assert float(data.test_y * scale + shift) == pytest.approx(content["values"][2, 1])


def test_held_out_stations_and_forecasts(tmp_path):
    path, _ = archive(tmp_path)
    slices = GridFile(path, hold_out="slices", hold_out_axis=0, test_fraction=1 / 3)
    tested = slices.table().x[slices.split_rows(slices.table())[1], 0]
    assert len(set(tested)) == 1
    tail = GridFile(path, hold_out="tail", hold_out_axis=1, test_fraction=0.25)
    table = tail.table()
    assert set(table.x[tail.split_rows(table)[1], 1]) == {-1.0}
    with pytest.raises(ConfigError, match="has only split 0"):
        _split(GridFile(path, hold_out="tail", split=1))
    with pytest.raises(ConfigError, match="axes 0 to 1"):
        _split(GridFile(path, hold_out="slices", hold_out_axis=2))
    with pytest.raises(ConfigError, match="expected one of cells"):
        GridFile(path, hold_out="rows")


def _split(source):
    return source.split_rows(source.table())


def test_folds_of_slices_test_every_point_once(tmp_path):
    path, _ = archive(tmp_path)
    seen = []
    for split in range(3):
        source = GridFile(path, hold_out="slices", split=split, test_fraction=1 / 3)
        table = source.table()
        seen += table.x[source.split_rows(table)[1], 0].tolist()
    assert sorted(set(seen)) == A.tolist()
    assert len(seen) == 11


def test_several_outputs_are_a_last_axis_standardised_each_and_keep_their_numbers(tmp_path):
    random = np.random.default_rng(1)
    axis = np.arange(12.0)
    path, _ = archive(
        tmp_path,
        values=100.0 + 7.0 * random.standard_normal((12, 4)),
        other=random.standard_normal((12, 4)),
        axis0=axis,
    )
    data = load(GridFile(path, values=["values", "other"]), task="regression")
    outputs = data.train_x[:, 2]
    assert set(outputs.tolist()) == {0.0, 1.0}
    for output in (0.0, 1.0):
        rows = data.train_y[outputs == output]
        assert abs(float(rows.mean())) < 1e-9
        assert float(rows.std(correction=0)) == pytest.approx(1.0, abs=1e-6)
    assert find_grid(data.train_x).grid.shape == (12, 4, 2)
    mean, scale = re.search(r"output 0 is \(value - (\S+)\) / (\S+);", data.notes).groups()
    raw = np.load(path)["values"]
    back = data.scaler.target_mean + data.scaler.target_scale * data.train_y[outputs == 0.0]
    back = back * float(scale) + float(mean)
    assert np.abs(back.numpy()[:, None] - raw.ravel()).min(1).max() < 1e-4


def test_scattered_stations_are_one_axis(tmp_path):
    place = np.random.default_rng(2).standard_normal((3, 2))
    path, _ = archive(tmp_path, axis0=place)
    table = GridFile(path).table()
    assert table.input_names == ("axis0_0", "axis0_1", "axis1")
    assert find_grid(torch.from_numpy(table.x), [[0, 1], [2]]).grid.shape == (3, 4)


@pytest.mark.parametrize(
    ("arrays", "options", "text"),
    [
        ({"axis0": A[[1, 0, 2]]}, {}, r"axis axis0 is not sorted: 1 is followed by 0"),
        ({"axis0": np.array([0.0, 1.0, 1.0])}, {}, r"axis axis0 has the point 1 twice"),
        ({"axis1": np.array([0.0, 1.0, np.nan, 3.0])}, {}, r"axis axis1 has points .* not finite"),
        ({"axis0": np.ones((3, 2))}, {}, r"has 2 duplicate points"),
        ({"axis0": A[:2]}, {}, r"shape \(3, 4\), the axes 2 x 4"),
        ({"seen": np.ones((4, 3))}, {"mask": "seen"}, r"the mask has shape \(4, 3\)"),
        ({"seen": np.zeros((3, 4))}, {"mask": "seen"}, r"all 12 cells are gaps; .*inverted"),
        ({"values": np.full((3, 4), np.nan)}, {}, r"all 12 cells are gaps"),
        ({"seen": np.ones((3, 4))}, {"mask": "seen"}, r"1 cells of values are NaN .* at \[1, 2\]"),
        ({"seen": B + np.zeros((3, 4))}, {"mask": "seen"}, r"'seen' is not a mask: .* -1 to 3"),
        ({"t": np.full((3, 4), np.nan)}, {"test": "t"}, r"'t' is not a mask"),
        ({"values": np.array(3.0)}, {}, r"a single number, expected a grid"),
        ({"values": np.full((3, 4), np.inf)}, {}, r"12 values are infinite"),
        ({"axis1": None}, {}, r"no array 'axis1'"),
        ({}, {"axis_arrays": ["axis0"]}, r"names 1 axes .*2 dimensions"),
        ({"t": np.ones((2, 2))}, {"test": "t"}, r"the test mask has shape \(2, 2\)"),
        ({"two": np.ones((2, 2))}, {"values": ["values", "two"]}, r"two has shape"),
        ({}, {"values": []}, r"values=\[\]: expected the name of an array"),
    ],
)
def test_refusals(tmp_path, arrays, options, text):
    path, _ = archive(tmp_path, **arrays)
    with pytest.raises(DataError, match=text):
        GridFile(path, **options).table()


def test_missing_marks_and_outputs_without_training_cells(tmp_path):
    path, content = archive(tmp_path)
    with pytest.raises(DataError, match="marks no test cells"):
        _split(GridFile(path, hold_out="mask"))
    held = np.ones((3, 4), dtype=bool)
    path, _ = archive(tmp_path, other=content["values"], held=held)
    with pytest.raises(DataError, match="leaves 0 training"):
        GridFile(path, values=["values", "other"], test="held", hold_out="mask").table()


def test_the_membrane_obeys_the_wave_equation():
    field = membrane((41, 41, 1001), np.random.default_rng(0))
    h, dt = 1 / 40, 1 / 1000
    x1 = np.diff(field, 2, axis=0)[:, 1:-1, 1:-1] / h**2
    x2 = np.diff(field, 2, axis=1)[1:-1, :, 1:-1] / h**2
    time = np.diff(field, 2, axis=2)[1:-1, 1:-1] / dt**2
    assert np.abs(x1 + x2 - time).max() < 0.02 * np.abs(time).max()
    assert np.abs(field[[0, -1]]).max() < 1e-12


def test_the_stress_generator_repeats_and_has_the_gaps_asked_for():
    first = GridStress("rastrigin", (12, 9), 0.25, seed=4).grid()
    again = GridStress("rastrigin", (12, 9), 0.25, seed=4).grid()
    np.testing.assert_array_equal(first.values, again.values)
    assert int(np.isnan(first.values).sum()) == 27
    whole = rastrigin((12, 9))
    assert abs(whole.mean()) < 1e-12
    assert whole.std() == pytest.approx(1.0)
    for bad in ({"field": "wave"}, {"shape": (4, 4)}, {"gap_share": 1.0}, {"noise": -1.0}):
        with pytest.raises(ConfigError):
            GridStress(**bad)


def test_a_grid_that_does_not_fit_is_told_before_memory_is_taken(monkeypatch):
    with pytest.raises(ConfigError, match=r"20,000 x 20,000 x 20,000 = 8,000,000,000,000 cells"):
        GridStress("rastrigin", (20_000,) * 3).grid()
    small = GridStress("rastrigin", (12, 9)).grid()
    monkeypatch.setattr(grid_values, "available_memory", lambda device: 1000)
    with pytest.raises(ConfigError, match=r"12 x 9 = 108 cells, 86 .* GiB.*thin or shorten"):
        small.table()
    with pytest.raises(ConfigError, match="rastrigin generator: 12 x 9"):
        GridStress("rastrigin", (12, 9)).grid()


def test_extra_grids(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="known: dem_jacksboro"):
        ExtraGrid("dem")
    monkeypatch.delenv("GPX_DATA", raising=False)
    with pytest.raises(DataError, match=r"grid.npz is in none of"):
        ExtraGrid("dem_jacksboro", root=str(tmp_path)).table()
    (tmp_path / "canadian_weather").mkdir()
    np.savez(
        tmp_path / "canadian_weather" / "grid.npz",
        lat_lon_w=np.random.default_rng(0).standard_normal((3, 2)),
        day=np.arange(1, 5),
        temperature=np.arange(12.0).reshape(3, 4),
    )
    table = ExtraGrid("canadian_weather", root=str(tmp_path)).table()
    assert table.x.shape == (12, 3)
    assert table.input_names == ("lat_lon_w_0", "lat_lon_w_1", "day")
