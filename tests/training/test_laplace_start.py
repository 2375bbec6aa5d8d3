import copy

import pytest
import torch

from gpx.errors import DidNotConverge
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Poisson, RowNoise, Softmax, StudentT
from gpx.means import Constant, Zero
from gpx.models import QSGP, SVGP, ExpectationPropagationGP, LaplaceGP
from gpx.objectives import LaplaceEvidence
from gpx.priors import Normal, Priors
from gpx.training import SubsetInitialisation, initialisation, laplace_start
from gpx.training.laplace_start import constant_evidence


def problem(likelihood):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 2, generator=generator, dtype=torch.float64) * 4 - 2
    height = torch.sin(2 * x[:, 0])
    y = {
        "binary": height.sign(),
        "multiclass": (height > -0.5).double() + (height > 0.5).double(),
        "count": torch.poisson(height.exp(), generator=generator),
        "regression": height,
    }[likelihood.task]
    model = SVGP(
        kernel=RBF(ard_num_dims=2),
        mean=Constant(),
        likelihood=likelihood,
        num_inputs=2,
        num_data=60,
        num_inducing=10,
    )
    return model, x, y


def start(model, x, y, **options):
    lines = []
    generator = torch.Generator().manual_seed(0)
    SubsetInitialisation(**options)(model, x, y, generator=generator, say=lines.append)
    return lines


def evidence(parts, x, y):
    twin = LaplaceGP(**parts._asdict()).double()
    return float(LaplaceEvidence().evidence(twin, x, y).value.detach())


@pytest.mark.parametrize("likelihood", [Bernoulli(), Softmax(3), Poisson()])
def test_hyperparameters_start_where_laplace_has_its_largest_evidence(likelihood):
    model, x, y = problem(likelihood)
    before = evidence(model.hyperparameters(), x, y)
    lines = start(model, x, y, max_evaluations=60)
    assert "Laplace's approximation on 60 points" in lines[0]
    parts = model.hyperparameters()
    found = evidence(parts, x, y)
    assert found > before + 1.0
    with torch.no_grad():  # a maximum: no nearby outputscale is better
        there = parts.kernel.outputscale.clone()
        for factor in (0.5, 2.0):
            parts.kernel.outputscale = factor * there
            assert evidence(parts, x, y) < found + 1e-3


def test_rows_with_weights_start_there_too():
    model, x, y = problem(Poisson())
    model.know_noise(RowNoise(torch.zeros_like(y), 0.5 + torch.arange(60) % 3))
    before = evidence(model.hyperparameters(), x, y)
    start(model, x, y, max_evaluations=60)
    assert evidence(model.hyperparameters(), x, y) > before + 1.0


def test_of_many_rows_those_of_large_weight_are_taken(monkeypatch):
    model, x, y = problem(Poisson())
    heavy = torch.arange(60) % 2 == 0
    relative = torch.where(heavy, 1.0, 1e12).double()
    model.know_noise(RowNoise(torch.zeros_like(y), relative))
    taken = []
    monkeypatch.setattr(initialisation, "start_by_laplace", lambda _, x, *__: taken.append(x))
    start(model, x, y, num_points=20)
    assert taken[0].shape == (20, 2)
    assert (taken[0].unsqueeze(1) == x[heavy]).all(2).any(1).all()
    assert len(taken[0].unique(dim=0)) == 20


def test_a_prior_of_a_parameter_that_only_the_model_has_is_left_to_training():
    model, x, y = problem(Bernoulli())
    model.hyperpriors = Priors({"inducing": Normal(0.0, 1.0)})
    lines = start(model, x, y, max_evaluations=3)
    assert "Laplace's approximation on 60 points" in lines[0]


