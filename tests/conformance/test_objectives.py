"""The contract of objectives: nats over all the data, a stated kind, gradients, no global state."""

import contextlib
from typing import get_args

import public_models
import pytest
import torch
from public_classes import public_classes

from gpx import objectives
from gpx.errors import ConfigError, NotAvailable
from gpx.means import Linear
from gpx.methods.base.objective import Kind

NAMES = sorted(public_models.OBJECTIVES)
OF_CLASSES = {"WeightSpaceELBO", "QuadruplyStochasticELBO", "SiteBoundELBO", "InducingELBO"}
"""Those that are for one class of model, whose every part they use."""


def problem(name):
    model_name, make = public_models.OBJECTIVES[name]
    model, x, y = public_models.prepared(model_name)
    objective = make()
    objective.check(model)
    objective.prepare(model, x, y, generator=draws())
    return model, objective, x, y


def draws():
    return torch.Generator().manual_seed(7)


def evidence_of(model, objective, x, y):
    """As a step of training asks for it."""
    if objective.batching == "minibatch":
        objective.before_step(model, x, y, torch.arange(len(x)))
    return objective.evidence(model, x, y, generator=draws())


def test_every_public_objective_is_listed():
    public = public_classes(objectives, objectives.Objective)
    assert public == set(public_models.OBJECTIVES)


@pytest.mark.parametrize("name", NAMES)
def test_evidence_is_a_finite_scalar_of_a_stated_kind(name):
    model, objective, x, y = problem(name)
    found = evidence_of(model, objective, x, y)
    assert found.value.shape == ()
    assert torch.isfinite(found.value)
    assert found.kind in get_args(Kind)
    assert objective.kind in get_args(Kind)
    assert objective.num_data(x[:5] if objective.batching == "minibatch" else x) == len(x)
    for part in found.parts.values():
        assert not part.requires_grad
        assert torch.isfinite(part).all()
    for value in found.facts.values():
        assert isinstance(value, (bool, int, float, str))


@pytest.mark.parametrize("name", NAMES)
def test_those_that_sum_over_the_given_rows_only_say_so(name):
    """A run refuses another number of rows before it writes files, by what they say."""
    model, objective, x, y = problem(name)
    if not objective.total:
        assert not objective.fixed_total
        return
    objective.total = len(x) + 1
    refused = pytest.raises(ConfigError, match=f"num_data={len(x) + 1} but there are {len(x)}")
    with refused if objective.fixed_total else contextlib.nullcontext():
        objective.prepare(model, x, y, generator=draws())


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_minus_the_evidence_per_point(name):
    model, objective, x, y = problem(name)
    found = evidence_of(model, objective, x, y).value
    again, second, x, y = problem(name)
    if second.batching == "minibatch":
        second.before_step(again, x, y, torch.arange(len(x)))
    loss = second(again, x, y, generator=draws())
    torch.testing.assert_close(loss, -found / len(x), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("name", NAMES)
def test_every_hyperparameter_that_can_move_has_a_gradient(name):
    model, objective, x, y = problem(name)
    evidence_of(model, objective, x, y).value.backward()
    # models of several kernels, or none, say themselves what their hyperparameters are
    kernel = (
        list(model.kernel.parameters())
        if hasattr(model, "kernel")
        else model.parameter_groups().get("hyperparameters", [])
    )
    kernel = [p for p in kernel if p.requires_grad]
    moved = [p for p in kernel if p.grad is not None and bool((p.grad != 0.0).any())]
    # functions of Reweighted and Direct are fixed, and the kernel of QSGPInducing is: evidence of
    # weights; generalised cross-validation does not know the scale; sampled latents start at zero
    expected = {
        "ReweightedEvidence": 0,
        "DirectELBO": 0,
        "DirectLogisticBound": 0,
        "DirectMixtureELBO": 0,
        "DirectSampledELBO": 0,
        "InducingELBO": 0,
        "LatentLikelihood": 0,
        "GCV": len(kernel) - 1,
    }
    assert len(moved) >= expected.get(name, len(kernel))
    for parameter in model.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad.to_dense()).all()


