from gpx.training.results import summary

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
    assert lines[-1] == ("evidence -12.3 nats (lower_bound), 7 steps in 1.2 s, peak memory 300 MiB")


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