@pytest.mark.parametrize("likelihood", [Bernoulli(), Poisson()])
def test_models_in_weight_space_start_at_the_same_kernel(likelihood):
    """That of counts has a level, which is the constant mean of others."""
    _, x, y = problem(likelihood)
    parts = {"kernel": RBF(ard_num_dims=2), "likelihood": likelihood}
    level = Constant() if likelihood.task == "count" else Zero()
    found = []
    for kind, mean, options in (
        (LaplaceGP, level, {}),
        (QSGP, Zero(), {"num_basis": 20, "warm_start_size": 20}),
    ):
        model = kind(**copy.deepcopy(parts), mean=mean, **options)
        start(model, x, y, max_evaluations=30)
        found.append(model.hyperparameters().kernel.outputscale.detach())
    assert torch.equal(*found)
    assert abs(float(found[0]) - 1.0) > 0.1


@pytest.mark.parametrize("asked", [False, True])
def test_a_model_of_ones_own_starts_so_if_it_says_so(asked):
    class Mine(ExpectationPropagationGP):
        starts_by_laplace = asked

    _, x, y = problem(Bernoulli())
    model = Mine(kernel=RBF(ard_num_dims=2), mean=Constant(), likelihood=Bernoulli())
    before = model.kernel.outputscale.clone()
    start(model, x, y, max_evaluations=10)
    assert bool(model.kernel.outputscale != before) is asked


def test_other_likelihoods_stay():
    model, x, y = problem(StudentT())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert "starting from constants" in start(model, x, y)[-1]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_no_evidence_leaves_the_constants_and_says_so(monkeypatch):
    def fails(*_):
        raise DidNotConverge("no mode")

    monkeypatch.setattr(laplace_start.LaplaceEvidence, "evidence", fails)
    model, x, y = problem(Bernoulli())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert "no mode), starting from constants" in start(model, x, y)[-1]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("kind", [SVGP, LaplaceGP])
@pytest.mark.parametrize("likelihood", [Bernoulli(), Softmax(3)])
def test_classes_that_change_fast_are_not_taken_for_chance(likelihood, kind):
    x = 3.5 * torch.rand(120, 1, generator=torch.Generator().manual_seed(0)).double()
    height = torch.sin(18.0 * x[:, 0])
    y = height.sign()
    if likelihood.task == "multiclass":
        y = (height > -0.5).double() + (height > 0.5).double()
    points = {"num_inputs": 1, "num_inducing": 10} if kind is SVGP else {}
    model = kind(kernel=RBF(1), mean=Constant(), likelihood=likelihood, **points).double()
    lines = start(model, x, y, max_evaluations=40)
    assert sum("hardly better than noise" in line for line in lines) in (1, 2)
    parts = model.hyperparameters()
    assert evidence(parts, x, y) > constant_evidence(likelihood, y) + 20.0
    assert parts.kernel.lengthscale.item() < 0.3


@pytest.mark.parametrize("likelihood", [Bernoulli(), Softmax(3), Poisson()])
def test_the_evidence_of_a_constant_is_that_of_the_shares_or_the_mean(likelihood):
    _, _, y = problem(likelihood)
    if likelihood.task == "count":
        want = torch.distributions.Poisson(y.mean()).log_prob(y).sum()
    else:
        shares = y.unique(return_counts=True)[1] / len(y)
        want = len(y) * (shares * shares.log()).sum()
    assert constant_evidence(likelihood, y) == pytest.approx(float(want), rel=1e-6)


def test_chance_stays_chance():
    model, x, y = problem(Bernoulli())
    y = torch.randn(60, generator=torch.Generator().manual_seed(2)).double().sign()
    lines = start(model, x, y, max_evaluations=40)
    assert sum("another fit" in line for line in lines) == 2
    parts = model.hyperparameters()
    assert evidence(parts, x, y) < constant_evidence(parts.likelihood, y) + 5.0


def test_more_latent_functions_take_fewer_rows():
    assert laplace_start.laplace_rows(Bernoulli()) == 500
    assert 8 * laplace_start.laplace_rows(Softmax(8)) ** 3 <= 500**3
