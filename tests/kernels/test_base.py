"""What the base class of kernels does for a kernel that writes two methods only."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from gpx.constraints import positive_parameter
from gpx.errors import ConfigError, ShapeError
from gpx.inference.batched_covariance import batched_covariances
from gpx.inference.neighbour_conditional import near_coordinates
from gpx.kernels import (
    RBF,
    ArcCosine,
    Cosine,
    Kernel,
    Linear,
    Periodic,
    Polynomial,
    Stationary,
    Warped,
)
from gpx.kernels.warped import LinearWarp
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import ExactGP
from gpx.operators import DenseMatrix


class Waves(Kernel):
    """A kernel as users write it, with as little as possible."""

    calls = 0

    def covariance(self, x1, x2):
        self.calls += 1
        return torch.cos(x1[:, None] - x2[None]).prod(2)

    def variance(self, x):
        return torch.ones_like(x[:, 0])


class ReadWaves(Waves):
    """The same; reads a number of its inputs, which ``torch.vmap`` cannot take."""

    def covariance(self, x1, x2):
        return super().covariance(x1, x2) * float(torch.isfinite(x1).all())


@pytest.mark.parametrize(("kernel", "calls"), [(Waves(), 1), (ReadWaves(), 5)])
def test_pairs_of_a_kernel_without_its_own(kernel, calls):
    x, z = torch.randn(2, 100, 3, dtype=torch.float64)
    found = kernel.pairs(x, z.requires_grad_())
    want = kernel.evaluate(x, z).diagonal()
    assert kernel.calls == calls + 1
    torch.testing.assert_close(found, want)
    slopes = [torch.autograd.grad(value.sum(), z)[0] for value in (found, want)]
    torch.testing.assert_close(*slopes)
    assert kernel.pairs(x[:0], z[:0]).shape == (0,)


def test_a_kernel_that_gives_no_matrix_is_not_taken_for_one_of_pairs():
    class Rows(Waves):
        def covariance(self, x1, x2):
            return torch.cos(x1 - x2).prod(1)

    x, z = torch.randn(2, 5, 3, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"Rows\.covariance gave"):
        Rows().pairs(x, z)


class Lines(Kernel):
    """sum_q w_q cos(2 pi f_q . (x - x')), by matrix products with parameters."""

    def __init__(self):
        super().__init__()
        self.frequencies = nn.Parameter(torch.tensor([[0.3, -0.2], [0.1, 0.4], [-0.5, 0.2]]))
        positive_parameter(self, "weights", [0.2, 0.3, 0.5])

    def features(self, x):
        angles = 2.0 * torch.pi * x @ self.frequencies.mT
        return torch.cat([angles.cos(), angles.sin()], 1) * self.weights.sqrt().repeat(2)

    def covariance(self, x1, x2):
        return self.features(x1) @ self.features(x2).mT

    def variance(self, x):
        return self.features(x).square().sum(1)


class Turned(Stationary):
    """RBF of coordinates turned by a learned matrix."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.tensor([[1.0, 0.3], [-0.2, 0.8]]))

    def coordinates(self, x):
        return x @ self.turn

    def of_squared_distance(self, r2):
        return (-0.5 * r2).exp()


MATRIX_PRODUCTS = {
    "covariance": Lines,
    "sum": lambda: RBF() + 2.0 * Lines(),
    "coordinates": Turned,
    "warp": lambda: Warped(RBF(), LinearWarp(2)),
    "network": lambda: Warped(RBF(), nn.Sequential(nn.Linear(2, 3), nn.Tanh())),
}


@pytest.mark.parametrize("make", MATRIX_PRODUCTS.values(), ids=MATRIX_PRODUCTS)
def test_matrix_products_of_float32_parameters_take_float64_inputs(make):
    torch.manual_seed(0)
    kernel = make()
    wide = copy.deepcopy(kernel).double()
    x, z = torch.randn(2, 6, 2, dtype=torch.float64)
    for function in (
        lambda k: k.evaluate(x),
        lambda k: k.evaluate(x, z),
        lambda k: k.diagonal(x),
        lambda k: batched_covariances(k, x[None], z[None]),
        lambda k: near_coordinates(k, x),
    ):
        found, want = function(kernel), function(wide)
        torch.testing.assert_close(found.double(), want, rtol=3e-7, atol=3e-7)
    part = next(kernel.parameters())
    (slope,) = torch.autograd.grad(kernel.evaluate(x, z).square().sum(), part)
    (expected,) = torch.autograd.grad(
        wide.evaluate(x, z).square().sum(), next(wide.parameters()), allow_unused=True
    )
    torch.testing.assert_close(slope, expected.float(), rtol=1e-5, atol=1e-6)


def test_float64_inputs_find_no_float32_values_in_the_cache_of_parameters():
    kernel, x = Lines(), torch.randn(5, 2, dtype=torch.float64)
    with parametrize.cached():
        narrow = kernel.evaluate(x.float())
        wide = kernel.evaluate(x)
        assert torch.equal(kernel.evaluate(x.float()), narrow)
    assert wide.dtype == torch.float64
    assert torch.equal(wide, kernel.evaluate(x))


class Flat(Kernel):
    """One number for all pairs: it needs no inputs, nor does it ask for their dtype."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def covariance(self, x1, x2):
        return self.scale.expand(len(x1), len(x2))

    def variance(self, x):
        return self.scale.expand(len(x))


def test_values_in_float32_of_float64_inputs_become_as_precise_as_these():
    """Factors of inducing points are float64 in a float32 model."""
    kernel, x = Flat(), torch.zeros(3, 1, dtype=torch.float64)
    assert kernel.evaluate(x).dtype == kernel.diagonal(x).dtype == torch.float64
    assert kernel.double().evaluate(x.float()).dtype == torch.float64


def test_the_matrix_of_one_row_shares_no_memory_with_a_parameter():
    """Noise is added to it in place."""
    x = torch.zeros(1, 1, dtype=torch.float64)
    model = ExactGP(kernel=Flat().double(), mean=Zero(), likelihood=Gaussian().double())
    posterior = model.condition(x, x[:, 0])
    posterior.predict(x)
    assert float(posterior.kernel.scale) == 2.0


def test_an_error_of_a_float64_kernel_is_raised_as_it_is():
    class Broken(Waves):
        def covariance(self, x1, x2):
            self.calls += 1
            raise RuntimeError("of its own")

    kernel = Broken()
    with pytest.raises(RuntimeError, match="of its own"):
        kernel.evaluate(torch.zeros(2, 1, dtype=torch.float64))
    assert kernel.calls == 1


def test_a_covariance_that_is_an_operator_is_refused_with_what_to_return():
    class AsOperator(Waves):
        def covariance(self, x1, x2):
            return DenseMatrix(super().covariance(x1, x2))

    with pytest.raises(ConfigError, match=r"AsOperator.covariance gave a DenseMatrix.*to_dense"):
        AsOperator().evaluate(torch.zeros(2, 1))


def test_one_column_needs_no_list_and_a_slice_is_told_what_does():
    x = torch.randn(4, 3)
    assert torch.equal(RBF(active_dims=1).evaluate(x), RBF(active_dims=[1]).evaluate(x))
    assert torch.equal(RBF(active_dims=np.array(1)).evaluate(x), RBF(active_dims=[1]).evaluate(x))
    assert torch.equal(RBF(active_dims=range(1, 3)).evaluate(x), RBF().evaluate(x[:, 1:]))
    with pytest.raises(ConfigError, match=r"list the columns, as range\(2, 5\) does"):
        RBF(active_dims=slice(1, 3))
    for columns in (torch.tensor([1, 2]), torch.tensor(1)):
        assert torch.equal(RBF(active_dims=columns).active_dims, torch.atleast_1d(columns))
    with pytest.raises(ConfigError, match=r"active_dims is \[1.5\]; it must list column numbers"):
        RBF(active_dims=1.5)
    with pytest.raises(ConfigError, match=r"is \[0, 2, 0\], which names a column twice"):
        RBF(active_dims=[0, 2, 0])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((RBF, "lengthscale"), (ArcCosine, "lengthscale"), (Polynomial, "lengthscale")),
        *((Linear, "slope_variance"), (Cosine, "period"), (Periodic, "period")),
    ],
)
def test_as_many_dimensions_as_values(kind, name):
    values = {name: [0.5, 1.0, 2.0]}
    x = torch.randn(4, 3)
    kernel = kind(**values)
    assert kernel.ard_num_dims == 3
    assert torch.equal(kernel.evaluate(x), kind(ard_num_dims=3, **values).evaluate(x))
    with pytest.raises(ConfigError, match="3 values were given for ard_num_dims=2"):
        kind(ard_num_dims=2, **values)
    one = (
        r"has 1 [a-z ]+[a-z] but .* 3 \(active\) columns; give one number, not in a list, for all "
    )
    with pytest.raises(ShapeError, match=one + r"columns \(ard_num_dims=None\), or one for each"):
        kind(**{name: [0.5]}).evaluate(x)
