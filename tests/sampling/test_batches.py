import itertools

import torch

from gpx.lazy_rows import LazyRows
from gpx.sampling.batches import Batches, ChunkedBatches, scattered_batches, some_rows
from gpx.sampling.seeds import derive_seed, stream


def draw(steps, **options):
    settings = {"num_data": 10, "batch_size": 3, "seed": 0, "device": torch.device("cpu")}
    batches = Batches(**(settings | options))
    return [batches.rows(step).tolist() for step in steps]


def test_an_epoch_visits_distinct_rows_and_every_batch_is_full():
    epoch = draw(range(3))
    assert [len(b) for b in epoch] == [3, 3, 3]
    assert len({row for batch in epoch for row in batch}) == 9


def test_rows_depend_on_seed_and_step_alone():
    assert draw([5, 0, 7]) == [draw([step])[0] for step in (5, 0, 7)]
    assert draw(range(6)) != draw(range(6), seed=1)


def test_every_row_is_equally_likely_in_every_batch():
    counts = torch.zeros(10)
    repeats = 3000
    for seed in range(repeats):
        counts[draw([1], seed=seed)[0]] += 1
    expected = repeats * 0.3
    # binomial standard deviation 25; 5 sigma over 10 rows: false alarm below 1e-5
    assert (counts - expected).abs().max() < 5 * 25.1


def test_batch_larger_than_the_data_is_all_the_data():
    assert sorted(draw([0], batch_size=50)[0]) == list(range(10))


def test_streams_are_reproducible_and_unrelated():
    assert derive_seed(0, "a") == derive_seed(0, "a")
    assert len({derive_seed(s, p) for s in range(20) for p in "abc"}) == 60
    a = torch.rand(3, generator=stream(0, "a"))
    assert torch.equal(a, torch.rand(3, generator=stream(0, "a")))
    assert not torch.equal(a, torch.rand(3, generator=stream(0, "b")))


def chunked(steps, **options):
    settings = {"num_data": 103, "batch_size": 7, "seed": 0, "chunk_rows": 5, "buffer_rows": 20}
    batches = ChunkedBatches(**(settings | options))
    return [batches.rows(step).tolist() for step in steps], batches


def test_chunked_batches_of_an_epoch_are_full_and_of_distinct_rows():
    _, batches = chunked([])
    epoch, _ = chunked(range(batches.per_epoch))
    assert all(len(batch) == 7 for batch in epoch)
    # 20 chunks in 5 buffers of 20 rows, each with two batches
    assert batches.per_epoch == 10
    assert len({row for batch in epoch for row in batch}) == 70
    assert {row for batch in epoch for row in batch} <= set(range(103))


def test_chunked_batches_depend_on_seed_and_step_alone():
    assert chunked([15, 0, 3])[0] == [chunked([step])[0][0] for step in (15, 0, 3)]
    assert chunked(range(6))[0] != chunked(range(6), seed=1)[0]


def test_chunked_batches_keep_to_few_places():
    for step in range(10):
        (rows,), batches = chunked([step])
        pieces = {(row - batches._start) % 103 // 5 for row in rows}
        assert len(pieces) <= 4


def test_every_row_is_equally_likely_in_every_chunked_batch():
    counts = torch.zeros(103)
    repeats = 4000
    for seed in range(repeats):
        counts[chunked([9], seed=seed)[0][0]] += 1
    share = 7 / 103
    deviation = (repeats * share * (1 - share)) ** 0.5
    # 5 sigma over 103 rows: false alarm below 1e-4
    assert (counts - repeats * share).abs().max() < 5 * deviation


def test_chunked_batches_within_one_buffer_are_a_permutation():
    epoch, batches = chunked(range(14), buffer_rows=200)
    assert batches.per_epoch == 14
    assert len({row for batch in epoch for row in batch}) == 98
    places = [abs(a - b) for batch in epoch for a, b in itertools.pairwise(batch)]
    assert sorted(places)[len(places) // 2] > 10  # not in runs


def test_chunked_batches_of_all_rows():
    (rows,), _ = chunked([3], batch_size=500)
    assert sorted(rows) == list(range(103))


class Numbers(LazyRows):
    def __init__(self, size):
        self.shape, self.dtype = torch.Size((size, 1)), torch.float64
        self.device, self.chunk_rows, self.buffer_rows = torch.device("cpu"), 8, 64

    def __getitem__(self, rows):
        raise AssertionError("no row is read")


def test_some_rows_of_files_are_different_rows_in_random_order():
    counts = torch.zeros(50)
    for seed in range(2000):
        rows = some_rows(Numbers(50), 10, torch.Generator().manual_seed(seed))
        assert len(set(rows.tolist())) == 10
        counts[rows[0]] += 1
    # the first row is uniform: standard deviation 6.3, 5 sigma over 50: false alarm below 1e-4
    assert (counts - 40).abs().max() < 5 * 6.3


def test_scattered_batches_are_full_and_of_different_rows_at_eight_places():
    for b, rows in ((1, 50), (7, 90), (64, 10_000), (100, 1010)):
        count = min(10, rows // (-(-b // -(-b // 8)) * -(-b // 8)))
        found = scattered_batches(Numbers(rows), b, 10, stream(0, "a"))
        assert found.shape == (count, b)
        assert len(found.unique()) == count * b
        assert 0 <= int(found.min()) <= int(found.max()) < rows
        steps = found.sort(1).values.diff(dim=1)
        assert ((steps != 1).sum(1) <= 8).all()  # one more where a run goes round the end


def test_every_row_is_equally_likely_in_every_scattered_batch():
    counts, repeats = torch.zeros(50), 3000
    for seed in range(repeats):
        found = scattered_batches(Numbers(50), 10, 3, torch.Generator().manual_seed(seed))
        counts[found[1]] += 1
    # binomial standard deviation 21.9; 5 sigma over 50 rows: false alarm below 1e-4
    assert (counts - repeats * 0.2).abs().max() < 5 * 21.9
