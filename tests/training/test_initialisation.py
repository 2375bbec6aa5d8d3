import copy
import re

import pytest
import torch

from gpx.bounds import remember_bounds
from gpx.constraints import fix
from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.kernels import RBF, Linear, Matern32, Matern52
from gpx.likelihoods import Bernoulli, Gaussian, GaussianOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant
from gpx.models import SVGP, CoregionalGP, ExactGP
from gpx.objectives import ExactMLL
from gpx.training import ConstantInitialisation, SubsetInitialisation
from gpx.training.exact_outputs import draw_rows, rows_of_outputs
from gpx.training.initialisation import noise_evidence
from gpx.training.several_fits import start_factors


def problem(likelihood):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 2, generator=generator, dtype=torch.float64) * 4 - 2
    y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(300, generator=generator, dtype=torch.float64)
    model = ExactGP(kernel=RBF(ard_num_dims=2), mean=Constant(), likelihood=likelihood).double()
    return model, x, y


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def start(initialisation, model, x, y, seed=0):
    lines = []
    initialisation(model, x, y, generator=seeded(seed), say=lines.append)
    return lines


def test_subset_finds_relevance_and_noise():
    model, x, y = problem(Gaussian(1.0))
    before = ExactMLL().evidence(model, x, y).value.item()
    lines = start(SubsetInitialisation(num_points=150, max_evaluations=60), model, x, y)
    assert ExactMLL().evidence(model, x, y).value.item() > before + 50
    first, second = model.kernel.lengthscale.tolist()
    assert second > 3 * first  # the second input is irrelevant
    assert 0.003 < model.likelihood.noise_variance.item() < 0.03
    assert any("exact GP on 150 points" in line for line in lines)


@pytest.mark.parametrize(("floor", "told"), [(1e-6, False), (0.2, True)])
def test_noise_on_its_floor_is_told(floor, told):
    model, x, y = problem(Gaussian(1.0, noise_floor=floor))
    lines = start(SubsetInitialisation(num_points=60, max_evaluations=60), model, x, y)
    assert (
        any(
            "noise_variance (2e-01), fitted to 60 points, is at its lower limit" in line
            for line in lines
        )
        == told
    )
    assert (model.likelihood.noise_variance.item() < 1.06 * floor) == told


@pytest.mark.parametrize("outputs", [1, 2])
def test_bounds_that_a_model_remembers_hold_in_its_fit(outputs):
    model, x, y = problem(Gaussian(1.0))
    if outputs == 2:
        y = torch.stack([y, y.square()], 1)
        model.likelihood = GaussianOutputs(2, noise_variance=1.0).double()
    remember_bounds(
        model, {"kernel.lengthscale": (0.3, 0.4), "likelihood.noise_variance": (0.2, 0.3)}
    )
    start(SubsetInitialisation(num_points=60, max_evaluations=40), model, x, y)
    # free fits have lengthscales of 0.8 and more and noise of 0.01
    torch.testing.assert_close(model.kernel.lengthscale, torch.tensor([0.4, 0.4]).double())
    noise = model.likelihood.noise_variance
    torch.testing.assert_close(noise, torch.full_like(noise, 0.2))


def loud_rows(n):
    """Known variances (n,) of rows: 4 of every second one, 0 of the others."""
    return 4.0 * (torch.arange(n) % 2).double()


@pytest.mark.parametrize("outputs", [1, 2])
def test_noise_of_rows_that_is_known_holds_in_the_fit(outputs):
    model, x, y = problem(Gaussian(1.0))
    known = RowNoise(torch.zeros(300).double(), 1.0 + 99.0 * loud_rows(300))
    if outputs == 1:
        known = RowNoise.of_variances(loud_rows(300))
    draws = torch.Generator().manual_seed(5)
    y = y + known.variance(torch.tensor(0.01)).sqrt() * torch.randn(300, generator=draws).double()
    model.know_noise(known)
    if outputs == 2:
        model = CoregionalGP(
            kernel=model.kernel, mean=Constant(), likelihood=GaussianOutputs(2)
        ).double()
        y = torch.stack([y, -y], 1)
        y[::7, 1] = torch.nan
        model.row_noise = known
    start(SubsetInitialisation(num_points=200, max_evaluations=60), model, x, y)
    noise = model.likelihood.noise_variance.detach().reshape(-1)
    assert bool(((noise > 0.004) & (noise < 0.05)).all())  # 0.02; 2 and more if all rows are alike


