"""Regression on discrete weights: its bound, moments, draws, online updates and refusals."""

import itertools
from functools import partial

import pytest
import torch
from discrete_hypotheses import hypotheses, log_likelihood, sine

from gpx.bases import GridFeatures, InterpolatedGrid, LaplacianEigenfunctions, RandomFourier
from gpx.bases.sufficient_statistics import FittedWeights
from gpx.errors import ConfigError, DidNotConverge
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.methods.direct.mean_field import total
from gpx.models import Direct, NoiseGrid, WeightGrid
from gpx.objectives import DirectELBO
from gpx.training import LBFGSB, CoordinateAscent

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def model(x, y, *, num_basis=20, basis=RandomFourier, **options):
    made = Direct(
        kernel=RBF(1, lengthscale=0.7, outputscale=1.3),
        mean=Constant(0.1),
        likelihood=options.pop("likelihood", Gaussian(0.05)),
        basis=basis,
        num_basis=num_basis,
        **options,
    ).double()
    made.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return made


def test_the_noise_of_the_start_is_above_its_floor():
    x, y = sine()
    likelihood = Gaussian(0.5, noise_floor=0.3)
    made = model(x, y, basis=partial(GridFeatures, num_inputs=1), likelihood=likelihood)
    assert made.likelihood.noise_variance.item() == pytest.approx(1.05 * 0.3)


def slopes(made):
    """Gradients of the bound by the logits of q, and by those of the noise variance."""
    parameters = made.parameter_groups()["variational"]
    return torch.autograd.grad(total(made.mean_field_terms()), parameters)


def by_gradient(made, x, y, evaluations=1000):
    parameters = [p for group in made.parameter_groups().values() for p in group]
    objective, losses = DirectELBO(), []
    LBFGSB(ftol=1e-15, gtol=1e-7).minimise(
        parameters,
        lambda: objective(made, x, y),
        evaluations,
        lambda count, loss, replayed: losses.append(float(loss)),
    )
    return losses


def by_ascent(made, x, y, sweeps=5000, tolerance=1e-11):
    steps = CoordinateAscent(tolerance)
    steps.bind(made, x, 0)
    bounds = []
    while not steps.converged and len(bounds) < sweeps:
        bounds.append(float(steps.step(0, x, y, generator=torch.Generator()).value))
    assert steps.converged
    return bounds


def perturbed(made, seed=1):
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        # in the place of the annealed start, whose weights may be all but certain
        made.logits.copy_(torch.randn(made.logits.shape, generator=draws, dtype=torch.float64))
    return made


BASES = {
    "fourier": RandomFourier,
    "grid": lambda kernel, num_basis: GridFeatures(kernel, num_basis, 1),
    "laplacian": lambda kernel, num_basis: LaplacianEigenfunctions(kernel, num_basis, 1),
}


@pytest.mark.parametrize("name", BASES)
def test_bound_and_moments_are_those_of_all_hypotheses_over_any_basis(name):
    x, y = sine(9)
    made = perturbed(model(x, y, num_basis=4, basis=BASES[name], weights=WeightGrid(3, 1.5)))
    with torch.no_grad():
        deviations = made.basis.precision_diagonal().double().rsqrt()
        features = made.basis(x) * deviations
        log_q = made.logits.log_softmax(-1)
        values, prior = made.weights.values, made.weights.log_prior
        weights, log_mass = hypotheses(log_q, values)
        log_prior = hypotheses(prior.expand_as(log_q), values)[1]
        noise = float(made.likelihood.noise_variance)
        term = log_likelihood(features, y - made.mean(x), weights, noise) + log_prior - log_mass
        got = DirectELBO().evidence(made, x, y).value
        torch.testing.assert_close(got, log_mass.exp() @ term, **EXACT)

        at = torch.linspace(-2.0, 2.0, 5).double().unsqueeze(1)
        latent = made.mean(at) + weights @ (made.basis(at) * deviations).mT
        mean = log_mass.exp() @ latent
        posterior = made.condition(x, y)
        found = posterior.predict(at)
        torch.testing.assert_close(found.mean, mean, **EXACT)
        off = latent - mean
        torch.testing.assert_close(found.variance, log_mass.exp() @ off**2, **EXACT)
        torch.testing.assert_close(posterior.third_cumulant(at), log_mass.exp() @ off**3, **EXACT)
        law = posterior.predictive(at, made.likelihood)
        torch.testing.assert_close(law.variance, found.variance + noise, **EXACT)


