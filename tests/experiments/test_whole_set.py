"""The kernel that all folds of a data set share: its search, and its units on a fold."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch

from gpx.data import Standardiser
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import ExactGP

FOLDER = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    spec = importlib.util.spec_from_file_location("whole_set", FOLDER / "whole_set.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("squared", "signal"), [(True, 36.0), (False, 12.0)])
def test_a_fold_has_the_kernel_in_its_own_units(script, squared, signal):
    scaler = Standardiser(2)
    scaler.input_scale.copy_(torch.tensor([0.5, 10.0]))
    scaler.target_scale.fill_(2.0)
    kernel = script.WholeSetKernel(torch.tensor([2.0, 30.0]).double(), 3.0, 0.5, 4.0)
    assert kernel.options(scaler, squared)[2:] == [
        "kernel.lengthscale=[4.0, 3.0]",
        f"kernel.outputscale={signal}",
        "likelihood.noise_variance=2.0",
    ]


def test_a_search_sees_logarithms(script):
    model = ExactGP(
        kernel=RBF(2, lengthscale=3.0, outputscale=0.5), mean=Zero(), likelihood=Gaussian(0.1)
    ).double()
    script.search_over_logarithms(model)
    found = sorted(entry.item() for each in model.parameters() for entry in each.flatten())
    assert found == pytest.approx(sorted([math.log(0.1), math.log(0.5)] + 2 * [math.log(3.0)]))
    model.kernel.lengthscale.log().sum().backward()
    slopes = [each.grad for each in model.parameters() if each.numel() == 2]
    torch.testing.assert_close(slopes[0], torch.ones(2).double())


@pytest.mark.parametrize(
    ("evidences", "kept"), [((-1.28, -1.27, -1.11), 10.0), ((-1.28, -1.2795, -1.4), 1.0)]
)
def test_the_largest_evidence_is_kept_and_a_search_that_ends_alike_is_not(
    script, monkeypatch, evidences, kept
):
    found = dict(zip(script.LENGTHSCALES, evidences, strict=True))
    monkeypatch.setattr(
        script, "run_search", lambda x, y, start: {"start": start, "evidence": found[start]}
    )
    best = script.best_search(torch.zeros(1, 1), torch.zeros(1))
    assert best["start"] == kept
    assert best["evidences"] == list(evidences)


def test_a_search_ends_where_the_evidence_is_flat(script):
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(25, 2, generator=draws, dtype=torch.float64)
    y = x[:, 0].sin() + 0.1 * torch.randn(25, generator=draws, dtype=torch.float64)
    found = script.run_search(x, y, 1.0)

    def evidence(logs):
        scales, signal, noise = logs[:2].exp(), logs[2].exp(), logs[3].exp()
        covariance = signal * (-0.5 * torch.cdist(x / scales, x / scales).square()).exp()
        covariance = covariance + noise * torch.eye(25).double()
        normal = torch.distributions.MultivariateNormal(torch.zeros(25).double(), covariance)
        return normal.log_prob(y) / 25

    ends = [*found["lengthscales"].clamp(max=1e8).tolist(), found["signal"], found["noise"]]
    logs = torch.tensor(ends).double().log().requires_grad_()
    here = evidence(logs)
    assert here.item() == pytest.approx(found["evidence"], rel=1e-9)
    assert torch.autograd.grad(here, logs)[0].abs().max() < 1e-3
