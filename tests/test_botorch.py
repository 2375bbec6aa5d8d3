"""GPXModel keeps BoTorch's contract and gives the laws of its SingleTaskGP."""

import builtins
import importlib
import math
import sys
import warnings
from importlib.util import find_spec

import numpy as np
import public_models
import pytest
import torch
from draws import uniform
from optimisation_problems import negative_branin, random_search_reaches

import gpx
from gpx.errors import ConfigError, NotAvailable, ShapeError
from gpx.kernels import RBF, Matern32, Matern52
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant
from gpx.models import SGPR, SVGP, ExactGP, FullyBayesianGP, FullyBayesianSGPR, IterativeOptions

if find_spec("botorch") is not None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from botorch.acquisition import LogExpectedImprovement, qKnowledgeGradient
        from botorch.acquisition.logei import qLogExpectedImprovement
        from botorch.acquisition.objective import ScalarizedPosteriorTransform
        from botorch.models import ModelList, SingleTaskGP
        from botorch.optim import optimize_acqf
        from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
        from botorch.sampling import SobolQMCNormalSampler
        from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
        from gpytorch.likelihoods import GaussianLikelihood
        from gpytorch.means import ConstantMean

        from gpx.botorch import GPXModel

needs_botorch = pytest.mark.skipif(
    find_spec("botorch") is None, reason="BoTorch is not installed: pip install -e '.[botorch]'"
)
QUICK = (
    *("approx=exact", "kernel=matern52", "data.test_fraction=0", "trainer.tensorboard=false"),
    *("trainer.figures=false", "trainer.baselines=false", "trainer.device=cpu"),
)
LENGTHSCALE, OUTPUTSCALE, NOISE, MEAN = (0.5, 0.75, 1.25), 1.5, 0.03125, 0.25
"""Numbers that float32 holds exactly, which SingleTaskGP rounds to."""


def problem(n=30):
    x = uniform(n, 3)
    return x, torch.sin(4.0 * x).sum(1) + 0.1 * uniform(n, seed=1)


def ours(kernel=RBF, noise=NOISE, **options):
    parts = {
        "kernel": kernel(3, LENGTHSCALE, OUTPUTSCALE).double(),
        "mean": Constant(MEAN).double(),
        "likelihood": Gaussian(noise).double(),
    }
    return ExactGP(**parts, **options)


def theirs(x, y, kernel):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of inputs that are not scaled
        model = SingleTaskGP(
            x,
            y[:, None],
            likelihood=GaussianLikelihood(),
            covar_module=ScaleKernel(kernel),
            mean_module=ConstantMean(),
            outcome_transform=None,
            input_transform=None,
        ).double()
    model.covar_module.base_kernel.lengthscale = torch.tensor(LENGTHSCALE).double()
    model.covar_module.outputscale = OUTPUTSCALE
    model.mean_module.constant = MEAN
    model.likelihood.noise = NOISE
    return model


def laws(found):
    return found.mean, found.distribution.covariance_matrix


KERNELS = {"rbf": (RBF, None), "matern32": (Matern32, 1.5), "matern52": (Matern52, 2.5)}


