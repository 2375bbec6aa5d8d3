"""What every model, objective and posterior says to tensors that do not fit, or have no rows."""

import re
import warnings
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from public_classes import public_classes
from public_models import OBJECTIVES, prepared

from gpx import models
from gpx.errors import ConfigError, DataError, DTypeError, GPXError, NotAvailable, ShapeError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian, GaussianOutputs
from gpx.linalg import UnconvergedWarning
from gpx.means import Zero
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Objective
from gpx.methods.base.posterior import Posterior
from gpx.models import ExactGP
from gpx.objectives import ExactMLL

SHARED = {
    "CNN": "SampledELBO",
    "CNNGP": "SampledELBO",
    "ConvGP": "SVGPELBO",
    "DKL": "SampledELBO",
    "DeepSVGP": "SampledELBO",
    "FullyBayesianGP": "ExactMLL",
    "FullyBayesianSGPR": "CollapsedELBO",
    "LaplaceGP of classes": "LaplaceEvidence",
    "LocalExperts": "ExpertsMLL",
    "NetworkModel": "SampledELBO",
    "QSRVM": "QuadruplyStochasticELBO",
    "SVDKL": "SampledELBO",
    "SVGP": "SVGPELBO",
    "Transductive": "ExpertsMLL",
}
"""Models that are not the example of an objective, with theirs."""
OTHER_TARGETS = ("CoregionalGP", "DerivativeGP", "IndependentGP", "LaplaceGP of several classes")
"""Models whose targets are not one real number or one sign a row."""
PAIRS = [(model, name) for name, (model, _) in OBJECTIVES.items() if model not in OTHER_TARGETS]
PAIRS += SHARED.items()


@dataclass
class Trained:
    model: Model
    objective: Objective
    posterior: Posterior
    x: torch.Tensor
    y: torch.Tensor


@pytest.fixture(scope="module", params=PAIRS, ids=" and ".join)
def trained(request):
    """A model of every kind with its objective, as a run makes them before its first step."""
    name, objective = request.param
    model, x, y = prepared(name)
    objective = OBJECTIVES[objective][1]().double()
    objective.check(model)
    objective.prepare(model, x, y, generator=draws())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)
        return Trained(model, objective, model.condition(x, y), x, y)


def test_every_public_model_has_a_pair():
    found = {name.split()[0] for name, _ in PAIRS}
    assert public_classes(models, Model) - found == set(OTHER_TARGETS[:3])


def draws():
    return torch.Generator().manual_seed(1)


def training(trained, x, y):
    """Calls of all that takes training rows; of a start only where there is one."""
    model, objective = trained.model, trained.objective
    yield lambda: model.condition(x, y)
    if type(model).initialise is not Model.initialise:
        yield lambda: model.initialise(x, y, generator=draws())
    if type(objective).prepare is not Objective.prepare:
        yield lambda: objective.prepare(model, x, y, generator=draws())
    yield lambda: evidence(trained, x, y)


def predictions(trained, x):
    """Calls of all that takes inputs alone."""
    yield lambda: trained.posterior.predict(x)
    yield lambda: trained.posterior.predictive(x, trained.model.likelihood)


def refused(calls, error, words):
    for call in calls:
        with pytest.raises(error, match=words):
            call()


def evidence(trained, x, y):
    return trained.objective.evidence(trained.model, x, y, generator=draws())


BAD_INPUTS = {
    "a vector": (lambda x: x[:, 0], ShapeError, r"got shape \(48,\); use x\[:, None\]"),
    "a batch": (lambda x: x[None], ShapeError, r"got shape \(1, 48, 2\)"),
    "whole numbers": (lambda x: x.long(), DTypeError, "inputs are int64, expected float64"),
    "half precision": (lambda x: x.half(), DTypeError, "inputs are float16, expected float64"),
    "single precision": (lambda x: x.float(), DTypeError, "its own numbers float64"),
    "another device": (
        lambda x: x.to("meta"),
        DTypeError,
        "on meta and its own numbers on cpu",
    ),
    "no tensor": (lambda x: x.tolist(), DTypeError, "must be a tensor .*, got a list"),
}

