"""The contract of models and posteriors: immutable, self-contained, functions of x alone."""

import copy
import io
import pickle
import warnings
from dataclasses import replace

import derivatives
import public_models
import pytest
import torch
from copies import copies
from public_classes import public_classes

from gpx import models
from gpx.errors import ConfigError, NotAvailable, ShapeError
from gpx.inference.exact_posterior import ExactPosterior
from gpx.inference.iterative_posterior import IterativePosterior
from gpx.likelihoods import Gaussian
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import UnconvergedWarning
from gpx.methods.base.model import Model
from gpx.methods.base.posterior import Marginals, Posterior

NAMES = sorted(public_models.MODELS)
WITH_COVARIANCE = {
    "CGLB",
    "ConvGP",
    "ExactGP",
    "FullyBayesianGP",
    "FullyBayesianSGPR",
    "SubsetOfData",
    "EffectivePrior",
    "EffectivePrior of degenerate rank",
    "EffectivePrior of blocks",
    "SGPR",
    "SVGP",
    "SVGP of classes",
    "LaplaceGP of classes",
    "ExpectationPropagationGP of classes",
    "VGP of classes",
}
"""Models whose posteriors have a joint covariance."""


ON_A_GRID = {"GridGP"}
"""Models whose predictions are of the points of a grid."""

WITHOUT_DERIVATIVES = {"GridGP"}
"""Models whose predictions have no derivatives by their inputs."""


@pytest.fixture(scope="module")
def conditioned():
    """Every model with its posterior, made once."""
    kept = {}

    def find(name):
        if name not in kept:
            model, x, y = public_models.prepared(name)
            # a posterior is of ordinary tensors, in whichever mode it was made
            with warnings.catch_warnings(), torch.inference_mode():
                warnings.simplefilter("ignore", UnconvergedWarning)
                kept[name] = model, model.condition(x, y)
        return kept[name]

    return find


def targets(model):
    """Shape of the targets of a row: none for one output."""
    return () if model.num_outputs == 1 else (model.num_outputs,)


def latents(model):
    """Shape of the latents of a row: none for one."""
    return () if model.likelihood.num_latents == 1 else (model.likelihood.num_latents,)


def inputs(n=7, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, public_models.INPUTS, generator=generator).double() - 0.5


def test_every_public_model_is_listed():
    public = public_classes(models, Model)
    assert public == {name.split()[0] for name in NAMES}


