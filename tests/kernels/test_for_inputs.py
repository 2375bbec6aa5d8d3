"""Copies of kernels for another number of inputs."""

import pytest
import torch

from gpx.constraints import is_trained
from gpx.errors import ConfigError
from gpx.kernels import RBF, ArcCosine, Wendland
from gpx.kernels.for_inputs import for_inputs


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("kind", [RBF, ArcCosine])
def test_lengthscales_of_another_number_of_inputs_stay_fixed(kind, learned):
    kernel = kind(ard_num_dims=2, lengthscale=[1.0, 2.0])
    kernel.parametrizations.lengthscale.original.requires_grad_(learned)
    found = for_inputs(kernel, 3)
    torch.testing.assert_close(found.lengthscale, torch.full((3,), 1.5))
    assert is_trained(found, "lengthscale") is learned
    assert is_trained(found, "outputscale")


@pytest.mark.parametrize("num_inputs", [1, 5])
def test_a_wendland_kernel_gets_the_power_that_its_inputs_need(num_inputs):
    found = for_inputs(Wendland(ard_num_dims=2), num_inputs)
    made = Wendland(ard_num_dims=num_inputs)
    x = torch.rand(4, num_inputs)
    torch.testing.assert_close(found.evaluate(x), made.evaluate(x))


def test_a_number_of_inputs_that_the_user_limited_is_refused():
    with pytest.raises(ConfigError, match="set max_inputs=5"):
        for_inputs(Wendland(ard_num_dims=2, max_inputs=4), 5)
    assert for_inputs(Wendland(ard_num_dims=2, max_inputs=6), 5).max_inputs == 6