def test_the_gradient_of_learned_values_and_noise_passes_finite_differences():
    x, y = sine(9)
    grid = WeightGrid(5, values=[-2.0, -0.5, 0.0, 0.7, 2.2])
    made = perturbed(
        model(x, y, num_basis=4, weights=grid, noise=NoiseGrid(num_values=3), learn_values=True)
    )
    torch.testing.assert_close(made.values().detach(), grid.values, **EXACT)
    # the start is certain of the noise, and the gradient of a certain softmax is zero
    made.noise_logits.data = torch.tensor([0.3, -0.2, 0.1]).double()
    parameters = [made.logits, made.noise_logits, made.log_gaps]
    value = DirectELBO().evidence(made, x, y).value
    gradients = torch.autograd.grad(value, parameters)
    draws = torch.Generator().manual_seed(5)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        way = torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
        ends = []
        for step in (1e-5, -2e-5):
            parameter.data += step * way
            ends.append(float(DirectELBO().evidence(made, x, y).value.detach()))
        parameter.data += 1e-5 * way
        slope = (ends[0] - ends[1]) / 2e-5
        assert float((gradient * way).sum()) == pytest.approx(slope, rel=1e-6)


def test_ascent_never_falls_and_ends_where_the_gradient_vanishes():
    x, y = sine(30)
    made = model(x, y, noise=NoiseGrid(num_values=5))
    bounds = by_ascent(made, x, y)
    assert all(b - a > -1e-9 for a, b in itertools.pairwise(bounds))
    # a sweep that gains eps moves logits by its root
    assert max(float(slope.abs().max()) for slope in slopes(made)) < 1e-4


def test_ascent_progresses_along_valleys_where_sweeps_are_slow():
    x, y = sine(40)
    plain, eager = (model(x, y, num_basis=60) for _ in range(2))
    bounds = by_ascent(eager, x, y, tolerance=1e-4)
    near = bounds[-1] - 0.05
    quick = sum(bound < near for bound in bounds)
    slow = 0
    while plain.bound_value() < near:
        plain.sweep()
        slow += 1
        assert slow < 10 * len(bounds)
    assert quick < 0.6 * slow


def test_on_coarse_grids_annealing_leads_to_a_better_optimum_than_the_prior():
    found = []
    for seed in range(4):
        x, y = sine(40, seed)
        for anneal in (20, 0):
            made = model(x, y, num_basis=60, weights=WeightGrid(5), anneal=anneal)
            made.likelihood.noise_variance = torch.tensor(1e-3).double()
            made.logits.data = made.annealed_logits(anneal)
            by_ascent(made, x, y, tolerance=1e-2)
            found.append(made.bound_value())
    better = [a - b for a, b in zip(found[::2], found[1::2], strict=True)]
    assert min(better) > 0.0


def test_a_gaussian_prior_moves_with_learned_values():
    x, y = sine(30)
    made = model(x, y, num_basis=4, weights=WeightGrid(5, 2.0), learn_values=True)
    before = made.log_prior().detach()
    made.log_gaps.data[0] += 0.7
    values = made.values().detach()
    density = torch.distributions.Normal(0.0, 1.0).log_prob(values).exp()
    now = made.log_prior().detach().exp()
    assert float((now - before.exp()).abs().max()) > 0.01
    torch.testing.assert_close(now, density / density.sum(), **EXACT)


def test_the_record_says_what_a_sweep_would_add():
    x, y = sine(30)
    made = model(x, y, num_basis=6, anneal=0)
    by_gradient(made, x, y)

    def gain():
        return DirectELBO().full_evidence(made, x, y, batch_size=1).facts["sweep_gain"]

    before, promised = made.bound_value(), gain()
    # the gradient has vanished at a corner which is not a maximum
    assert float(slopes(made)[0].abs().max()) < 1e-3
    assert promised > 0.1
    kept = made.logits.detach().clone()
    made.logits.data = made.logits_after_sweep()
    assert made.bound_value() - before == pytest.approx(promised, rel=1e-9)
    # the next round of the search begins where sweeps have led out of the corner
    made.logits.data = kept
    assert made.next_round(x, y, 0.0, generator=torch.Generator())
    assert made.bound_value() > before + promised - 1e-9
    by_ascent(made, x, y)
    assert abs(gain()) < 1e-9


def test_a_round_sweeps_as_long_as_sweeps_gain():
    x, y = sine(30)
    made = model(x, y, num_basis=20, anneal=0)
    kept, bounds = made.logits.detach().clone(), []
    for _ in range(3):
        made.sweep()
        bounds.append(made.bound_value())
    assert all(b - a > 0.01 for a, b in itertools.pairwise(bounds))
    made.logits.data = kept
    made.next_round(x, y, 0.0, generator=torch.Generator())
    assert made.bound_value() > bounds[-1] - 1e-9


def test_a_round_frees_a_noise_variance_that_is_certain_and_wrong():
    x, y = sine(30)
    made = model(x, y, num_basis=6, noise=NoiseGrid(num_values=5))
    by_ascent(made, x, y, tolerance=1e-3)
    best = made.bound_value()
    made.noise_logits.data = torch.tensor([0.0, 0.0, 0.0, 0.0, 800.0]).double()
    assert float(slopes(made)[1].abs().max()) == 0.0
    assert made.next_round(x, y, 0.0, generator=torch.Generator())
    assert made.bound_value() > best - 0.1


