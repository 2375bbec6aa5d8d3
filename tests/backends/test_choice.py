"""Which backend is taken, the reason recorded, and what is refused."""

import logging

import pytest
import torch

import gpx.backends.choice as choice_module
import gpx.backends.keops as keops_module
from gpx.backends import Entries, choose_backend
from gpx.errors import BackendUnavailable, ConfigError
from gpx.kernels import RBF, Constant, Linear, Matern32

BUDGET = 2 * 100 * 100 * 4  # twice a float32 matrix of 100 x 100


class ElsewhereTensor:
    """Stands for inputs on a CUDA device, so that the rule runs without one."""

    def __init__(self, n, d):
        self.shape, self.dtype, self.device = (n, d), torch.float32, torch.device("cuda")

    def element_size(self):
        return 4


def entries(kernel=None, n=100, d=3, cuda=False):
    x = ElsewhereTensor(n, d) if cuda else torch.zeros(n, d)
    return Entries(kernel or RBF(), (), (), x, x, True)


@pytest.fixture
def with_keops(monkeypatch):
    monkeypatch.setattr(choice_module, "triton_refusal", lambda entries: "no Triton")
    monkeypatch.setattr(choice_module, "keops_refusal", lambda device, dtype: None)


@pytest.fixture
def without_keops(monkeypatch):
    monkeypatch.setattr(choice_module, "triton_refusal", lambda entries: "no Triton")
    monkeypatch.setattr(keops_module, "keops_installed", lambda: False)
    keops_module.keops_refusal.cache_clear()
    yield
    keops_module.keops_refusal.cache_clear()


def test_dense_up_to_the_budget_and_chunked_beyond(with_keops):
    assert choose_backend(entries(n=100), BUDGET).name == "dense"
    over = choose_backend(entries(n=101), BUDGET)
    assert over.name == "chunked"  # on a CPU, although KeOps is installed
    assert "101 x 101" in over.reason
    assert "not on a CUDA device" in over.reason


def test_cuda_takes_keops_where_it_serves(with_keops):
    assert choose_backend(entries(n=100, cuda=True), BUDGET).name == "dense"
    assert choose_backend(entries(n=500, cuda=True), BUDGET).name == "keops"
    wide = choose_backend(entries(n=500, d=51, cuda=True), BUDGET)
    assert (wide.name, "51 inputs" in wide.reason) == ("chunked", True)
    mixed = choose_backend(entries(RBF() + Linear(), n=500, cuda=True), BUDGET)
    assert (mixed.name, "Sum has no KeOps formula" in mixed.reason) == ("chunked", True)


def test_cuda_without_keops_is_chunked_and_says_why(without_keops):
    found = choose_backend(entries(n=500, cuda=True), BUDGET)
    assert found.name == "chunked"
    assert "no Triton; pykeops is not installed" in found.reason


def test_a_keops_that_does_not_compile_is_passed_over_with_its_reason(without_keops, monkeypatch):
    def broken():
        raise RuntimeError("nvrtc.h\nnot found")

    monkeypatch.setattr(keops_module, "keops_installed", lambda: True)
    monkeypatch.setattr(keops_module, "_lazy_tensor", broken)
    monkeypatch.setattr(choice_module, "keops_refusal", lambda *_: keops_refusal_here())
    found = choose_backend(entries(n=500, cuda=True), BUDGET)
    assert found.name == "chunked"
    assert "KeOps does not run here (RuntimeError: nvrtc.h not found)" in found.reason


def keops_refusal_here():
    return keops_module.keops_refusal(torch.device("cpu"), torch.float32)


def test_a_keops_that_ends_its_process_is_passed_over(without_keops, monkeypatch):
    """On CUDA the trial has a process of its own, as compiled code may call exit."""
    monkeypatch.setattr(keops_module, "keops_installed", lambda: True)
    code = "import os, sys; sys.stderr.write('error: no image\\n'); os._exit(3)  # {} {}"
    monkeypatch.setattr(keops_module, "TRIAL_CODE", code)
    monkeypatch.setattr(choice_module, "keops_refusal", keops_module.keops_refusal)
    found = choose_backend(entries(n=500, cuda=True), BUDGET)
    assert found.name == "chunked"
    assert "does not run here" in found.reason
    assert "a trial ended with status 3: error: no image" in found.reason


def test_by_hand_is_taken_as_asked():
    for name in ("dense", "chunked"):
        found = choose_backend(entries(), BUDGET, name)
        assert (found.name, found.reason) == (name, "asked for")


def test_keops_by_hand_without_the_package_is_one_sentence(monkeypatch):
    monkeypatch.setattr(keops_module, "find_spec", lambda name: None)
    keops_module._lazy_tensor.cache_clear()
    x = torch.zeros(4, 3)
    with pytest.raises(BackendUnavailable, match=r"pykeops, which is not installed; pip install"):
        RBF()(x, backend="keops")
    keops_module._lazy_tensor.cache_clear()


def test_keops_by_hand_for_another_kernel_is_refused_before_anything_else():
    with pytest.raises(ConfigError, match=r"stationary parts, and Sum is not; choose backend"):
        (RBF() + Linear())(torch.zeros(4, 3), backend="keops")


def test_unknown_backends_and_empty_budgets_are_refused():
    with pytest.raises(ConfigError, match="dense, chunked, keops, triton"):
        RBF()(torch.zeros(4, 3), backend="gpu")
    with pytest.raises(ConfigError, match="must be positive"):
        choose_backend(entries(), 0)


def test_which_kernels_have_a_formula():
    assert (RBF() * Matern32() + 0.5 * RBF() + Constant()).has_formula
    assert not (RBF() * Linear()).has_formula
    assert not (2.0 * Linear()).has_formula
    with pytest.raises(ConfigError, match="no function of distances"):
        Linear().formula(lambda a, b: a, torch.zeros(2, 1), torch.zeros(2, 1))


def test_a_choice_is_logged_once(caplog):
    choice_module._log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="gpx.backends.choice"):
        for _ in range(3):
            choose_backend(entries(n=77), BUDGET)
    assert [r.message for r in caplog.records] == [
        "kernel matrix backend: dense (77 x 77 float32 fits the memory budget)"
    ]
