"""The mixture over samples is that of the processes at each of them."""

import copy
import pickle

import pytest
import torch
from torch.distributions import Normal

from gpx.errors import ConfigError
from gpx.inference.sampled_hyperparameters import posterior as module
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant
from gpx.methods.base.hyper_position import HyperPosition
from gpx.models import SGPR, ExactGP, FullyBayesianGP, FullyBayesianSGPR
from gpx.objectives import CollapsedELBO, ExactMLL

SAMPLES = torch.tensor(
    [[-0.5, 0.1, 0.2, -2.0], [0.3, 0.6, -0.3, -3.0], [0.1, -0.4, 0.0, -1.0]]
).double()
"""log lengthscale, log outputscale, mean, log noise."""


def data(seed=0, n=12):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=generator).double() * 4.0
    return x, x.sin()[:, 0] + 0.2 * torch.randn(n, generator=generator).double()


def parts():
    return {"kernel": RBF(), "mean": Constant(), "likelihood": Gaussian(0.1)}


def sampled(samples=SAMPLES):
    model = FullyBayesianGP(**parts()).double()
    model.samples = samples.clone()
    return model


def at(sample):
    """The exact process at one sample."""
    model = ExactGP(**parts()).double()
    log_lengthscale, log_outputscale, constant, log_noise = sample
    model.kernel.lengthscale = log_lengthscale.exp()
    model.kernel.outputscale = log_outputscale.exp()
    model.mean.constant.data.copy_(constant)
    model.likelihood.noise_variance = log_noise.exp()
    return model


def test_samples_are_in_the_order_of_the_names():
    assert sampled().hyper_position().names == [
        *("lengthscale", "outputscale", "constant", "noise_variance")
    ]


def test_predictions_average_those_of_every_sample():
    (x, y), (new, at_new) = data(), data(1, 7)
    posterior, models = sampled().condition(x, y), [at(sample) for sample in SAMPLES]
    each = [model.condition(x, y).predict(new) for model in models]
    mean = torch.stack([part.mean for part in each])
    noise = torch.stack([model.likelihood.noise_variance for model in models]).detach()
    variance = torch.stack([part.variance for part in each])
    found = posterior.predict(new)
    torch.testing.assert_close(found.mean, mean.mean(0))
    torch.testing.assert_close(found.variance, variance.mean(0) + mean.var(0, correction=0))
    law = posterior.predictive(new, Gaussian(0.5).double())  # with the noise of the samples
    logs = Normal(mean, (variance + noise[:, None]).sqrt()).log_prob(at_new)
    torch.testing.assert_close(law.log_prob(at_new), logs.logsumexp(0) - torch.tensor(3.0).log())


def test_the_joint_law_is_that_of_its_draws():
    (x, y), (new, _) = data(), data(1, 3)
    posterior = sampled().condition(x, y)
    covariance = posterior.joint_covariance(new)
    torch.testing.assert_close(covariance.diagonal(), posterior.predict(new).variance)
    draws = posterior.sample(new, 40_000, generator=torch.Generator().manual_seed(0))
    # four standard errors of 40,000 draws
    deviation = covariance.diagonal().sqrt()
    gap = (draws.mean(0) - posterior.predict(new).mean).abs()
    assert bool((gap < 0.02 * deviation).all())
    error = (draws.mT.cov() - covariance).abs() / deviation.outer(deviation)
    assert float(error.max()) < 0.04


def test_paths_are_functions_of_the_mixture():
    (x, y), (new, _) = data(), data(1, 3)
    posterior = sampled().condition(x, y)
    paths = posterior.sample_paths(3000, generator=torch.Generator().manual_seed(0))
    draws = paths(new)
    assert torch.equal(draws, paths(new))
    found = posterior.predict(new)
    assert float(((draws.mean(0) - found.mean) / found.stddev).abs().max()) < 0.1
    assert float((draws.std(0) / found.stddev - 1.0).abs().max()) < 0.1


