import os

import numpy as np
import pytest
import torch
from claimed_cuda import claimed_cuda

from gpx.errors import BackendUnavailable, ConfigError, OutOfMemory
from gpx.linalg.matmul import asked_matmul, kernel_precision, set_matmul
from gpx.training import TrainerConfig
from gpx.training.device import configure_torch, out_of_memory_said, require_matmul, resolve_device

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


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


@pytest.fixture
def torch_settings():
    """What ``configure_torch`` changes, put back afterwards."""
    before = (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )
    yield
    set_matmul(None)
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]
    torch.use_deterministic_algorithms(before[2], warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = before[3]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tf32_that_an_image_has_switched_on_is_off_in_a_run(torch_settings, device):
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    configure_torch(TrainerConfig(keep_freed_memory=False), torch.device(device))
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


def test_a_deterministic_run_on_a_gpu_does_not_fill_new_arrays(torch_settings, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    configure_torch(TrainerConfig(deterministic=True), torch.device("cuda"))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


def test_a_device_out_of_memory_is_one_sentence():
    message = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of ..."
    with (
        claimed_cuda(),
        pytest.raises(OutOfMemory) as found,
        out_of_memory_said(torch.device("cuda"), 2**31),
    ):
        raise torch.OutOfMemoryError(message)
    assert str(found.value) == (
        "cuda, which has 8.0 GiB in all, is out of memory (it needed 2.50 GiB more); lower "
        "trainer.memory_budget (2GiB here) or trainer.batch_size, use trainer.dtype=float32, or "
        "free the device from other processes"
    )


@pytest.mark.parametrize(
    ("allocate", "wanted"),
    [
        (lambda: torch.empty(10**15, dtype=torch.float64), r" \(it needed 7,450,580.6 GiB more\)"),
        (lambda: np.empty(10**15), r" \(it needed 7.11 PiB more\)"),
        (lambda: np.empty((2**40, 2**40)), ""),
        (lambda: torch.empty(2**40, 2**40), ""),
        (lambda: bytearray(10**17), ""),
    ],
)
def test_the_memory_of_the_host_that_data_or_model_exceed_is_one_sentence(allocate, wanted):
    advice = "; lower the sizes of data= and approx=, or free the device from other processes$"
    with (
        pytest.raises(OutOfMemory, match="^cpu, .* is out of memory" + wanted + advice),
        out_of_memory_said(CPU),
    ):
        allocate()


def test_other_errors_are_not_said_to_be_of_memory():
    with pytest.raises(RuntimeError, match="mat1 and mat2"), out_of_memory_said(CPU):
        torch.eye(2) @ torch.eye(3)


def test_without_m_gpu_the_tests_see_no_gpu():
    """Workers side by side would share it, and device=auto would take it."""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "" or not torch.cuda.is_available()


@pytest.mark.parametrize(
    ("asked", "kernels"), [(None, "tf32x3"), ("ieee", "ieee"), ("tf32x3", "tf32x3")]
)
def test_what_a_run_asks_for_reaches_compiled_kernels_and_never_torchs_switch(
    torch_settings, asked, kernels
):
    configure_torch(TrainerConfig(matmul=asked, keep_freed_memory=False), CPU)
    assert (asked_matmul(), kernel_precision()) == (asked, kernels)
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_precision_of_products_that_cannot_be_had_is_refused_in_one_sentence(monkeypatch):
    for asked in (None, "ieee"):
        require_matmul(asked, CPU, refined=False)
    with pytest.raises(BackendUnavailable, match=r"this run is on cpu; use trainer.matmul=ieee$"):
        require_matmul("tf32x3", CPU, refined=False)
    with claimed_cuda():
        monkeypatch.setattr("gpx.training.device.find_spec", lambda name: None)
        with pytest.raises(BackendUnavailable, match="triton is not installed; pip install"):
            require_matmul("tf32x3", CUDA, refined=False)
        monkeypatch.setattr("gpx.training.device.find_spec", lambda name: object())
        require_matmul("tf32x3", CUDA, refined=False)
        with pytest.raises(ConfigError, match="Gram matrices; use it only for float64 solves"):
            require_matmul("tf32", CUDA, refined=False)
        require_matmul("tf32", CUDA, refined=True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
        with pytest.raises(BackendUnavailable, match="claimed has no TF32"):
            require_matmul("tf32", CUDA, refined=True)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match=r"trainer.matmul=bf16: expected ieee, tf32x3, tf32"):
        TrainerConfig(matmul="bf16")
