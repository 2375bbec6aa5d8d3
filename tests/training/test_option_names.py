import pytest
from omegaconf import OmegaConf

from gpx.errors import ConfigError
from gpx.training.option_names import option_names, with_option_names

CONFIG = OmegaConf.create(
    {
        "approx": {"_target_": "a.B", "rank": 80, "num_data": 5, "grid": {"margin": 0.1}},
        "objective": {"num_data": 5, "inference": "type2", "columns": None},
        "optimizer": None,
        "init": None,
    }
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("rank=80 is above the 54 points", "approx.rank=80 is above the 54 points"),
        ("margin=-1 is a share", "approx.grid.margin=-1 is a share"),
        ("set columns=null, lower rank", "set objective.columns=null, lower rank"),
        ("num_data=5 of two nodes", "num_data=5 of two nodes"),
        ("approx.rank=80 is named already", "approx.rank=80 is named already"),
        ("my_rank=80 is another word", "my_rank=80 is another word"),
        ("nothing to name", "nothing to name"),
    ],
)
def test_arguments_become_options(said, told):
    assert with_option_names(said, CONFIG) == told


def test_groups_keep_their_names(tmp_path):
    (tmp_path / "inference").mkdir()
    assert with_option_names("use inference=x", CONFIG, tmp_path) == "use inference=x"
    assert with_option_names("use inference=x", CONFIG) == "use objective.inference=x"


def test_errors_keep_their_type():
    with pytest.raises(ConfigError, match=r"^approx\.rank=80 is too large$"), option_names(CONFIG):
        raise ConfigError("rank=80 is too large")
