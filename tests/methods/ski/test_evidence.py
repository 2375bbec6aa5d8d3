"""The log-determinants of structured interpolation against dense ones, and published figures."""

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32, Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.methods.ski import system
from gpx.methods.ski.covariance import grid_covariance
from gpx.methods.ski.grid import InterpolationGrid
from gpx.methods.ski.grid_spectrum import circulant_eigenvalues, grid_eigenvalues, scaled_logdet
from gpx.models import SKI
from gpx.objectives import SKIEvidence
from gpx.operators import Interpolated

CPU = torch.device("cpu")


def synthetic(n, d=1, seed=0):
    """Of Hultin 2017, equation 4.1."""
    generator = torch.Generator().manual_seed(seed)
    real = {"generator": generator, "dtype": torch.float64}
    weights = 2.0 * torch.rand(2, d, **real) - 1.0
    x = 20.0 * torch.rand(n, d, **real) - 10.0
    waves = (weights[0] * (4.0 * weights[1] * x).sin()).sum(1)
    y = 4.0 * waves * torch.exp(-x.square().sum(1) / (50.0 * d))
    return x, y + 0.01 * torch.randn(n, **real)


def placed(x, y, size, kernel=RBF, noise=1e-3, lengthscale=1.0, **options):
    d = x.shape[1]
    model = SKI(
        kernel=kernel(d, lengthscale, 1.0),
        mean=Zero(),
        likelihood=Gaussian(noise),
        num_inputs=d,
        grid_size=size,
        **options,
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return model


def evidence(model, x, y, **options):
    return SKIEvidence(**options).evidence(model, x, y)


@pytest.mark.parametrize("size", [100, 300])
def test_eigenvalues_with_their_missing_term_are_near_and_without_it_are_not(size):
    """Table R1 of the specification: within 0.7 % at any m, and off by more than 1 without."""
    x, y = synthetic(1000)
    model = placed(x, y, size)
    want = evidence(model, x, y, logdet="cholesky").value
    for options in ({"logdet": "circulant", "wraps": 3}, {"logdet": "eigenvalues"}):
        found = evidence(model, x, y, **options)
        torch.testing.assert_close(found.value, want, rtol=7e-3, atol=0.0)
        bare = evidence(model, x, y, pad=False, **options).value
        assert float((bare / want).detach()) < 0.5
        lost = 0.5 * (1000 - size) * torch.tensor(1e-3).double().log()
        torch.testing.assert_close(bare - found.value, lost, rtol=1e-7, atol=0.0)


def test_the_bracket_holds_the_exact_log_determinant():
    x, y = synthetic(200)
    for kernel, rank in ((RBF, 400), (Matern32, 20)):
        model = placed(x, y, 60, kernel, rank=rank)
        found = evidence(model, x, y, logdet="cholesky")
        exact = float(torch.logdet(model.system(x).matrix.to_dense()).detach())
        if len(model.gathered(x).weights.values) < 200:
            exact += (200 - found.facts["rows"]) * float(torch.tensor(1e-3).double().log())
        low, high = found.facts["logdet_low"], found.facts["logdet_high"]
        assert low - 1e-6 <= exact <= high + 1e-6
        if kernel is RBF:
            assert high - low < 0.02


@pytest.mark.parametrize("d", [1, 2])
def test_the_bracket_takes_its_trace_from_sums_by_lag(d, monkeypatch):
    """The diagonal of W K W^T would take longer than all of a deterministic evidence."""
    x, y = synthetic(300, d)
    made = placed(x, y, 30, rank=10).system(x)
    low, high = made.logdet_bracket()
    trace = made.matrix.diagonal().sum() - len(made.weights.values) * made.noise
    left = float((trace / made.noise - made.preconditioner.capacitance.gram.trace()).detach())
    assert high - low == pytest.approx(left, rel=1e-9)
    monkeypatch.setattr(Interpolated, "_diagonal", None)
    assert made.logdet_bracket() == (low, high)


@pytest.mark.parametrize("d", [1, 2])
def test_dense_and_chebyshev_agree_with_lanczos(d):
    x, y = synthetic(80, d)
    model = placed(x, y, 40 if d == 1 else 30, noise=0.1)
    exact = evidence(model, x, y, logdet="cholesky")
    for logdet in ("lanczos", "chebyshev"):
        found = evidence(model, x, y, logdet=logdet, most_probes=256)
        error = found.facts["logdet_error"]
        # half the log-determinant's: 8 standard errors, of as few as 2 probes
        assert abs(float((found.value - exact.value).detach())) <= 4.0 * error + 1e-5
        # 2.0: probes are drawn until the evidence is known to a nat
        assert found.facts["logdet_error"] <= (0.1 if logdet == "lanczos" else 2.0)


def test_chebyshev_draws_probes_by_its_own_error_and_warns_once_above_the_target():
    x, y = synthetic(54)
    model = placed(x, y, 100)
    exact = evidence(model, x, y, logdet="cholesky").value.item()
    objective = SKIEvidence(logdet="chebyshev")
    with pytest.warns(UserWarning, match=r"of 54 rows .* after 64 probes, .*take logdet=lanczos"):
        found = objective.evidence(model, x, y)
    objective.evidence(model, x, y)  # every evaluation of a run would say the same
    stated = 0.5 * float(found.facts["logdet_error"])
    assert stated > 1.0
    assert abs(found.value.item() - exact) <= 4.0 * stated


@pytest.mark.parametrize("options", [{"logdet": "eigenvalues"}, {"logdet": "circulant"}])
def test_gradients_of_the_grids_spectrum_are_those_of_finite_differences(options):
    x, y = synthetic(60)
    model = placed(x, y, 30, noise=0.05, tolerance=1e-12)
    evidence(model, x, y, **options).value.backward()
    for parameter in model.parameters():
        step, values = 1e-5, []
        with torch.no_grad():
            for sign in (1.0, -1.0):
                parameter.add_(sign * step)
                values.append(evidence(model, x, y, **options).value)
                parameter.sub_(sign * step)
        want = (values[0] - values[1]) / (2.0 * step)
        torch.testing.assert_close(parameter.grad.sum(), want, rtol=1e-5, atol=1e-6)


def test_spectra_of_kernels_that_factor_are_products():
    grid = InterpolationGrid.covering(synthetic(50, 2)[0], [16, 18], "cubic")
    kernel = RBF(2, 4.0, 1.3).double()
    covariance = grid_covariance(grid, kernel, CPU)
    dense = torch.linalg.eigvalsh(covariance.operator.to_dense())
    torch.testing.assert_close(
        grid_eigenvalues(covariance).sort().values, dense, rtol=0.0, atol=1e-10
    )
    along = [
        torch.fft.fft(
            sum(
                torch.exp(-0.5 * ((torch.arange(m).double() + j * m) * h / 4.0).square())
                for j in range(-3, 4)
            )
        ).real
        for m, h in zip(grid.shape, grid.spacing, strict=True)
    ]
    want = 1.3 * (along[0].unsqueeze(1) * along[1]).flatten().clamp_min(0.0)
    found = circulant_eigenvalues(covariance, grid, kernel, "whittle", 3)
    torch.testing.assert_close(found, want, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("d", [1, 2])
def test_a_kernel_with_the_period_of_the_grid_has_the_eigenvalues_of_its_circulants(d):
    """K_UU is circulant along every axis: the log-determinant is that of its eigenvalues."""
    grid = InterpolationGrid.covering(synthetic(50, d)[0], [16, 18][:d], "cubic")
    kernels = [
        Periodic(1, 1.1, 1.3 if axis == 0 else None, [axis], period=m * h)
        for axis, (m, h) in enumerate(zip(grid.shape, grid.spacing, strict=True))
    ]
    kernel = (kernels[0] if d == 1 else kernels[0] * kernels[1]).double()
    covariance = grid_covariance(grid, kernel, CPU)
    noise = torch.tensor(0.1).double()
    # another period would not fit the grid
    parameters = [p for name, p in kernel.named_parameters() if "period" not in name]
    assert len(parameters) == d + 1
    want = scaled_logdet(grid_eigenvalues(covariance), noise, 300)
    slopes = torch.autograd.grad(want, parameters, retain_graph=True)
    for kind in ("strang", "chan"):
        values = circulant_eigenvalues(covariance, grid, kernel, kind, None)
        found = scaled_logdet(values, noise, 300)
        torch.testing.assert_close(found, want, rtol=1e-10, atol=0.0)
        ours = torch.autograd.grad(found, parameters, retain_graph=True)
        for mine, theirs in zip(ours, slopes, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


def test_fewer_rows_than_points_take_the_largest_eigenvalues():
    values = torch.tensor([1.0, 5.0, 3.0, 2.0]).double()
    noise = torch.tensor(0.1).double()
    found = scaled_logdet(values, noise, 2)
    want = torch.log(5.0 * 0.5 + noise) + torch.log(3.0 * 0.5 + noise)
    torch.testing.assert_close(found, want)


def test_invalid_setups_are_refused():
    x, y = synthetic(60, 2)
    model = placed(x, y, 12, Matern32, lengthscale=4.0)
    with pytest.raises(ConfigError, match="use logdet=circulant"):
        evidence(model, x, y, logdet="eigenvalues")
    with pytest.raises(ConfigError, match="one axis only"):
        evidence(model, x, y, logdet="circulant", circulant="tyrtyshnikov")
    uneven = placed(x, y, 12, grid="kmeans", interpolation="linear", lengthscale=4.0)
    with pytest.raises(ConfigError, match="equidistant grid"):
        evidence(uneven, x, y, logdet="circulant")
    with pytest.raises(ConfigError, match="logdet=guess: expected one of lanczos"):
        SKIEvidence(logdet="guess")
    with pytest.raises(ConfigError, match="wraps=0"):
        SKIEvidence(wraps=0)


@pytest.mark.parametrize(("d", "size"), [(1, 200), (2, 24)])
def test_two_probes_are_enough_where_the_low_rank_part_is_complete(d, size):
    """Value and gradient are the dense ones; rougher kernels and short ranks draw what was asked.

    Left to the probes are at most 0.01 nats: gradients scatter by less than 0.2.
    """
    x, y = synthetic(400, d)
    model = placed(x, y, size, lengthscale=2.0)
    want = evidence(model, x, y, logdet="cholesky").value
    slopes = torch.autograd.grad(want, list(model.parameters()))
    found = evidence(model, x, y)
    assert found.facts["probes"] == 2
    torch.testing.assert_close(found.value, want, rtol=0.0, atol=0.01 + 1e-6 * abs(want.item()))
    ours = torch.autograd.grad(found.value, list(model.parameters()))
    for mine, theirs in zip(ours, slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=0.2)
    short = placed(x, y, size, lengthscale=2.0, rank=8)
    assert evidence(short, x, y, probes=8, accuracy=100.0).facts["probes"] == 8
    rough = placed(x, y, size, kernel=Matern32, lengthscale=2.0, rank=64)
    assert evidence(rough, x, y, probes=8, accuracy=100.0).facts["probes"] == 8


def test_on_several_axes_probes_estimate_more_and_state_their_error(monkeypatch):
    """Of many rows: a nat in place of a hundredth, at a lower rank; scatter is as said."""
    x, y = synthetic(400, 2)
    model = placed(x, y, 24, lengthscale=2.0)
    full = model.system(x).part.rank
    want = evidence(model, x, y, logdet="cholesky").value.item()
    monkeypatch.setattr(system, "TRACE_PER_ROW", 1.0)
    part = model.system(x).part
    assert part.complete
    assert part.rank < 0.95 * full
    draws = torch.Generator().manual_seed(4)
    found = [SKIEvidence(resample=True).evidence(model, x, y, generator=draws) for _ in range(20)]
    assert {f.facts["probes"] for f in found} == {2}
    off = torch.tensor([f.value.item() for f in found]) - want
    stated = [0.5 * float(f.facts["logdet_error"]) for f in found]
    assert min(stated) > 0.01
    assert off.square().mean().sqrt() < 1.5 * torch.tensor(stated).square().mean().sqrt()
    assert off.abs().max() < 4.0 * min(stated)


def test_on_one_axis_and_in_sums_the_error_is_a_hundredth_of_a_nat(monkeypatch):
    """There another vector costs next to nothing."""
    monkeypatch.setattr(system, "TRACE_PER_ROW", 1.0)
    for d in (1, 2):
        x, y = synthetic(400, d)
        model = placed(x, y, 100, kernel=lambda _, *given: RBF(None, *given), additive=d > 1)
        assert model.system(x).left_out == system.NEGLIGIBLE_TRACE


def exactly(model, x, y):
    """Evidence and gradient are those of the dense matrix."""
    value = evidence(model, x, y).value
    want = evidence(model, x, y, logdet="cholesky").value
    torch.testing.assert_close(value, want, rtol=0.0, atol=0.02)
    parameters = [*model.kernel.parameters(), *model.likelihood.parameters()]
    found, exact = (torch.autograd.grad(v, parameters) for v in (value, want))
    for own, other in zip(found, exact, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("kernel", [RBF, Matern32])
@pytest.mark.parametrize("d", [2, 3])
def test_where_all_of_the_kernel_is_negligible_the_noise_is_left(kernel, d):
    x, y = synthetic(60, d)
    model = placed(x, y, 8, kernel, noise=1e8, lengthscale=8.0)
    exactly(model, x, y)
    variance = model.condition(x, y).predict(x[:2]).variance
    torch.testing.assert_close(variance, torch.ones_like(variance), rtol=0.0, atol=1e-3)


@pytest.mark.parametrize("kernel", [RBF, Matern32])
def test_an_input_that_does_not_matter_has_one_vector(kernel):
    x, y = synthetic(60, 2)
    model = placed(x, y, 12, kernel, noise=0.1, lengthscale=[5.0, 1e7])
    exactly(model, x, y)
    assert model.system(x).part._box[1] == 1
