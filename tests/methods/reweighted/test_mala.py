"""Type-I inference: the chain against its prior, quadrature, and itself."""

import itertools
import math
from functools import partial

import pytest
import scipy.stats
import torch
from claimed_cuda import claimed_cuda
from recordings import FromTheHost, Recorder

from gpx.bases import GridFeatures, RandomFourier
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.errors import CheckpointError, ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.linalg.cholesky import checks_deferred
from gpx.linalg.replayed import EAGER_STEPS
from gpx.means import Zero
from gpx.methods.reweighted.evidence import joint_density
from gpx.models import Reweighted, WeightPriors
from gpx.sampling import effective_sample_size
from gpx.training import MALA, Trainer, TrainerConfig


def model_of(phi, y, priors):
    """A model whose statistics are those of any features."""
    model = Reweighted(
        kernel=RBF(1),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        basis=RandomFourier,
        num_basis=2,
        priors=priors,
    ).double()
    model.statistics = SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, len(y))
    model.totals[2] = 0.1
    k = phi.shape[1]
    model.log_weights.data = torch.zeros(k, dtype=torch.float64)
    model.samples = torch.zeros(0, k + 1, dtype=torch.float64)
    return model


def run(model, steps, x, y, seed=0, **options):
    chain = MALA(**options)
    chain.check(model, len(y))
    chain.check_limit(steps)
    chain.bind(model, x, 0)
    generator = torch.Generator().manual_seed(seed)
    for step in range(chain.max_steps(steps)):
        chain.step(step, x, y, generator=generator)
    return chain


def problem(n=25, m=1):
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(n, m, generator=generator, dtype=torch.float64)
    y = phi.sum(1) + 0.4 * torch.randn(n, generator=generator, dtype=torch.float64)
    return phi, y


def replayed(model, steps, x, y, record):
    """States of a chain whose density is recorded by ``record``, and the chain."""
    chain = MALA(burn_in=10, iterations=20, thin=5)
    chain.replay, chain.record = True, record
    chain.bind(model, x, 0)
    generator, states = torch.Generator().manual_seed(3), []
    for step in range(steps):
        value = chain.step(step, x, y, generator=generator).value
        states.append((float(value), chain.chain.position.tolist()))
    return states, chain


def test_a_chain_on_replays_is_the_chain():
    phi, y = problem(m=2)
    recorder = Recorder()
    found, chain = replayed(model_of(phi, y, WeightPriors()), 25, phi, y, recorder)
    expected, plain = replayed(model_of(phi, y, WeightPriors()), 25, phi, y, None)
    assert found == expected
    assert torch.equal(chain.model.samples, plain.model.samples)
    assert recorder.recordings == 1
    assert recorder.replays == 26 - EAGER_STEPS  # one density at the start, one a step


def test_the_density_makes_no_device_wait_or_host_copy():
    """What a recording would refuse, on tensors that claim to be on CUDA."""
    phi, y = problem(m=2)
    with claimed_cuda() as waits:
        model = model_of(phi, y, WeightPriors()).cuda()
        chain = MALA()
        chain.bind(model, phi.cuda(), 0)
        position = chain.chain.position
        waits.clear()
        with FromTheHost() as seen, checks_deferred() as noted:
            chain._joint(position)
        assert not waits
        assert len(noted) > 0
        assert not seen.names


def test_without_data_the_chain_samples_the_prior():
    """KS tests at 0.1 %: three marginals, false alarms below 0.3 %."""
    nothing = torch.zeros(0, 2, dtype=torch.float64)
    model = model_of(nothing, nothing[:, 0], WeightPriors())
    run(model, 10**6, nothing, nothing[:, 0], burn_in=150, iterations=1200, thin=6)
    weight, noise = model.hyper_priors.weight, model.hyper_priors.noise
    for column, prior in zip(model.samples.mT, (weight, weight, noise), strict=True):
        law = scipy.stats.norm(prior.log_mean, math.sqrt(prior.log_variance))
        assert scipy.stats.kstest(column, law.cdf).pvalue > 1e-3


