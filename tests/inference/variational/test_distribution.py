import pytest
import torch
from public_classes import public_classes

from gpx.errors import ConfigError, ShapeError
from gpx.inference.variational import FullCholesky, MeanField
from gpx.methods import sparse


def _random(q, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in q.parameters():
            parameter.add_(
                0.5 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            )
    return q


FAMILIES = [FullCholesky, MeanField]


def test_every_public_family_is_listed():
    assert public_classes(sparse, sparse.WhitenedGaussian) == {kind.__name__ for kind in FAMILIES}


@pytest.fixture(params=FAMILIES)
def q(request):
    return _random(request.param().start(7, 3).double())


def test_starts_at_the_prior():
    for kind in FAMILIES:
        q = kind().start(5, 2).double()
        assert q.kl(q.root()).item() == pytest.approx(0.0, abs=1e-15)
        assert torch.equal(q.factor(), torch.eye(5, dtype=torch.float64).expand(2, 5, 5))


def test_kl_equals_that_of_torch(q):
    exact = torch.distributions.kl_divergence(
        torch.distributions.MultivariateNormal(q.mean, scale_tril=q.factor()),
        torch.distributions.MultivariateNormal(
            torch.zeros(7, dtype=torch.float64), torch.eye(7, dtype=torch.float64)
        ),
    ).sum()
    torch.testing.assert_close(q.kl(q.root()), exact)


def test_moments_are_those_of_the_dense_covariance(q):
    projection = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)).double()
    mean, excess = q.moments(projection, q.root())
    factor = q.factor()
    covariance = factor @ factor.mT - torch.eye(7, dtype=torch.float64)
    torch.testing.assert_close(mean, q.mean @ projection)
    torch.testing.assert_close(
        excess, torch.einsum("mb,pmk,kb->pb", projection, covariance, projection)
    )


def test_moments_carry_gradients_to_the_projection(q):
    """By which they reach kernel and inducing points."""
    projection = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)).double()
    projection.requires_grad_()
    root = q.root().detach()

    def loss(a):  # one number: outputs without a gradient would not be looked at
        mean, excess = q.moments(a, root)
        return mean.sin().sum() + excess.cos().sum()

    assert torch.autograd.gradcheck(loss, (projection,))


def test_gradients(q):
    projection = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)).double()
    names = [name for name, _ in q.named_parameters()]

    def loss(*values):
        state = dict(zip(names, values, strict=True))
        mean, excess = torch.func.functional_call(q, state, (projection,))
        return mean.sin().sum() + excess.cos().sum()

    q.forward = lambda a: q.moments(a, q.root())
    leaves = [p.detach().clone().requires_grad_(True) for p in q.parameters()]
    assert torch.autograd.gradcheck(loss, leaves)
    q.forward = lambda _: (q.kl(q.root()), torch.zeros((), dtype=torch.float64))
    assert torch.autograd.gradcheck(loss, leaves)


def test_factor_is_lower_triangular_with_positive_diagonal(q):
    factor = q.factor()
    assert torch.equal(factor, factor.tril())
    assert (factor.diagonal(dim1=-2, dim2=-1) > 0).all()


def test_assign_is_exact_for_the_full_family():
    source, target = (
        _random(FullCholesky().start(6, 2).double(), 3),
        FullCholesky().start(6, 2).double(),
    )
    target.assign(source.mean.detach(), source.factor().detach())
    torch.testing.assert_close(target.factor(), source.factor())
    torch.testing.assert_close(target.kl(target.root()), source.kl(source.root()))


def test_assign_minimises_the_divergence_within_mean_field():
    source, target = (
        _random(FullCholesky().start(6, 1).double(), 3),
        MeanField().start(6, 1).double(),
    )
    target.assign(source.mean.detach(), source.factor().detach())

    def divergence():
        return torch.distributions.kl_divergence(
            torch.distributions.MultivariateNormal(target.mean, scale_tril=target.factor()),
            torch.distributions.MultivariateNormal(source.mean, scale_tril=source.factor()),
        ).sum()

    gradients = torch.autograd.grad(divergence(), list(target.parameters()))
    assert max(g.abs().max() for g in gradients) < 1e-10


def test_errors_in_one_sentence():
    with pytest.raises(ConfigError, match="num_inducing=0 must be at least 1"):
        FullCholesky().start(0)
    with pytest.raises(ShapeError, match=r"q\(v\) has mean \(1, 4\)"):
        FullCholesky().start(4).assign(torch.zeros(1, 3), torch.zeros(1, 3, 3))
