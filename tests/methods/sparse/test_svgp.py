import math
import pickle

import pytest
import torch
from draws import draws

from gpx.errors import ConfigError, DataError, ShapeError
from gpx.inducing import GreedyConditionalVariance, KMeans, Uniform
from gpx.inference.variational import FullCholesky, MeanField
from gpx.kernels import RBF, Linear, Matern32
from gpx.likelihoods import (
    Bernoulli,
    Gaussian,
    GaussianOutputs,
    Ordinal,
    Poisson,
    Softmax,
    StudentT,
    target_marginals,
)
from gpx.means import Constant, Zero
from gpx.methods.sparse.svgp_elbo import SVGPELBO
from gpx.models import SVGP
from gpx.objectives import Evidence, SampledELBO


def _inputs(n, d=2, seed=0):
    return torch.rand(n, d, generator=draws(seed), dtype=torch.float64) * 4 - 2


def _model(likelihood=None, *, num_inducing=10, dtype=torch.float64, kernel=None, **options):
    return SVGP(
        kernel=kernel or RBF(ard_num_dims=2, lengthscale=1.0),
        mean=options.pop("mean", Zero()),
        likelihood=likelihood or Gaussian(0.1),
        num_inputs=2,
        num_inducing=num_inducing,
        **options,
    ).to(dtype)


def _regression(n=80):
    x = _inputs(n)
    noise = 0.2 * torch.randn(n, generator=draws(1), dtype=torch.float64)
    return x, x[:, 0].sin() + 0.5 * x[:, 1] + noise


def _randomise(model):
    with torch.no_grad():
        for parameter in model.q.parameters():
            shape = parameter.shape
            parameter.add_(0.3 * torch.randn(shape, generator=draws(5)).to(parameter))
    return model


def _train(model, x, y, steps, lr=0.05):
    objective = SVGPELBO(len(x))
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        objective(model, x, y).backward()
        optimiser.step()
    return objective(model, x, y).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("family", [FullCholesky, MeanField])
def test_posterior_agrees_with_the_model_and_survives_its_state_dict(dtype, classes, family):
    x = _inputs(40).to(dtype)
    likelihood = Softmax(classes) if classes > 1 else Bernoulli()
    model = _model(likelihood, mean=Constant(0.3), dtype=dtype, family=family())
    model.initialise(x, torch.zeros(40, dtype=dtype), generator=draws())
    _randomise(model)
    posterior = model.condition(x, x[:, 0])
    with torch.no_grad():
        expected = model.marginals(x)
    found = posterior.predict(x)
    assert found.mean.shape == ((40,) if classes == 1 else (40, 3))
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(found, expected, **tolerance)
    restored = model.new_posterior()
    restored.load_state_dict(posterior.state_dict())
    assert torch.equal(restored.predict(x).mean, found.mean)
    assert not found.mean.requires_grad


def test_posterior_does_not_follow_the_model():
    x, y = _regression()
    model = _model()
    model.initialise(x, y, generator=draws())
    posterior = model.condition(x, y)
    before = posterior.predict(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    after = posterior.predict(x)
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.variance, after.variance)


def test_refit_predicts_with_the_optimal_q_and_leaves_the_model_alone():
    x, y = _regression()
    posteriors = {}
    for refit in (True, False):
        model = _model(refit=refit)
        model.initialise(x, y, generator=draws())
        optimum = model.condition(x, y).predict(x)
        _randomise(model)
        mean = model.q.mean.detach().clone()
        posteriors[refit] = model.condition(x, y).predict(x)
        assert torch.equal(model.q.mean, mean)
    torch.testing.assert_close(posteriors[True].mean, optimum.mean)
    assert not torch.allclose(posteriors[False].mean, optimum.mean, atol=1e-2)
    torch.testing.assert_close(posteriors[False].mean, model.marginals(x).mean.detach())


def test_refit_adds_up_what_chunks_of_rows_give(monkeypatch):
    x, y = _regression()
    model = _model()
    model.initialise(x, y, generator=draws())
    whole = model.condition(x, y).predict(x)
    monkeypatch.setattr("gpx.inference.variational.optimum.SUMS_CHUNK", 7)
    parts = model.condition(x, y).predict(x)
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-10)


