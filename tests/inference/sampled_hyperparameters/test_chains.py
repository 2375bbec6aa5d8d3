"""Chains over hyperparameters have the posterior of hyperparameters as their law."""

import math
import types

import pytest
import torch

from gpx.errors import ConfigError, DidNotConverge, NotPositiveDefinite, ShapeError
from gpx.inducing import Given
from gpx.kernels import RBF, Matern52
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Constant, Zero
from gpx.models import ExactGP, FullyBayesianGP, FullyBayesianSGPR
from gpx.objectives import SVGPELBO, CollapsedELBO, ExactMLL
from gpx.priors import LogNormal, Priors
from gpx.sampling.convergence import bulk_effective_sample_size
from gpx.training import LBFGSB, HamiltonianChains, SubsetInitialisation


def data(n=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=generator).double() * 4.0
    return x, x.sin()[:, 0] + 0.3 * torch.randn(n, generator=generator).double()


def parts():
    return {"kernel": RBF(), "mean": Constant(), "likelihood": Gaussian(0.1)}


def bound(model, x, y, objective=None, seed=0, state=None, **options):
    """Chains of ``model`` at their start, or at a stored state."""
    chains = HamiltonianChains(**options)
    chains.session = types.SimpleNamespace(objective=objective or ExactMLL(), y=y)
    if state is not None:
        chains.load_state_dict(state)
    chains.bind(model, x, seed)
    return chains


def run(model, x, y, steps=None, **options):
    chains = bound(model, x, y, **options)
    generator = torch.Generator().manual_seed(0)
    for step in range(chains.asked if steps is None else steps):
        chains.step(step, x, y, generator=generator)
    return chains


def one_lengthscale():
    """A model of which only the lengthscale is learned."""
    model = FullyBayesianGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian(0.1)).double()
    model.likelihood.requires_grad_(False)
    for name, parameter in model.kernel.named_parameters():
        parameter.requires_grad_("lengthscale" in name)
    return model


@pytest.mark.parametrize("prior", [None, LogNormal(0.3, 1.5)], ids=["weak", "given"])
def test_a_lengthscale_against_its_integral(prior):
    """Mean and deviation of its logarithm by quadrature, within four standard errors."""
    x, y = data()
    model = one_lengthscale()
    if prior is not None:
        model.hyperpriors = Priors({"lengthscale": prior})
    law = LogNormal(2.0, 4.0) if prior is None else prior
    grid, logs = torch.linspace(-4.0, 4.0, 801).double(), []
    with torch.no_grad():
        for u in grid:
            model.kernel.lengthscale = u.exp()
            logs.append(ExactMLL().evidence(model, x, y).value + law.log_prob(u.exp()) + u)
    share = torch.stack(logs).softmax(0)
    want = float(share @ grid)
    deviation = float(share @ (grid - want).square()) ** 0.5
    model.kernel.lengthscale = 1.0
    chains = run(model, x, y, burn_in=60, iterations=300, thin=10)
    states = torch.stack(chains.history)
    size = float(bulk_effective_sample_size(states))
    assert size > 300.0
    assert abs(float(states.mean()) - want) < 4.0 * deviation / math.sqrt(size)
    assert abs(float(states.std()) / deviation - 1.0) < 4.0 / math.sqrt(2.0 * size)
    assert model.samples.shape == (120, 1)


def test_a_noise_variance_that_the_targets_push_to_its_floor_against_its_integral():
    """Half-Cauchy, of values above the floor alone; its law ends there without a wall."""
    x = data()[0]
    model = FullyBayesianGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian(0.1)).double()
    model.kernel.requires_grad_(False)
    y, floor = x.sin()[:, 0], 1.05e-6
    grid, logs = torch.linspace(math.log(floor), 0.0, 20001).double()[1:], []
    with torch.no_grad():
        for u in grid:
            model.likelihood.noise_variance = u.exp()
            prior = -math.log(math.cosh(0.5 * (float(u) - math.log(0.05))))
            logs.append(ExactMLL().evidence(model, x, y).value + prior)
    share = torch.stack(logs).softmax(0)
    model.likelihood.noise_variance = 0.01
    chains = run(model, x, y, burn_in=60, iterations=400, thin=10)
    states = chains.place.above_floors(torch.stack(chains.history))
    size = float(bulk_effective_sample_size(states))
    assert size > 300.0
    levels = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9]).double()
    quantiles = grid[torch.searchsorted(share.cumsum(0), levels)]
    below = (states.flatten()[:, None] < quantiles).double().mean(0)
    assert float(((below - levels).abs() / (levels * (1 - levels) / size).sqrt()).max()) < 4.0