def test_two_parameters_against_quadrature():
    """Posterior means of log g and log noise within four standard errors of the chain."""
    phi, y = problem()
    model = model_of(phi, y, WeightPriors())
    run(model, 10**6, phi, y, burn_in=200, iterations=1400, thin=4)
    weight, noise = model.hyper_priors.weight, model.hyper_priors.noise
    grid = torch.cartesian_prod(
        torch.linspace(-4.0, 7.0, 300, dtype=torch.float64),
        torch.linspace(-4.5, 1.0, 300, dtype=torch.float64),
    )
    # y under g phi phi^T + s I: one direction of variance g |phi|^2 + s, n - 1 of variance s
    g, s = grid.exp().unbind(1)
    squared, along = phi.square().sum(), (phi[:, 0] @ y).square() / phi.square().sum()
    wide = g * squared + s
    value = -0.5 * (along / wide + wide.log() + (y @ y - along) / s + 24 * s.log())
    for prior, u in ((weight, grid[:, 0]), (noise, grid[:, 1])):
        value = value - 0.5 * (u - prior.log_mean).square() / prior.log_variance
    want = value.softmax(0) @ grid
    sizes = effective_sample_size(model.samples)
    errors = model.samples.std(0) / sizes.sqrt()
    assert bool((sizes > 30).all())
    assert bool(((model.samples.mean(0) - want).abs() < 4 * errors).all())


def test_same_seed_same_chain_whatever_the_data_at_hand():
    phi, y = problem(m=3)
    first, second, third = (model_of(phi, y, WeightPriors()) for _ in range(3))
    options = {"burn_in": 20, "iterations": 40, "thin": 10}
    run(first, 100, phi, y, **options)
    run(second, 100, phi[:0], y[:0], **options)
    run(third, 100, phi, y, seed=1, **options)
    assert torch.equal(first.samples, second.samples)
    assert not torch.equal(first.samples, third.samples)


def test_a_second_chain_replaces_the_samples_of_the_first():
    phi, y = problem(m=3)
    model = model_of(phi, y, WeightPriors())
    options = {"burn_in": 20, "iterations": 40, "thin": 10}
    run(model, 100, phi, y, **options)
    first, there = model.samples, model.position
    model.statistics = model.statistics + SufficientStatistics(
        phi.mT @ phi, phi.mT @ y, y @ y, len(y)
    )
    run(model, 100, phi, y, **options)
    assert model.samples.shape == first.shape == (4, 4)
    assert not torch.equal(model.samples, first)
    torch.testing.assert_close(first[-1], there, rtol=1e-12, atol=0)  # and it goes on from there


def test_acceptance_is_in_the_range_and_facts_say_so():
    phi, y = problem(n=200, m=20)
    model = model_of(phi, y, WeightPriors())
    chain = run(model, 10**6, phi, y, burn_in=200, iterations=300, thin=6)
    facts = chain.final_evidence(phi, y, generator=torch.Generator()).facts
    assert 0.4 <= facts["acceptance"] <= 0.75
    assert facts["num_samples"] == 50
    assert 0 < facts["effective_samples_least"] <= facts["effective_samples_median"] <= 50
    assert chain.learning_rates(0)["acceptance"] == facts["acceptance"]


def test_a_step_that_was_not_adapted_is_a_warning():
    phi, y = problem(n=200, m=20)
    model = model_of(phi, y, WeightPriors())
    chain = MALA(burn_in=0, iterations=20, thin=10)
    chain.bind(model, phi, 0)
    chain.chain.log_step = 3.0
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        chain.step(step, phi, y, generator=generator)
    with pytest.warns(UserWarning, match="accepted 0 % of its proposals after burn-in"):
        chain.final_evidence(phi, y, generator=generator)


def test_the_noise_stays_above_its_floor():
    """The data ask for a variance of 0.16, the likelihood allows none below 0.3."""
    phi, y = problem()
    model = model_of(phi, y, WeightPriors(noise_mode=0.35))
    model.likelihood = Gaussian(0.35, noise_floor=0.3).double()
    run(model, 10**6, phi, y, burn_in=100, iterations=200, thin=2)
    noise = model.samples[:, -1].exp()
    assert float(noise.min()) > 0.3
    assert float(noise.std()) > 0.0
    assert float(model.likelihood.noise_variance.detach()) > 0.3