def test_the_posterior_says_whether_q_was_refitted():
    x, y = _regression()
    cases = (
        (_model(), "refitted"),
        (_model(refit=False), "as trained"),
        (_model(Bernoulli()), "as trained"),
    )
    for model, said in cases:
        model.initialise(x, y.sign(), generator=draws())
        assert model.condition(x, y.sign()).facts() == {"variational_distribution": said}
        # one read back from a file is made by the model, which may have been set otherwise
        read = _model(refit=said == "as trained").new_posterior()
        state = model.condition(x, y.sign()).state_dict()
        read.load_state_dict(state)
        assert read.facts() == {"variational_distribution": said}
        del state["refitted"]  # of earlier versions
        own = model.new_posterior()
        own.load_state_dict(state)
        assert own.facts() == {"variational_distribution": said}


def test_a_pickle_of_an_earlier_version_loads_states_with_and_without_the_mark():
    x, y = _regression()
    model = _model()
    model.initialise(x, y, generator=draws())
    made = model.condition(x, y)
    state = made.state_dict()
    del made._buffers["refitted"]
    made.__dict__["refitted"] = True  # what it was then
    read = pickle.loads(pickle.dumps(made))
    read.load_state_dict({name: each for name, each in state.items() if name != "refitted"})
    assert read.facts() == {"variational_distribution": "refitted"}
    read.load_state_dict({**state, "refitted": torch.tensor(False)})
    assert read.facts() == {"variational_distribution": "as trained"}


class Tempered(SVGPELBO):
    """No evidence lower bound, though it is made of one."""

    def evidence(self, model, x, y, *, generator=None):
        found = super().evidence(model, x, y)
        return Evidence(found.value - 4.0 * found.parts["complexity"], "estimate")


class Scaled(SVGPELBO):
    """Another loss of the same bound."""

    def loss(self, evidence, model, x):
        return super().loss(evidence, model, x) + evidence.parts["complexity"]


class Renamed(SVGPELBO):
    """The bound itself."""


def test_what_another_objective_trained_is_predicted_with_its_own_q():
    x, y = _regression()
    model = _model()
    model.initialise(x, y, generator=draws())
    _randomise(model)
    own, best = model.marginals(x).mean.detach(), model.condition(x, y).predict(x).mean
    assert float((own - best).abs().max()) > 0.1
    for objective in (Tempered, Scaled):
        trained = objective(len(x)).for_prediction(model, x, y).condition(x, y)
        torch.testing.assert_close(trained.predict(x).mean, own)
        assert trained.facts() == {"variational_distribution": "as trained"}
    for objective in (SVGPELBO, SampledELBO, Renamed):
        assert objective(len(x)).for_prediction(model, x, y) is model
    assert model.refit


@pytest.mark.parametrize("family", [FullCholesky, MeanField])
def test_placed_points_start_from_the_prior(family):
    x, y = _regression()
    model = _model(family=family())
    model.initialise(x, y, generator=draws())
    _randomise(model)
    points = x[: model.inducing.shape[0]] + 0.1
    model.place(points)
    assert torch.equal(model.inducing, points)
    assert model.inducing.requires_grad
    assert model.kl().item() == pytest.approx(0.0, abs=1e-12)
    found = model.marginals(x)
    torch.testing.assert_close(found.mean, model.mean(x))
    torch.testing.assert_close(found.variance, model.kernel.diagonal(x), rtol=1e-9, atol=0.0)
    with pytest.raises(ShapeError, match=r"has 10 inducing points of 2 inputs, .* \(3, 2\)"):
        model.place(x[:3])


def test_prediction_in_chunks(monkeypatch):
    x, y = _regression()
    model = _model()
    model.initialise(x, y, generator=draws())
    posterior = model.condition(x, y)
    whole = posterior.predict(x)
    monkeypatch.setattr("gpx.methods.sparse.svgp_posterior.PREDICT_CHUNK", 7)
    torch.testing.assert_close(posterior.predict(x).mean, whole.mean)
    torch.testing.assert_close(posterior.predict(x).variance, whole.variance)
    assert posterior.predict(x[:0]).mean.shape == (0,)


