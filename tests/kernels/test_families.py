import pytest
import torch

from gpx.bases.fourier.importance_weighted import Proposal
from gpx.errors import ConfigError
from gpx.kernels import RBF, AxisProduct, Matern32, Matern52, RationalQuadratic
from gpx.kernels.families import FAMILIES, resolve_family


@pytest.mark.parametrize("name", FAMILIES)
def test_a_name_and_its_class_are_the_same_family(name):
    assert resolve_family(name) is resolve_family(FAMILIES[name]) is FAMILIES[name]


@pytest.mark.parametrize("wrong", ["cauchy", 3, torch.nn.Linear])
def test_anything_else_is_refused_with_what_there_is(wrong):
    with pytest.raises(ConfigError, match="expected one of same, rbf, matern12"):
        resolve_family(wrong, "same")


def test_a_product_over_axes_takes_classes_and_names_side_by_side():
    x = torch.randn(5, 2, dtype=torch.float64)
    product = AxisProduct([RationalQuadratic, "matern32"], 2).double()
    parts = [RationalQuadratic(active_dims=[0]).double(), Matern32(active_dims=[1]).double()]
    expected = parts[0].evaluate(x, x) * parts[1].evaluate(x, x)
    torch.testing.assert_close(product.evaluate(x, x), expected)


def test_as_many_families_as_axes():
    with pytest.raises(ConfigError, match="2 families for 3 axes"):
        AxisProduct(["rbf", "rbf"], 3)


def test_frequencies_are_proposed_by_a_class():
    proposal = Proposal(family=Matern52).of(RBF(lengthscale=0.5))
    assert isinstance(proposal, Matern52)
    assert proposal.lengthscale.item() == pytest.approx(0.8 * 0.5)