def test_further_rows_weigh_samples_by_how_well_they_predicted_them():
    """The weights are the ratios of evidences with and without the rows, in either order."""
    (x, y), (more, seen) = data(), data(1, 5)
    posterior = sampled().condition(x, y).with_observations(more, seen, Gaussian(0.3).double())
    whole, targets = torch.cat([x, more]), torch.cat([y, seen])
    mll, logs = ExactMLL(), []
    with torch.no_grad():
        for sample in SAMPLES:
            model = at(sample)
            with_rows = mll.evidence(model, whole, targets).value
            logs.append(with_rows - mll.evidence(model, x, y).value)
    want = torch.stack(logs).softmax(0)
    assert float(want.max() / want.min()) > 1.5
    torch.testing.assert_close(posterior.weights, want)
    each = [at(sample).condition(whole, targets).predict(x).mean for sample in SAMPLES]
    torch.testing.assert_close(posterior.predict(x).mean, want @ torch.stack(each))
    assert posterior.facts()["effective_samples_mixture"] == pytest.approx(
        1.0 / float(want.square().sum())
    )
    split = sampled().condition(x, y).with_observations(more[:2], seen[:2], Gaussian().double())
    split = split.with_observations(more[2:], seen[2:], Gaussian().double())
    torch.testing.assert_close(split.weights, want)


def test_further_rows_of_a_sparse_mixture_weigh_samples_by_the_bound_they_were_drawn_from():
    """The joint density of SGPR's predictions is another one, which depends on the order of rows:
    in two steps the mean was 1 % of a deviation off."""
    (x, y), (more, seen) = data(), data(1, 5)
    sizes = {"num_inputs": 1, "num_inducing": 3}
    model = FullyBayesianSGPR(**parts(), **sizes).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    model.samples = SAMPLES.clone()
    first = RowNoise.of_variances(torch.linspace(0.0, 0.5, 12).double())
    later = RowNoise.of_variances(torch.linspace(0.5, 0.0, 5).double())
    model.know_noise(first)
    posterior, likelihood = model.condition(x, y), Gaussian().double()
    whole, targets = torch.cat([x, more]), torch.cat([y, seen])
    each, gains = SGPR(**parts(), **sizes).double(), []
    each.inducing_points = model.inducing_points
    with torch.no_grad():
        for _ in HyperPosition(each.hyperparameters(), fixed=True).visit(SAMPLES):
            each.know_noise(first)
            before = CollapsedELBO().evidence(each, x, y).value
            each.know_noise(first.concatenated(later))
            gains.append(CollapsedELBO().evidence(each, whole, targets).value - before)
    want = torch.stack(gains).softmax(0)
    found = posterior.with_observations(more, seen, likelihood, later)
    torch.testing.assert_close(found.weights, want)
    split = posterior.with_observations(more[:2], seen[:2], likelihood, later.of(slice(2)))
    split = split.with_observations(more[2:], seen[2:], likelihood, later.of(slice(2, 5)))
    torch.testing.assert_close(split.weights, want)
    torch.testing.assert_close(split.predict(more), found.predict(more))


def test_known_noise_of_rows_counts_in_every_sample_and_in_further_rows():
    (x, y), (more, seen) = data(), data(1, 5)
    first = RowNoise.of_variances(torch.linspace(0.0, 0.5, 12).double())
    later = RowNoise.of_variances(torch.linspace(0.5, 0.0, 5).double())
    model = sampled()
    model.know_noise(first)
    found = model.condition(x, y).with_observations(more, seen, Gaussian().double(), later)
    whole = []
    for sample in SAMPLES:
        one = at(sample)
        one.know_noise(first.concatenated(later))
        posterior = one.condition(torch.cat([x, more]), torch.cat([y, seen]))
        whole.append(posterior.predict(x).mean)
    torch.testing.assert_close(found.predict(x).mean, found.weights @ torch.stack(whole))


def test_weights_of_new_rows_count_in_the_noise_of_every_sample():
    (x, y), (new, _) = data(), data(1, 4)
    posterior = sampled().condition(x, y)
    rows = RowNoise(torch.full((4,), 0.3).double(), torch.tensor([1.0, 0.5, 2.0, 10.0]).double())
    found = posterior.predictive_of_rows(new, Gaussian().double(), rows).variance
    noise = SAMPLES[:, 3].exp().mean()
    want = posterior.predict(new).variance + 0.3 + rows.relative * noise
    torch.testing.assert_close(found, want)


def test_an_empty_posterior_says_so():
    with pytest.raises(ConfigError, match="HyperparameterMixture is empty: load the state"):
        sampled().new_posterior().predict(data()[0])


def test_samples_of_other_hyperparameters_than_are_learned_are_refused():
    model = sampled()
    model.likelihood.requires_grad_(False)
    with pytest.raises(ConfigError, match="has samples of 4 hyperparameters, and 3 are learned"):
        model.condition(*data())


def test_without_room_the_posteriors_are_made_anew(monkeypatch):
    (x, y), (new, _) = data(), data(1, 7)
    kept = sampled().condition(x, y)
    kept.predict(new)
    assert kept._stacked
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    anew = sampled().condition(x, y)
    torch.testing.assert_close(anew.predict(new).mean, kept.predict(new).mean)
    assert anew._kept is None
    assert anew._stacked is False


