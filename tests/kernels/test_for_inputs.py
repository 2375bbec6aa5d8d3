"""Copies of kernels for another number of inputs."""

import copy

import pytest
import torch

from gpx.constraints import is_trained
from gpx.errors import ConfigError
from gpx.kernels import RBF, ArcCosine, Linear, Wendland
from gpx.kernels.for_inputs import for_inputs, resized


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("kind", [RBF, ArcCosine])
def test_lengthscales_of_another_number_of_inputs_stay_fixed(kind, learned):
    kernel = kind(ard_num_dims=2, lengthscale=[1.0, 2.0])
    kernel.parametrizations.lengthscale.original.requires_grad_(learned)
    found = for_inputs(kernel, 3)
    torch.testing.assert_close(found.lengthscale, torch.full((3,), 1.5))
    assert is_trained(found, "lengthscale") is learned
    assert is_trained(found, "outputscale")


@pytest.mark.parametrize("kernel", [RBF(2, 0.5, outputscale=None), Linear(2)])
def test_the_kernel_that_was_copied_stays_as_it_was(kernel):
    """Its class, which copies share, lost the only parameter that it had."""
    x = torch.rand(3, 4, dtype=torch.float64)
    before = kernel.evaluate(x[:, :2]).detach()
    found = resized(kernel, 4).double()
    assert torch.equal(kernel.evaluate(x[:, :2]).detach(), before)
    single = copy.deepcopy(found).float().evaluate(x.float())
    torch.testing.assert_close(found.evaluate(x).float(), single, rtol=0, atol=1e-6)


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


def test_sums_and_products_are_resized_part_by_part():
    """``approx=dkl kernel=rbf+linear`` was refused where features were not as many as inputs."""
    shared = RBF(2, [1.0, 3.0])
    kernel = 0.5 * (shared * shared + Linear(2, [1.0, 2.0])) + RBF(None, 0.7, active_dims=[1])
    found = resized(kernel, 3)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    other = RBF(3, 2.0)
    want = 0.5 * (other * other + Linear(3, 1.5)) + RBF(None, 0.7, active_dims=[1])
    torch.testing.assert_close(found.evaluate(x), want.evaluate(x))
    assert len(list(found.parameters())) == len(list(kernel.parameters()))
    assert kernel.evaluate(x[:, :2]).shape == (4, 4)  # unchanged
