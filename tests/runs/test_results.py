from gpx.runs.results import summary

METRICS = {
    "test.rmse": 0.5,
    "test.mnlp": -0.25,
    "model.name": "SVGP",
    "train.evidence": -12.34,
    "train.evidence_kind": "lower_bound",
    "train.steps": 7,
    "train.seconds": 1.25,
    "memory.peak_mib": 300.4,
}


def test_the_model_stands_above_its_baselines():
    lines = summary(METRICS | {"baseline.linear.rmse": 0.9, "baseline.5-nn.rmse": 0.6})
    assert [line.split() for line in lines[1:5]] == [
        ["rmse", "mnlp"],
        ["SVGP", "0.5000", "-0.2500"],
        ["linear", "0.9000", "-"],
        ["5-nn", "0.6000", "-"],
    ]
    said = "log evidence -12.3 nats (lower bound); 7 steps in 1.2 s; peak memory 300 MiB"
    assert lines[-1] == said


def test_it_says_on_how_many_rows_and_why_training_ended():
    ended = {"data.num_test": 1200, "train.stopped": "trainer.max_steps=7 steps done"}
    lines = summary(METRICS | ended)
    assert lines[0] == "test metrics on 1,200 rows (standardised targets; lower is better)"
    assert "; 7 steps in 1.2 s (trainer.max_steps=7 steps done); " in lines[-1]
    of_scipy = {"train.stopped": "CONVERGENCE: NORM OF PROJECTED GRADIENT <= PGTOL"}
    assert "; 7 steps in 1.2 s (converged); " in summary(METRICS | of_scipy)[-1]


def test_what_is_told_in_place_of_an_evidence_is_named():
    of = METRICS | {"train.evidence_of": "-N/2 log GCV in its place"}
    assert "nats (lower bound; -N/2 log GCV in its place); 7 steps" in summary(of)[-1]
    assert "log evidence -1.234e+119 nats" in summary(METRICS | {"train.evidence": -1.2344e119})[-1]


def test_what_recalibration_changed_is_shown():
    lines = summary(METRICS | {"uncalibrated.rmse": 0.5, "uncalibrated.mnlp": -0.5})
    assert lines[3].split() == ["before", "recalibration", "0.5000", "-0.5000"]


def test_of_classes_it_says_how_calibrated_they_are():
    """Labels have no unit, and the root of the Brier score is no error in one."""
    classes = {"test.accuracy": 0.9, "test.brier": 0.16, "test.ece": 0.03, "test.rmse": 0.4}
    lines = summary(METRICS | classes | {"baseline.linear.accuracy": 0.8})
    assert lines[0] == "test metrics"
    assert [line.split() for line in lines[1:4]] == [
        ["accuracy", "mnlp", "brier", "ece"],
        ["SVGP", "0.9000", "-0.2500", "0.1600", "0.0300"],
        ["linear", "0.8000", "-", "-", "-"],
    ]
    for task, said in (
        (None, "standardised targets"),
        ("regression", "standardised targets"),
        ("count", "counts"),
        ("proportion", "proportions"),
    ):
        of_task = METRICS if task is None else METRICS | {"data.task": task}
        assert summary(of_task)[0] == f"test metrics ({said}; lower is better)"


def test_a_recalibrated_model_says_what_its_intervals_hold():
    before = {"uncalibrated.rmse": 0.5, "uncalibrated.mnlp": 0.1, "uncalibrated.coverage_95": 0.98}
    lines = summary(METRICS | before | {"test.coverage_95": 0.951})
    assert "95 % intervals hold 95.1 % of the test targets, 98.0 % before" in lines


def test_a_baseline_that_predicts_better_is_named():
    boosting = {"baseline.boosting.rmse": 0.45, "baseline.boosting.seconds": 1.62}
    others = {"baseline.linear.rmse": 0.49, "baseline.mean.rmse": 1.0}
    lines = summary(METRICS | others | boosting)
    assert lines[-2] == "histogram boosting has a lower test RMSE: 0.4500 against 0.5000, in 1.6 s"
    some = summary(METRICS | others | boosting | {"baseline.boosting.rows": 20_000})
    assert some[-2].endswith("in 1.6 s, fitted to 20,000 rows")
    assert not any(
        "lower test" in line for line in summary(METRICS | {"baseline.linear.rmse": 0.5})
    )
    classes = {"test.accuracy": 0.9, "baseline.linear.accuracy": 0.95, "baseline.linear.rmse": 0.6}
    line = summary(METRICS | classes)[-2]
    assert line == "a linear model has a higher test accuracy: 0.9500 against 0.9000"


def test_a_difference_that_no_digit_shows_is_not_said():
    near = {"test.rmse": 3e-6, "baseline.5-nn.rmse": 1e-9, "baseline.5-nn.mnlp": 0.0}
    assert len(summary(METRICS | near)) == 5


def test_worse_densities_than_those_of_a_baseline_are_said():
    """Where no baseline errs less: classes that are all right with probabilities near a half."""
    classes = {"test.accuracy": 1.0, "test.mnlp": 0.6927, "baseline.mean.accuracy": 1.0}
    line = summary(METRICS | classes | {"baseline.mean.mnlp": 0.0195})[-2]
    assert line == "predicting the training mean has a lower test MNLP: 0.0195 against 0.6927"
    assert len(summary(METRICS | classes | {"baseline.mean.mnlp": 0.7})) == 5


def test_values_of_weights_too_far_apart_for_the_noise_are_said():
    words = (
        "error bars are unreliable: the expected squared error of training rows is 12.3 times the"
    )
    assert any(words in line for line in summary(METRICS | {"train.misfit": 12.34}))
    assert not any("noise variance" in line for line in summary(METRICS | {"train.misfit": 1.1}))


def test_the_sparsity_of_discrete_weights_is_said():
    assert "zeros in a draw of the weights: 38.0 %" in summary(METRICS | {"predict.sparsity": 0.38})


def test_without_baselines():
    assert len(summary(METRICS)) == 4


def test_columns_of_huge_numbers_stay_apart():
    table = summary(METRICS | {"test.rmse": 12345.678, "test.mnlp": 17139.64})[2]
    assert table.split()[1:] == ["1.23e+04", "1.71e+04"]


def test_over_fitting_is_said():
    gap = {"train.mnlp": -0.75, "test.mnlp_gap": 0.5}
    assert summary(METRICS | gap)[-2] == (
        "mnlp of training targets -0.7500, of test targets -0.2500: gap 0.5000"
    )


def test_intervals_that_are_far_too_narrow_are_said_with_what_to_do():
    def said(covered, count, **more):
        found = summary(METRICS | {"test.coverage_95": covered, "data.num_test": count} | more)
        return [line for line in found if "intervals" in line]

    (line,) = said(0.6123, 1000)
    assert line.startswith(
        "error bars are too narrow: 95 % intervals contain only 61.2 % of the test targets"
    )
    assert "calibrate=variance" in line
    assert "approx.num_basis" in line
    (again,) = said(0.6, 1000, **{"calibration.factor": 1.0})
    assert "calibrate=" not in again
    assert said(0.86, 1000) == said(0.95, 1000) == []
    assert said(0.70, 10) == []  # three misses of ten happen
    assert len(said(0.60, 10)) == 1