def test_functions_known_without_noise_are_interpolated():
    """With a log-normal prior of the noise the error was thirty times as large."""
    x = torch.linspace(0.0, 4.0, 12)[:, None].double()
    model = FullyBayesianGP(kernel=Matern52(), mean=Constant(), likelihood=Gaussian(0.1)).double()
    chains = run(model, x, x.sin()[:, 0], burn_in=60, iterations=100, thin=10)
    facts = chains.final_evidence(x, x.sin()[:, 0], generator=torch.Generator()).facts
    assert facts["rhat_hyperparameters"] < 1.05
    new = torch.linspace(0.1, 3.9, 50)[:, None].double()
    posterior = model.condition(x, x.sin()[:, 0])
    assert float((posterior.predict(new).mean - new.sin()[:, 0]).abs().max()) < 0.01


def test_sgpr_with_all_rows_as_inducing_points_has_the_law_of_the_exact_process():
    """The collapsed bound is then the evidence: densities and their gradients agree."""
    x, y = data()
    exact = FullyBayesianGP(**parts()).double()
    sparse = FullyBayesianSGPR(
        **parts(), num_inputs=1, num_inducing=20, selector=Given(x), jitter=1e-12, fit_noise=False
    ).double()
    sparse.initialise(x, y, generator=torch.Generator())
    there = exact.hyper_position().read() + 0.3 * torch.tensor([[1.0], [-1.0]]).double()
    there[:, 0] -= 1.5  # a rough process, whose matrix is well conditioned
    of_exact = bound(exact, x, y)._densities(there)
    of_sparse = bound(sparse, x, y, CollapsedELBO())._densities(there)
    for found, want in zip(of_sparse, of_exact, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


def test_inducing_points_stay_in_place():
    x, y = data(30)
    model = FullyBayesianSGPR(
        kernel=RBF(), mean=Constant(), likelihood=Gaussian(0.1), num_inputs=1, num_inducing=6
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    before = model.inducing_points.clone()
    run(model, x, y, objective=CollapsedELBO(), burn_in=5, iterations=5, thin=1, chains=2)
    assert torch.equal(model.inducing_points, before)
    assert len(model.samples) == 10
    assert model.samples.std(0).min() > 0.0


def test_going_on_from_a_checkpoint_is_the_same_chain():
    x, y = data()
    options = {"chains": 3, "burn_in": 8, "iterations": 8, "thin": 2}
    whole = FullyBayesianGP(**parts()).double()
    want = run(whole, x, y, **options)
    for stop in (3, 11):
        model = FullyBayesianGP(**parts()).double()
        generator = torch.Generator().manual_seed(0)
        first = bound(model, x, y, **options)
        for step in range(stop):
            first.step(step, x, y, generator=generator)
        other = FullyBayesianGP(**parts()).double()
        other.load_state_dict(model.state_dict())
        again = bound(other, x, y, state=first.state_dict(), **options)
        for step in range(stop, 16):
            again.step(step, x, y, generator=generator)
        assert torch.equal(other.samples, whole.samples)
        assert torch.equal(torch.stack(again.trace), torch.stack(want.trace))
        assert again.accepted == pytest.approx(want.accepted)


@pytest.mark.parametrize("burn_in", [0, 1, 2, 3])
def test_a_short_burn_in_ends_adaptation(burn_in):
    """Afterwards step size and preconditioner stay, and the model has a state of the chains."""
    x, y = data()
    model = one_lengthscale()
    chains = bound(model, x, y, burn_in=burn_in, iterations=5, thin=1, chains=2)
    generator, sizes, roots = torch.Generator().manual_seed(0), [], []
    for step in range(burn_in + 5):
        chains.step(step, x, y, generator=generator)
        position = chains.place.above_floors(chains.sampler.positions[-1])
        torch.testing.assert_close(model.hyper_position().read(), position)
        sizes.append(chains.sampler.step_size)
        roots.append(float(chains.sampler.root))
    first = max(0, burn_in - 1)
    assert len(set(sizes[first:])) == len(set(roots[first:])) == 1


def test_burn_in_is_not_cut_before_the_step_size_suits_a_new_preconditioner():
    """It is asked to end from the step on in which the preconditioner is learned."""
    x, y = data()
    options = {"chains": 2, "burn_in": 80, "iterations": 60, "thin": 5}
    chains = bound(FullyBayesianGP(**parts()).double(), x, y, **options)
    generator, said = torch.Generator().manual_seed(0), {}
    for step in range(40):
        chains.step(step, x, y, generator=generator)
        if step >= 20:
            said[step + 1] = chains.hurry(step + 1, chains.asked)
    assert [step for step, line in said.items() if line] == [25]
    assert chains.burn_in == 25
    assert chains.sampler.adaptations == 5


@pytest.mark.parametrize("stop", [None, 35, 70])
def test_chains_cut_short_keep_every_so_many_states_as_samples(stop):
    """Thinned less to keep the number of samples, then more as they become too many."""
    x, y = data()
    options = {"chains": 2, "burn_in": 80, "iterations": 60, "thin": 5}
    model = one_lengthscale()
    chains = bound(model, x, y, **options)
    generator, thins = torch.Generator().manual_seed(0), []
    for step in range(chains.asked):
        chains.step(step, x, y, generator=generator)
        if step + 1 == 30:
            assert "after 30 of 80 steps (one step in 2 " in chains.hurry(30, chains.asked)
        if step + 1 == stop:
            kept, model = model.state_dict(), one_lengthscale()
            model.load_state_dict(kept)
            chains = bound(model, x, y, state=chains.state_dict(), **options)
        thins.append(chains.thin)
    # 24 samples of a chain, twice what was asked for, become 12
    assert [thins[step] for step in (28, 29, 76, 77, 139)] == [5, 2, 2, 4, 8]
    states = chains.place.above_floors(torch.stack(chains.history))
    assert states.shape == (110, 2, 1)
    assert torch.equal(model.samples.view(-1, 2, 1), states[7::8])


def test_the_end_reports_the_chains_and_leaves_the_mean_in_the_model():
    x, y = data()
    model = one_lengthscale()
    chains = run(model, x, y, burn_in=40, iterations=100, thin=10)
    evidence = chains.final_evidence(x, y, generator=torch.Generator())
    assert evidence.facts["num_samples"] == 40
    assert evidence.facts["rhat_hyperparameters"] < 1.05
    assert evidence.facts["effective_samples_fit"] > 50
    assert 0.5 < evidence.facts["acceptance"] <= 1.0
    assert "given hyperparameters" in evidence.facts["evidence_of"]
    chains.release()
    torch.testing.assert_close(model.hyper_position().read(), model.samples.mean(0))


def test_values_at_their_floor_are_no_start():
    """A fit may leave the noise at its floor, where gradients vanish: chains start above it."""
    x, y = data()
    model = FullyBayesianGP(**parts()).double()
    model.likelihood.noise_variance = 1.05e-6
    chains = bound(model, x, y)
    assert chains.sampler.values.isfinite().all()
    positions = chains.place.above_floors(chains.sampler.positions)
    assert float(positions[:, -1].exp().min()) > 1.05e-6


def test_a_start_without_an_evidence_is_refused():
    x, y = data()
    model = one_lengthscale()

    class Nowhere(ExactMLL):
        def evidence(self, model, x, y, *, generator=None):
            raise NotPositiveDefinite("nowhere")

    with pytest.raises(DidNotConverge, match="chains cannot start there"):
        bound(model, x, y, Nowhere())


def test_chains_that_start_where_there_is_no_density_start_nearer_the_centre():
    """Half of the draws lie beyond a wall, at which the evidence ends."""
    x, y = data()
    model = one_lengthscale()
    model.kernel.lengthscale = 1.0

    class Walled(ExactMLL):
        def evidence(self, model, x, y, *, generator=None):
            if model.kernel.lengthscale.item() > 1.001:
                raise NotPositiveDefinite("beyond the wall")
            return super().evidence(model, x, y, generator=generator)

    positions = bound(model, x, y, Walled(), chains=8).sampler.positions
    assert float(positions.max()) <= 0.001
    assert float(positions.std()) > 0.05


def test_chains_that_disagree_are_told():
    x, y = data()
    chains = run(one_lengthscale(), x, y, burn_in=0, iterations=6, thin=1, chains=2)
    with pytest.warns(UserWarning, match=r"HamiltonianChains.burn_in and HamiltonianChains.iter"):
        chains.final_evidence(x, y, generator=torch.Generator())


def test_positions_beyond_any_scale_or_without_a_factor_are_impossible():
    x, y = data()

    class Walled(ExactMLL):
        def evidence(self, model, x, y, *, generator=None):
            if model.kernel.lengthscale.item() > 100.0:
                raise NotPositiveDefinite("beyond the wall")
            return super().evidence(model, x, y, generator=generator)

    chains = bound(one_lengthscale(), x, y, Walled())
    there = torch.tensor([[0.0], [60.0], [math.nan], [5.0]]).double()
    values, gradients = chains._densities(there)
    assert values.isfinite().tolist() == [True, False, False, False]
    assert gradients.isfinite().all()


def test_jitter_is_warned_of_at_samples_and_not_on_the_way():
    """At long lengthscales the matrix of all ones has a factor only with a jitter."""
    x, y = data()
    model = FullyBayesianGP(**parts()).double()
    chains = bound(model, x, y)
    place, there = chains.place, chains.sampler.positions[:1].clone()
    there[:, 0], there[:, 1], there[:, -1] = 14.0, 25.0, -20.0
    values, _ = chains._densities(there)  # a warning is an error in tests
    assert bool(values.isfinite().all())
    model.samples = place.above_floors(there)
    with pytest.warns(UserWarning, match="only with a jitter"):
        model.condition(x, y).predict(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("targets", ["noise-free", "constant"])
@pytest.mark.filterwarnings("ignore:float32 has too few digits")
def test_every_chain_moves_where_the_fit_is_degenerate(targets, dtype):
    """Noise or outputscale at its floor: the density falls off by 10^4 nats around the fit."""
    x = torch.linspace(0.0, 1.0, 12)[:, None].to(dtype)
    y = (6.0 * x[:, 0]).sin() if targets == "noise-free" else torch.zeros(12).to(dtype)
    model = FullyBayesianGP(**parts()).to(dtype)
    SubsetInitialisation()(
        model, x, y, generator=torch.Generator().manual_seed(0), say=lambda line: None
    )
    chains = run(model, x, y, burn_in=60, iterations=12, thin=4)
    states = torch.stack(chains.history)
    assert int((states[1:] != states[:-1]).any(-1).sum(0).min()) > 3
    assert float(chains.accepted) > 0.4


def test_gradients_are_those_of_the_density():
    x, y = data()
    model = FullyBayesianGP(**parts()).double()
    model.hyperpriors = Priors({"lengthscale": LogNormal(1.0, 2.0)})
    chains = bound(model, x, y)
    there, step = chains.sampler.positions[:1], 1e-5
    _, gradient = chains._densities(there)
    for k in range(there.shape[1]):
        shift = step * torch.eye(there.shape[1]).double()[k]
        up, down = (chains._densities(there + sign * shift)[0][0] for sign in (1.0, -1.0))
        assert float((up - down) / (2.0 * step)) == pytest.approx(float(gradient[0, k]), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chains": 0}, "chains=0"),
        ({"burn_in": -1}, "burn_in=-1"),
        ({"iterations": 3, "thin": 4}, "iterations=3 must be at least thin=4"),
    ],
)
def test_invalid_options_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        HamiltonianChains(**change)


def test_models_and_objectives_that_it_cannot_sample_are_refused():
    chains, model = HamiltonianChains(), FullyBayesianGP(**parts())
    with pytest.raises(ConfigError, match="samples the hyperparameters of FullyBayesianGP"):
        chains.require_fit(ExactGP(**parts()), ExactMLL(), 20, 100)
    with pytest.raises(ConfigError, match="SVGPELBO is an estimate"):
        chains.require_fit(model, SVGPELBO(20), 20, 100)
    with pytest.raises(ConfigError, match="LBFGSB would maximise what FullyBayesianGP is to"):
        model.check_optimizer(LBFGSB())
    model.hyperpriors = Priors({"lengthscale": torch.distributions.Gamma(torch.ones(3), 1.0)})
    with pytest.raises(ShapeError, match=r"batch of \(3,\) priors"):
        chains.require_fit(model, ExactMLL(), 20, 100)
    model.hyperpriors = None
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="all of them are fixed"):
        chains.require_fit(model, ExactMLL(), 20, 100)
    with pytest.raises(ConfigError, match="give a number"):
        FullyBayesianSGPR(**parts(), num_inputs=1, num_inducing="auto")
    with pytest.raises(ConfigError, match="Gaussian likelihood, got Bernoulli"):
        ExactMLL().check(FullyBayesianGP(kernel=RBF(), mean=Constant(), likelihood=Bernoulli()))
