"""What models ask of a basis: how it is given, what a basis of one's own has to write."""

import pytest
import torch

from gpx.bases import (
    Basis,
    GaussHermiteFourier,
    OrthogonalFourier,
    QuasiMonteCarloFourier,
    RandomFourier,
    StructuredOrthogonalFourier,
    basis_of,
)
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import QSGP, Reweighted


class Polynomials(Basis):
    """1, x, x^2 ... of one input: the three methods that every basis writes."""

    def __init__(self, kernel, num_basis, scale=1.0):
        super().__init__()
        self.kernel, self.num_basis, self.scale = kernel, num_basis, scale

    def forward(self, x, columns=None):
        powers = torch.arange(self.num_basis) if columns is None else columns
        return self.scale * self.kernel.outputscale.sqrt() * x ** powers.to(x)

    def precision_diagonal(self, columns=None):
        count = self.num_basis if columns is None else len(columns)
        return torch.ones(count, dtype=self.kernel.outputscale.dtype)

    def mean_column_square(self):
        return self.kernel.outputscale * self.scale**2 / self.num_basis


def data():
    x = torch.linspace(-1.0, 1.0, 40, dtype=torch.float64)[:, None]
    return x, torch.sin(3.0 * x[:, 0])


def parts(kernel):
    return {"kernel": kernel, "mean": Zero(), "likelihood": Gaussian(0.01)}


def exact_mean(basis, x, y):
    phi = basis(x).detach()
    k = phi / basis.precision_diagonal().detach() @ phi.T
    return k @ torch.linalg.solve(k + 0.01 * torch.eye(len(y), dtype=torch.float64), y)


KINDS = [
    RandomFourier,
    OrthogonalFourier,
    StructuredOrthogonalFourier,
    QuasiMonteCarloFourier,
    GaussHermiteFourier,
    Polynomials,
]


@pytest.mark.parametrize("kind", KINDS)
def test_weight_space_and_reweighted_models_take_any_basis(kind):
    x, y = data()
    generator = torch.Generator()
    qsgp = QSGP(**parts(RBF(1)), num_basis=12, warm_start_size=12, basis=kind).double()
    qsgp.initialise(x, y, generator=generator)
    assert type(qsgp.basis) is kind
    torch.testing.assert_close(qsgp.condition(x, y).predict(x).mean, exact_mean(qsgp.basis, x, y))
    model = Reweighted(**parts(RBF(1)), num_basis=12, basis=kind, inference="type2").double()
    model.initialise(x, y, generator=generator)
    torch.testing.assert_close(model.condition(x, y).predict(x).mean, exact_mean(model.basis, x, y))


def test_a_basis_that_is_made_already_is_taken_as_it_is():
    kernel = RBF(1)
    made = Polynomials(kernel, 6, scale=2.0)
    assert QSGP(**parts(kernel), basis=made, warm_start_size=6).basis is made
    with pytest.raises(ConfigError, match="made for another kernel"):
        QSGP(**parts(RBF(1)), basis=made)


def test_what_is_no_basis_is_refused():
    with pytest.raises(ConfigError, match="basis='wavelet': expected a Basis, or a class"):
        basis_of("wavelet", RBF(1), 4)
    with pytest.raises(ConfigError, match="makes a dict, expected a Basis"):
        basis_of(dict, RBF(1), 4)