@needs_botorch
@pytest.mark.parametrize("name", KERNELS)
def test_the_laws_are_those_of_single_task_gp(name):
    kernel, nu = KERNELS[name]
    x, y = problem()
    other = RBFKernel(ard_num_dims=3) if nu is None else MaternKernel(nu, ard_num_dims=3)
    want, found = theirs(x, y, other), GPXModel(ours(kernel).condition(x, y))
    where = uniform(5, 1, 4, 3, seed=2)
    for noise in (False, True):
        for a, b in zip(
            laws(found.posterior(where, observation_noise=noise)),
            laws(want.posterior(where, observation_noise=noise)),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-8)
    # more data, then groups of targets at shared inputs
    more, targets = uniform(2, 3, seed=3), torch.randn(7, 2, 1).double()
    found = found.condition_on_observations(more, targets)
    want = want.condition_on_observations(more.expand(7, 2, 3), targets)
    assert found.batch_shape == want.batch_shape == (7,)
    everywhere = where.expand(5, 7, 4, 3)
    for a, b in zip(laws(found.posterior(where)), laws(want.posterior(everywhere)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)


@needs_botorch
def test_more_data_are_those_of_a_model_of_all():
    x, y = problem()
    whole = GPXModel(ours().condition(x, y))
    part = GPXModel(ours().condition(x[:20], y[:20]))
    grown = part.condition_on_observations(x[20:26], y[20:26, None])
    grown = grown.condition_on_observations(x[26:], y[26:, None])
    where = uniform(6, 3, seed=2)
    for a, b in zip(laws(grown.posterior(where)), laws(whole.posterior(where)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    # known noise of the further rows: a row of small noise is worth many
    exact = part.condition_on_observations(x[20:], y[20:, None], noise=torch.full((10, 1), 1e-6))
    at = exact.posterior(x[20:])
    torch.testing.assert_close(at.mean[:, 0], y[20:], rtol=0, atol=1e-3)


@needs_botorch
@pytest.mark.parametrize("sparse", [SGPR, SVGP])
def test_sparse_posteriors_are_conditioned_as_processes(sparse):
    """Against the joint normal law of the sparse process at all inputs."""
    x, y = problem()
    parts = {"kernel": ours().kernel, "mean": ours().mean, "likelihood": ours().likelihood}
    model = sparse(**parts, num_inducing=8, num_inputs=3, num_data=30).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    posterior = model.condition(x, y)
    likelihood = None if hasattr(posterior, "likelihood") else ours().likelihood
    where, more, targets = uniform(4, 3, seed=2), uniform(5, 3, seed=3), uniform(5, 1, seed=4)
    found = GPXModel(posterior, likelihood).condition_on_observations(more, targets)
    both = torch.cat([where, more])
    mean, joint = posterior.predict(both).mean, posterior.joint_covariance(both)
    gain = joint[:4, 4:] @ torch.linalg.inv(joint[4:, 4:] + NOISE * torch.eye(5))
    want = mean[:4] + gain @ (targets[:, 0] - mean[4:]), joint[:4, :4] - gain @ joint[4:, :4]
    for a, b in zip(laws(found.posterior(where)), want, strict=True):
        torch.testing.assert_close(a.squeeze(-1) if a.shape[-1] == 1 else a, b, rtol=0, atol=1e-9)


@needs_botorch
def test_derivatives_are_those_of_finite_differences():
    x, y = problem(12)
    model = GPXModel(ours(Matern52).condition(x, y))

    def moments(where, more, targets):
        found = model.condition_on_observations(more, targets).posterior(where)
        return found.mean, found.distribution.covariance_matrix

    arguments = uniform(2, 2, 3, seed=2), uniform(2, 3, seed=3), uniform(3, 1, 2, 1, seed=4)
    arguments = tuple(a.requires_grad_(True) for a in arguments)
    assert torch.autograd.gradcheck(moments, arguments, eps=1e-6, atol=1e-6, rtol=1e-5)


@needs_botorch
def test_a_run_predicts_in_its_own_units():
    x, y = (t.numpy() for t in problem())
    x, y = 10.0 * x - 3.0, 50.0 + 20.0 * y
    fitted = gpx.fit(x, y, *QUICK, quiet=True, keep=False)
    where = 10.0 * uniform(4, 3, seed=2) - 3.0
    model = GPXModel(fitted)
    found, want = model.posterior(where, observation_noise=True), fitted.predict(where.numpy())
    np.testing.assert_allclose(found.mean[:, 0], want.mean, rtol=1e-10)
    np.testing.assert_allclose(found.variance[:, 0].sqrt(), want.std, rtol=1e-10)
    covariance = model.posterior(where).distribution.covariance_matrix
    np.testing.assert_allclose(covariance, fitted.model.covariance(where.numpy()), rtol=1e-6)
    known = model.posterior(where, observation_noise=torch.full((1, 1), 7.0).double())
    np.testing.assert_allclose(known.variance, model.posterior(where).variance + 7.0)
    # an observation without noise is what the process then says there
    exact = model.condition_on_observations(
        where[:1], torch.full((1, 1), 42.0).double(), noise=torch.full((1, 1), 1e-6).double()
    )
    assert float(exact.posterior(where[:1]).mean) == pytest.approx(42.0, abs=1e-3)


@needs_botorch
def test_samples_have_the_law_and_its_derivatives():
    x, y = problem()
    model = GPXModel(ours().condition(x, y))
    where = uniform(2, 3, 3, seed=2).requires_grad_(True)
    posterior = model.posterior(where)
    samples = SobolQMCNormalSampler(torch.Size([512]), seed=0)(posterior)
    assert samples.shape == (512, 2, 3, 1)
    # quasi-random normals average to their mean far below 5 / sqrt(512) standard deviations
    deviation = posterior.variance.sqrt()
    assert ((samples.mean(0) - posterior.mean).abs() < 5.0 * deviation / 512**0.5).all()
    samples.sum().backward()
    assert torch.isfinite(where.grad).all()
    assert where.grad.abs().max() > 0
    assert posterior.rsample(torch.Size([4])).shape == (4, 2, 3, 1)


@needs_botorch
def test_acquisitions_take_it():
    x, y = problem()
    model = GPXModel(ours().condition(x, y))
    reference = theirs(x, y, RBFKernel(ard_num_dims=3))
    where = uniform(6, 1, 3, seed=2)
    for make in (
        lambda m: LogExpectedImprovement(m, y.max()),
        lambda m: qLogExpectedImprovement(m, y.max(), SobolQMCNormalSampler(torch.Size([64]), 0)),
    ):
        torch.testing.assert_close(make(model)(where), make(reference)(where), rtol=1e-5, atol=1e-7)
    box = torch.tensor([[0.0] * 3, [1.0] * 3]).double()
    options = {"q": 1, "num_restarts": 2, "raw_samples": 8, "options": {"maxiter": 5}}
    point, value = optimize_acqf(qKnowledgeGradient(model, num_fantasies=4), box, **options)
    assert point.shape == (1, 3)
    assert torch.isfinite(value)
    fantasies = model.fantasize(uniform(2, 3, seed=5), SobolQMCNormalSampler(torch.Size([4])))
    assert fantasies.batch_shape == (4,)
    assert fantasies.posterior(where[:, 0]).mean.shape == (4, 6, 1)
    empty = model.fantasize(torch.empty(0, 3).double(), SobolQMCNormalSampler(torch.Size([4])))
    assert empty.posterior(where[:, 0]).mean.shape == (4, 6, 1)
    both = ModelList(model, model).posterior(where)
    assert both.mean.shape == (6, 1, 2)
    scaled = model.posterior(
        where, posterior_transform=ScalarizedPosteriorTransform(-torch.ones(1))
    )
    torch.testing.assert_close(scaled.mean, -model.posterior(where).mean)


@needs_botorch
@pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")  # near the maximum
def test_bayesian_optimisation_beats_random_search():
    """Ten random points of Branin's function and 25 chosen ones, with new hyperparameters after
    every fifth: as many random points are as good once in a thousand times at most."""
    x = uniform(10, 2)
    y = torch.from_numpy(negative_branin(x.numpy()))
    box = torch.tensor([[0.0] * 2, [1.0] * 2]).double()
    options = {"q": 1, "num_restarts": 2, "raw_samples": 64, "options": {"maxiter": 30}}
    for step in range(25):
        if step % 5 == 0:
            model = GPXModel(gpx.fit(x, y, *QUICK, quiet=True, keep=False))
        torch.manual_seed(step)  # of the optimiser's starts
        more, _ = optimize_acqf(LogExpectedImprovement(model, y.max()), box, **options)
        value = torch.from_numpy(negative_branin(more.numpy()))
        model = model.condition_on_observations(more, value[:, None])
        x, y = torch.cat([x, more]), torch.cat([y, value])
    assert random_search_reaches(float(y.max()), len(y), negative_branin, 2) < 1e-3


@needs_botorch
def test_posteriors_of_marginals_serve_single_points():
    x, y = problem()
    at = uniform(4, 1, 3, seed=2)
    law = ours(solver="iterative", iterative=IterativeOptions(tolerance=1e-8)).condition(x, y)
    found, want = (GPXModel(m).posterior(at) for m in (law, ours().condition(x, y)))
    torch.testing.assert_close(found.mean, want.mean)
    torch.testing.assert_close(found.variance, want.variance)
    model, x, y = public_models.prepared("Direct")  # has an uncertain noise variance of its own
    law = model.condition(x, y)
    noisy = GPXModel(law, model.likelihood).posterior(x[:3, None], observation_noise=True)
    predictive = law.predictive(x[:3], model.likelihood)
    torch.testing.assert_close(noisy.variance.flatten(), predictive.variance)
    committee = public_models.prepared("Committee")
    bounds = torch.tensor([[0.0] * 2, [1.0] * 2]).double()
    acquisition = LogExpectedImprovement(
        GPXModel(committee[0].condition(*committee[1:])), best_f=committee[2].max()
    )
    point, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=2, raw_samples=16)
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 15).double()] * 2).unsqueeze(1)
    assert value >= acquisition(grid).max() - 1e-6
    assert point.shape == (1, 2)


