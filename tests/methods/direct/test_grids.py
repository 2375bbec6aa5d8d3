"""Mixtures of priors over discrete weights: their bound, against a sum over every hypothesis."""

import itertools

import pytest
import torch
from discrete_hypotheses import hypotheses, log_likelihood, problem
from torch.autograd.functional import hessian, jacobian

from gpx.bases import RandomFourier
from gpx.errors import ConfigError, DataError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.direct.grids import effective_log_prior
from gpx.methods.direct.mean_field import total
from gpx.models import Direct, DirectMixture, NoiseGrid, WeightGrid

EXACT = {"rtol": 1e-12, "atol": 1e-12}
OWN = [[0.1, 0.8, 0.1], [0.6, 0.1, 0.3]]


def mixture(shares=(0.3, 0.7)):
    return WeightGrid(values=[-1.5, 0.0, 1.0], probabilities=OWN, shares=shares)


def log_masses(grid, m=4):
    """Log prior of every hypothesis (k^m,), of the mixture and of its components (c, k^m)."""
    each = torch.stack(
        [hypotheses(prior.expand(m, -1), grid.values)[1] for prior in grid.log_components]
    )
    return (grid.log_shares.unsqueeze(1) + each).logsumexp(0), each


def test_the_prior_is_normalised_and_its_marginal_is_the_mean_of_the_components():
    grid = mixture()
    joint, _ = log_masses(grid)
    assert float(joint.exp().sum()) == pytest.approx(1.0, abs=1e-14)
    want = torch.tensor([0.3, 0.7]).double() @ torch.tensor(OWN).double()
    torch.testing.assert_close(grid.log_prior.exp(), want, rtol=1e-6, atol=0.0)


def test_the_bound_is_below_the_expectation_and_above_that_of_jensen():
    grid = mixture()
    *_, log_q, _ = problem(seed=2)
    joint, each = log_masses(grid)
    mass = hypotheses(log_q, grid.values)[1].exp()
    prior, gained = effective_log_prior(log_q.exp(), grid)
    found = float((log_q.exp() @ prior).sum() + gained)
    jensen = float(grid.log_shares.exp() @ (each @ mass))
    assert jensen + 1e-3 < found < float(mass @ joint) - 1e-3


def test_the_bound_is_exact_for_equal_components_and_for_a_single_prior():
    *_, log_q, _ = problem()
    same = WeightGrid(values=[-1.5, 0.0, 1.0], probabilities=[OWN[0], OWN[0]], shares=[1.0, 4.0])
    alone = WeightGrid(values=[-1.5, 0.0, 1.0], probabilities=OWN[0])
    for grid in (same, alone):
        prior, gained = effective_log_prior(log_q.exp(), grid)
        mass = hypotheses(log_q, grid.values)[1].exp()
        got = (log_q.exp() @ prior).sum() + gained
        torch.testing.assert_close(got, mass @ log_masses(grid)[0], **EXACT)


def test_the_middle_of_a_rounded_axis_is_zero():
    grid = WeightGrid(values=torch.linspace(-1.0, 1.0, 15).tolist())
    assert grid.zero == 7
    with pytest.raises(ConfigError, match="needs zero among the values"):
        WeightGrid(values=[-1.0, 1e-4, 1.0])


def data(n=12):
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, generator=draws, dtype=torch.float64) * 4.0 - 2.0
    return x, (2.0 * x[:, 0]).sin() + 0.2 * torch.randn(n, generator=draws, dtype=torch.float64)


def made(x, y, *, cls=Direct, weights=None, **options):
    found = cls(
        kernel=RBF(1, lengthscale=0.7),
        mean=Zero(),
        likelihood=Gaussian(0.05),
        basis=RandomFourier,
        num_basis=4,
        weights=mixture() if weights is None else weights,
        **options,
    ).double()
    found.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return found


