import math

import pytest

from gpx.errors import ConfigError
from gpx.training.config import TrainerConfig


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dtype": "float16"}, "trainer.dtype=float16"),
        ({"max_steps": 0}, "trainer.max_steps=0"),
        ({"batch_size": -1}, "trainer.batch_size=-1"),
        ({"log_every": 0}, "trainer.log_every=0"),
        ({"eval_every": -1}, "trainer.eval_every=-1"),
        ({"num_threads": 0}, "trainer.num_threads=0"),
        ({"num_threads": 100000}, "trainer.num_threads=100000: expected 1 to 1024"),
        ({"checkpoint_seconds": math.nan}, "trainer.checkpoint_seconds=nan"),
        ({"checkpoint_seconds": -1.0}, "trainer.checkpoint_seconds=-1.0"),
    ],
)
def test_ranges(options, expected):
    with pytest.raises(ConfigError, match=expected):
        TrainerConfig(**options)


def test_the_yaml_gives_every_option_its_default():
    from pathlib import Path

    from omegaconf import OmegaConf

    page = Path(__file__).resolve().parents[2] / "configs" / "trainer" / "default.yaml"
    options = OmegaConf.to_container(OmegaConf.load(page))
    options.pop("defaults")
    assert TrainerConfig(**options) == TrainerConfig()
    assert set(options) == set(vars(TrainerConfig()))
