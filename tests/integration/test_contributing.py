"""CONTRIBUTING.md is a promise: its files, written to a folder outside the package, train."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from refusals import refused
from torch.distributions import MultivariateNormal, kl_divergence

from gpx.commands.predict import main as predict
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
PREDICT = ["run=out", "input=new.csv", "output=predictions.csv"]


def write_files(folder):
    """The files of the page."""
    files = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(files) == 23
    for name, text in files:
        target = folder / "my_research" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The files of the page, where this process imports from as well."""
    write_files(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "my_research"))
    yield
    for path in (tmp_path / "my_research").glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize(
    ("options", "trust"),
    [
        (
            "approx=qsgp basis=hinges approx.basis.seed=1 approx.num_basis=200 "
            "approx.block_columns=100",
            "hinges",
        ),
        ("approx=regressors mean=ripple trainer.max_steps=30", "regressors,ripple"),
        (
            "approx=svgp likelihood=outliers approx.num_inducing=40 trainer.max_steps=150",
            "outliers",
        ),
        (
            "approx=svgp selector=spread_out family=isotropic approx.refit=false "
            "approx.num_inducing=40 trainer.max_steps=150",
            "spread_out,isotropic",
        ),
        (
            "approx=svgp objective=robust approx.num_inducing=40 trainer.max_steps=150",
            "robust",
        ),
        (
            "approx=svgp optimizer=sharpness_aware approx.refit=false approx.num_inducing=40 "
            "trainer.max_steps=150",
            "sharpness_aware",
        ),
    ],
    ids=[
        "basis",
        "approximation and mean",
        "likelihood",
        "selector and family",
        "mini-batches",
        "optimiser",
    ],
)
def test_parts_of_the_page(train_py, tmp_path, own, options, trust):
    train = ["--config-dir", "my_research/configs", "data=spiral", "hydra.run.dir=out"]
    status, err = train_py(*train, "init=constants", "trainer.figures=false", *options.split())
    assert status == 0, err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["test.rmse"] < metrics["baseline.linear.rmse"]
    (tmp_path / "new.csv").write_text("east,north\n1,2\n")
    predict([*PREDICT, f"trust={trust},spiral"])
    assert (tmp_path / "predictions.csv").exists()


def test_a_stopped_run_of_the_optimiser_of_the_page_ends_as_it_would_have(train_py, tmp_path, own):
    approach = "approx=svgp approx.num_inducing=10 approx.refit=false optimizer=sharpness_aware"
    few = "init=constants trainer.figures=false trainer.baselines=false data=spiral"
    options = ["--config-dir", "my_research/configs", *approach.split(), *few.split()]
    for folder, steps in (("whole", 6), ("cut", 3)):
        status, err = train_py(*options, f"hydra.run.dir={folder}", f"trainer.max_steps={steps}")
        assert status == 0, err
    trust = "trust=sharpness_aware,spiral"
    status, err = train_py("resume=cut", trust, "trainer.max_steps=6")
    assert status == 0, err
    whole, cut = (
        json.loads((tmp_path / folder / "metrics.json").read_text()) for folder in ("whole", "cut")
    )
    assert cut["test.mnlp"] == whole["test.mnlp"]


def test_the_approximation_of_the_page_is_the_exact_process_of_its_prior(own):
    """Evidence, predictions and sampled functions against the dense Gaussian law."""
    from regressors import Regressors, RegressorsMLL, features

    draws = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, generator=draws).double()
    y = x.sum(1).sin()
    parts = {"kernel": RBF(), "mean": Constant(0.3), "likelihood": Gaussian(0.05)}
    model = Regressors(**parts, num_points=5).double()
    model.initialise(x, y, generator=draws)
    phi = features(model.kernel, model.points, x).detach()
    noise, offset = model.likelihood.noise_variance, model.mean(x)
    covariance = (phi @ phi.mT + noise * torch.eye(12).double()).detach()
    law = MultivariateNormal(offset.detach(), covariance)
    torch.testing.assert_close(RegressorsMLL().evidence(model, x, y).value, law.log_prob(y))
    cross = phi[:4] @ phi.mT
    mean, variance = model.condition(x, y).predict(x[:4])
    want = (offset[:4] + cross @ torch.linalg.solve(covariance, y - offset)).detach()
    torch.testing.assert_close(mean, want, rtol=1e-9, atol=1e-10)
    explained = (cross * torch.linalg.solve(covariance, cross.mT).mT).sum(1)
    want = phi[:4].square().sum(1) - explained
    torch.testing.assert_close(variance, want, rtol=1e-7, atol=1e-10)
    paths = model.condition(x, y).sample_paths(20_000, generator=draws)(x[:4])
    assert (paths.mean(0) - mean).abs().max() < 5.0 * (variance.max() / 20_000) ** 0.5
    torch.testing.assert_close(paths.var(0), variance, rtol=0.05, atol=0.0)


def test_the_family_of_the_page_is_one(own):
    """Moments and divergence of the dense Gaussian; the closest member to another one."""
    from isotropic import Isotropic

    q, draws = Isotropic().start(4, 2).double(), torch.Generator().manual_seed(0)
    assert q.kl(q.root()).item() == 0.0
    a = torch.randn(4, 3, generator=draws).double()
    mean = torch.randn(2, 4, generator=draws).double()
    factor = torch.eye(4).double() + 0.3 * torch.randn(2, 4, 4, generator=draws).double().tril(-1)
    q.assign(mean, factor)
    own_factor = q.factor()
    law = MultivariateNormal(q.mean, scale_tril=own_factor)
    excess = ((own_factor.mT @ a).square() - a.square()).sum(1)
    torch.testing.assert_close(q.moments(a, q.root())[1], excess)
    prior = MultivariateNormal(torch.zeros(4).double(), torch.eye(4).double())
    torch.testing.assert_close(q.kl(q.root()), kl_divergence(law, prior).sum())
    given = MultivariateNormal(mean, scale_tril=factor)
    (slope,) = torch.autograd.grad(kl_divergence(law, given).sum(), [q.log_scale])
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0.0, atol=1e-12)


def test_kernel_objective_and_data_set_of_the_page(command, tmp_path, own, monkeypatch, capsys):
    status, _, err = command(
        "train.py",
        "--config-dir",
        "my_research/configs",
        "approx=exact",
        "kernel=heavy_tail",
        "objective=tempered_mll",
        "data=spiral",
        "init=constants",
        "trainer.max_steps=10",
        "trainer.figures=false",
        "hydra.run.dir=out",
        PYTHONPATH=str(tmp_path / "my_research"),
    )
    assert status == 0, err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["train.objective"] == "TemperedMLL"
    assert metrics["data.name"] == "spiral"
    assert metrics["test.rmse"] < metrics["baseline.linear.rmse"]
    (tmp_path / "new.csv").write_text("east,north\n1,2\n")
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, predict, *PREDICT)
    assert "if that code is yours, or you trust it, add trust=" in said
    predict([*PREDICT, "trust=heavy_tail,tempered_mll,spiral"])
    assert (tmp_path / "predictions.csv").exists()
