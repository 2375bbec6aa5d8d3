"""Fits of kernels to some rows: starts of classes."""

import pytest
import torch

from gpx.options.composition import composed
from gpx.priors import DimensionScaled
from gpx.runs.choosing.kernel_fit import KernelFitter

INPUTS = 24


@pytest.mark.parametrize("seed", [0, 3])
def test_two_of_many_inputs_are_found_for_classes(seed):
    """From functions of variance one the search ended at constants: -131 and -135 nats."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(200, INPUTS, generator=draws, dtype=torch.float64)
    noise = 0.05 * torch.randn(200, generator=draws, dtype=torch.float64)
    y = torch.sign(torch.sin(2.0 * x[:, 0]) * x[:, 1] + noise - 0.2)
    config = composed(["approx=ep", "data=robot_arm"])
    fitter = KernelFitter(config, x, y, x, 40, None, DimensionScaled(INPUTS))
    node = {"_target_": "gpx.kernels.RBF", "ard_num_dims": INPUTS}
    found = fitter.fit("rbf", {**node, "lengthscale": 1.0, "outputscale": 1.0})
    assert 200 * found.evidence > -90.0
    assert set(torch.tensor(found.node["lengthscale"]).argsort()[:2].tolist()) == {0, 1}
