"""diagnose.py and trainer.certify on small runs: the page, its numbers, and clear refusals."""

import csv
import json

import numpy as np
import pytest
import torch
from refusals import refused

from gpx.commands.diagnose import main
from gpx.errors import ConfigError
from gpx.inducing.eigenfunctions import Eigenfunctions
from gpx.runs import certification


def table(tmp_path, n=90):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (n, 2))
    y = 50 + 10 * np.sin(2 * x[:, 0]) + 3 * x[:, 1] + 0.5 * rng.normal(size=n)
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["depth", "width", "strength"])
        writer.writerows(np.column_stack([x, y]).tolist())
    return path


@pytest.fixture
def run(train, tmp_path):
    """Train on the table: (metrics, run folder)."""
    path = table(tmp_path)

    def start(*overrides):
        return train(
            "data=csv",
            f"data.path={path}",
            "data.target=strength",
            "trainer.max_steps=15",
            "trainer.tensorboard=false",
            "trainer.figures=false",
            *overrides,
        )

    return start


@pytest.mark.parametrize("approx", ["sgpr", "cglb", "exact"])
def test_report(run, approx, tmp_path, capsys):
    size = [] if approx == "exact" else ["approx.num_inducing=60"]
    metrics, folder = run(f"approx={approx}", *size)
    assert not any(name.startswith("certificate.") for name in metrics)
    main([f"run={folder.path}", "threshold=55", "probability=0.5"])
    assert "Certified: at all 9 points" in capsys.readouterr().out
    page = (folder.path / "diagnostics.md").read_text()
    assert "P(strength >= 55)" in page
    assert (folder.figures / "diagnostics.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((folder.path / "diagnostics.json").read_text())
    values, points = stored["values"], stored["points"]
    assert values["verdict"] == "certified"
    assert values["evidence_lower"] <= values["evidence_upper"]
    slack = 1e-6 * abs(metrics["train.evidence"])
    if approx == "exact":
        assert values["evidence_lower"] == pytest.approx(metrics["train.evidence"], rel=1e-8)
    else:
        assert metrics["train.evidence"] <= values["evidence_upper"] + slack
        assert values["collapsed_bound"] <= values["evidence_lower"] + values["evidence_rounding"]
    for low, middle, high in (
        ("mean_lower", "mean", "mean_upper"),
        ("inflated_lower", "deflated_lower", "deflated_upper"),
        ("deflated_lower", "deflated_upper", "inflated_upper"),
        ("probability_lower", "probability", "probability_upper"),
    ):
        rows = zip(points[low], points[middle], points[high], strict=True)
        # an approximate mean or probability may lie beyond what is certain, by less than a quarter
        room = 0.25 if middle in ("mean", "probability") else 0.0
        assert all(a - room <= b <= c + room for a, b, c in rows)
    assert "exact P >= 0.5?" in page
    for low, high, answer in zip(
        points["probability_lower"], points["probability_upper"], points["decision"], strict=True
    ):
        assert answer == ("yes" if low >= 0.5 else "no" if high < 0.5 else "open")
    assert {"yes", "no"} == set(points["decision"])
    assert 35 < np.mean(points["mean"]) < 65  # in the data's own units


def test_poor_model_is_called_poor_and_points_may_be_named(run, tmp_path, capsys):
    _, folder = run("approx=sgpr", "approx.num_inducing=2")
    points = tmp_path / "points.csv"
    points.write_text("width,depth\n0.5,1.0\n-1.5,0.2\n0.1,-0.7\n")
    main([f"run={folder.path}", f"points={points}", "products=true"])
    said = capsys.readouterr().out
    stored = json.loads((folder.path / "diagnostics.json").read_text())
    assert stored["points"]["depth"] == pytest.approx([1.0, 0.2, -0.7])
    assert stored["values"]["verdict"] == "uncertified"
    assert "approx.num_inducing=4 instead of 2" in said or "explains the data as noise" in said
    main([f"run={folder.path}", f"points={points}", "products=false"])
    coarse = json.loads((folder.path / "diagnostics.json").read_text())
    assert coarse["values"]["kl_upper"] >= stored["values"]["kl_upper"]
    assert coarse["values"]["cg_iterations"] is None


def test_at_the_end_of_training(run):
    metrics, folder = run("approx=sgpr", "approx.num_inducing=40", "trainer.certify=true")
    stored = json.loads((folder.path / "diagnostics.json").read_text())
    kept = {k.removeprefix("certificate."): v for k, v in metrics.items() if "certificate." in k}
    assert kept == stored["values"]
    assert kept["verdict"] in ("certified", "plausible", "uncertified")
    # the same numbers later, from the files alone
    main([f"run={folder.path}"])
    again = json.loads((folder.path / "diagnostics.json").read_text())["values"]
    for name in ("kl_upper", "evidence_lower", "mean_error_original"):
        assert again[name] == pytest.approx(kept[name], rel=1e-5, abs=1e-9)


def test_rows_held_out_for_a_recalibration_are_no_part_of_exact_inference(run, capsys):
    options = ["approx=sgpr", "approx.num_inducing=40", "calibrate=variance"]
    metrics, folder = run(*options, "calibrate.fraction=0.3", "trainer.certify=true")
    kept = json.loads((folder.path / "diagnostics.json").read_text())["values"]
    main([f"run={folder.path}"])
    again = json.loads((folder.path / "diagnostics.json").read_text())["values"]
    for name in ("evidence_lower", "evidence_upper", "kl_upper"):
        assert again[name] == pytest.approx(kept[name], rel=1e-5, abs=1e-9)
    assert f"{metrics['uncalibrated.mnlp_original']:12.4g}" in capsys.readouterr().out


def test_svgp_is_judged_by_what_it_predicts(run):
    metrics, folder = run("approx=svgp", "approx.num_inducing=60", "trainer.certify=true")
    values = json.loads((folder.path / "diagnostics.json").read_text())["values"]
    assert values["verdict"] == "certified"
    assert metrics["train.evidence"] <= values["evidence_upper"]


def test_a_certificate_is_of_the_inducing_variables_of_the_run(run, monkeypatch):
    """Eigenfunctions are no points: the sparse posterior it compares with is theirs."""
    seen = []
    certify = certification.certify

    def watched(*args, **options):
        seen.append((args[3], options["features"], options["jitter"]))
        return certify(*args, **options)

    monkeypatch.setattr(certification, "certify", watched)
    asked = ("inducing=eigenfunctions", "approx.num_inducing=20", "approx.jitter=1e-5")
    run("approx=svgp", *asked, "trainer.certify=true")
    (z, features, jitter), *_ = seen
    assert isinstance(features, Eigenfunctions)
    assert z.dtype == torch.float64
    assert jitter == 1e-5


def test_what_cannot_be_certified_says_so(run, tmp_path, capsys, composed):
    with pytest.raises(ConfigError, match="QSGP cannot be certified"):
        run("approx=qsgp", "trainer.certify=true")
    with pytest.raises(ConfigError, match="StudentT cannot be certified"):
        run("approx=svgp", "likelihood=student_t", "trainer.certify=true")
    assert "there is no run folder" in refused(capsys, main, f"run={tmp_path / 'nowhere'}")
    assert "run= is missing" in refused(capsys, main, "points=x.csv")
    assert "did you mean points=" in refused(capsys, main, "run=x", "point=x.csv")


def test_wrong_points_and_options(run, tmp_path, capsys):
    _, folder = run("approx=sgpr", "approx.num_inducing=10")
    where = f"run={folder.path}"
    assert "points.csv" in refused(capsys, main, where, f"points={tmp_path / 'points.csv'}")
    (tmp_path / "points.csv").write_text("depth,breadth\n1,2\n")
    assert "width" in refused(capsys, main, where, f"points={tmp_path / 'points.csv'}")
    assert "threshold=high: expected a number" in refused(capsys, main, where, "threshold=high")
    assert "level=95" in refused(capsys, main, where, "level=95")
    assert "set threshold= too" in refused(capsys, main, where, "probability=0.9")
    assert "probability=2" in refused(capsys, main, where, "threshold=3", "probability=2")
    assert "products=perhaps" in refused(capsys, main, where, "products=perhaps")
    assert not (folder.path / "diagnostics.json").exists()
    changed = (tmp_path / "table.csv").read_text().replace("strength\n", "strength\n0.1,0.1,49\n")
    (tmp_path / "table.csv").write_text(changed)
    assert "have changed since" in refused(capsys, main, where)
