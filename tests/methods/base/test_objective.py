"""The record of an evidence."""

import pytest
import torch

from gpx.errors import ConfigError
from gpx.linalg.trace import FixedProbes
from gpx.objectives import Evidence, ExactMLL


def test_parts_for_monitoring_hold_no_graph():
    value = 2.0 * torch.ones((), requires_grad=True)
    found = Evidence(value, "exact", {"fit": value, "constant": torch.ones(())})
    assert found.value.requires_grad
    assert not any(part.requires_grad for part in found.parts.values())
    assert found.parts["fit"] == value.detach()


def test_fixed_probes_are_those_of_the_runs_generator():
    """Whatever objective holds them: nobody has to remember to prepare them."""

    class Probing(ExactMLL):
        def __init__(self):
            super().__init__()
            self.probes = FixedProbes(resample=False)

    first, second, other = Probing(), Probing(), Probing()
    x, y = torch.zeros(3, 1), torch.zeros(3)
    for objective, seed in ((first, 1), (second, 1), (other, 2)):
        draws = torch.Generator().manual_seed(seed)
        objective.prepare(None, x, y, generator=draws)
    assert int(first.probes.seed) == int(second.probes.seed) != int(other.probes.seed)
    assert int(first.probes.seed) != 0


def test_a_batch_in_two_arguments_is_refused_where_it_is_written():
    words = r"Old.evidence_given\(self, model, x, y, drawn\) is called with a model, a batch and"
    with pytest.raises(ConfigError, match=words):

        class Old(ExactMLL):
            def evidence_given(self, model, x, y, drawn):
                return self.evidence(model, x, y)

    class New(ExactMLL):
        def evidence_given(self, model, batch, drawn=()):
            return self.evidence(model, batch.x, batch.y)

    assert New().kind == "exact"