def test_same_seed_same_start_and_float32_models_are_served():
    results = []
    double, single = torch.float64, torch.float32
    for seed, dtype in ((0, double), (0, double), (1, double), (0, single)):
        model, x, y = problem(Gaussian(1.0))
        model.to(dtype)
        start(
            SubsetInitialisation(num_points=100, max_evaluations=15),
            model,
            x.to(dtype),
            y.to(dtype),
            seed,
        )
        assert model.kernel.lengthscale.dtype == dtype
        results.append(model.kernel.lengthscale.detach().double())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert torch.allclose(results[0], results[3], rtol=1e-2)  # the data were rounded to float32


def test_constants_and_other_likelihoods_stay():
    for likelihood, initialisation in (
        (Gaussian(0.5), ConstantInitialisation()),
        (Bernoulli(), SubsetInitialisation()),
    ):
        model, x, y = problem(likelihood)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        start(initialisation, model, x, y)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_fit_to_nothing_is_refused():
    with pytest.raises(ConfigError, match="num_points=1 must be at least 2"):
        SubsetInitialisation(num_points=1)
    with pytest.raises(ConfigError, match="max_evaluations=0 must be at least 1"):
        SubsetInitialisation(max_evaluations=0)


@pytest.mark.parametrize("fixed", ["", "kernel"])
def test_fixed_hyperparameters_stay(fixed):
    x = torch.rand(60, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (4.0 * x).sum(1).sin()
    model = ExactGP(kernel=Matern32(5), mean=Constant(), likelihood=Gaussian(0.2)).double()
    held = [p for name, p in model.named_parameters() if name.startswith(fixed)]
    for parameter in held:
        parameter.requires_grad_(False)
    before = [parameter.clone() for parameter in held]
    lines = start(SubsetInitialisation(30, 20, num_starts=2), model, x, y)
    assert bool(lines) == bool(fixed)
    assert all(map(torch.equal, held, before))


@pytest.mark.parametrize(("starts", "fits"), [(1, 2), (4, 3)])
def test_the_fit_leaves_where_the_kernel_matrix_is_diagonal(starts, fits):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(150, 40, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0]) + 0.3 * x[:, 1]
    model = ExactGP(kernel=RBF(ard_num_dims=40), mean=Constant(), likelihood=Gaussian(0.1)).double()
    said = start(SubsetInitialisation(150, 30, starts), model, x, y)
    # exp(-40) between any two points: from there nothing is explained
    assert ExactMLL().evidence(model, x, y).value.item() > noise_evidence(model, x, y) + 50.0
    values = [line for line in said if f"{fits} starts" in line]
    assert len(values) == 1
    assert "best fit is used" in values[0]


def fast(rows, inputs, kernel):
    """Rows of sines of many periods in every input, and a model of unit lengthscales."""
    draws = torch.Generator().manual_seed(0)
    x = 3.5 * torch.rand(rows, inputs, generator=draws, dtype=torch.float64)
    y = torch.sin((18.0 if inputs == 1 else 8.0) * x).prod(1)
    y = y + 0.05 * torch.randn(rows, generator=draws, dtype=torch.float64)
    model = ExactGP(kernel=kernel, mean=Constant(), likelihood=Gaussian(0.1)).double()
    return model, x, (y - y.mean()) / y.std()


@pytest.mark.parametrize(
    ("rows", "inputs", "kernel"),
    [
        pytest.param(120, 1, RBF(ard_num_dims=1), id="rbf"),
        pytest.param(60, 1, Matern52(), id="matern52"),
        pytest.param(120, 1, 2.0 * RBF(ard_num_dims=1) + Linear(), id="sum"),
        pytest.param(200, 2, RBF(ard_num_dims=2), id="two inputs"),
    ],
)
def test_functions_faster_than_the_first_lengthscales_are_not_taken_for_noise(rows, inputs, kernel):
    model, x, y = fast(rows, inputs, kernel)
    said = start(SubsetInitialisation(), model, x, y)
    assert model.likelihood.noise_variance.item() < 0.1
    assert ExactMLL().evidence(model, x, y).value.item() > noise_evidence(model, x, y) + 30.0
    (line,) = [line for line in said if "another fit" in line]
    words = (
        r"hardly better than noise alone \(by -?\d+\.\d nats\); another fit, from lengthscales 0.25"
    )
    assert re.search(words, line)


def test_further_fits_start_above_the_floor_of_lengthscales():
    model, x, y = fast(60, 1, RBF(lengthscale=1e-5))
    said = start(SubsetInitialisation(60, 5), model, x, y)
    assert len([line for line in said if "another fit" in line]) == 2


