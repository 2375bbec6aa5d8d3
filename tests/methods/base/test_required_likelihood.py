"""Models that need certain likelihoods refuse others and name an alternative."""

import pytest

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Softmax
from gpx.means import Constant
from gpx.models import (
    SKI,
    SSGP,
    SWSGP,
    VNNGP,
    VSSGP,
    Committee,
    LocalExperts,
    MixtureOfExperts,
    Transductive,
)

SIZED = (SKI, SSGP, VSSGP, SWSGP, VNNGP)
"""Models that are told the number of inputs."""


def refused(model, likelihood):
    options = {"num_inputs": 1} if model in SIZED else {}
    if model is VNNGP:
        options["num_data"] = 10
    with pytest.raises(ConfigError) as told:
        model(kernel=RBF(1), mean=Constant(), likelihood=likelihood, **options)
    return str(told.value)


@pytest.mark.parametrize(
    "model", [Committee, LocalExperts, MixtureOfExperts, Transductive, SKI, SSGP, VSSGP]
)
def test_models_of_gaussian_noise_name_an_alternative(model):
    text = refused(model, Bernoulli())
    assert text.startswith(model.__name__)
    assert "needs the Gaussian likelihood, got Bernoulli" in text
    assert "model=SVGP(), which takes any" in text


@pytest.mark.parametrize("model", [SWSGP, VNNGP])
def test_several_latent_functions(model):
    assert refused(model, Softmax(3)) == (
        f"model={model.__name__}() needs a likelihood of one latent function, got Softmax with 3; "
        "use model=SVGP()"
    )