def mixture(kind, x, y, samples=5):
    """The posterior averaged over drawn hyperparameters, with equal weights."""
    parts = {"kernel": Matern52(3), "mean": Constant(MEAN), "likelihood": Gaussian(NOISE)}
    if kind == "FullyBayesianSGPR":
        options = {"num_inputs": 3, "num_inducing": 12, "fit_noise": False}
        model = FullyBayesianSGPR(**parts, **options).double()
        model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    else:
        model = FullyBayesianGP(**parts).double()
    place = model.hyper_position().read()
    draws = torch.randn(samples, len(place), generator=torch.Generator().manual_seed(0))
    model.samples = place + 0.3 * draws.double()
    return model.condition(x, y)


@needs_botorch
@pytest.mark.parametrize("kind", ["FullyBayesianGP", "FullyBayesianSGPR"])
def test_mixtures_are_fully_bayesian_models(kind):
    """Each sample is the model of its own process, also given further rows and fantasies."""
    x, y = problem()
    law = mixture(kind, x, y)
    model = GPXModel(law)
    own = [GPXModel(part.posterior, Gaussian(float(part.noise))) for part in law.components()]
    at = uniform(4, 2, 3, seed=2)
    assert model.batch_shape == (5,)

    def same(found, each, **options):
        wanted = [one.posterior(at, **options) for one in each]
        joint = found.posterior(at, **options)
        assert isinstance(joint, GaussianMixturePosterior)
        mean = torch.stack([one.mean for one in wanted], -3)
        torch.testing.assert_close(joint.mean, mean)
        covariance = torch.stack([one.distribution.covariance_matrix for one in wanted], -3)
        torch.testing.assert_close(joint.distribution.covariance_matrix, covariance)

    same(model, own)
    same(model, own, observation_noise=True)
    same(model, own, observation_noise=torch.tensor([[[0.1], [0.2]]]).double())
    whole = law.predict(at[:, 0])
    single = model.posterior(at[:, :1])
    torch.testing.assert_close(single.mixture_mean.flatten(), whole.mean)
    torch.testing.assert_close(single.mixture_variance.flatten(), whole.variance)
    more, values = uniform(3, 3, seed=5), uniform(3, 1, seed=6)
    same(
        model.condition_on_observations(more, values),
        [one.condition_on_observations(more, values) for one in own],
    )
    fantasies = model.fantasize(more, SobolQMCNormalSampler(torch.Size([4]), 0))
    assert fantasies.batch_shape == (4, 5)
    drawn = fantasies.law.y  # (4, 5, 3), in the unit of the targets
    for number, one in enumerate(own):
        alone = one.condition_on_observations(more, drawn[:, number, :, None])
        torch.testing.assert_close(
            fantasies.posterior(at[:1]).mean[:, number], alone.posterior(at[:1]).mean
        )


