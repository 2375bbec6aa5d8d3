"""Optimisers that make their own steps: models of another kind are refused."""

from types import SimpleNamespace

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.base.own_steps import OwnSteps
from gpx.models import SGPR, ExactGP
from gpx.objectives import ExactMLL
from gpx.training import (
    MALA,
    BlockSteps,
    InducingSteps,
    RelevanceSteps,
    RelevanceVectors,
    StochasticBlockSteps,
    Trainer,
    TrainerConfig,
)

KINDS = (BlockSteps, StochasticBlockSteps, InducingSteps, MALA, RelevanceSteps, RelevanceVectors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_another_kind_is_refused(kind):
    model = SGPR(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=1, num_inducing=2)
    wanted = rf"^optimizer={kind.__name__}\(\) .* of {kind.model_type.__name__} models, got SGPR;"
    with pytest.raises(ConfigError, match=wanted):
        kind().check(model, 10)


@pytest.mark.parametrize(
    ("seconds", "budget", "serving", "cut"),
    [
        (5.9, 10.0, False, False),
        (6.0, 10.0, False, True),  # a start of two seconds, and half of the eight that it left
        (6.0, 10.0, True, False),
        (1e9, None, False, False),
    ],
)
def test_a_preparation_has_half_of_what_the_start_left_of_the_budget(seconds, budget, serving, cut):
    said = []
    session = SimpleNamespace(
        step=7, max_steps=90, seconds=seconds, seconds_of_start=2.0, budget=budget, cut=said.append
    )
    steps = SimpleNamespace(serves=lambda step: serving, hurry=lambda *at: f"burn-in at {at}")
    OwnSteps._shorten_preparation(steps, session)
    assert said == (["burn-in at (7, 90)"] if cut else [])
    steps.hurry = lambda *at: ""  # nothing more can end early
    OwnSteps._shorten_preparation(steps, session)
    assert len(said) == cut


def test_a_start_that_fails_leaves_parameters_trainable():
    class Failing(BlockSteps):
        model_type = SGPR

        def bind(self, model, x, seed):
            self.freeze(model)
            raise MemoryError

    model = SGPR(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=1, num_inducing=2)
    session = SimpleNamespace(pending=None, model=model, x=None, seed=0, limit=3)
    with pytest.raises(MemoryError):
        Failing().run(session)
    assert all(parameter.requires_grad for parameter in model.parameters())


class Descent(OwnSteps):
    """Steps along the gradient of the run's objective; only what has no default is written."""

    def bind(self, model, x, seed):
        self.model = model

    def step(self, step, x, y, *, generator):
        objective = self.session.objective
        evidence = objective.evidence(self.model, x, y)
        loss = objective.loss(evidence, self.model, x)
        parameters = list(self.model.parameters())
        for p, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.data -= 0.1 * slope
        return evidence

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.filterwarnings("error:Converting a tensor")
def test_steps_of_ones_own_need_four_methods(tmp_path):
    """The evidence they return may have its graph; the end's is that of the run's objective."""
    model = ExactGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian()).double()
    x = torch.linspace(0.0, 3.0, 20).double()[:, None]
    y = x[:, 0].sin()
    objective, steps = ExactMLL(), Descent()
    start = objective.evidence(model, x, y).value.item()
    trainer = Trainer(TrainerConfig(max_steps=3), 0, tmp_path / "c.pt")
    result = trainer.fit(model, objective, steps, x, y, dict, lambda watch: None)
    assert result.reason == "3 steps done"
    end = objective.evidence(model, x, y).value.item()
    assert end > start
    draws = torch.Generator()
    at_end = steps.evidence_at_end(model, objective, x, y, batch_size=20, generator=draws)
    assert at_end.value.item() == end


def test_a_model_of_another_kind_is_refused_without_a_purpose_in_words():
    class OfExact(Descent):
        model_type = ExactGP

    model = SGPR(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=1, num_inducing=2)
    with pytest.raises(
        ConfigError, match=r"^optimizer=OfExact\(\) trains ExactGP models, got SGPR"
    ):
        OfExact().check(model, 10)
