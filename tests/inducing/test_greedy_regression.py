"""Inducing points by residual sum of squares and by evidence, against brute force."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from gpx.errors import ConfigError, DataError, ShapeError
from gpx.inducing import GreedyRegression
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import CGLB, DKL, SGPR, SVGP, SWSGP, EffectivePrior, SubsetOfData
from gpx.objectives import EffectiveEvidence

SCORES = ("residual", "evidence")


def data(n=40):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    x[7] = x[3]  # a repeated input
    y = (2.0 * x).sin().sum(1) + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    y[3] = y[7] = 4.0  # which explains much, but once
    return x, y, RBF(2, lengthscale=0.8, outputscale=1.3).double()


def noises(n):
    spread = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return {"one": torch.tensor(0.1, dtype=torch.float64), "each": 0.05 + 0.2 * spread}


def objective(score, matrix, y, noise, rows):
    """What a selection should make small, dense."""
    columns, n = matrix[:, rows], len(y)
    if score == "residual":
        root = noise.expand(n).rsqrt()
        design, target = root.unsqueeze(1) * columns, root * y
        solution = torch.linalg.lstsq(design, target, driver="gelsd").solution
        return float((target - design @ solution).square().sum())
    explained = columns @ torch.linalg.solve(matrix[rows][:, rows], columns.mT)
    law = MultivariateNormal(torch.zeros_like(y), explained + torch.diag(noise.expand(n)))
    return -float(law.log_prob(y))


@pytest.mark.parametrize("noise", ["one", "each"])
@pytest.mark.parametrize("score", SCORES)
@torch.no_grad()
def test_points_are_those_of_brute_force_and_the_objective_falls(score, noise):
    x, y, kernel = data()
    matrix, variances = kernel.evaluate(x, x), noises(len(x))[noise]
    found = GreedyRegression(score).given(y, variances).select(x, kernel, 30)
    chosen = found.indices[: found.informative].tolist()
    rows, value = [], torch.inf
    while len(rows) < min(7, len(chosen)):
        repeats = {3, 7} if {3, 7} & set(rows) else set()
        values = {
            j: objective(score, matrix, y, variances, [*rows, j])
            for j in range(len(x))
            if j not in rows and j not in repeats
        }
        rows.append(min(values, key=values.get))
        assert values[rows[-1]] < value
        value = values[rows[-1]]
    assert chosen[: len(rows)] == rows
    values = [objective(score, matrix, y, variances, chosen[:m]) for m in range(1, len(chosen) + 1)]
    assert values == sorted(values, reverse=True)
    assert len({3, 7} & set(chosen)) == 1  # equal inputs: once
    left = matrix - matrix[:, chosen] @ torch.linalg.solve(
        matrix[chosen][:, chosen], matrix[chosen]
    )
    assert found.trace_error == pytest.approx(float(left.trace()), rel=1e-6)


@torch.no_grad()
def test_evidence_ends_where_every_further_point_costs_evidence():
    x, y, kernel = data()
    noise = noises(len(x))["one"]
    found = GreedyRegression("evidence").given(y, noise).select(x, kernel, 40)
    chosen = found.indices[: found.informative].tolist()
    assert 3 < len(chosen) < 40
    assert found.indices.unique().numel() == 40  # the rest are other rows
    matrix = kernel.evaluate(x, x)
    best = objective("evidence", matrix, y, noise, chosen)
    for j in set(range(len(x))) - set(chosen) - {3, 7}:
        assert objective("evidence", matrix, y, noise, [*chosen, j]) > best


@pytest.mark.parametrize("score", SCORES)
def test_many_points_of_a_smooth_function_in_float32(score):
    """Recursions over all candidates must not drift into rounding."""
    x = torch.linspace(-3.0, 3.0, 200).unsqueeze(1)
    y, kernel = (3.0 * x[:, 0]).sin(), RBF(lengthscale=0.7)
    found = GreedyRegression(score).given(y, torch.tensor(1e-6)).select(x, kernel, 60)
    chosen = found.indices[: found.informative]
    assert found.points.dtype == torch.float32
    with torch.no_grad():
        columns = kernel.double().evaluate(x.double(), x[chosen].double())
        solution = torch.linalg.lstsq(columns, y.double(), driver="gelsd").solution
    unexplained = float((y - columns @ solution).square().mean())
    assert unexplained < (1e-8 if score == "residual" else 1e-6)  # evidence: the noise


def test_selections_are_nested_repeat_and_draw_candidates_by_the_seed():
    x, y, kernel = data()
    selector = GreedyRegression("residual", max_candidates=20).given(y, torch.tensor(0.1))
    draws = [
        selector.select(x, kernel, m, generator=torch.Generator().manual_seed(s)).indices
        for m, s in ((10, 0), (10, 0), (6, 0), (10, 1))
    ]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0][:6], draws[2])
    assert not torch.equal(draws[0], draws[3])
    among = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:20]
    assert set(draws[0].tolist()) <= set(among.tolist())


def parts():
    return {"kernel": RBF(2), "mean": Constant(), "likelihood": Gaussian(0.1)}


@pytest.mark.parametrize("model", [SGPR, CGLB, EffectivePrior, SubsetOfData])
def test_regressions_pass_their_targets_on(model):
    x, y, _ = data()
    size = {"num_points": 8} if model is SubsetOfData else {"num_inducing": 8, "num_inputs": 2}
    size |= {"num_data": 40} if model is CGLB else {}
    made = model(**parts(), **size, selector=GreedyRegression("residual")).double()
    chosen = made.selector.given(y - made.mean(x), made.likelihood.noise_variance).select(
        x, made.kernel, 8
    )
    made.initialise(x, y, generator=torch.Generator().manual_seed(0))
    if model is SubsetOfData:
        assert torch.equal(made.rows, chosen.indices)
    else:
        assert torch.equal(made.inducing_points, chosen.points)


@torch.no_grad()
def test_the_evidence_is_that_of_the_subset_of_regressors():
    x, y, _ = data()
    sor = {
        m: EffectivePrior(
            **parts(),
            prior="sor",
            num_inputs=2,
            num_inducing=m,
            selector=GreedyRegression("evidence"),
            fit_noise=False,
        ).double()
        for m in (1, 3, 5)
    }
    values = []
    for model in sor.values():
        model.initialise(x, y, generator=torch.Generator().manual_seed(0))
        values.append(float(EffectiveEvidence().evidence(model, x, y).value))
    assert values == sorted(values)
    others = []
    for row in range(len(x)):
        sor[1].place(x[row : row + 1])
        others.append(float(EffectiveEvidence().evidence(sor[1], x, y).value))
    assert values[0] == pytest.approx(max(others), abs=1e-9)


def test_what_does_not_fit_is_said():
    x, y, kernel = data()
    noise = torch.tensor(0.1, dtype=torch.float64)
    with pytest.raises(ConfigError, match="score=rss: expected one of residual, evidence"):
        GreedyRegression("rss")
    with pytest.raises(ConfigError, match="GreedyRegression chooses by the targets: call given"):
        GreedyRegression()(x, kernel, 5)
    with pytest.raises(ShapeError, match="40 inputs and 39 targets"):
        GreedyRegression().given(y[1:], noise)(x, kernel, 5)
    with pytest.raises(ShapeError, match=r"targets must be a vector \(n,\), got \(40, 1\)"):
        GreedyRegression().given(y.unsqueeze(1), noise)
    y[2] = torch.nan
    with pytest.raises(DataError, match="the targets hold NaN or infinite values"):
        GreedyRegression().given(y, noise)
    for model in (SVGP, SWSGP):
        with pytest.raises(ConfigError, match=r"selector=GreedyRegression .* selector=KMeans\(\)"):
            model(**parts(), num_inputs=2, num_data=40, selector=GreedyRegression())
    with pytest.raises(ConfigError, match="selector=GreedyRegression chooses by the targets"):
        DKL(**parts(), num_inputs=2, num_data=40, selector=GreedyRegression())