def test_all_data_as_inducing_points_give_the_exact_posterior():
    x, y = _regression(25)
    model = _model(kernel=Matern32(lengthscale=1.1), num_inducing=25, jitter=0.0)
    model.initialise(x, y, generator=draws())
    test = _inputs(9, seed=3)
    noise = model.likelihood.noise_variance.detach()
    kernel = model.kernel
    k_xx = kernel.evaluate(x).detach() + noise * torch.eye(25, dtype=x.dtype)
    k_xt = kernel.evaluate(x, test).detach()
    weights = torch.linalg.solve(k_xx, k_xt)
    found = model.condition(x, y).predict(test)
    torch.testing.assert_close(found.mean, weights.mT @ y, rtol=1e-6, atol=1e-7)
    exact = kernel.diagonal(test).detach() - (weights * k_xt).sum(0)
    torch.testing.assert_close(found.variance, exact, rtol=1e-6, atol=1e-7)


def test_warm_start_only_raises_the_noise_and_is_stationary_in_q():
    x, y = _regression()
    model = _model(Gaussian(1e-5))
    model.initialise(x, y, generator=draws())
    assert 0.01 < model.likelihood.noise_variance.item() < 0.2  # the truth is 0.04
    noisy = _model(Gaussian(3.0))
    noisy.initialise(x, y, generator=draws())
    assert noisy.likelihood.noise_variance.item() == pytest.approx(3.0)
    cold = _model(warm_start=False)
    cold.initialise(x, y, generator=draws())
    assert cold.kl().item() == 0.0


@pytest.mark.parametrize("selector", [GreedyConditionalVariance, KMeans, Uniform])
def test_initialisation_is_reproducible_and_inside_the_data(selector):
    x, y = _regression()
    points = []
    for _ in range(2):
        model = _model(selector=selector())
        model.initialise(x, y, generator=draws(7))
        points.append(model.inducing.detach().clone())
    assert torch.equal(*points)
    assert (points[0] >= x.min(0).values).all()
    assert (points[0] <= x.max(0).values).all()


def test_fewer_points_than_asked_for_survive_the_state_dict():
    x, y = _regression()
    options = {"num_inducing": 30, "selector": GreedyConditionalVariance(threshold=0.3)}
    model = _model(**options)
    model.initialise(x, y, generator=draws())
    assert len(model.inducing) < 30
    again = _model(**options)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.inducing, model.inducing)


def test_points_start_at_centres_of_clusters():
    x, y = _regression()
    model = _model()
    model.initialise(x, y, generator=draws(7))
    want = KMeans()(x, model.kernel, 10, generator=draws(7))
    assert torch.equal(model.inducing.detach(), want)


def test_sampled_paths_have_the_posterior_moments_and_are_functions():
    x, y = _regression()
    model = _model(mean=Constant(0.5))
    model.initialise(x, y, generator=draws())
    posterior = model.condition(x, y)
    test = _inputs(6, seed=4)
    paths = posterior.sample_paths(4000, generator=draws(2))
    values = paths(test)
    assert values.shape == (4000, 6)
    torch.testing.assert_close(paths(test[2:4]), values[:, 2:4])
    found = posterior.predict(test)
    error = (values.mean(0) - found.mean) / (found.variance / 4000).sqrt()
    assert error.abs().max() < 5
    # 4000 draws leave 2 %, 2048 shared frequencies a few per cent of the prior's residual part
    torch.testing.assert_close(values.var(0), found.variance, rtol=0.2, atol=2e-3)


def test_sampled_paths_of_several_latents():
    x = _inputs(30)
    model = _model(Softmax(3))
    model.initialise(x, x[:, 0], generator=draws())
    posterior = _randomise(model).condition(x, x[:, 0])
    values = posterior.sample_paths(1000, generator=draws(2))(x[:4])
    assert values.shape == (1000, 4, 3)
    found = posterior.predict(x[:4])
    assert ((values.mean(0) - found.mean) / (found.variance / 1000).sqrt()).abs().max() < 5


def test_paths_of_a_kernel_without_spectrum_are_refused():
    x, y = _regression()
    model = _model(kernel=RBF() + Linear())
    model.initialise(x, y, generator=draws())
    with pytest.raises(ConfigError, match="no such spectral representation"):
        model.condition(x, y).sample_paths(1, generator=draws())