def test_every_public_posterior_is_seen(conditioned):
    public = public_classes(models, Posterior)
    assert public <= {type(conditioned(name)[1]).__name__ for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_marginals_have_the_shape_of_the_rows_and_keep_no_graph(conditioned, name):
    model, posterior = conditioned(name)
    for n in (7, 1, 0):
        mean, variance = posterior.predict(inputs(n))
        assert mean.shape == variance.shape == (n, *latents(model))
        assert mean.dtype == variance.dtype == torch.float64
        assert not mean.requires_grad
        assert not variance.requires_grad
        assert torch.isfinite(mean).all()
        assert (variance >= 0.0).all()


def solved_exactly(posterior):
    """With variances to rounding, as differences of them amplify the error of a solve."""
    if not isinstance(posterior, IterativePosterior):
        return posterior
    tight = copy.deepcopy(posterior)
    tight.options = replace(tight.options, tolerance=1e-12)
    return tight


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_by_the_inputs_are_right_or_refused(conditioned, name):
    _, posterior = conditioned(name)
    posterior = solved_exactly(posterior)
    x = inputs(3).requires_grad_()
    if name in WITHOUT_DERIVATIVES:
        with pytest.raises(NotAvailable, match="no gradient with respect to x"):
            posterior.predict(x)
        return
    for count in (3, 1):
        derivatives.check(posterior.predict, inputs(count))
    assert all(parameter.grad is None for parameter in posterior.parameters())


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_DERIVATIVES))
def test_what_predictions_keep_is_no_part_of_later_graphs(conditioned, name):
    """Neither of parameters, should someone let them move, nor as tensors of inference mode."""
    _, posterior = conditioned(name)
    x = inputs(3).requires_grad_()
    moving, sampled, predicted = (copy.deepcopy(posterior) for _ in range(3))
    moving.requires_grad_(True)
    with torch.inference_mode():
        sampled.sample_paths(1, generator=torch.Generator().manual_seed(0))
        predicted.predict(inputs(2))
    for one in (moving, moving, sampled, predicted):
        mean, variance = one.predict(x)
        (mean.sum() + variance.sum()).backward()


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_of_the_predictive_law_are_right_or_refused(conditioned, name):
    model, posterior = conditioned(name)
    posterior = solved_exactly(posterior)
    rows = torch.ones(3, *targets(model), dtype=torch.float64)

    def density(x):
        return [posterior.predictive(x, model.likelihood).log_prob(rows)]

    if name in WITHOUT_DERIVATIVES | {"LaplaceGP of several classes"}:
        with pytest.raises(NotAvailable, match="no gradient with respect to x"):
            density(inputs(3).requires_grad_())
        return
    derivatives.check(density, inputs(3))
    if isinstance(model.likelihood, Gaussian):
        noise = RowNoise(torch.tensor([0.0, 0.2, 0.5]).double(), torch.ones(3).double())

        def known(x):
            return [posterior.predictive_of_rows(x, model.likelihood, noise).log_prob(rows)]

        derivatives.check(known, inputs(3))


@pytest.mark.parametrize("name", sorted(WITH_COVARIANCE))
def test_derivatives_of_joint_covariances_are_right_or_refused(conditioned, name):
    _, posterior = conditioned(name)
    x = inputs(3).requires_grad_()
    try:
        posterior.joint_covariance(x)
    except NotAvailable as error:
        assert "no gradient with respect to x" in str(error)  # noqa: PT017
        assert name == "EffectivePrior of degenerate rank"
    else:
        derivatives.check(lambda x: [posterior.joint_covariance(x)], x.detach())


def test_a_subclass_whose_predictions_drop_the_graph_is_refused(conditioned):
    class Own(ExactPosterior):
        @torch.no_grad()
        def predict(self, x):
            return super().predict(x)

    posterior = copy.deepcopy(conditioned("ExactGP")[1])

    class Partly(ExactPosterior):
        def predict(self, x):
            mean, variance = super().predict(x)
            return Marginals(mean, variance.detach())

    for kind in (Own, Partly):
        posterior.__class__ = kind
        assert not posterior.predict(inputs(3)).mean.requires_grad
        with pytest.raises(NotAvailable, match="no gradient with respect to x"):
            posterior.predict(inputs(3).requires_grad_())