@needs_botorch
def test_acquisitions_average_over_a_mixture():
    x, y = problem()
    law = mixture("FullyBayesianGP", x, y)
    model, at = GPXModel(law), uniform(6, 1, 3, seed=2)
    own = [GPXModel(part.posterior) for part in law.components()]
    each = torch.stack([LogExpectedImprovement(one, y.max())(at) for one in own])
    found = LogExpectedImprovement(model, y.max())(at)
    torch.testing.assert_close(found, each.logsumexp(0) - math.log(5))
    box = torch.tensor([[0.0] * 3, [1.0] * 3]).double()
    options = {"q": 2, "num_restarts": 2, "raw_samples": 8, "options": {"maxiter": 3}}
    sampler = SobolQMCNormalSampler(torch.Size([16]), 0)
    acquisition = qLogExpectedImprovement(model, y.max(), sampler)
    point, value = optimize_acqf(acquisition, box, **options)
    assert point.shape == (2, 3)
    assert torch.isfinite(value)


@needs_botorch
def test_an_ensemble_stands_for_a_mixture():
    x, y = problem()
    law = mixture("FullyBayesianGP", x, y, samples=6)
    assert GPXModel(law, ensemble=3).batch_shape == (3,)
    assert GPXModel(law).batch_shape == (6,)
    changed = law.with_observations(x[:1], y[:1], Gaussian(NOISE))
    assert float(changed.weights.max()) > 1.1 * float(changed.weights.min())
    assert GPXModel(changed, ensemble=50).batch_shape == (50,)  # in proportion to the weights
    with pytest.raises(ConfigError, match="ensemble=0"):
        GPXModel(law, ensemble=0)
    with pytest.raises(ShapeError, match=r"Y has 4 targets at each input.* 6 samples"):
        GPXModel(law).condition_on_observations(x[:2], torch.zeros(4, 2, 1))


