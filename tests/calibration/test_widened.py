"""Laws made wider about their mean."""

import pytest
import torch
from torch.distributions import Categorical, Laplace, MixtureSameFamily, Normal, StudentT

from gpx.calibration.intervals import widened
from gpx.errors import ConfigError
from gpx.likelihoods.quantiles import cdf

pytestmark = pytest.mark.usefixtures("float64_by_default")

LAWS = {
    "normal": Normal(torch.tensor([1.0]), torch.tensor([0.5])),
    "laplace": Laplace(torch.tensor([1.0]), torch.tensor([0.5])),
    "student": StudentT(3.0, torch.tensor([1.0]), torch.tensor([0.5])),
    "without a mean": StudentT(1.0, torch.tensor([1.0]), torch.tensor([0.5])),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_probabilities_are_those_of_the_law_further_out(name, factor):
    law = LAWS[name]
    found = widened(law, torch.tensor(factor))
    assert type(found) is type(law)
    for at in (-2.0, -0.1, 0.0, 1.5):
        gap = torch.tensor([at])
        torch.testing.assert_close(cdf(found, law.loc + factor * gap), cdf(law, law.loc + gap))


def test_a_skewed_mixture_keeps_mean_and_shape():
    shares = Categorical(probs=torch.tensor([[0.8, 0.2]]))
    law = MixtureSameFamily(shares, Normal(torch.tensor([[0.0, 3.0]]), torch.tensor([[0.2, 1.0]])))
    found = widened(law, torch.tensor(2.0))
    torch.testing.assert_close(found.mean, law.mean)
    torch.testing.assert_close(found.variance, 4.0 * law.variance)
    at = torch.tensor([-1.0])
    torch.testing.assert_close(cdf(found, law.mean + 2.0 * at), cdf(law, law.mean + at))


def test_a_mixture_of_mixtures_keeps_all_its_parts():
    """Draws of hidden layers, each with the quadrature of a Student t."""
    inner = MixtureSameFamily(
        Categorical(probs=torch.tensor([[[0.5, 0.5], [0.2, 0.8]]])),
        StudentT(4.0, torch.tensor([[[0.0, 1.0], [2.0, 3.0]]]), torch.tensor([[[0.2, 0.3]]])),
    )
    law = MixtureSameFamily(Categorical(probs=torch.tensor([[0.3, 0.7]])), inner)
    found = widened(law, torch.tensor(1.7))
    torch.testing.assert_close(found.mean, law.mean)
    gap = torch.tensor([-0.8])
    torch.testing.assert_close(cdf(found, law.mean + 1.7 * gap), cdf(law, law.mean + gap))


def test_another_law_is_refused():
    with pytest.raises(ConfigError, match="a Categorical cannot be widened"):
        widened(Categorical(probs=torch.ones(2)), torch.tensor(2.0))
