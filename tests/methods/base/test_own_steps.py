"""Optimisers that make their own steps: models of another kind are refused."""

import pytest

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import SGPR
from gpx.training import (
    MALA,
    BlockSteps,
    InducingSteps,
    RelevanceSteps,
    RelevanceVectors,
    StochasticBlockSteps,
)

KINDS = (BlockSteps, StochasticBlockSteps, InducingSteps, MALA, RelevanceSteps, RelevanceVectors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_another_kind_is_refused(kind):
    model = SGPR(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=1, num_inducing=2)
    wanted = rf"^optimizer={kind.__name__}\(\) .* of {kind.model_type.__name__} models, got SGPR;"
    with pytest.raises(ConfigError, match=wanted):
        kind().check(model, 10)
