"""Subset of data: exact on its rows, exact at M = n, never more certain than all the data."""

import functools

import pytest
import torch

from gpx.errors import ConfigError, DataError, NotAvailable
from gpx.inducing import Given, GreedyConditionalVariance, InformativeVectors, KMeans, Uniform
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian, StudentT
from gpx.means import Constant
from gpx.models import SVGP, ExactGP, SubsetOfData
from gpx.objectives import ExactMLL, SubsetEvidence

SELECTORS = {
    "uniform": Uniform,
    "kmeans": KMeans,
    "greedy": GreedyConditionalVariance,
    "ivm": InformativeVectors,
    "information_gain": lambda: InformativeVectors("information_gain"),
}


def data(n=40):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    y = (2.0 * x).sin().sum(1) + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x, y, x[:15] * 1.2 + 0.1


def parts():
    return {
        "kernel": RBF(2, lengthscale=0.8, outputscale=1.3),
        "mean": Constant(0.2),
        "likelihood": Gaussian(0.1),
    }


def made(selector=None, points=12, **options):
    x, y, new = data()
    model = SubsetOfData(**parts(), num_points=points, selector=selector, **options).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(1))
    return model, x, y, new


def exact(x, y):
    return ExactGP(**parts()).double(), x, y


@pytest.mark.parametrize("name", SELECTORS)
def test_evidence_and_posterior_are_exact_on_the_chosen_rows(name):
    model, x, y, new = made(SELECTORS[name]())
    rows = model.rows
    assert len(rows.unique()) == 12
    other, few, targets = exact(x[rows], y[rows])
    found = SubsetEvidence().evidence(model, x, y)
    want = ExactMLL().evidence(other, few, targets).value
    torch.testing.assert_close(found.value, want, rtol=1e-12, atol=0)
    assert found.kind == "estimate"
    for a, b in zip(
        torch.autograd.grad(found.value, list(model.parameters())),
        torch.autograd.grad(want, list(other.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    mine, theirs = model.condition(x, y).predict(new), other.condition(few, targets).predict(new)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SELECTORS)
def test_all_rows_are_the_exact_process(name):
    model, x, y, new = made(SELECTORS[name](), points=40)
    assert sorted(model.rows.tolist()) == list(range(40))
    other, _, _ = exact(x, y)
    want = ExactMLL().evidence(other, x, y).value
    torch.testing.assert_close(SubsetEvidence().evidence(model, x, y).value, want)
    a, b = model.condition(x, y).predict(new), other.condition(x, y).predict(new)
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_subset_is_never_more_certain_than_all_the_data():
    model, x, y, new = made()
    other, _, _ = exact(x, y)
    few = model.condition(x, y).predict(new).variance
    assert (few > other.condition(x, y).predict(new).variance).all()


def test_a_model_without_rows_is_refused():
    x, y, _ = data()
    model = SubsetOfData(**parts(), num_points=5).double()
    for call in (model.condition, functools.partial(SubsetEvidence().evidence, model)):
        with pytest.raises(ConfigError, match=r"rows have not been chosen; call model.initialise"):
            call(x, y)


def test_a_threshold_decides_on_the_number_of_rows():
    model, x, _, _ = made(GreedyConditionalVariance(threshold=0.3), points=30)
    alone = GreedyConditionalVariance(threshold=0.3).select(x, model.kernel, 30)
    assert torch.equal(model.rows, alone.indices)
    assert len(model.rows) < 30


def test_left_out_predictions_of_a_subset_are_refused():
    model, x, y, _ = made()
    with pytest.raises(NotAvailable, match="of its own rows only"):
        model.condition(x, y).leave_one_out()


def test_rows_nearest_to_centres_and_the_same_row_twice():
    x, y, _ = data()
    x[:30] = x[0]  # clusters fall together
    model = SubsetOfData(**parts(), num_points=12, selector=KMeans()).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(1))
    assert len(model.rows.unique()) == 12


def test_given_points_choose_the_rows_nearest_to_them():
    x, _, _ = data()
    model, _, _, _ = made(Given(x[[3, 8, 20]] + 1e-6), points=3)
    assert model.rows.tolist() == [3, 8, 20]


def test_another_number_of_rows_than_of_given_points_is_refused():
    with pytest.raises(ConfigError, match=r"Given gives 3 points and 1,000 rows .*num_points=3"):
        made(Given(torch.rand(3, 2)), points=1000, num_data=40)


def test_invalid_setups_are_refused():
    x, y, _ = data()
    draws = torch.Generator().manual_seed(0)
    with pytest.raises(ConfigError, match=r"num_points=\S+ must be at least 1"):
        SubsetOfData(**parts(), num_points=0)
    with pytest.raises(ConfigError, match="selector='ivm' is no selector of"):
        SubsetOfData(**parts(), selector="ivm")
    with pytest.raises(DataError, match="41 inducing points were asked for but there are only 40"):
        SubsetOfData(**parts(), num_points=41, selector=InformativeVectors()).double().initialise(
            x, y, generator=draws
        )
    with pytest.raises(ConfigError, match="selector=InformativeVectors chooses by the targets"):
        SVGP(**parts(), num_inputs=2, selector=InformativeVectors())
    model, x, y, _ = made()
    model.likelihood = StudentT().double()
    with pytest.raises(ConfigError, match="needs the Gaussian likelihood, got StudentT"):
        SubsetEvidence().evidence(model, x, y)


def test_a_default_serves_small_data():
    model = SubsetOfData(**parts(), num_points=1000, num_data=40)
    assert model.num_points == 40
    x, _, _ = data()
    settled = {"num_points": (40, "one per training point; 1,000 would be more")}
    assert model.settle(x) == settled