def test_learned_values_raise_the_bound_and_keep_zero():
    x, y = sine(30)
    fixed = model(x, y, weights=WeightGrid(3, 1.0))
    by_gradient(fixed, x, y)
    learned = model(x, y, weights=WeightGrid(3, 1.0), learn_values=True)
    by_gradient(learned, x, y)
    assert learned.bound_value() > fixed.bound_value() + 0.1
    posterior = learned.condition(x, y)
    assert posterior.zero == 1
    torch.testing.assert_close(posterior.values, learned.values().detach(), **EXACT)
    assert posterior.sparsity() == learned.sparsity()


def test_the_line_search_rejects_infinite_values():
    x, y = sine(30)
    made = model(x, y, num_basis=4, weights=WeightGrid(3, 1.0), learn_values=True)
    before = made.bound_value()
    objective = DirectELBO()
    with torch.no_grad():
        made.log_gaps += 400.0
    with pytest.raises(DidNotConverge, match="left the range of float64"):
        objective.evidence(made, x, y)
    with torch.no_grad():
        made.log_gaps -= 400.0
    by_gradient(made, x, y)
    assert made.bound_value() > before


def test_on_a_fine_grid_the_mean_is_that_of_the_gaussian_weights():
    x, y = sine(30)
    made = model(x, y, num_basis=4, weights=WeightGrid(401, 8.0))
    by_ascent(made, x, y, tolerance=1e-13)
    exact = FittedWeights(
        made.statistics, torch.ones(4).double(), made.likelihood.noise_variance.detach()
    )
    means = made.logits.detach().softmax(-1) @ made.weights.values
    torch.testing.assert_close(means, exact.mean, rtol=1e-5, atol=1e-5)


def test_rows_that_stream_in_are_those_of_a_batch_and_a_warm_start_needs_fewer_steps():
    x, y = sine(60)
    whole = model(x, y, anneal=0)
    part = model(x[:45], y[:45])
    by_gradient(part, x, y)
    part.add_rows(x[45:], y[45:])
    for name in ("gram", "projected", "totals"):
        torch.testing.assert_close(getattr(part, name), getattr(whole, name), **EXACT)
    losses = [by_gradient(made, x, y) for made in (part, whole)]
    enough = min(map(min, losses)) + 0.03
    evaluations = [next(i for i, loss in enumerate(each) if loss < enough) for each in losses]
    assert evaluations[0] < 0.8 * evaluations[1]
    part.remove_rows(x[45:], y[45:])
    torch.testing.assert_close(part.gram, model(x[:45], y[:45]).gram, **EXACT)
    with pytest.raises(ConfigError, match="cannot be taken"):
        part.remove_rows(x, y)


def test_draws_have_the_frequencies_of_q_and_paths_its_moments():
    x, y = sine(30)
    made = model(x, y, num_basis=6, weights=WeightGrid(5, 2.0))
    by_ascent(made, x, y, tolerance=1e-6)
    posterior = made.condition(x, y)
    num = 40_000
    codes = posterior.sample_codes(num, generator=torch.Generator().manual_seed(2))
    q = posterior.probabilities[0]
    for value in range(5):
        share = (codes == value).double().mean(0)
        # 30 comparisons at 5 standard errors: false alarms below 2e-5
        assert bool(((share - q[:, value]).abs() <= 5.0 * (q[:, value] / num).sqrt()).all())
    zeros = float((codes == posterior.zero).double().mean())
    assert zeros == pytest.approx(posterior.sparsity(), abs=5.0 * 0.5 / (6 * num) ** 0.5)
    paths = posterior.sample_paths(4000, generator=torch.Generator().manual_seed(3))
    drawn, moments = paths(x[:4]), posterior.predict(x[:4])
    assert torch.equal(drawn, paths(x[:4]))
    error = (drawn.mean(0) - moments.mean).abs() / (moments.variance / 4000).sqrt()
    assert float(error.max()) < 5.0


def test_loading_a_posterior_state_does_not_change_the_model():
    x, y = sine(30)
    made = model(x, y, num_basis=4, noise=NoiseGrid(values=[0.1, 0.5]))
    other = model(x, y, num_basis=4, noise=NoiseGrid(values=[0.2, 0.7]))
    made.new_posterior().load_state_dict(other.condition(x, y).state_dict())
    assert made.noise.values.tolist() == [0.1, 0.5]


