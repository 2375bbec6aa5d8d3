"""The KL term: averaged over every list of blocks it is the divergence of the two normals."""

import itertools

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from gpx.bases import KernelDictionary
from gpx.kernels import RBF
from gpx.methods.weight_space.chevron import ChevronWeights
from gpx.methods.weight_space.control_variate import factor_rows
from gpx.methods.weight_space.elbo_terms import weights_kl
from gpx.methods.weight_space.mean_field import MeanFieldWeights

pytestmark = pytest.mark.usefixtures("float64_by_default")


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
