"""Joint laws at groups of inputs: those of all inputs at once, with derivatives."""

import public_models
import pytest
import torch

from gpx.errors import ConfigError, DataError, NotAvailable, ShapeError
from gpx.inference.joint_law import Conditioned, JointLaw
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant
from gpx.models import SGPR, SVGP, ExactGP

NAMES = ("ExactGP", "SubsetOfData", "SGPR", "SVGP", "SVGP of classes", "CGLB", "EffectivePrior")


@pytest.fixture(scope="module", params=NAMES)
def posterior(request):
    model, x, y = public_models.prepared(request.param)
    return model.condition(x, y)


def inputs(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(*shape, public_models.INPUTS, generator=generator, dtype=torch.float64)
    return x - 0.5


def test_groups_have_the_law_of_all_inputs_at_once(posterior):
    x = inputs(2, 3, 4)
    whole = posterior.joint_covariance(x.reshape(24, -1)).view(6, 4, 6, 4)
    groups = posterior.project(x)
    found = posterior.covariance_between(groups)
    want = torch.stack([whole[k, :, k] for k in range(6)]).view(2, 3, 4, 4)
    torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-12)
    mean = posterior.predict(x.reshape(24, -1)).mean.view(2, 3, 4)
    torch.testing.assert_close(groups.mean, mean, rtol=1e-9, atol=1e-10)
    # between groups, whose leading dimensions are broadcast
    first, others = posterior.project(x[0, 0]), posterior.project(x[1])
    between = posterior.covariance_between(first, others)
    want = torch.stack([whole[0, :, 3 + k] for k in range(3)])
    torch.testing.assert_close(between, want, rtol=1e-10, atol=1e-12)


def test_derivatives_are_those_of_finite_differences(posterior):
    def law(x):
        found = posterior.project(x)
        return found.mean, posterior.covariance_between(found)

    x = inputs(2, 2, seed=1).requires_grad_(True)
    assert torch.autograd.gradcheck(law, (x,), eps=1e-6, atol=1e-6, rtol=1e-5)


NONE = ("EffectivePrior of local blocks", "EffectivePrior of degenerate rank", "SVGP of outputs")


@pytest.mark.parametrize("name", NONE)
def test_posteriors_that_know_marginals_only_say_so(name):
    model, x, y = public_models.prepared(name)
    found = model.condition(x, y)
    assert isinstance(found, JointLaw)
    with pytest.raises(NotAvailable, match="has no joint covariance in closed form"):
        found.project(inputs(2, 3))


def slope(values, x):
    return torch.autograd.grad(values.sum(), x, retain_graph=True)[0]


@pytest.mark.parametrize("model_class", [ExactGP, SGPR, SVGP])
def test_predictions_of_targets_and_joint_covariances_have_derivatives(model_class):
    model, x, y = public_models.prepared(model_class.__name__)
    posterior = model.condition(x, y)
    wanted = inputs(3).requires_grad_()
    law = posterior.predictive(wanted, model.likelihood)
    latent = posterior.predict(wanted)
    for own, other in ((law.mean, latent.mean), (law.variance, latent.variance)):
        found, want = (
            torch.autograd.grad(v.sum(), wanted, retain_graph=True)[0] for v in (own, other)
        )
        torch.testing.assert_close(found, want)
    whole = posterior.joint_covariance(wanted)
    found, want = (
        torch.autograd.grad(v.sum(), wanted, retain_graph=True)[0]
        for v in (whole.diagonal(), latent.variance)
    )
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-9)


def test_a_prediction_does_not_cut_the_gradient_of_observations():
    model, x, y = public_models.prepared("ExactGP")
    seen = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    made = Conditioned.of(model.condition(x, y), inputs(3), seen, torch.full((3,), 0.1).double())
    made.predict(inputs(2, seed=1))  # without gradients
    (slope,) = torch.autograd.grad(made.project(inputs(2, seed=1)).mean.sum(), seen)
    assert slope.abs().max() > 0.0


def test_further_rows_of_classes_are_refused():
    model, x, y = public_models.prepared("SVGP of classes")
    posterior = model.condition(x, y)
    with pytest.raises(NotAvailable, match=r"likelihood=Gaussian\(\), and these have Bernoulli"):
        posterior.with_observations(x[:2], y[:2], model.likelihood)


BAD_TARGETS = {
    "a column": (lambda y: y[:, None], ShapeError, r"\(3, 1\), expected \(3,\).*squeeze"),
    "one for all": (lambda y: y[:1], ShapeError, r"\(1,\), expected \(3,\)"),
    "missing": (lambda y: y * torch.nan, DataError, "3 of 3 targets are not finite.* row 0"),
    "infinite": (lambda y: y / 0.0, DataError, "3 of 3 targets are not finite"),
}


@pytest.mark.parametrize("name", ["ExactGP", "SGPR", "SVGP", "Vecchia", "Transductive"])
@pytest.mark.parametrize("change", BAD_TARGETS)
def test_further_rows_have_one_finite_target_each(name, change):
    model, x, y = public_models.prepared(name)
    posterior = model.condition(x, y)
    make, error, words = BAD_TARGETS[change]
    with pytest.raises(error, match=words):
        posterior.with_observations(x[:3], make(y[:3]), model.likelihood)


def test_further_rows_have_one_noise_each():
    model, x, y = public_models.prepared("SGPR")
    noise = RowNoise(torch.ones(1).double(), torch.ones(1).double())
    with pytest.raises(
        ShapeError, match=r"noise of further rows has shape \(1,\), expected \(3,\)"
    ):
        model.condition(x, y).with_observations(x[:3], y[:3], model.likelihood, noise)


@pytest.mark.parametrize("name", ["predictive", "predict"])
def test_a_prediction_that_would_lose_a_gradient_is_refused(name):
    model, x, y = public_models.prepared("GridGP")
    posterior = model.condition(x, y)
    more = (model.likelihood,) if name == "predictive" else ()
    wanted = inputs(2).requires_grad_()
    with pytest.raises(NotAvailable, match=r"carry no gradient.*sample_paths"):
        getattr(posterior, name)(wanted, *more)
    with torch.no_grad():
        getattr(posterior, name)(wanted, *more)


@pytest.mark.parametrize("model_class", [ExactGP, SGPR, SVGP])
def test_a_prediction_of_too_few_columns_names_the_columns(model_class):
    own = {} if model_class is ExactGP else {"num_inputs": 3, "num_inducing": 4}
    model = model_class(kernel=RBF(), mean=Constant(), likelihood=Gaussian(0.01), **own).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(9, 3, generator=generator, dtype=torch.float64)
    model.initialise(x, x[:, 0], generator=generator)
    with pytest.raises(ShapeError, match="inputs have 2 columns, but it is made for 3"):
        model.condition(x, x[:, 0]).predict(x[:, :2])


@pytest.mark.parametrize("name", ["SGPR", "SVGP", "CGLB", "EffectivePrior"])
def test_an_empty_posterior_says_that_it_has_no_state(name):
    model, x, _ = public_models.prepared(name)
    with pytest.raises(ConfigError, match="is empty: load the state"):
        model.new_posterior().predict(x)
