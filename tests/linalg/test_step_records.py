"""Records keep copies, in blocks; what was written into their room is kept as it is."""

import torch

from gpx.linalg.step_records import BLOCK_ROWS, Records


def test_rows_are_kept_whether_copied_or_written_into_the_room():
    records = Records(torch.zeros(3))
    value = torch.zeros(3)
    for i in range(BLOCK_ROWS + 5):
        if i % 2:
            torch.add(value, 1.0, out=records.room())
            records.append(records.room())
        else:
            records.append(value + 1.0)
        value += 1.0
    assert len(records) == BLOCK_ROWS + 5
    kept = records.stacked()
    assert torch.equal(kept[:, 0], torch.arange(1.0, BLOCK_ROWS + 6.0))
    records.truncate(2)
    records.append(value)
    assert torch.equal(records.stacked()[:, 1], torch.tensor([1.0, 2.0, BLOCK_ROWS + 5.0]))


def test_the_room_is_not_kept_until_it_is_appended():
    records = Records(torch.zeros(2))
    records.room().fill_(7.0)
    assert len(records) == 0
    records.append(torch.ones(2))
    assert torch.equal(records.stacked(), torch.ones(1, 2))
