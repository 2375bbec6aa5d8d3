"""Theorems 1 and 2 and the constant term: averaged over every sample they are the exact terms."""

import itertools
import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from gpx.bases import KernelDictionary
from gpx.kernels import RBF
from gpx.methods.weight_space.chevron import ChevronWeights
from gpx.methods.weight_space.control_variate import factor_rows
from gpx.methods.weight_space.elbo_terms import mean_term, weights_kl
from gpx.methods.weight_space.mean_field import MeanFieldWeights

N, M, NOISE = 4, 6, 0.3


pytestmark = pytest.mark.usefixtures("float64_by_default")


def toy(diagonal):
    g = torch.Generator().manual_seed(0)
    phi, y = torch.randn(N, M, generator=g), torch.randn(N, generator=g)
    if diagonal:
        precision = torch.diag(0.5 + torch.rand(M, generator=g))
    else:
        root = torch.randn(M, M, generator=g)
        precision = root @ root.T / M + torch.eye(M)
    mean = torch.randn(M, generator=g)
    factor = torch.tril(torch.randn(M, M, generator=g))
    factor.diagonal().abs_().add_(0.3)
    return phi, y, precision, mean, factor


def lists(count, size, scheme):
    """Every equally likely list of ``size`` of ``count`` entries; (number of lists, size)."""
    if scheme == "with_replacement":
        return torch.tensor(list(itertools.product(range(count), repeat=size)))
    if scheme == "without_replacement":
        return torch.tensor(list(itertools.combinations(range(count), size)))
    assert count % size == 0
    return torch.arange(count).view(-1, size)  # contiguous blocks


def everything(*choices):
    """Cartesian product of lists of lists, as one batch per argument."""
    picked = torch.cartesian_prod(*[torch.arange(len(c)) for c in choices]).T
    return [c[k] for c, k in zip(choices, picked, strict=True)]


def exact_terms(phi, y, precision, mean, factor):
    l_mu = (-2 * y @ phi @ mean + (phi @ mean).square().sum()) / NOISE + mean @ precision @ mean
    l_sigma = (phi @ factor).square().sum() / NOISE + torch.trace(precision @ factor @ factor.T)
    l_sigma = l_sigma - 2 * factor.diagonal().log().sum()
    l_const = -torch.logdet(precision) - M + N * math.log(2 * math.pi * NOISE) + y @ y / NOISE
    return l_mu, l_sigma, l_const


def sampled_mean_term(phi, y, precision, mean, rows, j, i, diagonal):
    ratios = {"per_row": N / rows.shape[-1], "ratio": M / i.shape[-1]}

    def one(rows, j, i):
        s = precision.diagonal()[i] if diagonal else precision[j][:, i]
        return mean_term(
            y[rows], phi[rows][:, j], phi[rows][:, i], mean[j], mean[i], s, NOISE, **ratios
        )

    return torch.vmap(one)(rows, j, i)


SCHEMES = ["with_replacement", "without_replacement", "blocks"]


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_mean_term_is_unbiased_in_value_and_gradient(scheme, diagonal):
    phi, y, precision, mean, factor = toy(diagonal)
    mean.requires_grad_()
    choice = everything(lists(N, 2, scheme), lists(M, 2, scheme), lists(M, 2, scheme))
    found = sampled_mean_term(phi, y, precision, mean, *choice, diagonal).mean()
    want = exact_terms(phi, y, precision, mean, factor)[0]
    torch.testing.assert_close(found, want, rtol=1e-10, atol=0)
    grad, want_grad = (torch.autograd.grad(v, mean)[0] for v in (found, want))
    torch.testing.assert_close(grad, want_grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tied_lists_are_biased(scheme):
    phi, y, precision, mean, factor = toy(False)
    rows, i = everything(lists(N, 2, scheme), lists(M, 2, scheme))
    found = sampled_mean_term(phi, y, precision, mean, rows, i, i, False).mean()
    want = exact_terms(phi, y, precision, mean, factor)[0]
    # the average of v_i^2 (m / m~)^2 over tied lists is not the square of the sum
    assert float((found - want).abs()) > 0.5 * float(want.abs())


@pytest.mark.parametrize("diagonal", [False, True])
def test_full_lists_give_the_elbo_which_is_the_evidence_at_the_exact_posterior(diagonal):
    phi, y, precision, mean, factor = toy(diagonal)
    posterior = torch.linalg.inv(phi.T @ phi / NOISE + precision)
    mean, factor = posterior @ phi.T @ y / NOISE, torch.linalg.cholesky(posterior)
    noise = torch.tensor(NOISE)
    s = precision.diagonal() if diagonal else precision
    wanted, *others = exact_terms(phi, y, precision, mean, factor)
    found = mean_term(y, phi, phi, mean, mean, s, noise)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    covariance = phi @ torch.linalg.solve(precision, phi.T) + NOISE * torch.eye(N)
    evidence = MultivariateNormal(torch.zeros(N), covariance).log_prob(y)
    torch.testing.assert_close(-0.5 * (found + sum(others)), evidence, rtol=1e-10, atol=0)


BLOCKS, WIDTH = 3, 2


@pytest.mark.parametrize("num_dense", [0, 2, 3])
def test_value_and_gradients_are_those_of_the_normal_distributions(num_dense):
    """Precisions are learned: log det S has a gradient, which a basis of constant ones hides."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    basis = KernelDictionary(RBF().double(), draw(BLOCKS * WIDTH, 1), WIDTH)
    family = (
        ChevronWeights(BLOCKS, WIDTH, num_dense, "free")
        if num_dense
        else MeanFieldWeights(BLOCKS, WIDTH, "free")
    ).double()
    learned = [basis.log_precision, *family.parameters()]
    with torch.no_grad():
        for parameter in learned:
            parameter.copy_(0.7 * draw(*parameter.shape))

    def kl(blocks):
        factors, scales = factor_rows(family, blocks), family.log_scale[blocks]
        return weights_kl(basis, family, blocks, factors, scales, BLOCKS / len(blocks))

    rows = factor_rows(family, torch.arange(BLOCKS))
    root = torch.diag(family.log_scale.exp().reshape(-1))[:, num_dense:]
    q = MultivariateNormal(rows[:, 0], scale_tril=torch.cat((rows[:, 1:], root), 1))
    p = MultivariateNormal(
        torch.zeros_like(rows[:, 0]), torch.diag((-basis.log_precision[:, 0]).exp())
    )
    want = kl_divergence(q, p)
    slopes = torch.autograd.grad(want, learned)
    for size in (1, 2, 3):
        lists = [torch.tensor(k) for k in itertools.combinations(range(BLOCKS), size)]
        found = torch.stack([kl(blocks) for blocks in lists]).mean()
        torch.testing.assert_close(found, want, rtol=1e-11, atol=0)
        for a, b in zip(torch.autograd.grad(found, learned), slopes, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)
