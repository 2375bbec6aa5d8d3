"""Every YAML of the kernel and mean groups builds its class."""

from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

import gpx.kernels
import gpx.means

CONFIGS = Path(__file__).parents[2] / "configs"
KERNELS = sorted(path for path in CONFIGS.glob("kernel/*.yaml") if path.stem != "auto")
MEANS = sorted(CONFIGS.glob("mean/*.yaml"))


def build(path):
    config = OmegaConf.create({"facts": {"num_inputs": 3}, "node": OmegaConf.load(path)})
    return instantiate(config.node)


@pytest.mark.parametrize("path", KERNELS, ids=lambda p: p.stem)
def test_kernel_configs(path):
    kernel = build(path)
    assert isinstance(kernel, gpx.kernels.Kernel)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    x[:, 2] = torch.tensor([0.0, 1.0, 0.0, 1.0])  # multi_output takes it for the output's number
    assert kernel.evaluate(x).shape == (4, 4)


@pytest.mark.parametrize("path", MEANS, ids=lambda p: p.stem)
def test_mean_configs(path):
    mean = build(path)
    assert isinstance(mean, gpx.means.Mean)
    assert mean(torch.zeros(4, 3)).shape == (4,)


def test_every_class_has_a_config():
    targets = {OmegaConf.load(p)._target_.rpartition(".")[2] for p in KERNELS}
    parts = {"Kernel", "Stationary", "Matern", "Scale", "Product", "Convolutional", "Kumaraswamy"}
    # inputs of MultiOutput are no free numbers, so it is not among the kernels of any input
    assert set(gpx.kernels.__all__) - parts == targets - {"MultiOutput"}
    assert set(gpx.means.__all__) - {"Mean"} == {
        OmegaConf.load(p)._target_.rpartition(".")[2] for p in MEANS
    }
