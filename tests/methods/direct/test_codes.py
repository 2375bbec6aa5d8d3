"""Draws of discrete weights in 4 bits: packed and back, sums in integers, refusals."""

import pytest
import torch

from gpx.errors import ConfigError, DTypeError
from gpx.methods.direct.codes import pack_codes, quantise_draws, unpack_codes
from gpx.models import WeightGrid

VALUES = WeightGrid().values


def codes(num=5, m=11, highest=15, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(highest, (num, m), generator=draws, dtype=torch.uint8)


@pytest.mark.parametrize("m", [0, 1, 10, 11])
def test_packed_codes_come_back_at_four_bits_each(m):
    made = codes(m=m, highest=16)
    packed = pack_codes(made)
    assert packed.dtype == torch.uint8
    assert packed.shape == (5, (m + 1) // 2)
    assert torch.equal(unpack_codes(packed, m), made)


def test_sums_in_integers_are_those_in_floats():
    made = codes()
    weights = quantise_draws(made, VALUES)
    draws = torch.Generator().manual_seed(1)
    features = torch.randint(-32767, 32768, (20, 11), generator=draws)
    got = weights.products(features)
    assert got.dtype == torch.int32
    want = features.double() @ VALUES[made.long()].mT
    torch.testing.assert_close(got.double() * weights.step, want, rtol=1e-12, atol=1e-7)
    assert weights.multiply_adds == int((VALUES[made.long()] != 0.0).sum())


def test_a_sum_that_may_leave_32_bits_is_refused():
    heavy = quantise_draws(torch.full((1, 10_000), 14, dtype=torch.uint8), VALUES)
    with pytest.raises(ConfigError, match="beyond 32 bits"):
        heavy.products(torch.full((1, 10_000), 32767))
    # the last one that fits: 9362 * 7 * 32767 = 2147352... below 2^31
    fits = quantise_draws(torch.full((1, 9362), 14, dtype=torch.uint8), VALUES)
    assert int(fits.products(torch.full((1, 9362), 32767))) == 9362 * 7 * 32767


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: quantise_draws(codes(), torch.linspace(-3.0, 3.0, 17)), "4 bits hold 16 values"),
        (lambda: quantise_draws(codes(), torch.linspace(-3.0, 3.0, 14)), "need zero among"),
        (lambda: quantise_draws(codes(), torch.tensor([-1.0, 0.0, 2.0])), "evenly spaced"),
        (lambda: pack_codes(torch.tensor([[16]], dtype=torch.uint8)), "up to 15, got 16"),
    ],
)
def test_values_beyond_four_bits_are_refused(made, words):
    with pytest.raises(ConfigError, match=words):
        made()


def test_zero_draws_have_empty_sums():
    assert quantise_draws(codes(num=0), VALUES).products(torch.ones(3, 11).long()).shape == (3, 0)


def test_the_lowest_number_of_eight_bits_has_its_size():
    heavy = quantise_draws(torch.full((1, 2_400_000), 14, dtype=torch.uint8), VALUES)
    with pytest.raises(ConfigError, match="beyond 32 bits"):
        heavy.products(torch.full((1, 2_400_000), -128, dtype=torch.int8))


def test_features_of_floats_are_refused():
    with pytest.raises(DTypeError, match="integer features"):
        quantise_draws(codes(), VALUES).products(torch.ones(2, 11))
