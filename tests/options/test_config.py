import math
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from gpx.errors import ConfigError
from gpx.options.config import TrainerConfig, trainer_options


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


def test_options_read_back_are_those_that_were_composed():
    options = {"max_steps": 3, "checkpoint_seconds": 2, "num_threads": None}
    assert trainer_options(OmegaConf.create(options)) == TrainerConfig(**options)
    assert trainer_options(OmegaConf.structured(TrainerConfig(**options))) == TrainerConfig(
        **options
    )


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"max_steps": "many"}, "trainer.max_steps=many: expected a whole number"),
        ({"max_steps": 1.5}, "trainer.max_steps=1.5: expected a whole number"),
        ({"max_steps": None}, "trainer.max_steps=null: expected a whole number"),
        ({"tensorboard": 1}, "trainer.tensorboard=1: expected true or false"),
        ({"log_every": [1]}, r"trainer.log_every=\[1\]: expected a whole number"),
        ({"dtype": "float16"}, "trainer.dtype=float16"),
        ({"warp": 9}, "trainer.warp: TrainerConfig has no option warp"),
        (None, "trainer=None: expected its options"),
        (3, "trainer=3: expected its options"),
    ],
)
def test_options_that_cannot_be_read_back(node, expected):
    with pytest.raises(ConfigError, match=expected):
        trainer_options(OmegaConf.create(node) if isinstance(node, dict) else node)


def test_the_yaml_gives_every_option_its_default():
    from pathlib import Path

    page = Path(__file__).resolve().parents[2] / "configs" / "trainer" / "default.yaml"
    options = OmegaConf.to_container(OmegaConf.load(page))
    options.pop("defaults")
    assert TrainerConfig(**options) == TrainerConfig()
    assert set(options) == set(vars(TrainerConfig()))


def test_every_approximation_is_named_beside_its_choice():
    configs = Path(__file__).resolve().parents[2] / "configs"
    (line,) = [
        text for text in (configs / "train.yaml").read_text().splitlines() if "- approx:" in text
    ]
    named = line.partition("# ")[2].split(" | ")
    assert sorted(named) == sorted(path.stem for path in (configs / "approx").glob("*.yaml"))
