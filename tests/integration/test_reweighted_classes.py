"""Classes on a re-weighted basis, from the command line's options to predictions."""

import pytest
import torch
from claimed_cuda import claimed_cuda

from gpx import load
from gpx.errors import ConfigError


@pytest.fixture
def two_classes(tmp_path):
    """Options of a run on 300 rows of an exclusive or, which no linear classifier tells apart."""
    generator = torch.Generator().manual_seed(0)
    x = 2.0 * torch.rand(300, 2, generator=generator) - 1.0
    path = tmp_path / "classes.csv"
    lines = [f"{a},{b},{int(a * b > 0)}" for a, b in x.tolist()]
    path.write_text("\n".join(["a,b,label", *lines]) + "\n")
    return [
        "data=csv",
        f"data.path={path}",
        "approx=reweighted",
        "likelihood=probit",
        "approx.num_basis=40",
        "optimizer.burn_in=100",
        "optimizer.iterations=200",
        "optimizer.thin=10",
        "trainer.figures=false",
        "trainer.tensorboard=false",
    ]


def test_a_run_predicts_probabilities(train, two_classes):
    metrics, folder = train(*two_classes)
    assert metrics["test.accuracy"] > 0.85
    assert metrics["test.mnlp"] < 0.45  # log 2 = 0.69 without any inputs
    predictor = load(folder.path)
    corners = torch.tensor([[0.6, 0.6], [-0.6, 0.6], [-0.6, -0.6]]).numpy()
    found = predictor.predict_classes(corners)
    assert found.label.tolist() == [1.0, 0.0, 1.0]
    assert bool((found.probability.max(1) > 0.6).all())


def test_it_runs_on_cuda_as_on_the_cpu(train, two_classes):
    short = [*two_classes, "optimizer.burn_in=20", "optimizer.iterations=40"]
    expected, _ = train(*short, "trainer.device=cpu", folder="cpu")
    with claimed_cuda():
        found, _ = train(*short, "trainer.device=cuda", folder="cuda")
    for name in ("test.mnlp", "test.accuracy", "train.evidence"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)


def test_what_cannot_be_sampled_says_what_can(train, two_classes, tmp_path):
    for option, words in (
        ("likelihood=bernoulli", r"it needs likelihood=probit$"),
        ("inference=type2", "it needs inference=type1_mala$"),
    ):
        options = [o for o in two_classes if not o.startswith(option.split("=")[0])]
        options = [o for o in options if not o.startswith("optimizer.")]
        with pytest.raises(ConfigError, match=words):
            train(*options, option)
    assert not (tmp_path / "run").exists()