@needs_botorch
def test_a_run_that_averages_is_in_the_units_of_its_data():
    x, y = problem()
    short = ("optimizer.burn_in=20", "optimizer.iterations=40", "optimizer.thin=10")
    options = ("kernel=matern52", "approx=fully_bayesian", "data.test_fraction=0", *short)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of chains that are too short
        fitted = gpx.fit(3.0 * x, 10.0 * y + 5.0, *options, quiet=True, keep=False)
    at = 3.0 * uniform(4, 1, 3, seed=2)
    found = GPXModel(fitted).posterior(at)
    want = fitted.latent(at[:, 0])
    np.testing.assert_allclose(found.mixture_mean.flatten(), want.mean, rtol=1e-6)
    np.testing.assert_allclose(found.mixture_variance.flatten().sqrt(), want.std, rtol=1e-6)
    noisy = GPXModel(fitted).posterior(at, observation_noise=True)
    _, std, *_ = fitted.predict(at[:, 0])
    np.testing.assert_allclose(noisy.mixture_variance.flatten().sqrt(), std, rtol=1e-6)


@needs_botorch
def test_mistakes():
    x, y = problem()
    model = GPXModel(ours().condition(x, y))
    with pytest.raises(ShapeError, match=r"inputs have shape \(3,\), expected \(\.\.\., q, 3\)"):
        model.posterior(x[0])
    with pytest.raises(ShapeError, match=r"Y has shape \(2,\), expected \(\.\.\., 2, 1\)"):
        model.condition_on_observations(x[:2], y[:2])
    with pytest.raises(ConfigError, match=r"takes X, Y and noise, got weights"):
        model.condition_on_observations(x[:2], y[:2, None], weights=1)
    with pytest.raises(ShapeError, match=r"outputs \[1\] were requested"):
        model.posterior(x, output_indices=[1])
    with pytest.raises(ConfigError, match=r"takes the result of gpx.*, or a posterior"):
        GPXModel(ours())
    single = GPXModel(ours(solver="iterative").condition(x, y))
    with pytest.raises(NotAvailable, match="IterativePosterior has no joint covariance"):
        single.posterior(x[:2])
    with pytest.raises(NotAvailable, match="IterativePosterior has no joint covariance"):
        single.condition_on_observations(x[:2], y[:2, None])
    classes = SVGP(
        kernel=ours().kernel,
        mean=ours().mean,
        likelihood=Bernoulli(),
        num_inducing=4,
        num_inputs=3,
        num_data=30,
    ).double()
    classes.initialise(x, (y > 0).double(), generator=torch.Generator().manual_seed(0))
    latent = GPXModel(classes.condition(x, (y > 0).double()), Bernoulli())
    assert latent.posterior(x[:2]).mean.shape == (2, 1)
    with pytest.raises(ConfigError, match=r"needs likelihood=Gaussian.., and this model has Bern"):
        latent.posterior(x[:2], observation_noise=True)
    options = ("data.target_transform=log", *QUICK, "trainer.max_steps=2")
    with pytest.raises(NotAvailable, match="this run has a target transform"):
        GPXModel(gpx.fit(x, y - y.min() + 1.0, *options, quiet=True, keep=False))


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == "botorch":
            raise ImportError("No module named 'botorch'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "gpx.botorch", raising=False)
    if "botorch" in vars(gpx):
        monkeypatch.setattr(gpx, "botorch", gpx.botorch)  # put back what a new import would replace
    with pytest.raises(ImportError, match=r"pip install 'gpx-torch\[botorch\]'"):
        importlib.import_module("gpx.botorch")
