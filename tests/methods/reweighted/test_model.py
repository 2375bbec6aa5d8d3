"""The re-weighted basis model: statistics in place of data, online rows, mixtures over samples."""

import math
from functools import partial

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from gpx.bases import GridFeatures, ImportanceWeightedFourier, RandomFourier, TrainingPoints
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.errors import ConfigError, DataError, ShapeError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.linalg.householder import rotation_of
from gpx.means import Constant, Zero
from gpx.methods.reweighted.posterior import ReweightedPosterior
from gpx.models import GRIEF, Reweighted, WeightPriors
from gpx.objectives import EigenfunctionEvidence, ReweightedEvidence

OBJECTIVE = ReweightedEvidence()
GRID = partial(GridFeatures, num_inputs=2, noise_first=False)
IMPORTANCE = partial(ImportanceWeightedFourier, num_inputs=2)
BASES = {
    "grief": {},
    "fitted": {"basis": partial(GridFeatures, num_inputs=2, search_sweeps=1)},
    "fourier": {"basis": RandomFourier},
    "dictionary": {"basis": partial(TrainingPoints, num_inputs=2, num_data=200)},
    "orthogonal": {"structure": "orthogonal"},
    "householder": {"structure": "householder"},
    "importance": {"basis": IMPORTANCE, "priors": None},
    "spread": {"basis": partial(RandomFourier, spread=8.0)},
}


