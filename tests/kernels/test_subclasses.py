"""What a kernel class hands down to a subclass that writes a covariance of its own."""

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import (
    RBF,
    ArcCosine,
    AxisProduct,
    Constant,
    Kernel,
    Linear,
    Matern32,
    Polynomial,
    Product,
    Scale,
    SpectralMixture,
    Sum,
    Warped,
)
from gpx.kernels.over_axes import MultiOutput
from gpx.kernels.own_covariance import computes_as
from gpx.kernels.tiles import EvaluatedTiles
from gpx.kernels.warped import LinearWarp
from gpx.methods.deep.layer import GPLayer
from gpx.methods.grid.factors import split_kernel
from gpx.sampling import prior_functions

PARENTS = {
    Scale: lambda kind: kind(RBF(2, [0.7, 1.2]), 1.3),
    Sum: lambda kind: kind([RBF(), Matern32()]),
    Product: lambda kind: kind([RBF(), Matern32()]),
    AxisProduct: lambda kind: kind("matern32", 2),
    Warped: lambda kind: kind(RBF(), LinearWarp(2)),
    Constant: lambda kind: kind(1.3),
    Linear: lambda kind: kind(2),
    Polynomial: lambda kind: kind(2),
    ArcCosine: lambda kind: kind(),
    SpectralMixture: lambda kind: kind(2, 3),
}


def height(x):
    return 1.0 + x[:, 0].square()


def decayed(parent):
    """A subclass whose covariance is h(x) k(x, x') h(x') for the parent's k."""

    class Decayed(parent):
        def covariance(self, x1, x2):
            return super().covariance(x1, x2) * height(x1)[:, None] * height(x2)

        def variance(self, x):
            return super().variance(x) * height(x).square()

    return Decayed


def draw(n, seed):
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("parent", PARENTS)
def test_every_form_of_a_replaced_covariance_is_that_covariance(parent):
    kernel, x, z = PARENTS[parent](decayed(parent)).double(), draw(9, 0), draw(7, 1)
    with torch.no_grad():
        want = kernel.evaluate(x, z)
        torch.testing.assert_close(kernel.pairs(x[:7], z), want.diagonal())
        for backend in ("dense", "chunked"):
            torch.testing.assert_close(kernel(x, z, backend=backend) @ torch.eye(7).double(), want)
    assert not kernel.has_formula
    assert not kernel.radial_profiles
    assert kernel.summands() == [(kernel, 1.0)]
    for ask in (
        lambda: kernel.num_spectral_normals(2),
        lambda: kernel.log_spectral_density(x),
        lambda: prior_functions(kernel, 3, 2, generator=torch.Generator()),
    ):
        with pytest.raises(ConfigError, match="Decayed has no"):
            ask()


def test_a_grid_does_not_take_apart_a_kernel_with_a_covariance_of_its_own():
    kernel = decayed(Scale)(RBF(2))
    with pytest.raises(ConfigError, match="Decayed"):
        split_kernel(kernel, [(0,), (1,)])


@pytest.mark.parametrize("frequencies", ["fixed", "learned"])
@pytest.mark.parametrize("parent", [RBF, ArcCosine])
def test_features_of_a_layer_are_not_those_of_the_parent(parent, frequencies):
    with pytest.raises(ConfigError, match="Decayed"):
        GPLayer(decayed(parent)(), 2, frequencies=frequencies)


def test_forms_that_a_subclass_writes_itself_stay_with_those_that_belong_to_them():
    class Written(Scale):
        covariance, variance = decayed(Scale).covariance, decayed(Scale).variance

        def tiles(self, x1, x2=None):
            return EvaluatedTiles(self.evaluate, x1, x2)

        def formula(self, squared_distance, x1, x2):
            return super().formula(squared_distance, x1, x2)

        def spectral_frequencies(self, normals):
            return normals

    kernel = Written(RBF(2))
    assert Written.tiles.__qualname__.endswith("Written.tiles")
    assert kernel.has_formula  # asked of the part, as before
    assert kernel.num_spectral_normals(2) == 2
    assert not kernel.radial_profiles


class General(Kernel):
    """A base class whose forms are made of a covariance that its subclasses write."""

    def pairs(self, x1, x2):
        return 2.0 * x1[:, 0]


def test_forms_of_a_base_class_without_a_covariance_are_inherited():
    class Written(General):
        covariance = decayed(Scale).covariance
        variance = decayed(Scale).variance

    assert Written.pairs is General.pairs


def test_kernels_with_nothing_replaced_keep_all_forms():
    class Named(Scale):
        pass

    assert Named.tiles is Scale.tiles
    assert MultiOutput.tiles is Product.tiles
    assert computes_as(Named(RBF()), Scale)
    assert not computes_as(decayed(Scale)(RBF()), Scale)