def test_the_bound_of_a_model_is_below_its_evidence_and_has_the_right_derivatives():
    x, y = data()
    model = made(x, y)
    draws = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 3, generator=draws, dtype=torch.float64)
    weights, _ = hypotheses(logits, model.values())
    features = (model.basis(x) * model.scale).detach()
    of_data = log_likelihood(features, y, weights, 0.05)
    joint, each = log_masses(model.weights)
    found = model.bound_value(logits)
    assert found < float((of_data + joint).logsumexp(0))

    def enumerated(logits):
        log_mass = hypotheses(logits.log_softmax(-1), model.values())[1]
        mass = log_mass.exp()
        prior = (model.weights.log_shares + each @ mass).logsumexp(0)
        return mass @ of_data + prior - mass @ log_mass

    assert found == pytest.approx(float(enumerated(logits)), rel=1e-12)
    for derivative in (jacobian, hessian):
        slope = derivative(lambda at: total(model.mean_field_terms(at)), logits)
        torch.testing.assert_close(slope, derivative(enumerated, logits), **EXACT)


@pytest.mark.parametrize("cls", [Direct, DirectMixture])
@pytest.mark.parametrize("place", [0, 1])
def test_data_of_nan_are_refused(cls, place):
    rows = data()
    rows[place][3] = torch.inf
    with pytest.raises(DataError, match=r"hold NaN or infinite|1 of 12 targets are not finite"):
        made(*rows, cls=cls)


def test_sweeps_never_lower_the_bound_and_the_components_of_q_average():
    x, y = data()
    model = made(x, y)
    bounds = [model.bound_value()]
    for _ in range(20):
        model.logits.data = model.logits_after_sweep()
        bounds.append(model.bound_value())
    assert all(b - a > -1e-10 for a, b in itertools.pairwise(bounds))
    pair = made(x, y, cls=DirectMixture, components=2)
    pair.logits.data = model.logits.detach().expand(2, -1, -1).clone()
    terms = pair.exact_terms()
    q = model.logits.detach().softmax(-1)
    prior, gained = effective_log_prior(q, model.weights)
    torch.testing.assert_close(terms["prior"].detach(), (q @ prior).sum() + gained, **EXACT)


def test_widths_let_the_data_choose_the_size_of_the_function():
    x, y = data(40)
    fit = {}
    for name, widths in {"small": [0.2], "large": [1.5], "both": [0.2, 1.5]}.items():
        model = made(x, y, weights=WeightGrid(15, 3.0, widths=widths))
        for _ in range(200):
            model.logits.data = model.logits_after_sweep()
        fit[name] = model.bound_value()
    # half the mass of the better size, and all of it
    assert max(fit["small"], fit["large"]) - 0.694 < fit["both"] < max(fit["small"], fit["large"])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: mixture(shares=[1.0]), "each of the 2 priors"),
        (lambda: mixture(shares=[1.0, -1.0]), "each of the 2 priors"),
        (lambda: WeightGrid(3, shares=[0.5, 0.5]), "each of the 1 priors"),
        (lambda: WeightGrid(3, probabilities=[[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]), "small and"),
        (lambda: WeightGrid(3, probabilities=[[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]), "no mass"),
        (lambda: WeightGrid(3, probabilities=[[1.0, 1.0], [1.0, 1.0, 1.0]]), "equally long lists"),
        (lambda: WeightGrid(3, probabilities=[[1.0, 1.0], [1.0, 1.0]]), "2 probabilities for 3"),
        (lambda: WeightGrid(values=[0.0, "x"]), "values=.* is not a list of numbers"),
        (lambda: WeightGrid(values=3.0), "values=3.0 is not a list of numbers"),
        (lambda: NoiseGrid(values=["a"]), "values=.* is not a list of numbers"),
        (lambda: WeightGrid(3, widths="wide"), "widths=wide is not a list of numbers"),
        (lambda: WeightGrid(values=[[-1.0, 0.0], [0.0, 1.0]]), "expected finite numbers"),
        (lambda: WeightGrid(3, widths=[[1.0], [2.0]]), "standard deviations above 0"),
        (lambda: WeightGrid(3, widths=[]), "standard deviations above 0"),
        (lambda: WeightGrid(3, widths=[1.0, 0.0]), "standard deviations above 0"),
        (lambda: WeightGrid(3, widths=[1.0], probabilities=[1.0, 1.0, 1.0]), "leave one out"),
        (lambda: made(*data(), learn_values=True), "choose one of the two"),
        (lambda: NoiseGrid(num_values=2, probabilities=[0.0, 0.0]), "no mass"),
    ],
)
def test_invalid_setups_are_refused(made, words):
    with pytest.raises(ConfigError, match=words) as caught:
        made()
    assert "\n" not in str(caught.value)
