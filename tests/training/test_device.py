import pytest
import torch

from gpx.errors import BackendUnavailable
from gpx.training.device import resolve_device


def test_auto_takes_cuda_when_there_is_one():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert resolve_device("auto").type == expected
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "tpu0", "meta"])
def test_names_that_mean_nothing(name):
    with pytest.raises(BackendUnavailable, match="use auto, cpu, cuda or cuda:0"):
        resolve_device(name)


def test_the_option_is_named_as_it_was_given():
    with pytest.raises(BackendUnavailable, match=r"^trainer.device=gpu is not a device"):
        resolve_device("gpu")
    for name in ("gpu", 3.5):
        with pytest.raises(BackendUnavailable, match=f"^device={name} is not a device"):
            resolve_device(name, "device")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_not_there():
    with pytest.raises(BackendUnavailable, match="sees no CUDA device"):
        resolve_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_index_out_of_range():
    with pytest.raises(BackendUnavailable, match="counted from 0"):
        resolve_device("cuda:99")
