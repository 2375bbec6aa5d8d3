"""What the base class of kernels does for a kernel that writes two methods only."""

import pytest
import torch

from gpx.kernels import Kernel


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
    with pytest.raises(IndexError):
        Rows().pairs(x, z)
