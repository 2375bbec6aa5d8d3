"""A layer with inducing points: it is SVGP, its draws have its marginals, its paths are joint."""

import pytest
import torch
from draws import draws
from torch.distributions import MultivariateNormal, kl_divergence

from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, Matern32, Sum
from gpx.likelihoods import Gaussian, GaussianOutputs
from gpx.means import Constant, Zero
from gpx.methods.deep import InducingLayer, draws_of, total_kl
from gpx.methods.deep.draws import held
from gpx.models import SVGP

pytestmark = pytest.mark.usefixtures("float64_by_default")

M, D = 6, 2


def inputs(n=7):
    return torch.randn(n, D, generator=draws(1))


def layer(outputs=1, kernel=None, mean=None):
    made = InducingLayer(
        RBF(D, [0.9, 1.3], 1.2) if kernel is None else kernel, D, outputs, M, mean=mean, jitter=0.0
    )
    with torch.no_grad():
        made.inducing.copy_(torch.randn(M, D, generator=draws(2)))
        for number, parameter in enumerate(made.q.parameters()):
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=draws(3 + number)))
    return made


@pytest.mark.parametrize("draw", [lambda made, x: made(x), lambda made, x: made.sample(x, 3)])
def test_gradients_are_finite_where_the_variance_is_zero(draw):
    made = layer(2)
    with torch.no_grad():
        made.q.assign(made.q.mean, 1e-20 * torch.eye(M).expand(2, M, M))
    made = made.float()
    x = made.inducing.detach().clone().requires_grad_()
    assert (made.marginals(x).variance == 0.0).any()
    with draws_of(made, draws(5)):
        draw(made, x).square().sum().backward()
    for value in (x, *made.parameters()):
        if value.grad is not None:
            assert value.grad.isfinite().all()


@pytest.mark.parametrize("outputs", [1, 3])
def test_it_is_the_sparse_variational_process(outputs):
    made = layer(outputs, mean=Constant(0.4))
    likelihood = Gaussian(0.1) if outputs == 1 else GaussianOutputs(outputs, 0.1)
    parts = {"kernel": made.kernel, "mean": made.mean, "likelihood": likelihood}
    other = SVGP(**parts, num_inputs=D, num_inducing=M, jitter=0.0)
    other.load_state_dict({**other.state_dict(), **made.state_dict()})
    found, want = made.marginals(inputs()), other.marginals(inputs())
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a.view_as(b), b, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(made.kl(), other.kl())


def test_a_cached_factor_gives_the_same_marginals():
    made, x = layer(2), inputs()
    want = made.marginals(x)
    with torch.no_grad(), held(made):
        found = made.marginals(x)
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    assert made._inverse is None
    assert made.report.relative == 0.0


def test_the_divergence_is_that_of_the_dense_gaussians():
    made = layer(2)
    prior = MultivariateNormal(torch.zeros(M), torch.eye(M))
    each = [
        kl_divergence(MultivariateNormal(m, s @ s.mT), prior)
        for m, s in zip(made.q.mean, made.q.factor(), strict=True)
    ]
    torch.testing.assert_close(total_kl(made), sum(each))


@pytest.mark.parametrize("way", ["rows", "shared", "joint", "sample"])
def test_draws_have_the_marginals(way):
    """Mean and variance of 2,000 draws within 4.5 standard errors: false alarm below 4e-4.

    Paths have the variance of 2,048 random features of the prior, within 5 % of its own.
    """
    made, x, generator, num = layer(2), inputs(3), draws(), 2000
    options = {"shared": way in ("shared", "joint"), "joint": way == "joint"}
    num = 500 if way == "joint" else num
    with torch.no_grad(), held(made), draws_of(made, generator, **options):
        if way == "sample":
            f = made.sample(x, num)
        else:
            f = torch.stack([made(x) for _ in range(num)])
        mean, variance = made.marginals(x)
    assert bool(((f.mean(0) - mean).abs() < 4.5 * (variance / num).sqrt()).all())
    slack = 0.05 if way == "joint" else 0.0
    assert bool(((f.var(0) / variance - 1.0).abs() < slack + 4.5 * (2.0 / num) ** 0.5).all())


def test_paths_have_the_joint_law():
    """Covariances of 500 paths within 4.5 standard errors and 5 % of the prior variance."""
    made, x, num = layer(kernel=Matern32(D)), inputs(4), 500
    with torch.no_grad():
        z = made.inducing
        root = torch.linalg.cholesky(made.kernel.evaluate(z))
        a = torch.linalg.solve_triangular(root, made.kernel.evaluate(z, x), upper=False)
        s = made.q.factor()[0]
        want = made.kernel.evaluate(x) - a.mT @ a + a.mT @ s @ s.mT @ a
        with held(made):
            f = []
            for number in range(num):
                with draws_of(made, draws(number), shared=True, joint=True):
                    f.append(made(x).squeeze(1))
        found = torch.stack(f).mT.cov()
    variance = want.diagonal()
    error = ((variance[:, None] * variance + want.square()) / num).sqrt()
    assert bool(((found - want).abs() < 4.5 * error + 0.05).all())


@pytest.mark.parametrize("joint", [False, True])
def test_a_shared_draw_is_one_function_whatever_other_rows(joint):
    made, x = layer(2), inputs()
    with torch.no_grad(), draws_of(made, draws(7), shared=True, joint=joint):
        whole = made(x)
    with torch.no_grad(), draws_of(made, draws(7), shared=True, joint=joint):
        torch.testing.assert_close(made(x[2:3]), whole[2:3], rtol=1e-10, atol=1e-11)


def test_the_optimum_for_gaussian_noise_in_pieces():
    """That of SVGP, whatever the pieces."""
    x, likelihood = inputs(20), Gaussian(0.3)
    y = x.sin().sum(1)
    made, whole = layer(mean=Zero()), layer(mean=Zero())
    made.fit(zip(x.split(6), y.split(6), [None] * 4, strict=True), 20, likelihood, noise=False)
    whole.fit([(x, y, None)], 20, likelihood, noise=False)
    torch.testing.assert_close(made.q.mean, whole.q.mean)
    other = SVGP(
        kernel=made.kernel,
        mean=Zero(),
        likelihood=likelihood,
        num_inputs=D,
        num_inducing=M,
        jitter=0.0,
    )
    other.place(made.inducing.detach())
    other.fit_variational(x, y)
    torch.testing.assert_close(made.q.mean, other.q.mean)
    torch.testing.assert_close(made.q.factor(), other.q.factor())


def test_any_kernel_of_its_inputs():
    made = layer(kernel=Sum([RBF(D), Matern32(D)]))
    assert made.marginals(inputs()).mean.shape == (7, 1)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: InducingLayer(RBF(), 0), ConfigError, "^num_inputs=0 must be at least 1$"),
        (
            lambda: InducingLayer(RBF(), 1, jitter=-1.0),
            ConfigError,
            "^jitter=-1.0 must not be negative",
        ),
        (lambda: layer()(inputs()[:, :1]), ShapeError, r"of 2 inputs got shape \(7, 1\)"),
    ],
)
def test_invalid_arguments_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()
