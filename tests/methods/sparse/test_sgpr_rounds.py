"""Inducing points selected anew between optimisations: what is kept, undone, grown, restored."""

import math
import pickle

import pytest
import torch
from draws import draws

from gpx.errors import ConfigError
from gpx.inducing import GreedyConditionalVariance, KMeans
from gpx.kernels import Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.sparse.sgpr_posterior import SGPRPosterior
from gpx.models import SGPR
from gpx.objectives import CollapsedELBO
from gpx.options.config import TrainerConfig
from gpx.training import FirstOrder, Trainer


def data(n=150, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 3.0 * torch.rand(n, 1, generator=generator, dtype=torch.float64)
    y = (2 * x[:, 0]).sin() + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, y


def model(**options):
    return SGPR(
        kernel=Matern32(lengthscale=0.7),
        mean=Zero(),
        likelihood=Gaussian(0.02),
        num_inputs=1,
        **options,
    ).double()


def loss_of(found, x, y):
    with torch.no_grad():
        return -float(CollapsedELBO().evidence(found, x, y).value) / len(x)


def test_a_round_that_lowers_the_bound_is_undone():
    x, y = data()
    found = model(num_inducing=10, reinitialise=3)
    found.initialise(x, y, generator=draws())
    before = {name: value.clone() for name, value in found.state_dict().items()}
    loss = loss_of(found, x, y)
    assert found.next_round(x, y, loss, generator=draws())
    assert "round 2" in found.note
    with torch.no_grad():
        found.inducing_points.mul_(0.05).add_(1.5)  # all in one place: a bad end
        found.likelihood.noise_variance = torch.tensor(1.0, dtype=torch.float64)
    assert not found.next_round(x, y, loss_of(found, x, y), generator=draws())
    assert "undone" in found.note
    for name, value in found.state_dict().items():
        assert torch.equal(value, before[name]), name
    # the optimisation that follows may only gain, and moves nothing
    assert not found.next_round(x, y, loss, generator=draws())
    assert loss_of(found, x, y) == loss


def test_a_better_round_is_kept_and_the_last_selects_nothing():
    x, y = data()
    found = model(num_inducing=10, reinitialise=1)
    found.initialise(x, y, generator=draws())
    assert found.next_round(x, y, 1.0, generator=draws())
    chosen = found.inducing_points.detach().clone()
    assert not found.next_round(x, y, 0.5, generator=draws())
    assert torch.equal(found.inducing_points, chosen)


def test_no_rounds_unless_asked_for():
    x, y = data()
    found = model(num_inducing=10)
    found.initialise(x, y, generator=draws())
    before = found.inducing_points.detach().clone()
    assert found.num_rounds == 1
    assert not found.next_round(x, y, 1.0, generator=draws())
    assert torch.equal(found.inducing_points, before)


@pytest.mark.parametrize("selector", [GreedyConditionalVariance, KMeans])
@pytest.mark.parametrize("stretch", [1.0, 1.0 + 1e-9, 1.0 + 1e-8, 1.0 - 1e-8, 1.01, 1.1])
def test_points_that_others_determine_are_dropped(stretch, selector):
    x, y = data(20)
    x, y = x.repeat(4, 1), y.repeat(4)
    found = model(num_inducing=40, reinitialise=1, selector=selector())
    # the last pivot of the Cholesky factorisation is a rounding error of either sign
    found.kernel.lengthscale = found.kernel.lengthscale.detach() * stretch
    found.initialise(x, y, generator=draws())
    assert len(found.inducing_points) == 20
    assert "20 of 40 inducing points kept" in found.note
    evidence = CollapsedELBO().evidence(found, x, y)
    assert evidence.report.relative == 0.0
    evidence.value.backward()
    assert bool(torch.isfinite(found.inducing_points.grad).all())


def test_automatic_grows_until_certified_and_keeps_what_is():
    x, y = data()
    found = model(num_inducing="auto", reinitialise=2, tolerance=0.1)
    found.initialise(x, y, generator=draws())
    size = len(found.inducing_points)
    assert "inducing points, KL" in found.note
    assert found.kl_upper_bound(x, y) <= 0.1
    found.kernel.lengthscale = torch.tensor(
        0.2, dtype=torch.float64
    )  # as training might: needs more points
    assert found.kl_upper_bound(x, y) > 0.1
    assert found.next_round(x, y, 1.0, generator=draws())
    assert len(found.inducing_points) > size
    assert "selected anew" in found.note
    chosen = found.inducing_points.detach().clone()
    assert not found.next_round(x, y, 1.0, generator=draws())
    assert "certified with" in found.note
    assert torch.equal(found.inducing_points, chosen)
    facts = found.condition(x, y).facts()
    assert facts["certified"]
    assert facts["kl_upper_bound"] <= facts["kl_tolerance"] == 0.1


def test_a_certificate_is_of_the_rows_it_was_made_for_and_not_in_pickles():
    x, y = data(50)
    found = model(num_inducing="auto")
    found.initialise(x, y, generator=draws())
    posterior = found.condition(x, y)
    before = posterior.certificate.certifier.x.clone()
    x.mul_(3.0)
    assert torch.equal(posterior.certificate.certifier.x, before)
    again = pickle.loads(pickle.dumps(posterior))
    assert again.certificate is None
    for got, want in zip(again.predict(x), posterior.predict(x), strict=True):
        assert torch.equal(got, want)


def test_automatic_is_certified_after_the_last_round_too():
    x, y = data()
    found = model(num_inducing="auto", reinitialise=0)
    found.initialise(x, y, generator=draws())
    found.kernel.lengthscale = torch.tensor(0.2, dtype=torch.float64)
    assert not found.next_round(x, y, math.nan, generator=draws())
    assert found.kl_upper_bound(x, y) <= 0.1


def test_automatic_keeps_trained_points_that_selection_does_not_improve():
    x, y = data()
    found = model(num_inducing="auto", max_inducing=4, reinitialise=1)
    found.initialise(x, y, generator=draws())
    assert len(found.inducing_points) == 4
    assert "max_inducing=4 is the limit set" in found.note
    spread = torch.linspace(0.3, 2.7, 4, dtype=torch.float64)[:, None]
    found.place(spread)
    assert found.kl_upper_bound(x, y) > 0.1
    assert not found.next_round(x, y, 1.0, generator=draws())
    torch.testing.assert_close(found.inducing_points.detach(), spread)
    assert "max_inducing=4 is the limit set" in found.note
    assert not found.condition(x, y).facts()["certified"]


def test_a_stopped_run_finds_its_rounds_and_sizes_again():
    x, y = data()
    found = model(num_inducing="auto", reinitialise=1)
    found.initialise(x, y, generator=draws())
    fresh = model(num_inducing="auto", reinitialise=1)
    fresh.load_state_dict(found.state_dict())
    assert torch.equal(fresh.inducing_points, found.inducing_points)
    posterior = found.condition(x, y)
    empty = model(num_inducing="auto", reinitialise=1).new_posterior()
    assert isinstance(empty, SGPRPosterior)
    empty.load_state_dict(posterior.state_dict())
    at = x[:5] + 0.1
    for got, want in zip(empty.predict(at), posterior.predict(at), strict=True):
        assert torch.equal(got, want)

    stopped = model(num_inducing=10, reinitialise=2)
    stopped.initialise(x, y, generator=draws())
    loss = loss_of(stopped, x, y)
    stopped.next_round(x, y, loss, generator=draws())
    resumed = model(num_inducing=10, reinitialise=2)
    resumed.load_state_dict(stopped.state_dict())
    resumed.load_rounds_state(stopped.rounds_state())
    for one in (stopped, resumed):
        assert not one.next_round(x, y, loss + 1.0, generator=draws())
    assert torch.equal(stopped.inducing_points, resumed.inducing_points)


def test_time_that_ends_within_a_round_keeps_the_better_one():
    x, y = data()
    found = model(num_inducing=10, reinitialise=1)
    found.keep_best(1.0)  # nothing to go back to
    found.initialise(x, y, generator=draws())
    before, loss = found.inducing_points.detach().clone(), loss_of(found, x, y)
    found.next_round(x, y, loss, generator=draws())
    trained = found.inducing_points.detach().clone()
    found.keep_best(loss - 0.1)
    assert torch.equal(found.inducing_points, trained)
    found.keep_best(loss + 0.1)
    assert torch.equal(found.inducing_points, before)


def test_a_second_run_of_a_model_knows_no_rounds_of_the_first():
    x, y = data()
    found = model(num_inducing=10, reinitialise=1)
    found.initialise(x, y, generator=draws())
    assert found.next_round(x, y, -5.0, generator=draws())
    assert not found.next_round(x, y, -6.0, generator=draws())
    x, y = data(seed=1)
    found.initialise(x, y, generator=draws())
    placed = found.inducing_points.detach().clone()
    found.keep_best(1.0)  # of a run whose time ends in the first round
    assert torch.equal(found.inducing_points, placed)
    assert found.next_round(x, y, 1.0, generator=draws())


def test_automatic_asks_its_own_selector():
    x, y = data()
    asked = []

    class Counting(GreedyConditionalVariance):
        def select(self, *arguments, **options):
            asked.append(1)
            return super().select(*arguments, **options)

    model(num_inducing="auto", selector=Counting()).initialise(x, y, generator=draws())
    assert asked


def test_a_finished_run_with_points_selected_anew_trains_further(tmp_path):
    """Moments of Adam were of the points before."""
    x, y = data()

    def trained(steps):
        found = model(num_inducing="auto", tolerance=0.1)
        groups = {"inducing": {"lr": 0.02}, "hyperparameters": {"lr": 0.5}}
        optimizer = FirstOrder({name: {"algorithm": "adam", **g} for name, g in groups.items()})
        trainer = Trainer(TrainerConfig(max_steps=steps, dtype="float64"), 0, tmp_path / "c.pt")
        sizes = []

        def start(watch):
            found.initialise(x, y, generator=draws())
            sizes.append(len(found.inducing_points))
            found.tolerance = 1e-6  # asks for more points after the last step

        trainer.fit(found, CollapsedELBO(), optimizer, x, y, dict, start)
        return found, optimizer, sizes

    found, optimizer, (size,) = trained(4)
    assert len(found.inducing_points) != size, found.note
    assert not optimizer.optimisers["inducing"].state
    assert not trained(6)[2]  # goes on, without a start


def test_invalid_setups_are_refused():
    x, y = data()
    with pytest.raises(ConfigError, match="reinitialise=-1 must be at least 0"):
        model(reinitialise=-1)
    with pytest.raises(ConfigError, match=r"tolerance=.* must be positive"):
        model(num_inducing="auto", tolerance=0.0)
    with pytest.raises(ConfigError, match="max_inducing=0 must be at least 1"):
        model(num_inducing="auto", max_inducing=0)
    with pytest.raises(ConfigError, match="max_inducing=-1 must be at least 1"):
        model(num_inducing=4, max_inducing=-1)
    with pytest.raises(ConfigError, match=r"selector=GreedyConditionalVariance\(\), got KMeans"):
        model(num_inducing="auto", selector=KMeans())
    with pytest.raises(ConfigError, match="expected a whole number or the word auto"):
        model(num_inducing="many")
    with pytest.raises(ConfigError, match=r"threshold=0.1 of the selector .* leave one"):
        model(num_inducing="auto", selector=GreedyConditionalVariance(threshold=0.1))
    automatic = model(num_inducing="auto").float()
    assert automatic.settle(x[:20]) == {}
    with pytest.raises(ConfigError, match=r"float32 cannot: set dtype=float64"):
        automatic.settle(x.float())
    with pytest.raises(ConfigError, match=r"float32 cannot: set dtype=float64"):
        automatic.initialise(x.float(), y.float(), generator=draws())
    assert model(num_inducing=5).settle(x.float()) == {}
