"""Optimisers that make their own steps: their names are those of configs/, and models fit them."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import SGPR
from gpx.training import MALA, BlockSteps, InducingSteps, RelevanceVectors, StochasticBlockSteps
from gpx.training.build import build

CONFIGS = Path(__file__).parents[3] / "configs"
KINDS = (BlockSteps, StochasticBlockSteps, InducingSteps, MALA, RelevanceVectors)


@pytest.mark.parametrize("kind", KINDS)
def test_option_is_the_file_that_chooses_the_steps(kind):
    config = OmegaConf.load(CONFIGS / "optimizer" / f"{kind.option}.yaml")
    config = config.get("optimizer", config)  # those that set more than the optimizer name it
    assert type(build(OmegaConf.create({"optimizer": config}), "optimizer")) is kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_another_kind_is_refused(kind):
    model = SGPR(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=1, num_inducing=2)
    approx = kind.purpose.split()[-1].removeprefix("approx=")
    assert (CONFIGS / "approx" / f"{approx}.yaml").exists()
    with pytest.raises(ConfigError, match=f"optimizer={kind.option} .* approx={approx}, got SGPR;"):
        kind().check(model, 10)