ROUGH = {"BarelyBiasedMLL", "IterativeMLL", "SKIEvidence"}
"""Those whose value jumps where x moves: by other greedy points, cells or steps of a solve."""


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_by_the_inputs_is_whole_or_refused(name):
    """A part of one, that of the mean function alone, would train a network below wrongly."""
    model, objective, x, y = problem(name)
    if hasattr(model, "mean") and not name.startswith(("Inducing", "Quadruply", "Site", "Weight")):
        model.mean = Linear(public_models.INPUTS).double()
        torch.nn.init.constant_(model.mean.weight, 0.3)
    at = x.clone().requires_grad_()
    if not objective.gradient_of_inputs:
        with pytest.raises(NotAvailable, match=f"{name}: its evidence carries no gradient"):
            evidence_of(model, objective, at, y)
        assert evidence_of(model, objective, at.detach(), y).value.isfinite()
        return
    (found,) = torch.autograd.grad(evidence_of(model, objective, at, y).value, at)
    step = 1e-6 * torch.randn(x.shape, generator=draws()).double()
    if name not in ROUGH:
        with torch.no_grad():
            ends = [evidence_of(model, objective, x + s * step, y).value for s in (1.0, -1.0)]
        difference = 0.5 * (ends[0] - ends[1])
        torch.testing.assert_close((found * step).sum(), difference, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_generator_gives_the_same_value_and_global_draws_are_left_alone(name):
    model, objective, x, y = problem(name)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = evidence_of(model, objective, x, y).value
    assert torch.equal(torch.get_rng_state(), before)
    model, objective, x, y = problem(name)
    torch.manual_seed(12)
    assert torch.equal(evidence_of(model, objective, x, y).value, first)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_does_not_fit_is_refused_in_one_sentence(name):
    _, objective, _, _ = problem(name)
    takes_svgp = ("SVGPELBO", "SampledELBO", "PredictiveLogLikelihood")
    other = "ExactGP" if name in takes_svgp else "SVGP"
    with pytest.raises(ConfigError) as error:
        objective.check(public_models.MODELS[other]())
    text = str(error.value)
    assert name in text
    assert "\n" not in text


class Narrow:
    """A model of which only the attributes that a protocol names are seen."""

    def __init__(self, model, protocol):
        self._model = model
        parts = [part for part in protocol.__mro__ if getattr(part, "_is_protocol", False)]
        self._asked = {name for part in parts for name in vars(part)}
        self._asked |= {name for part in parts for name in vars(part).get("__annotations__", {})}

    def __getattr__(self, name):
        if name.startswith("_") or name not in self._asked:
            raise AttributeError(name)
        return getattr(self._model, name)


@pytest.mark.parametrize("name", sorted(set(NAMES) - OF_CLASSES))
def test_an_objective_asks_for_what_it_calls(name):
    model, objective, x, y = problem(name)
    want = evidence_of(model, objective, x, y)
    model, objective, x, y = problem(name)
    (protocol,) = objective.models
    assert isinstance(model, protocol)
    narrow = Narrow(model, protocol)
    objective.check(narrow)
    assert torch.equal(evidence_of(narrow, objective, x, y).value, want.value)
    assert (
        float(objective.full_evidence(narrow, x, y, batch_size=16, generator=draws()).value) < 1e9
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_an_objective_travels(name):
    model, objective, x, y = problem(name)
    evidence_of(model, objective, x, y)
    state = objective.state_dict()
    other = public_models.OBJECTIVES[name][1]()
    other.load_state_dict(state)
    assert state.keys() == other.state_dict().keys()
    for key, value in other.state_dict().items():
        same = torch.equal(value, state[key]) if torch.is_tensor(value) else value == state[key]
        assert same, key


def test_those_that_take_missing_targets_are_listed_and_do():
    named = {name for name in NAMES if getattr(objectives, name).takes_missing_targets}
    # of these methods/sparse/test_missing_targets and methods/deep/test_predictive_likelihood
    elsewhere = {"PredictiveLogLikelihood", "SVGPELBO"}
    assert named == {"CoregionalMLL", "DerivativeMLL", "IndependentMLL", *elsewhere}


@pytest.mark.parametrize("name", ["CoregionalMLL", "DerivativeMLL", "IndependentMLL"])
def test_a_missing_target_leaves_finite_gradients(name):
    model, objective, x, y = problem(name)
    assert model.takes_missing_targets
    y = y.clone()
    y[::2, 0] = torch.nan
    value = evidence_of(model, objective, x, y).value
    value.backward()
    assert bool(value.isfinite())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
