"""Short trainings that choose between starts: their evidence, state and cost."""

import pytest
import torch

import gpx.methods.eigenfunctions.model as grief
import gpx.methods.eigenfunctions.trial as trial
from gpx.bases import GridEigenfunctions, GridOptions
from gpx.bounds import remember_bounds
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.methods.eigenfunctions.evidence import eigenfunction_evidence
from gpx.models import GRIEF

DOUBLE = torch.float64


def problem(n=60, p=15):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator, dtype=DOUBLE)
    noise = 0.05 * torch.randn(n, generator=generator, dtype=DOUBLE)
    y = 1.0 + (1.5 * x[:, 0]).sin() * x[:, 1] + noise
    kernel = RBF(ard_num_dims=3).double()
    basis = GridEigenfunctions(kernel, 3, p, GridOptions(points_per_dim=6))
    basis.place(x)
    return basis, Constant().double(), Gaussian().double(), x, y


def starts_of(basis):
    def set_to(value):
        like = basis.kernel.lengthscale
        basis.kernel.lengthscale = torch.tensor(value, dtype=like.dtype)

    good, poor = [2.0, 2.0, 50.0], [50.0, 50.0, 2.0]
    return [lambda: set_to(poor), lambda: set_to(good)]


@pytest.mark.parametrize("order", [1, -1])
def test_the_start_whose_training_gets_further_is_taken(order, monkeypatch):
    basis, mean, likelihood, x, y = problem()
    counted = []

    def counting(*args, **options):
        counted.append(1)
        return eigenfunction_evidence(*args, **options)

    monkeypatch.setattr(trial, "eigenfunction_evidence", counting)
    starts = starts_of(basis)[::order]
    best, values = trial.best_start(basis, mean, likelihood, x, y, starts, 15)
    assert best == (1 if order == 1 else 0)
    assert values[best] > values[1 - best] + 0.1
    assert 20 < len(counted) <= 2 * (15 + 20)  # a line search has 20 steps
    # what is left is where that value was found: parameters, mean, noise and choice together
    value, _ = eigenfunction_evidence(
        basis, x, y - mean(x), likelihood.noise_variance, correction=False
    )
    assert float(value.detach()) / 60 == pytest.approx(values[best], abs=1e-12)
    assert mean(x)[0] != 0.0
    parameters = [p for part in (basis, mean, likelihood) for p in part.parameters()]
    # each in memory of its own
    assert len({p.untyped_storage().data_ptr() for p in parameters}) == len(parameters)
    assert (basis.index[:, 2] == 0).sum() > 10  # the functions of the input that does not matter


def test_every_start_begins_with_the_same_mean_and_noise():
    basis, mean, likelihood, x, y = problem()
    starts = starts_of(basis)
    _, both = trial.best_start(basis, mean, likelihood, x, y, starts, 6)
    for which in (0, 1):
        basis, mean, likelihood, *_ = problem()
        start = starts_of(basis)[which]
        _, (alone,) = trial.best_start(basis, mean, likelihood, x, y, [start], 6)
        assert alone == pytest.approx(both[which], abs=1e-12)


def test_training_in_a_trial_keeps_the_bounds_that_are_remembered():
    basis, mean, likelihood, x, y = problem()
    remember_bounds(likelihood, {"noise_variance": (0.5, 0.7)})
    remember_bounds(basis.kernel, {"lengthscale": (3.0, 4.0)})
    trial.best_start(basis, mean, likelihood, x, y, starts_of(basis)[1:], 15)
    assert 0.5 - 1e-9 <= float(likelihood.noise_variance.detach()) <= 0.7 + 1e-9  # else 0.1
    assert float(basis.kernel.lengthscale.min().detach()) >= 3.0 - 1e-9  # starts at 2
    assert float(basis.kernel.lengthscale.max().detach()) <= 4.0 + 1e-9  # starts at 50


