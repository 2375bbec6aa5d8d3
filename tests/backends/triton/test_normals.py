"""Triton's normals by address are those of every other way, under its interpreter."""

import pytest
import torch
from triton_cases import skip_without_interpreter

skip_without_interpreter()
pytestmark = pytest.mark.triton

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import gpx.backends.triton.availability as availability  # noqa: E402
from gpx.backends.triton import normals as normals_module  # noqa: E402
from gpx.backends.triton.normals import philox_impl  # noqa: E402
from gpx.bases.counter_random import philox4x32, standard_normals  # noqa: E402

SEEDS = [0, 1, 2**31, 2**32 - 1, 2**63 + 12345, 2**64 - 1]
ADDRESSES = torch.tensor([0, 1, 5, 2**31, 2**32 + 7, 2**40 + 3, 10**15])


@triton.jit
def _words_kernel(counters, keys, out, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    a = tl.load(counters + at).to(tl.uint32)
    b = tl.load(counters + COUNT + at).to(tl.uint32)
    c = tl.load(counters + 2 * COUNT + at).to(tl.uint32)
    d = tl.load(counters + 3 * COUNT + at).to(tl.uint32)
    k0 = tl.load(keys + at).to(tl.uint32)
    k1 = tl.load(keys + COUNT + at).to(tl.uint32)
    a, b, c, d = philox_impl(a, b, c, d, k0, k1)
    tl.store(out + at, a.to(tl.int64))
    tl.store(out + COUNT + at, b.to(tl.int64))
    tl.store(out + 2 * COUNT + at, c.to(tl.int64))
    tl.store(out + 3 * COUNT + at, d.to(tl.int64))


def test_words_are_those_of_philox_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    counters = torch.randint(0, 2**32, (4, 64), generator=generator)
    key = (0xA4093822, 0x299F31D0)
    keys = torch.tensor(key)[:, None].expand(2, 64).contiguous()
    out = torch.empty(4, 64, dtype=torch.int64)
    _words_kernel[(1,)](counters, keys, out, COUNT=64)
    assert torch.equal(out, philox4x32(tuple(counters), key))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("columns", [1, 3, 4, 5, 13])
def test_normals_are_those_of_every_other_way(seed, columns):
    found = normals_module.standard_normals(seed, ADDRESSES, columns, torch.float64)
    reference = standard_normals(seed, ADDRESSES, columns)
    assert float((found - reference).abs().max()) < 2e-15
    single = normals_module.standard_normals(seed, ADDRESSES, columns, torch.float32)
    assert torch.equal(single, found.float())


def test_no_normals():
    assert normals_module.standard_normals(0, ADDRESSES[:0], 3, torch.float64).shape == (0, 3)
    assert normals_module.standard_normals(0, ADDRESSES, 0, torch.float64).shape == (7, 0)


def test_they_are_never_made_so_on_a_cpu():
    assert not availability.triton_normals(ADDRESSES)
