from __future__ import annotations

import pytest
import torch

from gpx.data import Standardiser

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 3, generator=GENERATOR, dtype=torch.float64) * torch.tensor([1.0, 1e-3, 50.0])
Y = 7.0 + 3.0 * torch.randn(200, generator=GENERATOR, dtype=torch.float64)


def test_mean_zero_and_population_deviation_one() -> None:
    scaler, constant = Standardiser.fit(X, Y, scale_targets=True)
    x, y = scaler.transform_inputs(X), scaler.transform_targets(Y)
    torch.testing.assert_close(x.mean(0), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(y.std(correction=0), torch.tensor(1.0, dtype=torch.float64))
    assert not constant.any()


def test_there_and_back() -> None:
    scaler, _ = Standardiser.fit(X, Y, scale_targets=True)
    torch.testing.assert_close(scaler.original_inputs(scaler.transform_inputs(X)), X)
    torch.testing.assert_close(scaler.original_mean(scaler.transform_targets(Y)), Y)
    unit = torch.ones(1, dtype=torch.float64)
    torch.testing.assert_close(scaler.original_std(unit)[0], Y.std(correction=0))


def test_float32_predictions_return_in_float64() -> None:
    scaler, _ = Standardiser.fit(X, Y, scale_targets=True)
    assert scaler.original_mean(torch.zeros(2)).dtype == torch.float64


def test_constant_columns_are_centred_not_scaled() -> None:
    # 0.1 has no exact binary mean: a deviation of rounding size must not become a scale
    x = X.clone()
    x[:, 1] = 0.1
    scaler, constant = Standardiser.fit(x, torch.full_like(Y, 0.3), scale_targets=True)
    assert constant.tolist() == [False, True, False, True]
    assert (scaler.transform_inputs(x)[:, 1] == 0).all()
    assert scaler.input_scale[1] == 1
    other = scaler.transform_inputs(torch.full((1, 3), 0.6, dtype=torch.float64))
    torch.testing.assert_close(other[0, 1], torch.tensor(0.5, dtype=torch.float64))
    assert scaler.target_scale == 1


def test_large_offset_with_small_spread_is_not_constant() -> None:
    # seconds since 1970: spread is 1e-6 of the magnitude, and matters
    x = 1.5e9 + 1e3 * X[:, :1]
    scaler, constant = Standardiser.fit(x, Y, scale_targets=False)
    assert not constant.any()
    deviation = scaler.transform_inputs(x).std(0, correction=0)
    torch.testing.assert_close(deviation, torch.ones(1, dtype=torch.float64))


def test_state_dict_carries_everything() -> None:
    scaler, _ = Standardiser.fit(X, Y, scale_targets=True)
    copy = Standardiser(3)
    copy.load_state_dict(scaler.state_dict())
    assert torch.equal(copy.transform_inputs(X), scaler.transform_inputs(X))
    assert torch.equal(copy.original_mean(Y), scaler.original_mean(Y))


def test_targets_are_left_alone_on_request() -> None:
    scaler, _ = Standardiser.fit(X, Y, scale_targets=False)
    assert torch.equal(scaler.transform_targets(Y), Y)


@pytest.mark.parametrize("unit", [1e200, 1e-200])
def test_units_whose_squares_overflow_or_vanish(unit: float) -> None:
    scaler, constant = Standardiser.fit(X * unit, Y * unit, scale_targets=True)
    assert not constant.any()
    plain, _ = Standardiser.fit(X, Y, scale_targets=True)
    torch.testing.assert_close(scaler.transform_inputs(X * unit), plain.transform_inputs(X))
    torch.testing.assert_close(scaler.transform_targets(Y * unit), plain.transform_targets(Y))


def test_each_target_is_scaled_by_its_own_cells() -> None:
    y = torch.stack([Y, 1e6 + 5.0 * Y.flip(0)], 1)
    y[3, 0] = y[10:, 1] = torch.nan
    scaler, constant = Standardiser.fit(X, y, scale_targets=True)
    assert not constant.any()
    for place in range(2):
        own = y[:, place][~y[:, place].isnan()]
        torch.testing.assert_close(scaler.target_mean[place], own.mean())
        torch.testing.assert_close(scaler.target_scale[place], own.std(correction=0))
    assert torch.equal(scaler.transform_targets(y).isnan(), y.isnan())