def test_a_further_fit_that_fails_leaves_the_first(monkeypatch):
    model, x, _ = fast(60, 1, RBF(ard_num_dims=1))
    y = torch.randn(60, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    fit = SubsetInitialisation._fit

    def fail(self, exact, *rows, **again):
        if exact[0].kernel.lengthscale.item() < 0.9:
            raise NotPositiveDefinite("not positive definite")
        return fit(self, exact, *rows, **again)

    monkeypatch.setattr(SubsetInitialisation, "_fit", fail)
    said = start(SubsetInitialisation(), model, x, y)
    assert len([line for line in said if "no fit from there: not positive definite" in line]) == 2
    assert model.likelihood.noise_variance.item() > 0.5 * y.var().item()


def test_processes_decide_by_the_numbers_of_the_first_whether_to_fit_again(monkeypatch):
    """Where rounding differs, one process would wait for another that has gone on."""

    class First:
        def broadcast(self, values):
            for value in values:
                value.fill_(1e3)

    model, x, _ = fast(60, 1, RBF(ard_num_dims=1))
    y = torch.randn(60, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    monkeypatch.setattr("gpx.training.initialisation.sharing", First)
    assert not any("another" in line for line in start(SubsetInitialisation(), model, x, y))


def test_what_is_noise_stays_noise():
    model, x, _ = fast(100, 1, RBF(ard_num_dims=1))
    twin = copy.deepcopy(model)
    y = torch.randn(100, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    said = start(SubsetInitialisation(), model, x, y)
    assert len([line for line in said if "another fit" in line]) == 2
    assert model.likelihood.noise_variance.item() > 0.8 * y.var().item()
    rows = draw_rows(x, 100, seeded())
    first = SubsetInitialisation()._fit([twin], x[rows], y[rows], None, str)
    assert not first.explains
    assert torch.equal(twin.kernel.lengthscale, model.kernel.lengthscale)


def test_a_start_that_is_above_noise_is_taken_however_many_lengthscales_follow():
    """Two hundred lengthscales of a hundred rows gain less than one nat each in a few steps."""
    draws = torch.Generator().manual_seed(0)
    hidden = torch.randn(100, 2, generator=draws).double()
    x = hidden @ torch.randn(2, 200, generator=draws).double()
    y = torch.sin(2.0 * hidden[:, 0])
    y = (y - y.mean()) / y.std()
    model = ExactGP(kernel=RBF(200), mean=Constant(), likelihood=Gaussian(1.0)).double()
    said = start(SubsetInitialisation(100, 3), model, x, y)
    assert any("evidence/point from 2 starts" in line for line in said)
    assert float(model.kernel.lengthscale.detach().min()) > 10.0


def test_a_fit_that_explains_is_the_only_one_and_fixed_lengthscales_are_never_changed():
    model, x, y = problem(Gaussian(1.0))
    assert not any("another" in line for line in start(SubsetInitialisation(100), model, x, y))
    model, x, y = fast(60, 1, RBF(ard_num_dims=1))
    model.kernel.parametrizations.lengthscale.original.requires_grad_(False)
    assert not any("another" in line for line in start(SubsetInitialisation(), model, x, y))
    assert model.kernel.lengthscale.item() == 1.0


def test_the_evidence_of_noise_is_the_density_of_normal_targets():
    model, x, y = problem(Gaussian(1.0))
    model.mean.constant.data.fill_(0.3)
    found = noise_evidence(model, x, y)
    deviation = (y - 0.3).square().mean().sqrt()
    expected = torch.distributions.Normal(0.3, deviation).log_prob(y).sum().item()
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_evidence_of_noise_has_the_noise_of_rows_that_is_known():
    model, x, y = problem(Gaussian(1.0))
    zero, relative = torch.zeros(300).double(), 1.0 + loud_rows(300)
    model.know_noise(RowNoise(zero, relative))
    deviation = (relative * (y.square() / relative).mean()).sqrt()
    expected = torch.distributions.Normal(0.0, deviation).log_prob(y).sum().item()
    assert noise_evidence(model, x, y) == pytest.approx(expected, abs=1e-3)
    known = loud_rows(300)
    model.know_noise(known)
    learned = torch.logspace(-2.0, 1.0, 2000, dtype=torch.float64).unsqueeze(1)
    law = torch.distributions.Normal(0.0, (known + learned).sqrt())
    expected = law.log_prob(y).sum(1).max().item()
    assert noise_evidence(model, x, y) == pytest.approx(expected, abs=1e-3)
    model.know_noise(RowNoise(zero + 0.3, zero))  # nothing is learned
    expected = torch.distributions.Normal(zero, 0.3**0.5).log_prob(y).sum().item()
    assert noise_evidence(model, x, y) == pytest.approx(expected, rel=1e-12)


def test_a_start_that_wins_is_taken_with_all_that_belongs_to_it():
    model, x, y = problem(Gaussian(1.0))
    single, *_ = problem(Gaussian(1.0))
    wide = torch.cat([x, x.flip(0)], 1)  # four inputs: from one and two times the lengthscale
    for each in (model, single):
        each.kernel = RBF(ard_num_dims=4).double()
    start(SubsetInitialisation(100, 1), single, wide, y)
    lines = start(SubsetInitialisation(100, 1, 4), model, wide, y)
    first, second = (
        float(v.rstrip(";")) for v in lines[-1].replace(",", "").split() if v[0] in "+-"
    )
    expected = 1.0 if first > second else 2.0
    torch.testing.assert_close(
        model.kernel.lengthscale, torch.full((4,), expected, dtype=torch.float64)
    )
    assert single.kernel.lengthscale.tolist() == pytest.approx([1.0] * 4)


@pytest.mark.parametrize(
    ("inputs", "factors"), [(3, [1.0]), (4, [1.0, 2.0]), (16, [1.0, 2.0, 4.0]), (400, [1, 20])]
)
def test_starts_are_spread_up_to_the_root_of_the_inputs(inputs, factors):
    most = 2 if inputs == 400 else 4
    assert start_factors(most, inputs) == pytest.approx(factors)


def test_outputs_share_a_kernel_and_have_a_noise_each():
    _, x, y = problem(Gaussian(1.0))
    noise = 0.5 * torch.randn(300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    both = torch.stack([y, y + noise], 1)
    outputs = SVGP(
        kernel=RBF(ard_num_dims=2),
        mean=Constant(),
        likelihood=GaussianOutputs(2, 1.0),
        num_inputs=2,
        num_inducing=5,
    )
    start(SubsetInitialisation(num_points=150, max_evaluations=60), outputs, x, both)
    low, high = outputs.likelihood.noise_variance.tolist()
    assert 0.003 < low < 0.03 < 0.15 < high < 0.45  # 0.01 and 0.26
    first, second = outputs.kernel.lengthscale.tolist()
    assert second > 3 * first


@pytest.mark.parametrize("likelihood", [GaussianOutputs(2, 0.3), Gaussian(0.3)])
def test_a_fixed_noise_is_not_fitted(likelihood):
    _, x, y = problem(Gaussian(1.0))
    fix(likelihood, "noise_variance")
    targets = torch.stack([y, -y], 1) if isinstance(likelihood, GaussianOutputs) else y
    make = CoregionalGP if isinstance(likelihood, GaussianOutputs) else ExactGP
    model = make(kernel=RBF(ard_num_dims=2), mean=Constant(), likelihood=likelihood).double()
    before = model.likelihood.noise_variance.clone()
    start(SubsetInitialisation(num_points=60, max_evaluations=10), model, x, targets)
    assert torch.equal(model.likelihood.noise_variance, before)
    assert model.kernel.lengthscale[1].item() > 1.1


def test_outputs_start_from_the_rows_that_have_them():
    _, x, y = problem(Gaussian())
    draws = torch.Generator().manual_seed(2)
    noise = torch.randn(300, 3, generator=draws, dtype=torch.float64)
    y = torch.stack([y, -y + noise[:, 1], y], 1)
    whole, gaps = y.clone(), y.clone()
    gaps[torch.rand(300, 3, generator=draws) < 0.4] = torch.nan
    gaps[:, 2] = torch.nan  # nothing is known of it
    found = []
    for targets in (whole[:, :2], gaps):
        model = CoregionalGP(
            kernel=RBF(ard_num_dims=2),
            mean=Constant(),
            likelihood=GaussianOutputs(targets.shape[1], 0.3),
        ).double()
        start(SubsetInitialisation(num_points=250, max_evaluations=60), model, x, targets)
        found.append(model)
    one, other = (model.likelihood.noise_variance.detach() for model in found)
    torch.testing.assert_close(other[:2], one, rtol=0.25, atol=0.0)
    torch.testing.assert_close(other[2], torch.tensor(0.3, dtype=torch.float64))
    first = [model.kernel.lengthscale[0].item() for model in found]
    assert first[1] == pytest.approx(first[0], rel=0.2)


def test_rows_of_outputs():
    x, y = (
        torch.arange(4.0)[:, None],
        torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]),
    )
    y[1, 0] = y[0, 1] = y[3, 1] = torch.nan
    (first_x, first_y), (second_x, second_y) = rows_of_outputs(x, y)
    assert (first_x[:, 0].tolist(), first_y.tolist()) == ([0.0, 2.0, 3.0], [1.0, 5.0, 7.0])
    assert (second_x[:, 0].tolist(), second_y.tolist()) == ([1.0, 2.0], [4.0, 6.0])