BAD_TARGETS = {
    "a column": (lambda y: y[:, None], ShapeError, r"\(48, 1\), expected \(48,\).*squeeze"),
    "too few": (lambda y: y[:-1], ShapeError, r"\(47,\), expected \(48,\)"),
    "a number": (lambda y: y[0], ShapeError, r"shape \(\), expected \(48,\)"),
    "whole numbers": (lambda y: y.long(), DTypeError, "targets are int64, expected float64"),
    "single precision": (lambda y: y.float(), DTypeError, "targets are float32 on cpu and inputs"),
    "another device": (lambda y: y.to("meta"), DTypeError, "on meta and inputs float64 on cpu"),
    "no tensor": (lambda y: y.tolist(), DTypeError, "must be a tensor .*, got a list"),
}


def test_inputs_that_do_not_fit(trained):
    for change, error, words in BAD_INPUTS.values():
        bad = change(trained.x)
        refused(training(trained, bad, trained.y), error, words)
        refused(predictions(trained, bad), error, words)


def test_targets_that_do_not_fit(trained):
    for change, error, words in BAD_TARGETS.values():
        refused(training(trained, trained.x, change(trained.y)), error, words)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_single_targets_are_finite(trained, value):
    y = trained.y.clone()
    y[2] = value
    calls = [trained.model.condition] if trained.model.condition_uses_data else []
    if type(trained.model).initialise is not Model.initialise:
        calls.append(partial(trained.model.initialise, generator=draws()))
    for call in calls:
        with pytest.raises(DataError, match=r"1 of 48 targets are not finite.* row 2"):
            call(trained.x, y)


def test_what_a_posterior_gives_takes_its_precision_alone(trained):
    """Sampled functions, joint covariances and further rows, where there are any."""
    single, posterior = trained.x[:3].float(), trained.posterior
    further = (single, trained.y[:3].float(), trained.model.likelihood)
    refused = (DTypeError, NotAvailable)
    with pytest.raises(refused, match=r"float32.*float64|float64.*float32|no joint covariance"):
        posterior.joint_covariance(single)
    with pytest.raises(refused, match=r"float32.*float64|takes no further rows"):
        posterior.with_observations(*further)
    said = None
    try:
        # functions of some are calculated in whatever precision they are asked in
        assert posterior.sample_paths(2, generator=draws())(single).shape == (2, 3)
    except GPXError as error:
        said = str(error)
    assert said is None or re.search("float32.*float64|float64.*float32|random Fourier", said)


def test_models_of_one_output_refuse_several(trained):
    several = torch.stack([trained.y, trained.y, trained.y], 1)
    words = r"expected \(48,\).*it models one output, got 3"
    refused(training(trained, trained.x, several), ShapeError, words)
    trained.model.likelihood, before = GaussianOutputs(3), trained.model.likelihood
    try:
        if trained.model.num_outputs == 1:
            with pytest.raises(ConfigError, match="models one output and its likelihood has 3"):
                trained.objective.check(trained.model)
        else:
            trained.objective.check(trained.model)
    finally:
        trained.model.likelihood = before


def test_another_number_of_columns(trained):
    for wrong in (trained.x[:, :1], torch.cat([trained.x, trained.x], 1)):
        with pytest.raises(GPXError, match=r"column|lengthscale|input"):
            trained.posterior.predict(wrong)
        with pytest.raises(GPXError, match=r"column|lengthscale|input|cells"):
            evidence(trained, wrong, trained.y)


def test_no_test_rows(trained):
    none = trained.x[:0]
    marginals = trained.posterior.predict(none)
    assert marginals.mean.shape == marginals.variance.shape == (0,)
    assert trained.posterior.predictive(none, trained.model.likelihood).mean.shape == (0,)


@pytest.mark.parametrize(("part", "value"), [("kernel", "rbf"), ("likelihood", None)])
def test_parts_that_are_none(part, value):
    parts = {"kernel": RBF(), "mean": Zero(), "likelihood": Gaussian(), part: value}
    model, x = ExactGP(**parts), torch.zeros(3, 1)
    for call in (model.condition, lambda x, y: ExactMLL().evidence(model, x, y)):
        with pytest.raises(ConfigError, match=rf"ExactGP: {part}={value!r} is no {part} of gpx"):
            call(x, torch.zeros(3))