def data(n=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    y = (2.0 * x).sin().sum(1) + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, y


def build(**options):
    defaults = {"num_basis": 30, "priors": WeightPriors(), "inference": "type2"}
    defaults |= {"basis": GRID, "likelihood": Gaussian(0.05)}
    return Reweighted(
        kernel=RBF(2, lengthscale=0.8, outputscale=1.3),
        mean=Constant(),
        **{**defaults, **options},
    ).double()


def problem(n=60, **options):
    model = build(**options)
    x, y = data(n)
    model.initialise(x, y, generator=torch.Generator().manual_seed(1))
    return model, x, y


def sampled(model, count=4):
    """Put ``count`` states around the start into the model."""
    generator = torch.Generator().manual_seed(2)
    k = len(model.position)
    moves = 0.3 * torch.randn(count, k, generator=generator, dtype=torch.float64)
    model.samples = model.position + moves
    return model


@torch.no_grad()
def dense_posterior(model, x, y, at, sample):
    """Function space at one sample, by n x n algebra: mean and variance of f."""
    if model.structure == "householder":
        vectors, values, rank = model.frame, model.form.sums.values, model.frame.shape[1]
        root = vectors / values.sqrt() @ rotation_of(model.form.reflectors(sample[rank:-1]))
        unseen = torch.eye(len(vectors), dtype=torch.float64) - vectors @ vectors.mT
        prior = root * (values * sample[:rank].exp()) @ root.mT
        prior += sample[:rank].exp().mean() * unseen
    elif model.structure == "orthogonal":
        vectors = model.form.sums.vectors
        unseen = torch.eye(len(vectors), dtype=torch.float64) - vectors @ vectors.mT
        prior = vectors * sample[:-1].exp() @ vectors.mT + sample[:-1].exp().mean() * unseen
    else:
        prior = sample[:-1].exp().diag()
        if not model.basis.follows_kernel and hasattr(model.basis, "spread"):
            prior = prior / model.basis.precision_diagonal()
    train, test = model.basis(x), model.basis(at)
    matrix = train @ prior @ train.mT + sample[-1].exp() * torch.eye(len(x), dtype=torch.float64)
    cross = test @ prior @ train.mT
    solve = torch.linalg.solve(matrix, cross.mT)
    mean = model.mean(at) + solve.mT @ (y - model.mean(x))
    return mean, ((test @ prior) * test).sum(1) - (cross * solve.mT).sum(1)


@pytest.mark.parametrize("name", BASES)
def test_type_one_predictive_is_the_average_over_samples(name):
    model, x, y = problem(**BASES[name])
    sampled(model)
    generator = torch.Generator().manual_seed(3)
    at = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    posterior = model.condition(x[:0], y[:0])
    parts = [dense_posterior(model, x, y, at, sample) for sample in model.samples]
    means, variances = (torch.stack(p) for p in zip(*parts, strict=True))
    found = posterior.predict(at)
    torch.testing.assert_close(found.mean, means.mean(0), rtol=1e-7, atol=1e-7)
    want = (variances + means.square()).mean(0) - means.mean(0).square()
    torch.testing.assert_close(found.variance, want, rtol=1e-6, atol=1e-7)
    noise = model.samples[:, -1:].exp()
    y_at = torch.linspace(-2.0, 2.0, 9, dtype=torch.float64)
    density = Normal(means, (variances + noise).sqrt()).log_prob(y_at).exp().mean(0).log()
    law = posterior.predictive(at, model.likelihood)
    torch.testing.assert_close(law.log_prob(y_at), density, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(law.mean, found.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(law.variance, found.variance + noise.mean(), rtol=1e-8, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("structure", ["diagonal", "orthogonal"])
def test_weights_of_one_keep_the_prior_variances_of_the_basis(structure):
    basis = partial(RandomFourier, spread=8.0)
    model, x, y = problem(basis=basis, priors=None, num_basis=60, structure=structure)
    prior = model.basis.precision_diagonal().reciprocal()
    assert float(prior.amax() / prior.amin()) > 10.0
    phi = model.basis(x)
    noise = model.likelihood.noise_variance * torch.eye(len(x), dtype=torch.float64)
    law = MultivariateNormal(model.mean(x), phi * prior @ phi.mT + noise)
    found = OBJECTIVE.evidence(model, x, y).value
    torch.testing.assert_close(found, law.log_prob(y).to(found), rtol=1e-6, atol=1e-6)
    if structure == "diagonal":  # the sums of added and removed rows are of the same functions
        before = model.gram.clone()
        model.add_rows(x, y)
        torch.testing.assert_close(model.gram, 2.0 * before)


@pytest.mark.parametrize(
    ("options", "priors"),
    [
        ({}, WeightPriors()),
        ({"structure": "householder"}, WeightPriors()),
        ({"inference": "type2"}, WeightPriors()),
        ({"inference": "relevance_vectors", **BASES["dictionary"]}, None),
        ({"inference": "type2", "basis": IMPORTANCE}, None),
        ({"inference": "type2", "priors": None}, None),
    ],
)
def test_defaults_can_be_trained(options, priors):
    common = {"kernel": RBF(2), "mean": Zero(), "likelihood": Gaussian()}
    model = Reweighted(**common, **{"num_basis": 20, "basis": GRID, **options}).double()
    assert model.priors == priors
    x, y = data()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    assert bool(OBJECTIVE(model, x, y).isfinite())


def test_the_mean_is_that_of_the_averaged_weights():
    model, x, y = problem(**BASES["grief"])
    posterior = sampled(model).condition(x, y)
    weights = torch.stack([w.mean() for w in posterior.weights()]).mean(0)
    with torch.no_grad():
        want = model.mean(x) + model.basis(x) @ weights
    torch.testing.assert_close(posterior.predict(x).mean, want, rtol=1e-9, atol=1e-9)


def test_paths_have_the_moments_of_the_mixture():
    model, x, y = problem(**BASES["grief"])
    posterior = sampled(model).condition(x, y)
    paths = posterior.sample_paths(20_000, generator=torch.Generator().manual_seed(4))
    drawn, found = paths(x[:5]), posterior.predict(x[:5])
    torch.testing.assert_close(paths(x[:3]), drawn[:, :3], rtol=1e-12, atol=1e-12)
    scale = float(found.variance.max())
    assert float((drawn.mean(0) - found.mean).abs().max()) < 0.04 * math.sqrt(scale)
    assert float((drawn.var(0) - found.variance).abs().max()) < 0.06 * scale


@pytest.mark.parametrize("fixed", [False, True])
def test_paths_factorise_only_the_samples_that_are_drawn(fixed, monkeypatch):
    model, x, y = problem()
    posterior = sampled(model, 30).condition(x, y)
    if fixed:
        posterior.fix()
    numbers, form_of = [], ReweightedPosterior.form_of
    monkeypatch.setattr(
        ReweightedPosterior, "form_of", lambda self, n: numbers.append(n) or form_of(self, n)
    )
    paths = posterior.sample_paths(3, generator=torch.Generator().manual_seed(0))
    assert len(numbers) <= (0 if fixed else 3)
    assert paths(x).shape == (3, 60)
    assert paths(x[:0]).shape == (3, 0)


@pytest.mark.parametrize("name", BASES)
def test_neither_model_nor_posterior_holds_the_data(name):
    model, x, y = problem(61, **BASES[name])
    posterior = sampled(model).condition(x, y)
    before = OBJECTIVE.evidence(model, x, y).value
    x[:], y[:] = math.nan, math.nan
    assert torch.equal(OBJECTIVE.evidence(model, x, y).value, before)
    for module in (model, posterior):
        assert 61 not in {size for t in module.state_dict().values() for size in t.shape}


def test_rows_are_added_and_removed():
    model, x, y = problem(**BASES["grief"])
    more, targets = data(90)
    whole = build(**BASES["grief"])
    whole.load_state_dict(model.state_dict())
    whole.add_rows(more[60:], targets[60:])
    value = OBJECTIVE.evidence(whole, more, targets).value
    batch = build(**BASES["grief"])
    batch.load_state_dict(model.state_dict())
    for start in range(60, 90, 10):
        batch.add_rows(more[start : start + 10], targets[start : start + 10])
    torch.testing.assert_close(OBJECTIVE.evidence(batch, x, y).value, value, rtol=1e-10, atol=0)
    batch.remove_rows(more[60:], targets[60:])
    want = OBJECTIVE.evidence(model, x, y).value
    torch.testing.assert_close(OBJECTIVE.evidence(batch, x, y).value, want, rtol=1e-8, atol=0)
    assert int(batch.totals[1]) == 60
    with pytest.raises(DataError, match="NaN or infinite"):
        batch.add_rows(more[:1], targets[:1] * math.nan)


def test_inputs_of_another_width_than_in_training_are_refused():
    x, y = data()
    model = Reweighted(  # an isotropic kernel's features take any number of columns
        kernel=RBF(),
        mean=Constant(),
        likelihood=Gaussian(0.05),
        basis=RandomFourier,
        num_basis=30,
        inference="type2",
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    posterior = model.condition(x, y)
    loaded = model.new_posterior()
    loaded.load_state_dict(posterior.state_dict())
    for columns in (1, 3):
        for use in (posterior.predict, loaded.predict):
            with pytest.raises(ShapeError, match=f"inputs have {columns} columns.*made for 2"):
                use(x.new_zeros(4, columns))
        for change in (model.add_rows, model.remove_rows):
            with pytest.raises(ShapeError, match=f"inputs have {columns} columns.*made for 2"):
                change(x.new_zeros(4, columns), y[:4])


def test_at_weights_of_one_it_is_grief():
    model, x, y = problem(priors=None)
    other = GRIEF(
        kernel=model.kernel,
        mean=model.mean,
        likelihood=model.likelihood,
        num_inputs=2,
        num_eigenfunctions=30,
        noise_first=False,
    ).double()
    other.initialise(x, y, generator=torch.Generator())
    with torch.no_grad():
        want = EigenfunctionEvidence().evidence(other, x, y).value
        got = OBJECTIVE.evidence(model, x, y).value
    torch.testing.assert_close(got, want, rtol=1e-9, atol=0)
    at = x[:7] + 0.1
    for a, b in zip(
        model.condition(x, y).predict(at), other.condition(x, y).predict(at), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", BASES)
def test_the_state_dict_is_complete(name):
    model, x, y = problem(**BASES[name])
    sampled(model)
    fresh = build(**BASES[name])
    fresh.load_state_dict(model.state_dict())
    with torch.no_grad():
        want = OBJECTIVE.evidence(model, x, y).value
        assert torch.equal(OBJECTIVE.evidence(fresh, x, y).value, want)
    posterior = model.condition(x, y)
    empty = fresh.new_posterior()
    empty.load_state_dict(posterior.state_dict())
    assert torch.equal(empty.predict(x).mean, posterior.predict(x).mean)


@pytest.mark.parametrize("name", ["grief", "orthogonal"])
def test_states_without_frames_load(name):
    model, x, y = problem(**BASES[name])
    posterior = sampled(model).condition(x, y)
    fresh = build(**BASES[name])
    empty = fresh.new_posterior()
    for module, source in ((fresh, model), (empty, posterior)):
        state = source.state_dict()
        del state["frame"]
        module.load_state_dict(state)
        assert "frame" not in state
    # without the frame the eigenvectors are computed again, so predictions agree to rounding
    torch.testing.assert_close(empty.predict(x).mean, posterior.predict(x).mean)
    assert torch.equal(fresh.samples, model.samples)
    turned, _, _ = problem(**BASES["householder"])
    state = turned.state_dict()
    del state["frame"]
    with pytest.raises(RuntimeError, match="frame"):
        build(**BASES["householder"]).load_state_dict(state)


def test_float32_features_keep_double_sums():
    model = build(**BASES["fitted"]).float()
    x, y = (t.float() for t in data())
    model.initialise(x, y, generator=torch.Generator())
    assert model.gram.dtype == model.log_weights.dtype == torch.float64
    wide, wx, wy = problem(**BASES["fitted"])
    got, want = (m.condition(a, b).predict(a).mean for m, a, b in ((model, x, y), (wide, wx, wy)))
    assert got.dtype == torch.float32
    assert float((got.double() - want).abs().max()) < 0.05 * float(want.std())
    OBJECTIVE(model, x, y).backward()
    assert model.log_weights.grad is not None


@torch.no_grad()
def test_in_float32_the_evidence_of_many_rows_at_little_noise_is_that_of_its_features():
    model = build(num_basis=80, likelihood=Gaussian(1e-4)).float()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 2, generator=generator)
    y = (2.0 * x).sin().sum(1) + 0.01 * torch.randn(20_000, generator=generator)
    model.initialise(x, y, generator=torch.Generator())
    features, residual = model.basis(x).double(), (y - model.mean(x)).double()
    found = float(OBJECTIVE.evidence(model, x, y).value)
    model.statistics = SufficientStatistics(
        features.mT @ features, features.mT @ residual, residual @ residual, len(x)
    )
    want = float(OBJECTIVE.evidence(model, x, y).value)
    assert found == pytest.approx(want, abs=1e-3)


def test_importance_weights_learn_the_kernel_from_the_sums():
    """The evidence is that of the re-weighted kernel, and its gradient that of the kernel."""
    model, x, y = problem(basis=IMPORTANCE, priors=None, num_basis=80)
    with torch.no_grad():
        model.kernel.lengthscale = torch.tensor([1.1, 0.9], dtype=torch.float64)
        features = model.basis(x)
        matrix = (features * model.log_variances().exp()) @ features.mT
        matrix += model.likelihood.noise_variance * torch.eye(len(x), dtype=torch.float64)
        want = MultivariateNormal(model.mean(x), matrix).log_prob(y)
    (raw,) = (p for n, p in model.kernel.named_parameters() if "lengthscale" in n)
    assert {id(raw)} < {id(p) for p in model.parameter_groups()["hyperparameters"]}
    value = OBJECTIVE.evidence(model, x, y).value
    torch.testing.assert_close(value.detach(), want, rtol=1e-9, atol=0)
    value.backward()
    slopes = []
    for i in range(2):
        ends = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                raw[i] += step
                ends.append(float(OBJECTIVE.evidence(model, x, y).value))
                raw[i] -= step
        slopes.append((ends[0] - ends[1]) / 2e-5)
    assert raw.grad.tolist() == pytest.approx(slopes, rel=1e-5)
    assert "over-fit" not in model.note
    with torch.no_grad():
        model.kernel.lengthscale = torch.full((2,), 8.0, dtype=torch.float64)
    with pytest.warns(UserWarning, match="frequencies are effective after re-weighting"):
        model.condition(x, y)
    model.condition(x, y)  # says it once, however often it is evaluated; here a warning is an error


def test_noise_starts_at_the_mode_of_its_prior():
    model, _, _ = problem(basis=RandomFourier, priors=WeightPriors(noise_mode=0.2))
    assert float(model.likelihood.noise_variance.detach()) == pytest.approx(0.2)
    assert float(model.hyper_priors[1].mode) == 0.2
    model, _, _ = problem(basis=RandomFourier)
    assert float(model.hyper_priors[1].mode) == pytest.approx(0.05)
    assert "over-fit" in model.note


def test_noise_starts_above_its_floor():
    """The data ask for far less noise than the likelihood allows."""
    model, _, _ = problem(likelihood=Gaussian(0.6, noise_floor=0.5))
    assert float(model.hyper_priors[1].mode) > 0.5
    assert float(model.likelihood.noise_variance.detach()) > 0.5


def test_invalid_setups_are_refused(monkeypatch):
    for option in ("structure", "inference"):
        with pytest.raises(ConfigError, match=rf"{option}=what: expected one of"):
            build(**{option: "what"})
    for name in ("orthogonal", "householder"):
        turned, x, y = problem(**BASES[name])
        for change in (turned.add_rows, turned.remove_rows):
            with pytest.raises(ConfigError, match=f"{name} .* cannot be added or removed"):
                change(x, y)
    model = build()
    monkeypatch.setattr("gpx.linalg.memory.ASKED_FROM", 0)
    monkeypatch.setattr("gpx.linalg.memory.available_memory", lambda device: 8 * 8 * 20**2)
    with pytest.raises(ConfigError, match=r"num_basis=30, .* needs .*use at most 20"):
        model.settle(data()[0])
    common = {"kernel": RBF(2), "mean": Zero(), "likelihood": Gaussian(), "num_inputs": 2}
    with pytest.raises(
        ConfigError,
        match="or a model with form and hyper_priors and is_probit and",
    ):
        OBJECTIVE.check(GRIEF(**common))