def test_parameter_groups_are_a_partition():
    model = _model()
    groups = model.parameter_groups()
    assert set(groups) == {"variational", "inducing", "hyperparameters"}
    ids = [id(p) for group in groups.values() for p in group]
    assert sorted(ids) == sorted(id(p) for p in model.parameters())


def test_number_of_inducing_points_is_capped_by_the_data():
    assert _model(num_inducing=512, num_data=30).inducing.shape == (30, 2)
    assert _model(num_inducing=10, num_data=30).inducing.shape == (10, 2)
    x, y = _regression(20)
    with pytest.raises(DataError, match="only 20 training points"):
        _model(num_inducing=21).initialise(x, y, generator=draws())


def test_invalid_setups_are_refused():
    with pytest.raises(ConfigError, match="family='full' is no variational family"):
        _model(family="full")
    with pytest.raises(ConfigError, match=r"jitter=\S+ must not be negative"):
        _model(jitter=-1.0)
    with pytest.raises(ConfigError, match="must be at least 1"):
        _model(num_inducing=0)
    with pytest.raises(ConfigError, match=r"^num_data=9\.5: expected a whole number$"):
        _model(num_data=9.5)
    with pytest.raises(ShapeError, match="inputs have 3 columns, but it is made for 2"):
        _model().initialise(_inputs(30, 3), _inputs(30)[:, 0], generator=draws())
    with pytest.raises(ConfigError, match="Gaussian likelihood only, not StudentT"):
        _model(StudentT()).fit_variational(_inputs(30), torch.zeros(30))


# --- every likelihood trains -----------------------------------------------------------------


def _score(model, x, y):
    """Mean log predictive density on fresh data."""
    found = model.condition(x, y).predict(x)
    with torch.no_grad():
        return model.likelihood.predictive(*found).log_prob(y).mean().item()


def test_student_t_ignores_outliers():
    x, y = _regression(120)
    dirty = y.clone()
    dirty[::10] += 8.0
    errors = []
    for likelihood in (StudentT(0.3), Gaussian(0.1)):
        model = _model(likelihood, num_inducing=20, warm_start=False)
        model.initialise(x, dirty, generator=draws())
        _train(model, x, dirty, 80)
        clean = model.condition(x, dirty).predict(x).mean - y
        errors.append(clean.square().mean().sqrt().item())
    assert errors[0] < 0.3 < errors[1]


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_bernoulli_learns_a_ring(link):
    x, fresh = _inputs(150), _inputs(100, seed=9)

    def labels(points):
        return torch.where(points.norm(dim=1) < 1.4, 1.0, -1.0).double()

    model = _model(Bernoulli(link), num_inducing=20)
    model.initialise(x, labels(x), generator=draws())
    start = SVGPELBO(150)(model, x, labels(x)).item()
    assert _train(model, x, labels(x), 120) < start - 0.1
    probabilities = model.likelihood.predictive(*model.condition(x, labels(x)).predict(fresh)).probs
    accuracy = ((probabilities > 0.5) == (labels(fresh) > 0)).double().mean().item()
    assert accuracy > 0.9  # the larger class alone gives about 0.6
    assert _score(model, fresh, labels(fresh)) > -0.35  # the share of the classes gives -0.67


def test_poisson_learns_a_rate():
    x = _inputs(200)
    rate = (1.0 + x[:, 0].sin()).exp()
    y = torch.poisson(rate, generator=draws(3))
    model = _model(Poisson(), num_inducing=20, mean=Constant(0.0))
    model.initialise(x, y, generator=draws())
    _train(model, x, y, 120)
    constant = torch.distributions.Poisson(y.mean()).log_prob(y).mean().item()
    assert _score(model, x, y) > constant + 0.3
    found = model.condition(x, y).predict(x).mean
    assert (found - rate.log()).square().mean().sqrt() < 0.25


def test_softmax_learns_three_sectors():
    x, fresh = _inputs(150), _inputs(100, seed=9)

    def labels(points):
        angle = torch.atan2(points[:, 1], points[:, 0])
        return ((angle + math.pi) / (2 * math.pi) * 3).floor().clamp(0, 2)

    model = _model(Softmax(3, num_nodes=12, num_steps=32), num_inducing=20)
    model.initialise(x, labels(x), generator=draws())
    start = SVGPELBO(150)(model, x, labels(x)).item()
    assert start == pytest.approx(math.log(3), abs=0.6)
    _train(model, x, labels(x), 80)
    probabilities = model.likelihood.predictive(*model.condition(x, labels(x)).predict(fresh)).probs
    assert (probabilities.argmax(1) == labels(fresh)).double().mean() > 0.85
    assert _score(model, fresh, labels(fresh)) > -0.6  # the share of the classes gives -1.1


def test_gaussian_trains_from_mini_batches_in_float32():
    x, y = (t.float() for t in _regression(400))
    model = _model(num_inducing=20, dtype=torch.float32)
    model.initialise(x, y, generator=draws())
    objective = SVGPELBO(400)
    start = objective(model, x, y).item()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = draws(4)
    for _ in range(100):
        batch = torch.randint(400, (64,), generator=generator)
        optimiser.zero_grad()
        objective(model, x[batch], y[batch]).backward()
        optimiser.step()
    assert objective(model, x, y).item() < start


def _two_outputs(**options):
    """A model of two outputs at any parameters, the data, and each output modelled alone."""
    x, first = _regression()
    y = torch.stack([first, 2.0 * x[:, 1].cos() - first], 1)
    both = _model(GaussianOutputs(2), mean=Constant(0.3), **options)
    both.initialise(x, y, generator=draws())
    _randomise(both)
    with torch.no_grad():
        both.likelihood.noise_variance = torch.tensor([0.2, 0.7], dtype=torch.float64)
    alone = []
    for place in (0, 1):
        model = _model(both.likelihood.output(place), mean=Constant(0.3), **options)
        state = {
            name: value[place : place + 1] if name.startswith("q.") else value
            for name, value in both.state_dict().items()
            if not name.startswith("likelihood.")
        }
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert not unexpected
        assert all(name.startswith("likelihood.") for name in missing)
        alone.append(model)
    return both, x, y, alone


@pytest.mark.parametrize("refit", [True, False])
@pytest.mark.parametrize("family", [FullCholesky, MeanField])
def test_every_output_is_a_model_of_one_output(family, refit):
    both, x, y, alone = _two_outputs(family=family(), refit=refit)
    singles = [(model, y[:, place]) for place, model in enumerate(alone)]
    objective = SVGPELBO(len(x))
    found = objective.evidence(both, x, y).value
    wanted = [objective.evidence(model, x, target).value for model, target in singles]
    torch.testing.assert_close(found, sum(wanted))
    posterior, new = both.condition(x, y), _inputs(30, seed=3)
    marginals = posterior.predict(new)
    law = target_marginals(posterior.predictive(new, both.likelihood))
    for place, (model, target) in enumerate(singles):
        single = model.condition(x, target)
        expected = single.predict(new)
        torch.testing.assert_close(marginals.mean[:, place], expected.mean)
        torch.testing.assert_close(marginals.variance[:, place], expected.variance)
        torch.testing.assert_close(
            law.stddev[:, place], single.predictive(new, model.likelihood).stddev
        )


def test_every_output_starts_where_it_would_alone():
    both, x, y, alone = _two_outputs()
    both.initialise(x, y, generator=draws())
    for place, model in enumerate(alone):
        model.initialise(x, y[:, place], generator=draws())
        torch.testing.assert_close(
            both.likelihood.noise_variance[place], model.likelihood.noise_variance
        )
        torch.testing.assert_close(both.q.mean[place], model.q.mean[0])
        torch.testing.assert_close(both.q.factor()[place], model.q.factor()[0])


def test_targets_of_several_outputs_that_do_not_fit():
    both, x, y, _ = _two_outputs()
    for bad in (y[:, 0], y[:, :1], torch.cat([y, y], 1), y[:-1], y.mT):
        with pytest.raises(ShapeError, match=r"expected \(80, 2\).*its likelihood 2 outputs"):
            both.condition(x, bad)
        with pytest.raises(ShapeError, match=r"expected \(80, 2\).*its likelihood 2 outputs"):
            SVGPELBO(80).evidence(both, x, bad)


