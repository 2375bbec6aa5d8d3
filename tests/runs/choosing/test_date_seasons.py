"""Seasons of dates that stand beside other inputs: which are tried, found and kept."""

import datetime
import math

import numpy as np
import pytest

from gpx.options.composition import composed
from gpx.runs import RunFolder, run
from gpx.runs.choosing import kernel_choice
from gpx.runs.choosing.date_seasons import date_inputs, visible_periods
from gpx.runs.data import load_run_data

QUICK = (
    *("trainer.figures=false", "trainer.tensorboard=false", "trainer.device=cpu", "data=csv"),
    *("trainer.baselines=false", "trainer.max_steps=3", "trainer.quiet=true", "data.target=y"),
)


def table(folder, rows=160, step=1.0, season=7.0, dates=True):
    """A target with a season of some days, a slow trend, and a shop that matters."""
    generator = np.random.default_rng(0)
    start, lines = datetime.datetime(2024, 1, 1), []
    for row in range(rows):
        days = row * step
        shop = generator.integers(2)
        y = 2.0 * shop + math.sin(2.0 * math.pi * days / season) + 0.01 * days
        when = (start + datetime.timedelta(days=days)).isoformat() if dates else days
        lines.append(f"{'ab'[shop]},{when},{y + 0.1 * generator.normal():.4f}")
    path = folder / "rows.csv"
    path.write_text("\n".join(["shop,time,y", *lines]))
    return f"data.path={path}"


@pytest.mark.parametrize(
    ("rows", "step", "expected"),
    [
        (160, 1.0, [7.0]),  # 160 days show weeks; days are too short for them
        (800, 1.0, [7.0, 365.2425]),
        (160, 0.25, [1.0, 7.0]),
        (13, 1.0, []),  # less than two weeks
        (160, 3.0, []),  # a date in three days
    ],
)
def test_periods_of_the_calendar_that_the_dates_can_show(rows, step, expected, tmp_path):
    data = load_run_data(composed([*QUICK, table(tmp_path, rows, step), "data.test_fraction=0"]))
    (place,) = date_inputs(data)
    assert data.input_names[place].startswith("time (days")
    assert visible_periods(data, place) == expected


def chosen(monkeypatch, folder, *options, **of_table):
    monkeypatch.setattr(kernel_choice, "candidates_for", lambda *_: ("rbf",))
    made = RunFolder(folder / "run")
    metrics = run(composed([*QUICK, table(folder, **of_table), "approx=exact", *options]), made)
    config = made.read_config()
    return config.kernel, config.facts.kernel_choice, metrics


@pytest.mark.parametrize(("season", "step"), [(7.0, 1.0), (1.0, 0.2)])
def test_a_season_is_found_with_its_period_in_days(monkeypatch, tmp_path, season, step):
    kernel, said, metrics = chosen(monkeypatch, tmp_path, "kernel=auto", season=season, step=step)
    (period,) = [each for each in kernel.kernels if each["_target_"].endswith("Periodic")]
    assert period.active_dims == [2]
    data = load_run_data(composed([*QUICK, f"data.path={tmp_path / 'rows.csv'}"]))
    days = float(np.ravel(period.period)[0]) * float(data.scaler.input_scale[2])
    assert days == pytest.approx(season, rel=0.01)
    assert f"period={float(np.ravel(period.period)[0]):.2g}"[:-1] in said
    assert metrics["test.rmse"] < 0.25  # in standard deviations; the season is 0.55 of one


def test_numbers_are_no_dates_and_have_no_calendar(monkeypatch, tmp_path):
    kernel, said, _ = chosen(monkeypatch, tmp_path, "kernel=auto", dates=False)
    assert "periodic" not in said
    assert kernel["_target_"] == "gpx.kernels.RBF"


def test_candidates_of_the_user_are_the_only_ones(monkeypatch, tmp_path):
    options = "kernel=auto", "kernel.candidates=[rbf]"
    _, said, _ = chosen(monkeypatch, tmp_path, *options)
    assert "periodic" not in said


@pytest.mark.parametrize(("lead", "found"), [(0.1, True), (10.0, False)])
def test_of_many_rows_a_season_must_lead_by_more(monkeypatch, tmp_path, lead, found):
    monkeypatch.setitem(kernel_choice.EXACT_ROWS, "cpu", 100)
    monkeypatch.setattr(kernel_choice, "SEASONAL_LEAD", lead)
    _, said, _ = chosen(monkeypatch, tmp_path, "kernel=auto")
    assert ("periodic" in said) == found


def test_classes_have_weeks_too(monkeypatch, tmp_path):
    text = table(tmp_path, rows=240)
    rows = (tmp_path / "rows.csv").read_text().splitlines()
    made = [rows[0]]
    for row in rows[1:]:
        shop, when, _ = row.split(",")
        weekday = datetime.datetime.fromisoformat(when).weekday()
        made.append(f"{shop},{when},{'open' if weekday < 4 else 'shut'}")
    (tmp_path / "rows.csv").write_text("\n".join(made))
    monkeypatch.setattr(kernel_choice, "candidates_for", lambda *_: ("rbf",))
    options = [*QUICK, text, "approx=laplace", "likelihood=bernoulli", "kernel=auto"]
    folder = RunFolder(tmp_path / "run")
    metrics = run(composed(options), folder)
    assert "periodic" in folder.read_config().facts.kernel_choice
    assert metrics["test.accuracy"] > 0.95
