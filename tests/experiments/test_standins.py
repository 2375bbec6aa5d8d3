"""Generated data in the place of sets that are not at hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PLACE = Path(__file__).resolve().parents[2] / "experiments" / "ski"


def script(name):
    spec = importlib.util.spec_from_file_location(name, PLACE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


standins, setting = script("standins"), script("setting")


def linear_smse(x, y):
    """Of least squares on half of the rows, at the other half."""
    design = np.concatenate([x, np.ones((len(x), 1))], 1)
    half = len(x) // 2
    weights = np.linalg.lstsq(design[:half], y[:half], rcond=None)[0]
    return np.mean((design[half:] @ weights - y[half:]) ** 2) / np.var(y[half:])


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [("sarcos_like", 21, 0.80), ("abalone_like", 8, 0.51)],
)
def test_as_hard_for_a_line_as_the_set_it_stands_for(name, columns, expected):
    """The standard error of a share of 0.8 of the variance is below 0.01 at 10,000 rows."""
    make = getattr(standins, name)
    x, y = make(20_000, seed=3)
    assert x.shape == (20_000, columns)
    assert abs(linear_smse(x, y) - expected) <= 0.05
    again = make(20_000, seed=3)
    assert np.array_equal(again[0], x)
    assert np.array_equal(again[1], y)
    assert not np.array_equal(make(20_000, seed=4)[1], y)


@pytest.mark.parametrize("inputs", [1, 3])
def test_the_synthetic_function_is_equation_4_1(inputs):
    data = setting.synthetic(2000, seed=5, inputs=inputs)
    random = np.random.default_rng(5)  # the weights are its first draws
    first, second = random.uniform(-1.0, 1.0, (2, inputs))
    x = data.x.numpy()
    assert x.shape == (2000, inputs)
    assert 9.9 < np.abs(x).max() <= 10.0
    value = sum(first[d] * np.sin(4.0 * second[d] * x[:, d]) for d in range(inputs))
    value = 4.0 * value * np.exp(-(np.linalg.norm(x, axis=1) ** 2) / (50.0 * inputs))
    # the standard deviation of 2,000 draws is within 8 % of theirs at five standard errors
    assert np.std(data.y.numpy() - value) == pytest.approx(0.01, rel=0.08)
    again, other = (setting.synthetic(2000, seed, inputs) for seed in (5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(data, again, strict=True))
    assert not np.array_equal(data.y, other.y)