@pytest.mark.parametrize(("num_data", "expected"), [(None, 512), (1, 1), (101, 50), (5000, 512)])
def test_the_number_of_inducing_points_follows_the_rows(num_data, expected):
    parts = {"kernel": RBF(2), "mean": Constant(), "likelihood": Gaussian(), "num_inputs": 2}
    model = SVGP(**parts, num_inducing=None, num_data=num_data)
    assert model.inducing.shape == (expected, 2)
    value, reason = model.settle(torch.zeros(3, 2))["num_inducing"]
    assert value == expected
    assert "half the training points" in reason
    assert SVGP(**parts, num_inducing=9, num_data=num_data or 20).settle(torch.zeros(3, 2)) == (
        {} if num_data != 1 else {"num_inducing": (1, "one per training point; 9 would be more")}
    )


@pytest.mark.parametrize("likelihood", [Ordinal(4), Bernoulli(), Poisson()])
def test_q_starts_near_the_highest_bound(likelihood):
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(25, 1, generator=draws).double() * 6
    f = 2.0 * torch.sin(x[:, 0])
    levels = {"ordinal": (f + 2.0).round().clamp(0, 3), "count": f.exp().round()}
    y = levels.get(likelihood.task, torch.where(f > 0.3, 1.0, -1.0).double())
    kernel, mean = RBF(lengthscale=1.0, outputscale=30.0), Constant(0.5)
    parts = {"kernel": kernel, "mean": mean, "likelihood": likelihood}
    model = SVGP(**parts, num_inputs=1, num_inducing=25, selector=Uniform(), jitter=1e-9).double()
    model.initialise(x, y, generator=draws)
    search = torch.optim.LBFGS(
        list(model.q.parameters()), max_iter=500, line_search_fn="strong_wolfe"
    )
    losses = []

    def loss():
        search.zero_grad()
        value = -SVGPELBO(25).evidence(model, x, y).value
        value.backward()
        losses.append(float(value.detach()))
        return value

    search.step(loss)
    assert min(losses) - 1e-6 <= losses[0] < min(losses) + 0.1


@pytest.mark.parametrize("family", [FullCholesky(), MeanField()])
def test_a_large_outputscale_does_not_start_at_the_prior(family):
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(300, 2, generator=draws)
    y = (x[:, 0] + x[:, 1]).mul(1.5).round().clamp(-2, 2) + 2
    bounds = []
    for warm in (False, True):
        model = SVGP(
            kernel=RBF(lengthscale=2.0, outputscale=400.0),
            mean=Zero(),
            likelihood=Ordinal(5),
            num_inputs=2,
            num_inducing=20,
            family=family,
            warm_start=warm,
        )
        model.initialise(x, y, generator=torch.Generator().manual_seed(1))
        bounds.append(float(SVGPELBO(300).evidence(model, x, y).value.detach()) / 300)
    assert bounds[0] < -8.0
    assert bounds[1] > -2.5


def test_an_optimiser_trains_q_after_a_state_of_another_size_was_loaded():
    x, y = _regression()
    model, other = _model(num_inducing=20), _model(num_inducing=10)
    other.initialise(x, y, generator=draws(0))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    model.load_state_dict(other.state_dict())
    assert model.q.mean.shape == (1, 10)
    before = [parameter.detach().clone() for parameter in model.q.parameters()]
    SVGPELBO(len(x))(model, x, y + 1.0).backward()  # q is at its optimum for y
    optimiser.step()
    moved = zip(model.q.parameters(), before, strict=True)
    assert all(not torch.equal(after, old) for after, old in moved)


def test_gradients_of_points_before_do_not_stop_training_after_a_state_of_another_size():
    x, y = _regression()
    model, other = _model(num_inducing=12), _model(num_inducing=5)
    for each in (model, other):
        each.initialise(x, y, generator=draws(0))
    SVGPELBO(len(x))(model, x, y).backward()
    model.load_state_dict(other.state_dict())
    SVGPELBO(len(x))(model, x, y).backward()
    assert model.inducing.grad.shape == (5, 2)
