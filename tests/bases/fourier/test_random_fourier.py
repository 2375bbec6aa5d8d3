"""Random Fourier features: unbiased, exact at zero lag, any column on demand."""

import math

import pytest
import torch

from gpx.bases import OrthogonalFourier, RandomFourier
from gpx.bases.base import largest_divisor
from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, AxisProduct, Matern12, Matern32, Matern52
from gpx.kernels.constant import Constant

pytestmark = pytest.mark.usefixtures("float64_by_default")


def make(m=60, limit=10, seed=0, kernel=None):
    kernel = kernel or RBF(ard_num_dims=3, lengthscale=(0.7, 1.3, 2.0), outputscale=1.7)
    return RandomFourier(kernel, m, seed, limit)


def inputs(n=20, d=3, seed=1):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("count", "limit", "expected"), [(50_000, 500, 500), (1, 500, 1), (30, 8, 6), (101, 50, 1)]
)
def test_blocks_divide_the_frequencies(count, limit, expected):
    assert largest_divisor(count, limit) == expected


def test_layout_and_subsets():
    basis, x = make(), inputs()
    assert (basis.num_basis, basis.block_size, basis.num_blocks) == (60, 20, 3)
    full = basis(x)
    omega = basis.frequencies(torch.arange(30), 3, torch.float64)
    scale = math.sqrt(2 * 1.7 / 60)
    for block in range(3):
        angles = x @ omega[10 * block : 10 * block + 10].T
        expected = scale * torch.cat((angles.cos(), angles.sin()), dim=1)
        torch.testing.assert_close(full[:, 20 * block : 20 * block + 20], expected)
    blocks = torch.tensor([2, 0, 2])
    columns = basis.columns_of(blocks)
    torch.testing.assert_close(basis.block_features(x, blocks), full[:, columns])
    chosen = torch.tensor([59, 0, 10, 33, 33])
    torch.testing.assert_close(basis(x, chosen), full[:, chosen])
    assert torch.equal(basis.precision_diagonal(chosen), torch.ones(5))
    assert basis.precision_diagonal().shape == (60,)


def test_frequencies_do_not_depend_on_the_request_or_on_m():
    small, large = make(m=60), make(m=6000, limit=500)
    rows = torch.tensor([7, 3])
    assert torch.equal(
        small.frequencies(rows, 3, torch.float64), large.frequencies(rows, 3, torch.float64)
    )
    assert torch.equal(
        small.frequencies(torch.arange(30), 3, torch.float64)[rows],
        small.frequencies(rows, 3, torch.float64),
    )
    other = make(m=60, seed=1)
    assert not torch.equal(
        small.frequencies(rows, 3, torch.float64), other.frequencies(rows, 3, torch.float64)
    )


def test_zero_lag_is_exact_and_pairs_sum_to_n():
    basis, x = make(), inputs()
    features = basis(x)
    torch.testing.assert_close(features.square().sum(1), torch.full((20,), 1.7))
    squares = features.square().sum(0).view(3, 2, 10)
    expected = 20 * 2 * 1.7 / 60
    torch.testing.assert_close(squares.sum(1), torch.full((3, 10), expected))
    torch.testing.assert_close(basis.mean_column_square() * 20 * 2, torch.tensor(expected))


def test_approximation_is_stationary():
    basis, x = make(), inputs()
    shifted = x + torch.tensor([0.3, -2.0, 5.0])
    torch.testing.assert_close(basis(x) @ basis(x).T, basis(shifted) @ basis(shifted).T)


@pytest.mark.parametrize("kind", [RBF, Matern12, Matern32, Matern52])
def test_error_falls_like_one_over_root_m(kind):
    kernel = kind(ard_num_dims=2, lengthscale=(0.8, 1.5), outputscale=1.3)
    x = inputs(12, 2)
    exact = kernel.evaluate(x, x)
    errors = []
    with torch.no_grad():
        for m in (100, 1600):
            found = [RandomFourier(kernel, m, seed)(x) for seed in range(50)]
            errors.append(sum(float((f @ f.T - exact).abs().mean()) for f in found) / 50)
    # 16 times the features: a quarter of the error; each mean over 50 seeds is good to some 5 %
    assert 0.2 < errors[1] / errors[0] < 0.31
    # root mean square error at most outputscale sqrt(1/m) (variance of cos is at most 1/2 per pair)
    assert errors[0] < 1.3 / math.sqrt(100)