def test_the_prior_of_fifteen_values_has_the_mass_and_variance_known_for_it():
    grid = WeightGrid()
    prior = grid.log_prior.exp()
    assert float(prior[grid.zero]) == pytest.approx(0.17118, abs=1e-5)
    assert float(prior @ grid.values**2) == pytest.approx(0.98615, abs=1e-5)
    assert model(*sine(30), anneal=0).sparsity() == pytest.approx(0.17118, abs=1e-5)


def test_a_custom_prior_is_normalised_and_its_impossible_values_are_dropped():
    grid = WeightGrid(values=[-1.0, 0.0, 2.0, 3.0], probabilities=[1.0, 2.0, 0.0, 1.0])
    torch.testing.assert_close(grid.values, torch.tensor([-1.0, 0.0, 3.0]).double())
    torch.testing.assert_close(grid.log_prior.exp(), torch.tensor([0.25, 0.5, 0.25]).double())
    uniform = WeightGrid(4, prior="uniform", sparse=False)
    torch.testing.assert_close(uniform.log_prior.exp(), torch.full((4,), 0.25).double())


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: WeightGrid(4), "needs zero among the values"),
        (lambda: WeightGrid(values=[-1.0, 1.0]), "needs zero among the values"),
        (lambda: WeightGrid(values=[0.0, float("nan")]), "expected finite numbers"),
        (lambda: WeightGrid(values=[0.0, float("inf")]), "expected finite numbers"),
        (lambda: WeightGrid(values=[]), "expected finite numbers"),
        (lambda: WeightGrid(values=[1.0, 0.0]), "must ascend without repeats"),
        (lambda: WeightGrid(values=[0.0, 0.0]), "must ascend without repeats"),
        (lambda: WeightGrid(3, probabilities=[0.0, 0.0, 0.0]), "has no mass"),
        (lambda: WeightGrid(3, probabilities=[0.5, -0.1, 0.6]), "negative or not finite"),
        (lambda: WeightGrid(3, probabilities=[0.5, 0.5]), "2 probabilities for 3 values"),
        (lambda: WeightGrid(3, probabilities=[0.5, 0.0, 0.5]), "probabilities= rules the value 0"),
        (lambda: WeightGrid(3, prior="flat"), "prior=flat"),
        (lambda: WeightGrid(0), "num_values=0"),
        (lambda: WeightGrid(2.5, sparse=False), "num_values=2.5: expected a whole number"),
        (
            lambda: model(*sine(30), noise=0.1),
            "noise= is of class float; give a gpx.models.NoiseGrid",
        ),
        (
            lambda: model(*sine(30), weights=NoiseGrid()),
            "weights= is of class NoiseGrid; give a gpx.models.WeightGrid",
        ),
        (lambda: model(*sine(30), restarts=-1), "restarts=-1"),
        (lambda: model(*sine(30), anneal=-1), "anneal=-1"),
        (lambda: NoiseGrid(values=[0.0, 1.0]), "must be positive"),
        (lambda: NoiseGrid(lowest=2.0, highest=1.0), "lowest=2.0"),
        (lambda: CoordinateAscent(0.0), "tolerance=0.0"),
        (lambda: model(*sine(30), weights=WeightGrid(1), learn_values=True), "two values or more"),
        (
            lambda: model(*sine(30), basis=lambda **o: InterpolatedGrid(num_inputs=1, **o)),
            "a prior with correlations",
        ),
        (lambda: model(*sine(30), weights=WeightGrid(2, sparse=False)).sparsity(), "counts zeros"),
    ],
)
def test_invalid_setups_are_refused(made, words):
    with pytest.raises(ConfigError, match=words) as caught:
        made()
    assert "\n" not in str(caught.value)


def test_ascent_refuses_values_that_are_learned():
    x, y = sine(30)
    with pytest.raises(ConfigError, match="no step for the values"):
        CoordinateAscent().check(model(x, y, learn_values=True), len(x))


def test_the_start_leaves_a_fixed_noise_variance():
    x, y = sine()
    likelihood = Gaussian(0.5)
    likelihood.requires_grad_(False)
    made = model(x, y, basis=partial(GridFeatures, num_inputs=1), likelihood=likelihood)
    assert made.likelihood.noise_variance.item() == pytest.approx(0.5)


def test_the_ascent_of_another_run_begins_unconverged():
    x, y = sine()
    made, steps = model(x, y), CoordinateAscent(1e-3)
    steps.gain = 1e-6  # a run before has converged
    steps.bind(made, x, 0)
    assert not steps.converged
    steps.load_state_dict({"gain": 1e-6})
    steps.bind(made, x, 0)
    assert steps.converged


def test_a_single_level_of_annealing_is_at_the_full_noise_precision():
    x, y = sine()
    made = model(x, y)
    logits = made.log_prior().expand(len(made.scale), -1).clone()
    for _ in range(2):
        logits = made.logits_after_sweep(logits)
    torch.testing.assert_close(made.annealed_logits(1), logits, **EXACT)
