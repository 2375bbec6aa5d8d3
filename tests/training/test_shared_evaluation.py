"""A batch that two processes share, of which this is the second."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg.processes import Processes, sharing, work_shared
from gpx.methods.base.batch import Batch
from gpx.training.shared_evaluation import shared_evaluation


@dataclass(frozen=True)
class Second(Processes):
    """The second of two, whose messages are kept."""

    number: int = 1
    count: int = 2
    sent: list = field(default_factory=list)

    def all_sum(self, *tensors):
        self.sent.append([tensor.clone() for tensor in tensors])

    def broadcast(self, values):
        self.sent.append([value.clone() for value in values])


@pytest.mark.parametrize("kind", ["batch", "evidence"])
def test_processes_share_a_batch_or_go_on_with_the_first_ones_gradient(kind):
    weight = nn.Parameter(torch.tensor(2.0))
    within = []

    def evaluate(batch):
        x, _, rows, noise = batch
        assert torch.equal(x, 1.0 + rows)
        assert torch.equal(x, noise.known)
        within.append((len(x), sharing().count))
        weight.grad = x.mean()
        return (weight.detach() * x).mean(), {"fit": x.sum()}

    x, second = torch.arange(1.0, 6.0), Second()
    with work_shared(second):
        shared = shared_evaluation(evaluate, [weight], kind)
        loss, _ = shared(Batch(x, x, torch.arange(5), RowNoise(x, x)))
    mine = x[2:] if kind == "batch" else x
    # products of a part of the batch are no matter of the other process
    assert within == [(3, 1) if kind == "batch" else (5, 2)]
    share = len(mine) / 5
    assert [len(tensors) for tensors in second.sent] == [3 if kind == "batch" else 2]
    torch.testing.assert_close(loss, share * 2.0 * mine.mean())
    torch.testing.assert_close(second.sent[0][-1], share * mine.mean())
