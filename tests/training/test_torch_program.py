"""The program of torch.export: what the model predicts, for any number of rows, without gpx."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import gpx
from gpx.errors import ConfigError
from gpx.training.predict_command import main

SMALL = [
    "trainer.baselines=false",
    "trainer.figures=false",
    "trainer.tensorboard=false",
    "trainer.max_steps=2",
    "init.max_evaluations=5",
]
KINDS = {
    "exact": ["approx=exact"],
    "sgpr": ["approx=sgpr", "approx.num_inducing=9", "kernel=matern32"],
    "fitc": ["approx=fitc", "approx.num_inducing=9"],
    "svgp": ["approx=svgp", "approx.num_inducing=9"],
    "qsgp": ["approx=qsgp", "approx.num_basis=40"],
    "ssgp": ["approx=ssgp", "approx.num_basis=20"],
    "vssgp": ["approx=vssgp", "approx.num_basis=20"],
    "grief": ["approx=grief"],
    "ski": ["approx=ski"],
}
LOADS = """
import sys, torch
folder = sys.argv[1]
x = torch.load(folder + "/x.pt")
for name in sys.argv[2:]:
    found = torch.export.load(f"{folder}/{name}.pt2").module()(x)
    torch.save(found, f"{folder}/{name}.pt")
assert not any(name.split(".")[0] in ("gpx", "linear_operator") for name in sys.modules)
"""


def table(n=60):
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(2000.0, 2020.0, n), rng.uniform(-1.0, 1.0, n)], 1)
    return x, 50.0 + 10.0 * np.sin(x[:, 0] / 3.0) * x[:, 1] + rng.normal(size=n)


def inputs(n):
    """Rows of which some lie far from the training inputs."""
    rng = np.random.default_rng(1)
    return np.stack([rng.uniform(1990.0, 2030.0, n), rng.uniform(-1.5, 1.5, n)], 1)


def agree(found, model, rows):
    want = model.predict(rows)
    for mine, theirs in zip(found, (want.mean, want.std), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs, rtol=1e-6, atol=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def exported(folder):
    made = {}
    for kind, options in KINDS.items():
        fitted = gpx.fit(*table(), *options, *SMALL, folder=folder / f"run_{kind}")
        gpx.export(fitted, folder / f"{kind}.pt2", format="torch")
        made[kind] = fitted
    return made


@pytest.mark.filterwarnings("ignore:.*outside the interpolation grid")
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_predicts_as_the_model_for_any_number_of_rows(kind, exported, folder):
    module = torch.export.load(folder / f"{kind}.pt2").module()
    for n in (1, 2, 7, 300):
        rows = inputs(n)
        agree(module(torch.from_numpy(rows)), exported[kind].model, rows)


@pytest.mark.filterwarnings("ignore:.*outside the interpolation grid")
def test_programs_load_and_run_without_gpx(exported, folder):
    rows = inputs(11)
    torch.save(torch.from_numpy(rows), folder / "x.pt")
    subprocess.run([sys.executable, "-c", LOADS, folder, *KINDS], check=True, cwd=folder)
    for kind, fitted in exported.items():
        agree(torch.load(folder / f"{kind}.pt"), fitted.model, rows)
