"""Kernels, means and likelihoods of one's own whose results have a wrong shape or value."""

import copy

import pytest
import torch
from torch import nn

import gpx
from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, Kernel, Warped
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.means import Mean, Zero
from gpx.methods.base.model_checks import check_variance
from gpx.models import CGLB, SGPR, SVGP, Committee, ExactGP, SampledGP
from gpx.objectives import SVGPELBO, ExactMLL
from gpx.training import EllipticalSlice

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


class Shifted:
    """A mixin that is no mean, with a column for its result."""

    def forward(self, x):
        return x + 1.0


class Mixed(Shifted, Mean):
    pass


class Bare(Scaled):
    """A kernel whose ``variance`` is given by ``shape``."""

    def __init__(self, *shape):
        super().__init__()
        self.shape = shape

    def variance(self, x):
        return torch.full([len(x) if n == "n" else n for n in self.shape], 4.0, dtype=x.dtype)


class Waves(Kernel):
    """A kernel that is 0 where waves are, up to rounding."""

    def covariance(self, x1, x2):
        return torch.sin(3.0 * x1) @ torch.sin(3.0 * x2).T

    def variance(self, x):
        return 0.5 * (1.0 - torch.cos(6.0 * x[:, 0]))


class Expanded(Kernel):
    """A kernel of distances by |a|^2 + |b|^2 - 2 a.b, which float32 knows to three digits."""

    def covariance(self, x1, x2):
        squares = (x1**2).sum(1)[:, None] + (x2**2).sum(1) - 2.0 * x1 @ x2.T
        return torch.exp(-10.0 * squares.clamp(min=0.0).sqrt())

    def variance(self, x):
        return torch.ones_like(x[:, 0])


class Total(Bernoulli):
    """A likelihood that adds the rows itself."""

    def log_prob(self, y, f):
        return super().log_prob(y, f).sum()


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


def test_a_mean_whose_forward_stands_in_a_mixin_is_checked_too():
    with pytest.raises(ShapeError, match=r"Mixed gave a tensor of shape \(20, 1\)"):
        Mixed()(X)


@pytest.mark.parametrize("kind", [ExactGP, SVGP])
def test_a_variance_that_is_not_the_diagonal_predicts_nothing_in_a_loop_of_ones_own(kind):
    parts = {"kernel": Scaled(), "mean": Zero(), "likelihood": Gaussian(0.1)}
    model = kind(**parts).double() if kind is ExactGP else started(sparse(SVGP, kernel=Scaled()))
    with pytest.raises(ConfigError, match="Scaled: variance gives 1 in row 0"):
        model.condition(X, Y)


@pytest.mark.parametrize("shape", [("n", 1), ()])
def test_a_variance_of_another_shape_than_one_value_a_row_is_refused(shape):
    with pytest.raises(ShapeError, match=r"Bare.variance gave a tensor of shape .* for 20 rows"):
        Bare(*shape).diagonal(X)


def test_a_variance_apart_from_the_diagonal_by_rounding_is_accepted():
    zeros = torch.tensor([[0.0], [torch.pi / 3.0], [torch.pi / 1.5]], dtype=torch.float64)
    check_variance(Waves(), zeros)
    check_variance(Waves(), zeros.float())
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    assert (Expanded().evaluate(x).diagonal() < 0.999).any()
    check_variance(Expanded(), x)


def test_an_expectation_summed_over_rows_is_refused():
    model = started(sparse(SVGP, likelihood=Summed(0.1)))
    with pytest.raises(ShapeError, match=r"Summed.expected_log_prob gave .* \(\), expected \(20,"):
        SVGPELBO(num_data=20).evidence(model, X, Y)


def test_a_density_summed_over_rows_is_refused_by_slice_sampling():
    labels = torch.where(Y > 0.0, 1.0, -1.0).double()
    model = SampledGP(kernel=RBF(), mean=Zero(), likelihood=Total()).double()
    model.initialise(X, labels, generator=torch.Generator().manual_seed(0))
    chain = EllipticalSlice(burn_in=1, iterations=1, thin=1, around="prior")
    chain.check(model, len(X))
    chain.bind(model, X, 0)
    with pytest.raises(ShapeError, match=r"Total.log_prob gave .* \(\), expected \(\d+, 20,?\)"):
        chain.step(0, X, labels, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [SVGP, SGPR, CGLB])
def test_points_that_were_never_placed_predict_nothing(kind):
    model = sparse(kind)
    with pytest.raises(ConfigError, match="5 inducing points have not been placed"):
        model.condition(X, Y)
    assert started(model).condition(X, Y).predict(X).mean.isfinite().all()


@pytest.mark.parametrize("kind", [SVGP, SGPR, CGLB])
def test_zero_is_the_place_of_points_where_no_input_varies(kind):
    """Standardised columns of one value are zero, and a copy does not know what was written."""
    x = torch.zeros_like(X)
    model = sparse(kind)
    model.initialise(x, Y, generator=torch.Generator().manual_seed(0))
    again = copy.deepcopy(model).condition(x, Y).predict(X).mean
    torch.testing.assert_close(again, model.condition(x, Y).predict(X).mean)


def test_points_made_in_inference_mode_are_looked_at():
    with torch.inference_mode():
        model = sparse(SGPR)  # its tensors count no writes
        with pytest.raises(ConfigError, match="have not been placed"):
            model.condition(X, Y)


def test_conditioning_leaves_statistics_of_a_network_alone():
    network = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)).double()
    model = ExactGP(kernel=Warped(RBF(), network), mean=Zero(), likelihood=Gaussian(0.1)).double()
    network.train()
    model.condition(X, Y)
    assert network[1].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"mean": gpx.kernels.Constant()}, "mean= is Constant, a kernel; it takes a mean, such"),
        ({"kernel": gpx.means.Constant()}, "kernel= is Constant, a mean; it takes a kernel, such"),
        ({"likelihood": RBF()}, "likelihood= is RBF, a kernel; it takes a likelihood, such"),
    ],
)
def test_a_part_of_another_family_is_told(parts, message):
    """Constant is the name of a kernel and of a mean function."""
    made = ExactGP(**{"kernel": RBF(), "mean": Zero(), "likelihood": Gaussian(0.1)} | parts)
    x = torch.rand(5, 1).double()
    with pytest.raises(ConfigError, match=message):
        made.double().condition(x, x[:, 0])
    with pytest.raises(ConfigError, match=message):
        ExactMLL().evidence(made, x, x[:, 0])