@pytest.mark.parametrize("seed", [0, 1])
def test_turned_axes_predict_no_worse_than_straight_ones(seed):
    """On random inputs, whose eigenvalues span eight orders of magnitude.

    A prior that turns axes the data see into directions that they hardly see is amplified away
    from the data: errors and variances of many times those of the axes as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    f = (2.0 * x).sin().sum(1)
    y = f + 0.2 * torch.randn(200, generator=generator, dtype=torch.float64)
    found = {}
    for structure in ("orthogonal", "householder"):
        model = Reweighted(
            kernel=RBF(2, lengthscale=0.8, outputscale=1.3),
            mean=Zero(),
            likelihood=Gaussian(0.05),
            basis=partial(GridFeatures, num_inputs=2, noise_first=False),
            num_basis=40,
            structure=structure,
            priors=WeightPriors(),
        ).double()
        model.initialise(x[:100], y[:100], generator=generator)
        run(model, 10**6, x, y, burn_in=200, iterations=600, thin=20)
        at = model.condition(x, y).predict(x[100:])
        error = float((at.mean - f[100:]).square().mean().sqrt())
        found[structure] = error, float(at.variance.mean())
    (error, variance), (turned_error, turned_variance) = found.values()
    assert turned_error < 1.05 * error
    assert turned_variance < 1.2 * variance


def test_invalid_setups_are_refused():
    common = {"kernel": RBF(), "mean": Zero(), "likelihood": Gaussian(), "basis": RandomFourier}
    other = Reweighted(**common, inference="type2")
    with pytest.raises(ConfigError, match="inference=type2: choose inference=type2 with its own"):
        MALA().check(other, 10)
    with pytest.raises(ConfigError, match="at least thin=20"):
        MALA(iterations=10, thin=20)
    with pytest.raises(ConfigError, match=r"max_steps=1 is too few for a chain"):
        MALA().check_limit(1)


@pytest.mark.parametrize(
    ("steps", "options", "burn_in", "kept"),
    [
        (1000, {}, 500, 166),
        (60, {"burn_in": 50, "iterations": 20, "thin": 20}, 30, 1),
        (30, {"burn_in": 0, "iterations": 200, "thin": 40}, 0, 5),
        (2, {}, 1, 1),
    ],
)
def test_a_burn_in_beyond_the_run_is_shortened_with_a_warning(steps, options, burn_in, kept):
    phi, y = problem()
    model = model_of(phi, y, WeightPriors())
    with pytest.warns(UserWarning, match=rf"burn-in takes {burn_in} steps, then every"):
        chain = run(model, steps, phi, y, **options)
    asked = options.get("burn_in", 1000) + options.get("iterations", 10_000)
    assert len(chain.trace) == min(steps, asked) - burn_in  # burn-in's share goes to samples
    assert len(model.samples) == kept


class OfStatistics:
    """Stands in for an objective: the chain makes its steps without one."""

    batching = "full"

    def num_data(self, x):
        return len(x)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def trained_within(budget, folder, monkeypatch, **options):
    seconds = itertools.count()
    phi, y = problem()
    said = []
    with monkeypatch.context() as patch:
        patch.setattr("gpx.training.session.time.perf_counter", lambda: float(next(seconds)))
        config = TrainerConfig(max_steps=100_000, checkpoint_seconds=1e9, budget=budget)
        trainer = Trainer(config, 0, folder / "checkpoint.pt", say=said.append)
        chain = MALA(**options)
        found = trainer.fit(
            model_of(phi, y, WeightPriors()), OfStatistics(), chain, phi, y,
            evaluate=dict, initialise=lambda watch: None,
        )  # fmt: skip
    return found, chain, said


def test_burn_in_ends_where_it_would_take_all_the_time(tmp_path, monkeypatch):
    found, chain, said = trained_within(200.0, tmp_path, monkeypatch, burn_in=10_000)
    assert found.reason.startswith("trainer.budget=200 seconds: ")
    assert found.seconds < 205.0
    assert len(found.cut_short) == 1
    assert found.cut_short[0].startswith(f"burn-in, after {chain.burn_in} of 10000 steps")
    assert any("burn-in, after" in line and "trainer.budget=200" in line for line in said)
    assert 0.4 < chain.burn_in / found.steps < 0.6
    assert chain.thin == 1
    assert len(chain.model.samples) == found.steps - chain.burn_in
    again = MALA(burn_in=10_000)
    again.load_state_dict(found.state["optimizer"])
    assert (again.burn_in, again.thin) == (chain.burn_in, 1)
    # where there is time for burn-in, and for samples, nothing is cut
    options = {"burn_in": 20, "thin": 5, "iterations": 500}
    found, chain, _ = trained_within(200.0, tmp_path / "b", monkeypatch, **options)
    assert (found.cut_short, chain.burn_in, chain.thin) == ((), 20, 5)
    assert "schedule" not in chain.state_dict()


def test_a_chain_that_was_cut_short_goes_on_to_all_its_steps(tmp_path, monkeypatch):
    """With more seconds, or stopped and resumed: as many steps as one that nothing stopped."""
    options = {"burn_in": 150, "iterations": 60, "thin": 5}
    cut, chain, _ = trained_within(100.0, tmp_path, monkeypatch, **options)
    assert cut.steps < 210
    assert chain.burn_in < 100
    found, again, _ = trained_within(1000.0, tmp_path, monkeypatch, **options)
    assert (found.steps, found.reason) == (210, "210 steps of the chain done")
    assert again.burn_in == chain.burn_in
    assert again.thin % chain.thin == 0
    assert len(again.model.samples) == (210 - chain.burn_in) // again.thin
    assert 12 <= len(again.model.samples) < 24  # 60 // 5 were asked for


def test_burn_in_that_max_steps_cut_is_not_taken_up_again(tmp_path, monkeypatch):
    """Samples would be of a chain that is still adapted."""
    phi, y = problem()
    chain = MALA(burn_in=100, iterations=200, thin=10)
    chain.bind(model_of(phi, y, WeightPriors()), phi, 0)
    with pytest.warns(UserWarning, match="max_steps=40 ends before the first sample"):
        assert chain.max_steps(40) == 40
    for step in range(40):
        chain.step(step, phi, y, generator=torch.Generator().manual_seed(step))
    again = MALA(burn_in=100, iterations=200, thin=10)
    again.load_state_dict(chain.state_dict())
    assert again.max_steps(10**6) == 300
    assert (again.burn_in, again.thin) == (chain.burn_in, chain.thin) == (20, 1)


@pytest.mark.parametrize("stop", [100, 57, 61, 64])
def test_a_chain_that_goes_on_keeps_about_as_many_samples_as_asked_for(stop):
    """They are every so many states of the chain, also where it was stopped at any step."""
    phi, y = problem()
    model = model_of(phi, y, WeightPriors())
    options = {"burn_in": 50, "iterations": 80, "thin": 16}
    chain, generator = MALA(**options), torch.Generator().manual_seed(0)
    chain.bind(model, phi, 0)
    with pytest.warns(UserWarning, match="burn-in takes 25 steps, then every 5"):
        assert chain.max_steps(50) == 50
    states = []

    def go_on(first, last):
        for step in range(first, last):
            chain.step(step, phi, y, generator=generator)
            states.append(chain.chain.position.clone())

    go_on(0, stop)
    saved = chain.state_dict()
    chain = MALA(**options)
    chain.load_state_dict(saved)
    chain.bind(model, phi, 0)
    assert chain.max_steps(1000) == 130
    go_on(stop, 130)
    assert chain.thin == 20
    assert torch.equal(model.samples, torch.stack(states[25 + 20 - 1 :: 20]))


def test_another_prior_is_that_of_the_next_chain():
    phi, y = problem()
    model = model_of(phi, y, WeightPriors())
    chain = run(model, 3, phi, y, burn_in=1, iterations=2, thin=1)
    model.priors = WeightPriors(weight_mode=3.0)
    chain.bind(model, phi, 0)
    want = joint_density(model.form, model.hyper_priors, model.position)
    assert float(chain.chain.value) == float(want.likelihood + want.prior)


def test_a_fixed_noise_variance_is_not_sampled():
    phi, y = problem(m=3)
    model = model_of(phi, y, WeightPriors())
    model.likelihood.requires_grad_(False)
    chain = run(model, 300, phi[:, :1], y, burn_in=200, iterations=100, thin=5)
    torch.testing.assert_close(
        model.samples[:, -1].exp(), torch.full_like(model.samples[:, 0], 0.1)
    )
    assert float(model.samples[:, :-1].std(0).min()) > 0.0
    assert float(model.noise_variance) == pytest.approx(0.1, rel=1e-12)
    facts = chain.final_evidence(phi[:, :1], y, generator=torch.Generator()).facts
    assert "effective_samples_noise" not in facts


def test_a_second_model_gets_a_chain_of_its_own():
    phi, y = problem(m=2)
    first = run(model_of(phi, y, WeightPriors()), 30, phi, y, burn_in=10, iterations=20, thin=5)
    chain = MALA(burn_in=10, iterations=20, thin=5)
    chain.load_state_dict(first.state_dict())
    chain.bind(model_of(phi, y, WeightPriors()), phi, 0)
    assert len(chain.trace) == 20
    fresh = model_of(phi, y, WeightPriors())
    chain.bind(fresh, phi, 0)
    assert (chain.trace, chain.accepted) == ([], 0)
    torch.testing.assert_close(chain.chain.position, fresh.position)


def test_a_checkpoint_that_sampled_a_noise_that_is_fixed_is_refused_in_words():
    phi, y = problem(m=3)
    before, after = model_of(phi, y, WeightPriors()), model_of(phi, y, WeightPriors())
    chain = MALA(burn_in=2, iterations=4, thin=1)
    chain.bind(before, phi, 0)
    again = MALA(burn_in=2, iterations=4, thin=1)
    again.load_state_dict(chain.state_dict())
    after.likelihood.requires_grad_(False)
    with pytest.raises(CheckpointError, match="has 4 hyperparameters and the model samples 3"):
        again.bind(after, phi, 0)
