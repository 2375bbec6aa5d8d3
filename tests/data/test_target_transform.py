"""Transforms of targets against SciPy's laws, numerical integrals and their own inverses."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from largest_tensor import Largest
from scipy import integrate, stats
from torch.distributions import Categorical, MixtureSameFamily, Normal, StudentT

from gpx.data import Table, target_transform
from gpx.data.target_transform import TargetTransform, TransformedLaw, require_positive
from gpx.errors import ConfigError, DataError

KINDS = ("log", "boxcox", "quantile")


@pytest.fixture
def targets() -> np.ndarray:
    return np.random.default_rng(0).gamma(1.5, 40.0, 400) + 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_training_targets_get_mean_zero_and_spread_one(kind: str, targets: np.ndarray) -> None:
    found = TargetTransform.fitted(kind, targets)(torch.from_numpy(targets))
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-10)
    assert float(found.std(correction=0)) == pytest.approx(1.0, rel=1e-10)
    assert stats.skew(found.numpy()) ** 2 < stats.skew(targets) ** 2


@pytest.mark.parametrize("kind", KINDS)
def test_inverse_and_slope(kind: str, targets: np.ndarray) -> None:
    transform = TargetTransform.fitted(kind, targets)
    # beyond the data, too
    y = torch.from_numpy(np.concatenate([targets, [0.01, 1e4]])).requires_grad_()
    t = transform(y)
    torch.testing.assert_close(transform.inverse(t), y, rtol=1e-9, atol=1e-9)
    (slope,) = torch.autograd.grad(t.sum(), y)
    torch.testing.assert_close(transform.log_slope(y), slope.log(), rtol=1e-9, atol=1e-9)
    rising = transform(torch.linspace(0.1, 500.0, 1000, dtype=torch.float64))
    assert bool((rising.diff() > 0).all())


def test_power_is_the_most_likely_one(targets: np.ndarray) -> None:
    found = TargetTransform.fitted("boxcox", targets)
    assert found.power == pytest.approx(stats.boxcox(targets)[1], rel=1e-4)
    heavy = 1.0 / np.random.default_rng(1).normal(5.0, 1.0, 400).clip(1.0)
    assert stats.boxcox(heavy)[1] < 0.0
    assert TargetTransform.fitted("boxcox", heavy).power == 0.0  # a logarithm


def test_logarithm_is_the_lognormal_law() -> None:
    transform = TargetTransform("log", shift=0.7, scale=0.4)
    base = Normal(torch.tensor([0.3, -1.0]).double(), torch.tensor([0.5, 1.2]).double())
    law = TransformedLaw(base, transform, 0.0, 1.0)
    own = stats.lognorm(s=0.4 * base.stddev.numpy(), scale=np.exp(0.7 + 0.4 * base.mean.numpy()))
    y = torch.tensor([1.7, 2.5], dtype=torch.float64)
    np.testing.assert_allclose(law.log_prob(y), own.logpdf(y.numpy()), rtol=1e-10)
    np.testing.assert_allclose(law.cdf(y), own.cdf(y.numpy()), rtol=1e-6)
    np.testing.assert_allclose(law.icdf(torch.full((2,), 0.9).double()), own.ppf(0.9), rtol=1e-6)
    for outside in (torch.zeros(2).double(), -y):
        np.testing.assert_array_equal(law.log_prob(outside), own.logpdf(outside.numpy()))
        np.testing.assert_array_equal(law.cdf(outside), own.cdf(outside.numpy()))
    np.testing.assert_allclose(law.mean, own.mean(), rtol=1e-10)
    np.testing.assert_allclose(law.variance, own.var(), rtol=1e-8)
    scaled = TransformedLaw(base, transform, 2.0, 3.0)
    v = (y - 2.0) / 3.0
    np.testing.assert_allclose(scaled.mean, (own.mean() - 2.0) / 3.0, rtol=1e-10)
    np.testing.assert_allclose(scaled.log_prob(v), own.logpdf(y.numpy()) + np.log(3.0), rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_density_integrates_to_one_and_to_the_mean(kind: str, targets: np.ndarray) -> None:
    transform = TargetTransform.fitted(kind, targets)
    mean, scale = float(targets.mean()), float(targets.std())
    base = Normal(torch.tensor([0.4]).double(), torch.tensor([0.6]).double())
    law = TransformedLaw(base, transform, mean, scale)

    def density(v: float) -> float:
        return float(law.log_prob(torch.tensor([v], dtype=torch.float64)).exp())

    ends = [float(law.from_base(torch.tensor(t).double())) for t in np.linspace(-2.3, 3.4, 45)]
    grid = np.concatenate([np.linspace(a, b, 40, endpoint=False) for a, b in pairwise(ends)])
    if kind != "quantile":
        values = np.array([density(v) for v in grid])
        assert integrate.trapezoid(values, grid) == pytest.approx(1.0, abs=2e-3)
        assert integrate.trapezoid(values * grid, grid) == pytest.approx(float(law.mean), abs=2e-3)
    half = law.cdf(law.icdf(torch.tensor([0.3]).double()))
    assert float(half) == pytest.approx(0.3, abs=1e-6)
    # what a density of t gains is dT/dv
    v = torch.tensor([0.37], dtype=torch.float64)
    step = 1e-5
    slope = (law.cdf(v + step) - law.cdf(v - step)) / (2 * step)
    assert density(0.37) == pytest.approx(float(slope), rel=1e-4)
    draws = base.sample(torch.Size([20_000]))[:, 0]
    # the mean of 20,000 draws is off by more than 5 standard errors once in a million
    values = law.from_base(draws)
    assert abs(float(values.mean() - law.mean)) < 5.0 * float(values.std()) / 20_000**0.5


def test_mixtures_of_normals() -> None:
    parts = Normal(torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[0.5, 0.2]]).double())
    mixture = MixtureSameFamily(Categorical(torch.tensor([[0.25, 0.75]]).double()), parts)
    transform = TargetTransform("log")
    law = TransformedLaw(mixture, transform, 0.0, 1.0)
    each = TransformedLaw(parts, transform, 0.0, 1.0).mean[0]
    assert float(law.mean) == pytest.approx(float(0.25 * each[0] + 0.75 * each[1]), rel=1e-10)
    assert float(law.cdf(law.icdf(torch.tensor([0.9], dtype=torch.float64)))) == pytest.approx(
        0.9, rel=1e-10
    )
    with pytest.raises(ConfigError, match=r"not a StudentT: .*likelihood=Gaussian\(\)"):
        TransformedLaw(StudentT(torch.tensor([4.0])), transform, 0.0, 1.0)


def test_what_lies_below_the_range_lies_at_its_end() -> None:
    transform = TargetTransform("boxcox", power=0.5)
    assert float(transform.inverse(torch.tensor(-3.0))) == 0.0
    law = TransformedLaw(Normal(torch.tensor([-2.0]), torch.tensor([1.0])), transform, 0.0, 1.0)
    assert float(law.icdf(torch.tensor([0.3]))) == 0.0
    assert float(law.icdf(torch.tensor([0.9]))) > 0.0
    at_the_end = float(law.base.cdf(transform(torch.tensor([0.0])).float()))
    assert law.cdf(torch.tensor([-0.1, 0.0])).tolist() == [0.0, at_the_end]


@pytest.mark.parametrize("kind", KINDS)
def test_plain_data_and_back(kind: str, targets: np.ndarray, tmp_path) -> None:  # type: ignore[no-untyped-def]
    made = TargetTransform.fitted(kind, targets)
    torch.save(made.state(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert TargetTransform.from_state(state) == made
    for change in (
        {"kind": "exp"},
        {"scale": 0.0},
        {"scale": float("nan")},
        {"power": -1.0},
        {"knots": [1.0, 1.0], "scores": [0.0, 1.0]},
    ):
        with pytest.raises((ValueError, TypeError)):
            TargetTransform.from_state({**state, **change})


def test_targets_that_have_no_transform() -> None:
    y = np.array([1.0, 0.0, -2.0])
    table = Table("t", np.zeros((3, 1)), y, ("x",), "cost", origin="t.csv")
    for kind in ("log", "boxcox"):
        with pytest.raises(
            DataError, match=r"t.csv, data row 2, .*'cost'\): found 0 \(rows like this: 2"
        ):
            require_positive(table, kind)
    require_positive(table, "quantile")
    with pytest.raises(ConfigError, match="target_transform=logs: expected one of log, boxcox"):
        require_positive(table, "logs")
    with pytest.raises(DataError, match="are 2, so target_transform=log cannot be fitted"):
        TargetTransform.fitted("log", np.full(9, 2.0))
    with pytest.raises(DataError, match="which needs three quantiles"):
        TargetTransform.fitted("quantile", np.array([1.0, 2.0] * 40))
    with pytest.raises(ConfigError, match="target_transform=sqrt: expected one of log, boxcox, q"):
        TargetTransform.fitted("sqrt", np.arange(9.0))


@pytest.mark.parametrize("kind", KINDS)
def test_moments_take_the_memory_of_a_few_values_for_each_part(
    kind: str, targets: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_transform, "MOMENT_VALUES", 100)
    shape = rows, parts = 50, 20
    normal = Normal(torch.zeros(shape).double(), torch.full(shape, 0.5).double())
    shares = Categorical(torch.full(shape, 1.0 / parts).double())
    law = TransformedLaw(
        MixtureSameFamily(shares, normal), TargetTransform.fitted(kind, targets), 0.0, 1.0
    )
    with Largest() as made:
        assert law.mean.shape == law.variance.shape == (rows,)
    assert made.entries <= rows * parts


def test_moments_are_those_of_one_node_at_a_time(
    targets: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    normal = Normal(torch.randn(30).double(), torch.full((30,), 0.5).double())
    transform = TargetTransform.fitted("log", targets)
    together = TransformedLaw(normal, transform, 0.0, 1.0)
    monkeypatch.setattr(target_transform, "MOMENT_VALUES", 1)
    apart = TransformedLaw(normal, transform, 0.0, 1.0)
    torch.testing.assert_close(together.mean, apart.mean)
    torch.testing.assert_close(together.variance, apart.variance)


def test_a_mean_has_its_graph_after_a_variance_without_one(targets: np.ndarray) -> None:
    centre = torch.zeros(3).double().requires_grad_()
    law = TransformedLaw(Normal(centre, 0.5), TargetTransform.fitted("log", targets), 0.0, 1.0)
    with torch.no_grad():
        assert not law.variance.requires_grad
    assert law.mean.requires_grad
    assert law.variance.requires_grad