@pytest.mark.parametrize("name", NAMES)
def test_known_noise_is_added_to_the_law_that_is_told_without_any(conditioned, name):
    """Noise that a posterior knows by itself, and the shape of a mixture, stay."""
    model, posterior = conditioned(name)
    if not isinstance(model.likelihood, (Gaussian, NoisyOutputs)):
        return
    x = inputs()
    plain = posterior.predictive(x, model.likelihood)
    none, ones = torch.zeros(len(x)).double(), torch.ones(len(x)).double()
    found = posterior.predictive_of_rows(x, model.likelihood, RowNoise(none, ones))
    for y in (plain.mean, plain.mean + 2.0 * plain.stddev):
        torch.testing.assert_close(found.log_prob(y), plain.log_prob(y), rtol=1e-9, atol=1e-9)
    if model.num_outputs == 1:
        known = RowNoise(torch.linspace(0.0, 3.0, len(x)).double(), ones)
        found = posterior.predictive_of_rows(x, model.likelihood, known)
        assert type(found) is type(plain)
        torch.testing.assert_close(found.mean, plain.mean)
        torch.testing.assert_close(found.variance, plain.variance + known.known)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_predicted_alike_in_any_company(conditioned, name):
    _, posterior = conditioned(name)
    x = inputs()
    whole = posterior.predict(x)
    alone = [posterior.predict(row[None]) for row in x]
    torch.testing.assert_close(torch.cat([a.mean for a in alone]), whole.mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(
        torch.cat([a.variance for a in alone]), whole.variance, rtol=1e-6, atol=1e-9
    )


@pytest.mark.filterwarnings("ignore:1 of 8 inputs lie outside the interpolation grid")
@pytest.mark.parametrize("name", sorted(set(NAMES) - ON_A_GRID))
def test_a_row_far_from_all_others_leaves_their_predictions_as_they_are(conditioned, name):
    """Products of coordinates far from their centre have no digits left for the near ones."""
    _, posterior = conditioned(name)
    x = torch.cat([inputs(), torch.full((1, public_models.INPUTS), -1e9).double()])
    (mean, variance), wanted = posterior.predict(x), posterior.predict(x[:-1])
    torch.testing.assert_close(mean[:-1], wanted.mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(variance[:-1], wanted.variance, rtol=1e-6, atol=1e-9)
    if name in WITH_COVARIANCE:
        found, alone = posterior.joint_covariance(x), posterior.joint_covariance(x[:-1])
        torch.testing.assert_close(found[:-1, :-1], alone, rtol=1e-6, atol=1e-9)
    paths = posterior.sample_paths(2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(paths(x)[:, :-1], paths(x[:-1]), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_predictive_distributions_are_of_the_targets(conditioned, name):
    model, posterior = conditioned(name)
    found = posterior.predictive(inputs(), model.likelihood)
    assert found.batch_shape == (7,)
    if model.likelihood.task == "regression":
        variance = posterior.predict(inputs()).variance
        assert (found.variance > variance).all()  # of y: with noise
    ones = torch.ones(7, *targets(model), dtype=torch.float64)
    assert torch.isfinite(found.log_prob(ones)).all()
    assert found.log_prob(ones).shape == (7,)


@pytest.mark.parametrize("name", NAMES)
def test_a_joint_covariance_has_the_variances_on_its_diagonal(conditioned, name):
    _, posterior = conditioned(name)
    x = inputs()
    try:
        found = posterior.joint_covariance(x)
    except NotAvailable:
        assert name not in WITH_COVARIANCE
        return
    assert name in WITH_COVARIANCE
    variance = posterior.predict(x).variance
    torch.testing.assert_close(found.diagonal(), variance, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found, found.mT, rtol=1e-10, atol=1e-12)
    assert torch.linalg.eigvalsh(found).min() > -1e-9
    part = posterior.joint_covariance(x[2:5])
    torch.testing.assert_close(part, found[2:5, 2:5], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_sampled_paths_are_functions(conditioned, name):
    model, posterior = conditioned(name)
    x = inputs()
    draw = lambda seed: posterior.sample_paths(3, generator=torch.Generator().manual_seed(seed))  # noqa: E731
    paths = draw(1)
    whole = paths(x)
    assert whole.shape == (3, 7, *latents(model))
    torch.testing.assert_close(paths(x[2:5]), whole[:, 2:5], rtol=1e-7, atol=1e-8)
    assert torch.equal(draw(1)(x), whole)
    assert not torch.equal(draw(2)(x), whole)


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_of_sampled_paths_by_the_inputs_are_right_or_refused(conditioned, name):
    _, posterior = conditioned(name)
    paths = posterior.sample_paths(2, generator=torch.Generator().manual_seed(1))
    if name in WITHOUT_DERIVATIVES:
        with pytest.raises(NotAvailable, match="no gradient with respect to x"):
            paths(inputs(3).requires_grad_())
        return
    for count in (3, 1):
        derivatives.check(lambda x: (paths(x),), inputs(count))
    assert all(parameter.grad is None for parameter in posterior.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [-1, 1])
def test_sampled_paths_refuse_inputs_of_another_width(conditioned, name, more):
    """Random features of an isotropic kernel would be other functions of them."""
    _, posterior = conditioned(name)
    paths = posterior.sample_paths(3, generator=torch.Generator().manual_seed(1))
    with pytest.raises((ShapeError, RuntimeError)):
        paths(torch.zeros(4, public_models.INPUTS + more).double())


@pytest.mark.parametrize("name", NAMES)
def test_no_function_at_all_is_refused(conditioned, name):
    _, posterior = conditioned(name)
    with pytest.raises(ConfigError, match="num=0 must be at least 1"):
        posterior.sample_paths(0, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NAMES)
def test_a_posterior_does_not_change_with_its_model(name):
    model, x, y = public_models.prepared(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)
        posterior = model.condition(x, y)
    before = posterior.predict(inputs())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
        x.zero_()
        y.zero_()
    after = posterior.predict(inputs())
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.variance, after.variance)


@pytest.mark.parametrize("name", NAMES)
def test_a_posterior_is_its_class_its_options_and_its_state(conditioned, monkeypatch, name):
    _, posterior = conditioned(name)
    monkeypatch.setattr(public_models, "NUM", 31)  # a model that expects other data
    stranger = public_models.MODELS[name]()
    stored = io.BytesIO()
    torch.save(posterior.state_dict(), stored)
    stored.seek(0)
    other = stranger.new_posterior().double()
    assert type(other) is type(posterior)
    other.load_state_dict(torch.load(stored, weights_only=True))
    x = inputs()
    found, want = other.predict(x), posterior.predict(x)
    torch.testing.assert_close(found.mean, want.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.variance, want.variance, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_a_prediction_is_plain(conditioned, name):
    _, posterior = conditioned(name)
    for key, value in posterior.facts().items():
        assert isinstance(key, str)
        assert isinstance(value, (bool, int, float, str))


@pytest.mark.parametrize("name", NAMES)
def test_parameters_have_one_role_each(conditioned, name):
    model, _ = conditioned(name)
    groups = model.parameter_groups()
    assert set(groups) <= {
        "variational",
        "inducing",
        "hyperparameters",
        "precisions",
        "touched",
        "network",
    }
    listed = [id(p) for group in groups.values() for p in group]
    assert len(listed) == len(set(listed))
    assert set(listed) <= {id(p) for p in model.parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_its_state(name):
    """So are copies and pickles of it and of its posterior."""
    model, x, y = public_models.prepared(name)
    other = public_models.MODELS[name]()
    other.settle(x)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnconvergedWarning)
        posterior = model.condition(x, y)
        want = posterior.predict(inputs())
        found = other.condition(x, y).predict(inputs())
        same = [again.condition(x, y).predict(inputs()) for again in copies(model)]
    torch.testing.assert_close(found.mean, want.mean, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.variance, want.variance, rtol=1e-7, atol=1e-10)
    same += [again.predict(inputs()) for again in copies(posterior)]
    for mean, variance in same:
        assert torch.equal(mean, want.mean)
        assert torch.equal(variance, want.variance)


@pytest.mark.parametrize("name", NAMES)
def test_what_predictions_keep_is_not_in_a_pickle_and_follows_the_precision(conditioned, name):
    """Factors are worked out anew: they would make a pickle n x n, and are of one precision."""
    model, posterior = conditioned(name)
    used, fresh = copy.deepcopy(posterior), model.new_posterior().double()
    fresh.load_state_dict(posterior.state_dict())
    size = len(pickle.dumps(fresh))
    used.predict(inputs())
    assert len(pickle.dumps(used)) <= 1.1 * size
    found, expected = (one.float().predict(inputs().float()) for one in (used, fresh))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
