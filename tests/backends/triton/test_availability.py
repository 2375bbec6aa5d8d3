"""Triton: what is said where it cannot be used."""

import sys
import types

import pytest
import torch

import gpx.backends.choice as choice_module
import gpx.backends.triton.availability as availability
from gpx.backends import Entries, choose_backend
from gpx.backends.triton import triton_refusal
from gpx.errors import BackendUnavailable
from gpx.kernels import RBF, Wendland

CUDA = torch.device("cuda")


class ElsewhereTensor:
    """Stands for inputs on a CUDA device, so that the rule runs without one."""

    def __init__(self, n, d, dtype=torch.float32):
        self.shape, self.dtype, self.device = (n, d), dtype, CUDA

    def element_size(self):
        return self.dtype.itemsize

    def __getitem__(self, rows):
        return self


def entries(kernel=None, **options):
    x = ElsewhereTensor(500, 3, **options)
    return Entries(kernel or RBF(), (), (), x, x, True)


@pytest.fixture
def device(monkeypatch):
    """A function that makes the machine have Triton and a device of some compute capability."""

    def make(capability, version="3.7.1"):
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        monkeypatch.setattr(availability, "triton_installed", lambda: True)
        monkeypatch.setattr(availability.metadata, "version", lambda name: version)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
        monkeypatch.setattr(choice_module, "keops_refusal", lambda *_: "pykeops is not installed")
        monkeypatch.setattr(availability, "radial_parts", lambda entries: [])

    return make


def test_a_device_that_can_gets_triton_before_keops(device, monkeypatch):
    device((9, 0))
    monkeypatch.setattr(choice_module, "keops_refusal", lambda *_: None)
    found = choose_backend(entries(), 1 << 10)
    assert (found.name, "its Triton kernels compile" in found.reason) == ("triton", True)
    other = choose_backend(entries(Wendland(2)), 1 << 10)
    assert (other.name, "is no sum of RBF" in other.reason) == ("keops", True)


@pytest.mark.parametrize(
    ("capability", "version", "words"),
    [
        ((7, 5), "3.7.1", "compute capability 8.0 or newer, and this is Some GPU (compute cap"),
        ((9, 0), "3.1.0", "triton 3.1.0 is older than 3.6; a newer torch brings a newer one"),
        ((9, 0), "2.3", "triton 2.3 is older than 3.6"),
    ],
)
def test_old_devices_and_old_versions_are_passed_over_with_a_sentence(
    device, capability, version, words
):
    device(capability, version)
    found = choose_backend(entries(), 1 << 10)
    assert found.name == "chunked"
    assert words in found.reason
    assert "pykeops is not installed" in found.reason


def test_float64_on_a_device_that_is_slow_at_it_is_said(device):
    device((8, 9))
    slow = choose_backend(entries(dtype=torch.float64), 1 << 10)
    assert slow.name == "triton"
    assert "float64 runs at a small part of the rate of float32 on Some GPU" in slow.reason
    assert "small part" not in choose_backend(entries(), 1 << 10).reason
    device((9, 0))
    assert "small part" not in choose_backend(entries(dtype=torch.float64), 1 << 10).reason


def test_interpreting_on_a_cuda_device_is_refused(device, monkeypatch):
    device((9, 0))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET is set" in triton_refusal(entries())


def test_other_devices_are_refused(device, monkeypatch):
    device((9, 0))
    x = torch.zeros(3, 2)
    assert "x is on the CPU" in triton_refusal(Entries(RBF(), (), (), x, x, True))
    x = x.to("meta")
    assert "written for CUDA devices" in triton_refusal(Entries(RBF(), (), (), x, x, True))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds none" in triton_refusal(entries())


def test_without_the_package_it_is_one_sentence(monkeypatch):
    monkeypatch.setattr(availability, "triton_installed", lambda: False)
    with pytest.raises(BackendUnavailable, match=r"triton is not installed \(pip install 'gpx-to"):
        RBF()(torch.zeros(4, 3), backend="triton")
    assert "gpx-torch[triton]" in choose_backend(entries(), 1 << 10).reason


def test_triton_under_another_name_tells_its_version_itself(device, monkeypatch):
    """As in builds of torch whose package is called pytorch-triton."""

    def unknown(name):
        raise availability.metadata.PackageNotFoundError(name)

    for version, words in (("3.7.0+git1", None), ("3.2.0", "triton 3.2.0 is older than 3.6")):
        device((9, 0))
        monkeypatch.setattr(availability.metadata, "version", unknown)
        monkeypatch.setitem(sys.modules, "triton", types.SimpleNamespace(__version__=version))
        refusal = triton_refusal(entries())
        assert refusal is None if words is None else words in refusal
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "triton cannot be imported (ModuleNotFoundError" in triton_refusal(entries())


def test_on_a_cpu_it_is_never_chosen(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x = torch.zeros(500, 3)
    assert choose_backend(Entries(RBF(), (), (), x, x, True), 1 << 10).name == "chunked"


@pytest.mark.parametrize("coordinates", [1, 7])
@pytest.mark.parametrize("profile", ["rbf", "matern12", "rational_quadratic"])
def test_a_profile_is_tried_where_it_is_neither_one_nor_zero(profile, coordinates, monkeypatch):
    tried = []
    monkeypatch.setattr(availability, "trial_error", lambda part, right: tried.append(part) or 0.0)
    refusal = availability._profile_refusal.__wrapped__
    assert refusal(torch.device("cpu"), torch.float32, profile, coordinates) is None
    for part in tried:
        assert part.z1 is part.z2  # the square product that a trial compiles
        assert 0.9 < float((part.z1[0] - part.z1[1]).norm()) < 2.1
    assert len(tried) == (2 if profile == "rational_quadratic" else 1)


def test_a_trial_that_is_not_a_number_is_a_failure(monkeypatch):
    errors = iter((0.0, float("nan")))
    monkeypatch.setattr(availability, "trial_error", lambda part, right: next(errors))
    refusal = availability._profile_refusal.__wrapped__
    found = refusal(torch.device("cpu"), torch.float32, "rational_quadratic", 2)
    assert "is wrong here by nan" in found