def test_the_model_compares_the_search_with_what_it_began_with(monkeypatch):
    _, _, _, x, y = problem()

    def started(**options):
        model = GRIEF(
            kernel=RBF(ard_num_dims=3),
            mean=Constant(),
            likelihood=Gaussian(),
            num_inputs=3,
            num_eigenfunctions=15,
            grid=GridOptions(points_per_dim=6),
            **options,
        ).double()
        model.initialise(x, y, generator=torch.Generator())
        return model

    # 60 points and more than a nat for each: nothing to confirm
    assert "after" not in started(trial_evaluations=2).note
    monkeypatch.setattr(grief, "MAX_TRIAL_GAIN", 1e3)
    model = started(trial_evaluations=2)
    assert "after 10 evaluations" in model.note
    kept = "is kept" in model.note
    first, second = (
        float(word.rstrip(",")) for word in model.note.split("evaluations ")[-1].split()
        if word[0] in "+-"
    )  # fmt: skip
    assert kept == (first >= second)
    searched = started(trial_evaluations=0)
    assert "after" not in searched.note
    plain = started(search_sweeps=0)
    assert "after" not in plain.note  # one start: nothing to compare
    if kept:
        assert torch.equal(model.basis.index, searched.basis.index)
    else:
        assert torch.equal(model.basis.index, plain.basis.index)


class Until:
    """A watch of a start whose time is over after some looks at it."""

    def __init__(self, looks):
        self.looks, self.told = looks, []

    def spent(self):
        self.looks -= 1
        return self.looks < 0

    def cut_short(self, what):
        self.told.append(what)


def test_a_trial_without_time_compares_the_starts_as_they_are():
    basis, mean, likelihood, x, y = problem()
    for looks, count in ((0, 1), (5, 1), (500, 2)):
        watch = Until(looks)
        begun = starts_of(basis)
        best, values = trial.best_start(basis, mean, likelihood, x, y, begun, 15, spent=watch.spent)
        assert len(values) == count
        assert values[best] == max(values)
        value, _ = eigenfunction_evidence(
            basis, x, y - mean(x), likelihood.noise_variance, correction=False
        )
        assert float(value.detach()) / 60 == pytest.approx(values[best], abs=1e-12)


@pytest.mark.parametrize(
    ("looks", "what"),
    [(2, ["the search for lengthscales"]), (10_000, [])],
    ids=["no time", "time enough"],
)
def test_a_start_without_time_is_still_valid(looks, what):
    _, mean, likelihood, x, y = problem()
    model = GRIEF(
        kernel=RBF(ard_num_dims=3), mean=mean, likelihood=likelihood, num_inputs=3,
        num_eigenfunctions=15, grid=GridOptions(points_per_dim=6),
    ).double()  # fmt: skip
    watch = Until(looks)
    model.initialise_watched(x, y, generator=torch.Generator(), watch=watch)
    assert watch.told == what
    marginals = model.condition(x, y).predict(x)
    assert float((marginals.mean - y).square().mean()) < float(y.var())


def test_a_start_leaves_what_is_fixed():
    x = torch.linspace(-2.0, 2.0, 40, dtype=torch.float64)[:, None]
    y = 3.0 * x[:, 0].sin()
    kernel, likelihood = RBF(1, 0.9, 1.3).double(), Gaussian(0.2).double()
    kernel.requires_grad_(False)
    likelihood.requires_grad_(False)
    basis = GridEigenfunctions(kernel, 1, 10, GridOptions(points_per_dim=10))
    basis.place(x)
    assert not basis.factors.learned_lengthscales
    trial.set_scales(basis, likelihood, x, y)
    assert float(kernel.outputscale) == pytest.approx(1.3)
    assert float(likelihood.noise_variance) == pytest.approx(0.2)
    likelihood.requires_grad_(True)
    trial.set_scales(basis, likelihood, x, y)
    assert float(likelihood.noise_variance.detach()) < 0.1