def test_a_state_and_a_pickle_hold_the_mixture():
    (x, y), (new, _) = data(), data(1, 7)
    posterior = sampled().condition(x, y).with_observations(*data(2, 3), Gaussian().double())
    want = posterior.predict(new)
    loaded = FullyBayesianGP(**parts()).double().new_posterior()
    loaded.load_state_dict(posterior.state_dict())
    for copied in (loaded, pickle.loads(pickle.dumps(posterior)), copy.deepcopy(posterior)):
        assert torch.equal(copied.predict(new).mean, want.mean)
        assert torch.equal(copied.predict(new).variance, want.variance)


def test_hyperparameters_are_reported_with_all_their_samples():
    x, y = data()
    found = sampled().condition(x, y).own_hyperparameters()
    torch.testing.assert_close(found["kernel.lengthscale"].squeeze(), SAMPLES[:, 0].exp())
    torch.testing.assert_close(found["mean.constant"], SAMPLES[:, 2])
    torch.testing.assert_close(found["likelihood.noise_variance"], SAMPLES[:, 3].exp())


def test_before_there_are_samples_the_current_values_count():
    (x, y), (new, _) = data(), data(1, 7)
    model = at(SAMPLES[0])
    without = FullyBayesianGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    torch.testing.assert_close(
        without.condition(x, y).predict(new).mean, model.condition(x, y).predict(new).mean
    )


def test_fixed_hyperparameters_stay_in_every_component():
    x, y = data()
    model = sampled(SAMPLES[:, :3])
    model.likelihood.requires_grad_(False)
    found = model.condition(x, y).own_hyperparameters()
    torch.testing.assert_close(found["likelihood.noise_variance"], torch.full((3,), 0.1).double())
    torch.testing.assert_close(found["kernel.outputscale"], SAMPLES[:, 1].exp())


def test_predictions_are_differentiable_in_the_inputs():
    x, y = data()
    posterior = sampled().condition(x, y)
    new = torch.tensor([[0.5], [2.0]]).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda at: tuple(posterior.predict(at)), new)


def test_draws_and_their_noise_are_of_the_same_samples():
    (x, y), (new, _) = data(), data(1, 5)
    posterior = sampled().condition(x, y)
    posterior.weights = torch.tensor([0.2, 0.3, 0.5]).double()

    def generator():
        return torch.Generator().manual_seed(3)

    noise = posterior.noise_of_draws(4000, generator=generator())
    own = SAMPLES[:, 3].exp()
    shares = torch.stack([(noise - each).abs() < 1e-12 for each in own]).double().mean(1)
    # four standard errors of 4,000 draws
    torch.testing.assert_close(shares, posterior.weights, rtol=0.0, atol=0.032)
    draws = (
        posterior.sample(new, 4000, generator=generator()),
        posterior.sample_paths(4000, generator=generator())(new),
    )
    for f in draws:
        for sample, value in zip(SAMPLES, own, strict=True):
            law = at(sample).condition(x, y).predict(new)
            of_it = f[(noise - value).abs() < 1e-12]
            error = law.variance.sqrt() / len(of_it) ** 0.5
            assert ((of_it.mean(0) - law.mean).abs() < 4.5 * error).all()


@pytest.mark.parametrize(
    "noise", [None, RowNoise(torch.tensor([0.1, 0.2]).double(), torch.ones(2).double())]
)
def test_densities_of_further_rows_are_those_of_the_components(noise, monkeypatch):
    (x, y), (more, seen) = data(), data(1, 2)
    found = sampled().condition(x, y).with_observations(more, seen, Gaussian(), noise)
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    slowly = sampled().condition(x, y).with_observations(more, seen, Gaussian(), noise)
    torch.testing.assert_close(found.weights, slowly.weights, rtol=1e-9, atol=0.0)


def test_rows_that_leave_few_samples_are_warned_of():
    (x, y), (more, seen) = data(), data(1, 1)
    spread = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)).double()
    posterior = sampled(SAMPLES[:1] + 0.3 * spread).condition(x, y)
    for value in (y[:1], seen):  # as expected
        posterior.with_observations(x[:1] if value is not seen else more, value, Gaussian())
    with pytest.warns(UserWarning, match=r"1\.\d of its 40 samples .* train again with all"):
        few = posterior.with_observations(more, seen + 10.0, Gaussian())
    few.with_observations(more, seen + 10.0, Gaussian())  # said once
