"""What every model, objective and posterior says to tensors that do not fit, or have no rows."""

import re
from dataclasses import dataclass

import pytest
import torch

from gpx.errors import ConfigError, DTypeError, GPXError, NotAvailable, ShapeError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian, GaussianOutputs
from gpx.means import Zero
from gpx.methods.base.model import Model
from gpx.methods.base.objective import Objective
from gpx.methods.base.posterior import Posterior
from gpx.models import ExactGP
from gpx.objectives import ExactMLL
from gpx.options.build import build, build_model
from gpx.options.composition import composed

METHODS = {
    "exact": ["approx=exact", "approx.solver=cholesky"],
    "iterative": ["approx=exact", "approx.solver=iterative"],
    "barely_biased": ["approx=exact", "approx.solver=barely_biased"],
    "cglb": ["approx=cglb", "approx.num_inducing=8"],
    "sgpr": ["approx=sgpr", "approx.num_inducing=8"],
    "fitc": ["approx=fitc", "approx.num_inducing=8"],
    "pic": ["approx=pic", "approx.num_inducing=8", "partition=clusters"],
    "sod": ["approx=sod", "approx.num_points=12"],
    "svgp": ["approx=svgp", "approx.num_inducing=8"],
    "qsgp": ["approx=qsgp", "approx.num_basis=40", "approx.block_columns=20"],
    "qsgp_inducing": ["approx=qsgp_inducing", "approx.rank=10"],
    "qsrvm": ["approx=qsrvm"],
    "grid": ["approx=grid"],
    "swsgp": ["approx=swsgp", "approx.num_inducing=8", "approx.num_neighbours=4"],
    "vnngp": ["approx=vnngp", "approx.num_neighbours=4"],
    "vecchia": ["approx=vecchia", "approx.num_neighbours=8"],
    "committee": ["approx=committee", "approx.num_experts=3"],
    "local_experts": ["approx=local_experts", "approx.num_experts=3"],
    "mixture_of_experts": ["approx=mixture_of_experts", "approx.num_experts=3"],
    "transductive": ["approx=transductive", "approx.num_experts=3"],
    "grief": ["approx=grief", "approx.num_eigenfunctions=20"],
    "deep_rf": ["approx=deep_rf", "approx.num_features=20", "approx.predict_samples=3"],
    "dkl": ["approx=dkl", "approx.num_inducing=8", "approx.pretrain_steps=3"],
    "svdkl": ["approx=svdkl", "approx.grid_size=8", "approx.pretrain_steps=3"],
    "deep_svgp": ["approx=deep_svgp", "approx.num_inducing=8", "approx.predict_samples=3"],
    "conv_gp": [
        *("approx=conv_gp", "likelihood=gaussian", "approx.image_shape=[1,2]"),
        *("approx.patch_size=1", "approx.num_inducing=8"),
    ],
    "cnn": ["approx=cnn", "likelihood=gaussian", "approx.image_shape=[1,2]"],
    "cnn_rf": [
        *("approx=cnn_rf", "likelihood=gaussian", "approx.image_shape=[1,2]"),
        *("approx.num_features=20", "approx.predict_samples=3"),
    ],
    "ssgp": ["approx=ssgp", "approx.num_basis=20"],
    "vssgp": ["approx=vssgp", "approx.num_basis=20"],
    "direct": ["approx=direct", "approx.num_basis=20"],
    "direct_logistic": ["approx=direct_logistic", "approx.num_basis=20"],
    "direct_network": ["approx=direct_network", "approx.starts=2"],
    "direct_mixture": ["approx=direct_mixture", "approx.num_basis=20"],
    "reweighted": ["approx=reweighted", "approx.num_basis=20"],
    "laplace": ["approx=laplace"],
    "ep": ["approx=ep"],
    "elliptical_slice": ["approx=elliptical_slice"],
    "relevance_vectors": ["approx=reweighted", "inference=relevance_vectors", "approx.priors=null"],
}


@dataclass
class Trained:
    model: Model
    objective: Objective
    posterior: Posterior
    x: torch.Tensor
    y: torch.Tensor


@pytest.fixture(scope="module", params=METHODS)
def trained(request):
    """A model of every method for 6 x 5 points, as a run makes it before its first step."""
    config = composed([*METHODS[request.param], "data=toy1d"])
    config.facts = {"num_train": 30, "num_inputs": 2, "num_classes": 0, "image_shape": None}
    axes = [torch.linspace(-1, 1, size, dtype=torch.float64) for size in (6, 5)]
    x = torch.cartesian_prod(*axes)
    y = (2.0 * x[:, 0]).sin() + x[:, 1]
    model, objective = build_model(config).double(), build(config, "objective")
    y = y.sign() if model.likelihood.task == "binary" else y
    objective.check(model)
    draws = torch.Generator().manual_seed(0)
    model.settle(x)
    model.initialise(x, y, generator=draws)
    objective.prepare(model, x, y, generator=draws)
    with torch.no_grad():
        return Trained(model, objective, model.condition(x, y), x, y)


def draws():
    return torch.Generator().manual_seed(1)


def starts(trained, x, y):
    """What is done before the first step, where that is anything."""
    model, objective = trained.model, trained.objective
    if type(model).initialise is not Model.initialise:
        yield lambda: model.initialise(x, y, generator=draws())
    if type(objective).prepare is not Objective.prepare:
        yield lambda: objective.prepare(model, x, y, generator=draws())


def evidence(trained, x, y):
    return trained.objective.evidence(trained.model, x, y, generator=draws())


BAD_INPUTS = {
    "a vector": (lambda x: x[:, 0], ShapeError, r"got shape \(30,\); use x\[:, None\]"),
    "a batch": (lambda x: x[None], ShapeError, r"got shape \(1, 30, 2\)"),
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
    "a column": (lambda y: y[:, None], ShapeError, r"\(30, 1\), expected \(30,\).*squeeze"),
    "too few": (lambda y: y[:-1], ShapeError, r"\(29,\), expected \(30,\)"),
    "a number": (lambda y: y[0], ShapeError, r"shape \(\), expected \(30,\)"),
    "whole numbers": (lambda y: y.long(), DTypeError, "targets are int64, expected float64"),
    "single precision": (lambda y: y.float(), DTypeError, "targets are float32 on cpu and inputs"),
    "another device": (lambda y: y.to("meta"), DTypeError, "on meta and inputs float64 on cpu"),
    "no tensor": (lambda y: y.tolist(), DTypeError, "must be a tensor .*, got a list"),
}


@pytest.mark.parametrize("fault", BAD_INPUTS)
def test_inputs_that_do_not_fit(trained, fault):
    change, error, words = BAD_INPUTS[fault]
    bad = change(trained.x)
    for call in (
        lambda: trained.model.condition(bad, trained.y),
        *starts(trained, bad, trained.y),
        lambda: evidence(trained, bad, trained.y),
        lambda: trained.posterior.predict(bad),
        lambda: trained.posterior.predictive(bad, trained.model.likelihood),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("fault", BAD_TARGETS)
def test_targets_that_do_not_fit(trained, fault):
    change, error, words = BAD_TARGETS[fault]
    bad = change(trained.y)
    for call in (
        lambda: trained.model.condition(trained.x, bad),
        *starts(trained, trained.x, bad),
        lambda: evidence(trained, trained.x, bad),
    ):
        with pytest.raises(error, match=words):
            call()


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
    for call in (
        lambda: trained.model.condition(trained.x, several),
        lambda: evidence(trained, trained.x, several),
    ):
        with pytest.raises(ShapeError, match=r"expected \(30,\).*it models one output, got 3"):
            call()
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
