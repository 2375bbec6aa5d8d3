from __future__ import annotations

import numpy as np
import pytest

from gpx.data import Fields, load
from gpx.data.images.fields import PIXEL_NOISE
from gpx.errors import ConfigError, ShapeError


def test_probabilities_are_those_of_the_dense_law() -> None:
    source = Fields(num_images=40, num_classes=4, side=4, channels=2)
    x, ways = source.table().x, source._ways
    covariance = ways.T @ ways + PIXEL_NOISE**2 * np.eye(32)
    gaps = x[:, None] - source._means
    distances = np.einsum("nci,ij,ncj->nc", gaps, np.linalg.inv(covariance), gaps)
    expected = np.exp(-0.5 * (distances - distances.min(1, keepdims=True)))
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(source.probabilities(x), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("classes", "error"), [(10, 0.1), (100, 0.3)])
def test_the_best_classifier_errs_as_asked_and_is_calibrated(classes: int, error: float) -> None:
    source = Fields(num_images=4000, num_classes=classes, side=8, channels=1, bayes_error=error)
    table = source.table()
    probabilities = source.probabilities(table.x)
    wrong = probabilities.argmax(1) != table.y
    # 4,000 images, and 20,000 by which the contrast was chosen: 4 standard errors
    assert abs(wrong.mean() - error) < 4 * np.sqrt(error * (1 - error) * (1 / 4000 + 1 / 20_000))
    claimed = 1.0 - probabilities.max(1)
    assert abs((wrong - claimed).mean()) < 4 * np.sqrt((claimed * (1 - claimed)).mean() / 4000)


def test_classes_and_fields_stay_where_the_size_changes() -> None:
    small, large = Fields(num_images=20, side=4), Fields(num_images=50, side=4, split_seed=3)
    np.testing.assert_array_equal(small._means, large._means)
    data = load(small, task="multiclass")
    assert (data.num_train, data.num_test, data.num_inputs) == (16, 4, 48)
    rows = small.split_rows(small.table())[0]
    np.testing.assert_array_equal(np.asarray(data.train_x), small.table().x[rows])  # as drawn


def test_options_out_of_range() -> None:
    with pytest.raises(ConfigError, match=r"bayes_error=0\.95 must be .* below 0\.9"):
        Fields(bayes_error=0.95)
    with pytest.raises(ConfigError, match="num_images=5 must be at least 10"):
        Fields(num_images=5)
    with pytest.raises(ShapeError, match=r"expected \(n, 48\)"):
        Fields(num_images=20, side=4).probabilities(np.zeros((2, 47)))