def test_isotropic_kernel_learns_its_dimension_from_x():
    basis = make(kernel=RBF(lengthscale=0.9), m=4000, limit=500)
    x = inputs(6, 2)
    error = (basis(x) @ basis(x).T - basis.kernel.evaluate(x, x)).abs().max()
    assert error < 5 / math.sqrt(4000)


def test_gradients():
    basis, x = make(m=12, limit=3), inputs(4).requires_grad_()
    raw = list(basis.kernel.parameters())
    blocks = torch.tensor([1, 0])

    def features(x, *parameters):
        names = [name for name, _ in basis.named_parameters()]
        return torch.func.functional_call(
            _Blocks(basis),
            {f"basis.{k}": v for k, v in zip(names, parameters, strict=True)},
            (x, blocks),
        )

    assert torch.autograd.gradcheck(features, (x, *raw))


class _Blocks(torch.nn.Module):
    def __init__(self, basis):
        super().__init__()
        self.basis = basis

    def forward(self, x, blocks):
        return self.basis.block_features(x, blocks)


def test_block_gradient_equals_column_gradient():
    basis, x = make(), inputs()
    weights = torch.randn(20, 60, generator=torch.Generator().manual_seed(2))
    parameters = list(basis.parameters())
    by_block = torch.autograd.grad((basis(x) * weights).sum(), parameters)
    by_column = torch.autograd.grad((basis(x, torch.arange(60)) * weights).sum(), parameters)
    for a, b in zip(by_block, by_column, strict=True):
        torch.testing.assert_close(a, b)


def test_float32_features_are_near_float64_ones():
    basis, x = make(), inputs()
    single = basis(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), basis(x), rtol=0, atol=2e-6)


def test_errors():
    with pytest.raises(ConfigError, match="must be even"):
        make(m=7)
    with pytest.raises(ConfigError, match="random Fourier features"):
        make(kernel=Constant())
    with pytest.raises(ConfigError, match="block_frequencies"):
        make(limit=0)
    with pytest.raises(ConfigError, match="seed"):
        make(seed=-1)
    with pytest.raises(ShapeError, match="shape \\(n, d\\)"):
        make().block_features(torch.zeros(3), torch.tensor([0]))


@pytest.mark.parametrize(("count", "error"), [(1000, 0.037), (4000, 0.021), (16_000, 0.0098)])
def test_relative_errors_are_those_of_the_table(count, error):
    # Frobenius norm, 20 unit normal rows of 16 inputs
    x = torch.randn(20, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kernel = RBF(16, 4.0, 1.3).double()
    exact = kernel.evaluate(x).detach()
    seeds = range(16_000 // count + 3)
    with torch.no_grad():
        features = [RandomFourier(kernel, 2 * count, seed)(x) for seed in seeds]
    squares = [(phi @ phi.T - exact).square().sum() for phi in features]
    found = (torch.stack(squares).mean() / exact.square().sum()).sqrt()
    assert float(found) == pytest.approx(error, rel=0.3)


@pytest.mark.parametrize("basis", [RandomFourier, OrthogonalFourier])
def test_cauchy_frequencies_are_a_laplace_kernel(basis):
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    kernel = AxisProduct("matern12", 3, None, [0.7, 1.0, 1.6], 1.3).double()
    scale = torch.tensor([0.7, 1.0, 1.6]).double()
    exact = 1.3 * torch.exp(-torch.cdist(x / scale, x / scale, p=1.0))
    with torch.no_grad():
        made = [basis(kernel, 600, seed)(x) for seed in range(40)]
    gaps = torch.stack([phi @ phi.T - exact for phi in made])
    # 15 pairs: five standard errors are a false alarm in 100,000
    assert bool((gaps.mean(0).abs() <= 5 * gaps.std(0) / 40**0.5 + 1e-12).all())
