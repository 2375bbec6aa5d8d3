"""Runs of approx=qsgp by the command's own defaults: which parts fit a likelihood, what they do."""

import pytest
import torch
from stopped_runs import stopped_at

from gpx.bases import RandomFourier
from gpx.kernels import RBF
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights
from gpx.methods.weight_space.cell_ascent import Averaging, natural_step
from gpx.methods.weight_space.cells import Cells
from gpx.options.choices import with_choices_made
from gpx.runs import RunFolder, resume, run

SITES = ("mean_field", "gpx.objectives.SiteBoundELBO", "gpx.training.FirstOrder")
BLOCKS = (
    "block_diagonal",
    "gpx.objectives.QuadruplyStochasticELBO",
    "gpx.training.BlockSteps",
)


@pytest.fixture
def classes(tmp_path):
    """Overrides: a table of two classes that no line separates."""
    generator = torch.Generator().manual_seed(0)
    x = 2.0 * torch.rand(300, 2, generator=generator) - 1.0
    labels = (x.prod(1) > 0).long()
    path = tmp_path / "classes.csv"
    table = torch.column_stack((x, labels)).tolist()
    lines = [f"{a},{b},{k:.0f}" for a, b, k in table]
    path.write_text("\n".join(["a,b,label", *lines]) + "\n")
    return [
        "data=csv",
        f"data.path={path}",
        "likelihood=bernoulli",
        "approx=qsgp",
        "approx.num_basis=400",
        "trainer.max_steps=100",
        "trainer.figures=false",
        "trainer.tensorboard=false",
        "trainer.baselines=false",
    ]


@pytest.mark.parametrize(
    ("likelihood", "parts"),
    [
        ("gaussian", BLOCKS),
        ("bernoulli", SITES),
        ("logistic", SITES),
        ("laplace", SITES),
        ("poisson", SITES),
    ],
)
def test_likelihood_chooses_family_objective_and_optimizer(composed, likelihood, parts):
    config = with_choices_made(composed("approx=qsgp", f"likelihood={likelihood}"))
    found = config.approx.covariance, config.objective["_target_"], config.optimizer["_target_"]
    assert found == parts


def test_repeated_visits_of_a_batch_keep_variances_at_the_default_storage(composed):
    storage = composed("approx=qsgp", "optimizer=qsgp_stochastic_blocks").approx.covariance_storage
    x = torch.rand(300, 2, generator=torch.Generator().manual_seed(0))
    basis = RandomFourier(RBF(ard_num_dims=2, outputscale=10.0), 120, 0, 30).requires_grad_(False)
    family = BlockDiagonalWeights(Cells.of(basis, 120), storage).requires_grad_(False)
    phi, variances = basis(x).double(), []
    for visit in range(1, 7):
        natural_step(
            family,
            0,
            family.cells.weight_group(basis, 0, x.device),
            x,
            x[:, 0].double() - phi @ family.mean.reshape(-1).double(),
            noise=torch.tensor(1e-4),
            num_data=300,
            averaging=Averaging(1.0 / visit, 300, 1.0, 300, 1.0),
        )
        blocks = family.covariance_blocks(torch.float64)
        variances.append(sum((phi[:, own] @ root.T).square().sum(1) for own, root in blocks))
    # the optimum for this batch is reached at the first visit and does not change
    torch.testing.assert_close(variances[-1], variances[0], rtol=0.02, atol=0.0)


def test_block_solves_from_all_rows_store_covariances_in_half_the_memory(composed):
    assert composed("approx=qsgp").approx.covariance_storage == "float16"


def test_logistic_is_another_name_of_bernoulli(composed):
    first, second = (composed("approx=qsgp", f"likelihood={n}") for n in ("logistic", "bernoulli"))
    assert first == second


def test_two_classes_by_defaults(composed, classes, tmp_path, capsys):
    compared = composed(*classes, "trainer.baselines=true")
    metrics = run(compared, RunFolder(tmp_path / "run"))
    assert metrics["test.accuracy"] > 0.9
    assert metrics["test.mnlp"] < 0.75 * metrics["baseline.linear.mnlp"]
    assert metrics["train.evidence_kind"] == "lower_bound"
    said = capsys.readouterr()
    assert "trainer.batch_size=500 is above the 270 training rows" in said.out + said.err
    # the same run without steps: what the start alone has
    start = run(composed(*classes, "trainer.max_steps=1"), RunFolder(tmp_path / "start"))
    assert metrics["train.evidence"] > start["train.evidence"] + 5.0
    assert metrics["test.mnlp"] < 1.2 * start["test.mnlp"]  # of few rows, whose start is good


def test_classes_under_a_gaussian_likelihood_are_said_aloud(composed, classes, tmp_path, capsys):
    overrides = ["likelihood=gaussian", "init=constants", "approx.block_columns=400"]
    run(composed(*classes, *overrides), RunFolder(tmp_path / "run"))
    said = capsys.readouterr()
    assert "have only two values; likelihood=bernoulli models two classes" in said.out + said.err


def test_sites_stopped_and_resumed_equal_never_stopped(composed, classes, tmp_path):
    overrides = [*classes, "trainer.max_steps=12", "objective.refresh_steps=4"]
    overrides += [
        "trainer.batch_size=50",
        "objective.columns=100",
        "approx.basis.block_frequencies=10",
    ]
    whole = run(composed(*overrides), RunFolder(tmp_path / "whole"))
    for step in (4, 6):  # right after a refresh, and between two
        folder = RunFolder(tmp_path / f"stopped_{step}")
        with stopped_at(step):
            run(composed(*overrides), folder)
        found = resume(str(folder.path))
        for name in ("train.evidence", "test.mnlp", "test.rmse", "train.steps"):
            assert found[name] == whole[name]


def test_inducing_steps_say_how_they_ended(composed, tmp_path, capsys):
    overrides = ["approx=qsgp_inducing", "data=toy1d", "approx.rank=20", "init.num_points=60"]
    overrides += ["trainer.figures=false", "trainer.tensorboard=false"]
    metrics = run(composed(*overrides), RunFolder(tmp_path / "run"))
    assert "solver steps done, converged: fitted values within" in metrics["train.stopped"]
    said = capsys.readouterr()
    assert metrics["train.stopped"] in said.out + said.err
    assert metrics["test.rmse"] < 0.5 * metrics["baseline.mean.rmse"]
