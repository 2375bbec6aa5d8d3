"""Kernels, means and likelihoods of one's own whose results have a wrong shape or value."""

import pytest
import torch
from torch import nn

import gpx
from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, Kernel
from gpx.likelihoods import Gaussian
from gpx.means import Mean, Zero
from gpx.models import CGLB, SGPR, SVGP, Committee, ExactGP
from gpx.objectives import SVGPELBO, ExactMLL

X = torch.linspace(0.0, 1.0, 20, dtype=torch.float64)[:, None]
Y = torch.sin(6.0 * X[:, 0])


class Network(Mean):
    """A mean that keeps the column of its layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1).double()

    def forward(self, x):
        return self.layer(x)


class Scaled(Kernel):
    """A kernel whose ``variance`` forgets the scale."""

    def covariance(self, x1, x2):
        return 4.0 * torch.exp(-(x1 - x2.T).abs())

    def variance(self, x):
        return torch.ones_like(x[:, 0])


class Column(Scaled):
    """A kernel that gives one column for all pairs."""

    def covariance(self, x1, x2):
        return torch.exp(-x1.abs())


class Summed(Gaussian):
    """A likelihood that adds the rows itself."""

    def expected_log_prob(self, y, mean, variance):
        return super().expected_log_prob(y, mean, variance).sum()


def sparse(kind, **parts):
    parts = {"kernel": RBF(), "mean": Zero(), "likelihood": Gaussian(0.1)} | parts
    return kind(**parts, num_inputs=1, num_inducing=5, num_data=20).double()


def started(model):
    model.initialise(X, Y, generator=torch.Generator().manual_seed(0))
    return model


def test_a_mean_of_one_column_is_refused_where_it_would_be_broadcast():
    with pytest.raises(ShapeError, match=r"Network gave .* \(20, 1\) .*return found.squeeze\(1\)"):
        started(sparse(SVGP, mean=Network()))
    parts = {"kernel": RBF(), "mean": Network(), "likelihood": Gaussian(0.1)}
    for model in (ExactGP(**parts), Committee(**parts)):
        with pytest.raises(ShapeError, match="Network gave a tensor of shape"):
            started(model.double()).condition(X, Y).predict(X[:3])


def test_a_covariance_of_one_column_is_refused():
    model = ExactGP(kernel=Column(), mean=Zero(), likelihood=Gaussian(0.1)).double()
    with pytest.raises(ShapeError, match=r"Column.covariance gave .* \(20, 1\) for 20 and 20 rows"):
        ExactMLL().evidence(model, X, Y)


def test_a_variance_that_is_not_the_diagonal_ends_a_run_before_it_begins():
    with pytest.raises(ConfigError, match=r"variance gives 1 in row 0, .* covariance is 4 there"):
        gpx.fit(X, Y, "approx=exact", kernel=Scaled(), keep=False, quiet=True)


def test_an_expectation_summed_over_rows_is_refused():
    model = started(sparse(SVGP, likelihood=Summed(0.1)))
    with pytest.raises(ShapeError, match=r"Summed.expected_log_prob gave .* \(\), expected \(20,"):
        SVGPELBO(num_data=20).evidence(model, X, Y)


@pytest.mark.parametrize("kind", [SVGP, SGPR, CGLB])
def test_points_that_were_never_placed_predict_nothing(kind):
    model = sparse(kind)
    with pytest.raises(ConfigError, match="5 inducing points have not been placed"):
        model.condition(X, Y)
    assert started(model).condition(X, Y).predict(X).mean.isfinite().all()
