import torch

from gpx.sampling.batches import Batches
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
