"""Batches of blocks: their choice, padding, and errors that name the block."""

import pytest
import torch

from gpx.errors import NotPositiveDefinite
from gpx.inference.nystrom import BlockStore, factorise
from gpx.kernels import RBF, Matern32
from gpx.methods.sparse.block_batches import MAX_PADDING_RATIO, block_batches
from gpx.methods.sparse.residual_noise import BlockNoise

CPU = torch.device("cpu")


def bounds_of(sizes):
    return [0, *torch.tensor(sizes).cumsum(0).tolist()]


def sizes_of(batches):
    ends = [0, *(end for end, _ in batches)]
    return [
        [stop - start] if batch is None else list(batch.sizes)
        for start, (stop, batch) in zip(ends, batches, strict=False)
    ]


def test_batches_keep_the_order_drop_empty_blocks_and_pad_little():
    sizes = [9, 8, 0, 8, 5, 4, 3, 0, 1, 1, 1]
    found = block_batches(RBF(2), bounds_of(sizes), 10**6, CPU)
    assert [s for part in sizes_of(found) for s in part] == [s for s in sizes if s]
    for part in sizes_of(found):
        assert len(part) * max(part) ** 2 <= MAX_PADDING_RATIO * sum(s * s for s in part)
    assert len(found) < 4


@pytest.mark.parametrize("room", [0, 25, 50, 100])
def test_matrices_of_a_batch_have_room(room):
    found = block_batches(RBF(2), bounds_of([5] * 7), room, CPU)
    assert max(map(len, sizes_of(found))) == max(1, room // 25)


def test_rows_are_padded_to_their_blocks_and_gathered_again():
    sizes = [4, 4, 3]
    ((end, batch),) = block_batches(RBF(2), bounds_of(sizes), 1000, CPU)
    values = torch.randn(11, 2, generator=torch.Generator().manual_seed(0))
    padded = batch.padded(values)
    for own, want, rows in zip(
        padded, values.split(sizes), torch.arange(11).split(sizes), strict=True
    ):
        assert torch.equal(own[: len(want)], want)
        assert not own[len(want) :].any()
        assert len(rows) <= 4
    assert torch.equal(batch.unpadded(padded), values)
    assert torch.equal(batch.unpadded(batch.rows), torch.arange(end))
    assert (batch.rows[2] == torch.tensor([8, 9, 10, 8])).all()


def test_together_and_alone_blocks_are_the_same():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    whitener, _ = factorise(Matern32(3, lengthscale=1.3).double(), x[::5].clone())
    noise = torch.tensor(0.2, dtype=torch.float64)
    sizes = [12, 11, 9, 8]
    right = torch.randn(40, 2, generator=generator, dtype=torch.float64)

    def parts(room):
        batches = block_batches(whitener.kernel, bounds_of(sizes), room, CPU)
        store = BlockStore(whitener, x, bounds=[0, *(end for end, _ in batches)])
        found = []
        for (_, batch), (rows, block) in zip(batches, store, strict=True):
            noise_of = BlockNoise(store, rows, block, noise, batch)
            own = right[rows].contiguous()
            found.append((noise_of, noise_of.solve(own), noise_of.whiten(own)))
        return found

    ((together, solved, white),) = parts(1000)
    alone = parts(0)
    assert len(alone) == 4
    torch.testing.assert_close(solved, torch.cat([s for _, s, _ in alone]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(white, torch.cat([w for _, _, w in alone]), rtol=1e-12, atol=1e-12)
    for name in ("trace", "clamped"):
        own = [getattr(part, name) for part, _, _ in alone]
        torch.testing.assert_close(
            getattr(together, name), torch.cat(own) if own[0].ndim else sum(own)
        )
    torch.testing.assert_close(together.logdet(), sum(part.logdet() for part, _, _ in alone))


def test_the_block_without_a_factor_is_named():
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x[7] = x[5]
    whitener, _ = factorise(RBF(2, lengthscale=1.0).double(), torch.full((1, 2), 50.0).double())
    ((_, batch),) = block_batches(whitener.kernel, [0, 5, 9], 1000, CPU)
    store = BlockStore(whitener, x, bounds=[0, 9])
    ((rows, block),) = store
    with pytest.raises(
        NotPositiveDefinite, match=r"of a block of 4 points .*smallest eigenvalue -1"
    ):
        BlockNoise(store, rows, block, torch.tensor(-1e-9, dtype=torch.float64), batch)
