"""One thread per process, stated: the suite runs side by side processes (pytest-xdist)."""

import gc
import os
import resource
import sys
from contextlib import contextmanager

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

torch.set_num_threads(1)


def pytest_configure(config):
    """Without ``-m gpu`` there is no GPU: workers would share it, and device=auto would take it."""
    if "gpu" not in (config.option.markexpr or "").replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif getattr(config.option, "numprocesses", None) not in (None, 0):
        raise pytest.UsageError("tests on a GPU run one after the other: add -n 0 to -m gpu")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Importing the tests leaves no garbage, and what is left by then stays to the end.

    Looking through it, then and while tests run, only takes time. The process that hands out tests
    to others (pytest-xdist) imports none.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture
def float64_by_default():
    """New tensors are float64 while a test runs."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(previous)


@pytest.fixture
def train_py(tmp_path, monkeypatch, capsys):
    """Call train.py in this process, from an empty folder: (exit status, standard error)."""
    from gpx.commands.train import main  # not before the environment is settled

    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = stop.code
        return status, capsys.readouterr().err

    yield call
    GlobalHydra.instance().clear()


@pytest.fixture
def limited_files():
    """``with limited_files(size)``: no file may grow beyond ``size`` bytes, as on a full disk."""

    @contextmanager
    def limit(size):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit
