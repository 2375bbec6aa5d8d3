"""The record of an evidence."""

import copy
from functools import partial

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.linalg.trace import FixedProbes
from gpx.means import Zero
from gpx.models import CGLB, SGPR, SVGP, ExactGP
from gpx.objectives import (
    SVGPELBO,
    CGLowerBound,
    CollapsedELBO,
    Evidence,
    ExactMLL,
    Objective,
    SampledELBO,
)


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


@pytest.mark.parametrize(
    ("make", "objective"),
    [
        (SVGP, SVGPELBO(num_data=9)),
        (SGPR, CollapsedELBO()),
        (partial(CGLB, num_data=9), CGLowerBound()),
    ],
)
def test_inducing_points_that_were_never_placed_are_refused(make, objective):
    x = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    model = make(
        kernel=RBF(), mean=Zero(), likelihood=Gaussian(0.1), num_inputs=1, num_inducing=3
    ).double()
    with pytest.raises(ConfigError, match=r"3 inducing points have not been placed; call model\."):
        objective.evidence(model, x, x[:, 0])
    model.initialise(x, x[:, 0], generator=torch.Generator().manual_seed(0))
    placed = copy.deepcopy(model)  # its points were never written to, but are not zero
    assert objective.evidence(placed, x, x[:, 0]).value.isfinite()


def test_more_rows_than_all_are_refused_and_so_is_a_model_without_the_bound():
    x = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    parts = {"kernel": RBF(), "mean": Zero(), "likelihood": Gaussian(0.1)}
    model = SVGP(**parts, num_inputs=1, num_inducing=3).double()
    model.initialise(x, x[:, 0], generator=torch.Generator().manual_seed(0))
    with pytest.raises(ConfigError, match="SVGPELBO was made for num_data=5 rows and given 9"):
        SVGPELBO(num_data=5).evidence(model, x, x[:, 0])
    with pytest.raises(ConfigError, match=r"objective SVGPELBO needs .*bound_terms, got ExactGP"):
        SVGPELBO(num_data=9).evidence(ExactGP(**parts).double(), x, x[:, 0])


class Distance(Objective):
    """Minus the squared distance of y from zero; its ``check`` refuses float32."""

    def check(self, model):
        super().check(model)
        if model.likelihood.noise_variance.dtype == torch.float32:
            raise ConfigError("in float64 only")

    def prepare(self, model, x, y, *, generator=None):
        pass

    def evidence(self, model, x, y, *, generator=None):
        return Evidence(-y.square().sum(), "exact")


class Checking(Distance):
    """An evidence that makes the check itself."""

    def evidence(self, model, x, y, *, generator=None):
        self.check(model)
        return super().evidence(model, x, y, generator=generator)


@pytest.mark.parametrize("objective", [Distance(), Checking()])
def test_what_check_refuses_is_refused_whether_or_not_evidence_calls_it(objective):
    x = torch.linspace(0, 1, 9)[:, None]
    model = ExactGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian(0.1))
    for call in (objective.evidence, objective.prepare):
        with pytest.raises(ConfigError, match="in float64 only"):
            call(model, x, x[:, 0])
    x, model = x.double(), model.double()
    assert objective.evidence(model, x, x[:, 0]).value == -x.square().sum()


def test_an_object_that_is_no_model_needs_only_what_the_objective_names():
    x = torch.linspace(0, 1, 9)[:, None]

    class Plain(Objective):
        def evidence(self, model, x, y, *, generator=None):
            return Evidence(-y.square().sum(), "exact")

    assert Plain().evidence(object(), x, x[:, 0]).value == -x.square().sum()
    with pytest.raises(ConfigError, match=r"ExactMLL needs ExactGP, or a model .*, got object"):
        ExactMLL().evidence(object(), x, x[:, 0])


def test_a_subclass_with_an_evidence_of_its_own_is_not_recorded_unless_it_says_so():
    """A count of calls, as of a schedule, would stay at its value when a recording was made."""

    class Annealed(SVGPELBO):
        calls = 0

        def evidence_of(self, model, batch, *, generator=None):
            self.calls += 1
            return super().evidence_of(model, batch, generator=generator)

    class Pure(Annealed):
        fixed_shapes = True

    class Named(SVGPELBO):
        pass

    class Falling(SampledELBO):
        def after_step(self, model):
            for layer in model.network.modules():
                layer.keep = 0.5 * (1.0 + getattr(layer, "keep", 1.0))

    assert SVGPELBO.fixed_shapes
    assert (Annealed.fixed_shapes, Pure.fixed_shapes, Named.fixed_shapes) == (False, True, True)
    assert SampledELBO.fixed_shapes
    assert (Falling.fixed_shapes, Falling.elbo) == (False, True)
