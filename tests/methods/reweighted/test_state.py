"""What is kept of the data: in float64 whatever the module is in, and the path is never stale."""

import pytest
import torch
from linear_features import features_and_targets
from torch import nn

from gpx.inference.sufficient_statistics import SufficientStatistics
from gpx.methods.reweighted.state import ReweightedState


class Kept(ReweightedState):
    """Nothing but the state."""

    def __init__(self, structure="diagonal"):
        super().__init__()
        self.structure = structure
        self.other = nn.Parameter(torch.ones(1))
        self.register_state(3)


def statistics(n=12, m=5):
    phi, y = features_and_targets(n, m)
    return SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)


def same(found, want):
    assert torch.equal(found.gram, want.gram)
    assert torch.equal(found.projected, want.projected)
    assert torch.equal(found.squared, want.squared)
    assert found.num_data == want.num_data


def test_statistics_come_back_and_leave_further_totals():
    kept, sums = Kept(), statistics()
    kept.totals[2] = 0.7
    kept.statistics = sums
    same(kept.statistics, sums)
    assert float(kept.totals[2]) == 0.7


def test_sums_stay_in_double_and_the_rest_does_not():
    kept, sums = Kept(), statistics()
    kept.statistics = sums
    kept.samples = torch.full((2, 6), 1.0 / 3.0, dtype=torch.float64)
    kept.float()
    assert kept.other.dtype == torch.float32
    same(kept.statistics, sums)
    assert torch.equal(kept.samples, torch.full((2, 6), 1.0 / 3.0, dtype=torch.float64))


def test_the_path_is_computed_once_and_follows_the_statistics():
    kept = Kept()
    kept.statistics = statistics(12, 5)
    first = kept.form
    assert kept.form is first
    assert first.path == "covariance"
    kept.statistics = statistics(5, 12)  # fewer rows than functions
    assert kept.form.path == "compressed"
    other = Kept()
    other.statistics = statistics(12, 5)
    assert other.form.num_weights == 5
    other.load_state_dict(kept.state_dict())
    assert (other.form.path, other.form.num_weights) == ("compressed", 12)


@pytest.mark.parametrize("structure", ["diagonal", "orthogonal", "householder"])
def test_only_turned_axes_need_a_frame_in_a_stored_state(structure):
    kept = Kept(structure)
    kept.statistics = statistics()
    kept.frame = torch.eye(5, dtype=torch.float64)
    state = kept.state_dict()
    del state["frame"]
    fresh = Kept(structure)
    if structure == "householder":
        with pytest.raises(RuntimeError, match="frame"):
            fresh.load_state_dict(state)
    else:
        fresh.load_state_dict(state)
        same(fresh.statistics, kept.statistics)
