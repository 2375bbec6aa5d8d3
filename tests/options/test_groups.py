"""Every group of choices can be chosen from."""

import pytest
from omegaconf import OmegaConf

from gpx.options.composition import composed
from gpx.options.config import CONFIGS
from gpx.options.groups import NODES
from gpx.runs.report import settings
from gpx.runs.trust import PLACES


def test_every_group_is_among_the_defaults_of_a_run():
    """Hydra refuses a choice of a group that is not, and no message could say why."""
    listed = {
        next(iter(d)) for d in OmegaConf.load(CONFIGS / "train.yaml").defaults if d != "_self_"
    }
    groups = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
    assert groups - listed == {"hydra"}


def test_every_node_of_a_run_has_its_base_class_and_is_compared_in_tables():
    assert {*PLACES, "trainer"} == set(NODES)
    config = composed(["approx=exact", "prior=lognormal", "calibrate=variance"])
    shown = settings(config)
    for group in PLACES:
        assert config[group]._target_.endswith(f".{shown[group]}"), group
    assert "fixed" not in shown


def test_fixed_parameters_are_compared_in_tables():
    names = "fixed=[kernel.lengthscale,mean.constant]"
    shown = settings(composed(["approx=exact", "kernel=rbf", names]))
    assert shown["fixed"] == "kernel.lengthscale, mean.constant"


@pytest.mark.parametrize("kind", ["unit", "orthonormal", "free", "network"])
def test_a_projection_is_chosen_by_name(kind):
    config = composed(["approx=ski", f"projection={kind}"])
    assert config.approx.projection.num_outputs == 2
    assert config.kernel.ard_num_dims == 2


def test_parts_of_a_kernel_have_a_lengthscale_for_each_projected_input():
    kernel = "kernel='rbf + matern32*linear(ard_num_dims=null)'"
    found = composed(["approx=ski", "projection=unit", "approx.projection.num_outputs=3", kernel])
    first, second = found.kernel.kernels
    assert "ard_num_dims" not in found.kernel
    assert first.ard_num_dims == second.kernels[0].ard_num_dims == 3
    assert second.kernels[1].ard_num_dims is None  # as it was set


def test_an_additive_projection_has_a_function_for_every_input_unless_told_otherwise():
    config = composed(["approx=ski", "projection=additive", "approx.projection.num_outputs=5"])
    assert config.approx.additive
    assert config.approx.projection.num_outputs == 5
    assert config.kernel.ard_num_dims is None
