"""What pickles and copies share, and what they do in another process and to an optimiser.

The suites of kernels, likelihoods, bases and posteriors copy every public class.
"""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from copies import copies
from public_classes import public_classes
from torch import Tensor, nn

from gpx import means
from gpx.kernels import RBF, Linear, Scale
from gpx.likelihoods import Gaussian
from gpx.models import ExactGP

X = torch.rand(20, 2, generator=torch.Generator().manual_seed(0)).double()
NEW = torch.tensor([[0.2, 0.3], [0.55, 0.9], [1.0, 0.1]]).double()
MEANS = {
    "Constant": lambda: means.Constant(0.3),
    "Linear": lambda: means.Linear(2, 0.3),
    "Zero": lambda: means.Zero(),
}


def rbf():
    return RBF(2, [0.6, 0.9], 1.3).double()


def test_every_public_mean_is_listed():
    assert public_classes(means, means.Mean) == set(MEANS)


@pytest.mark.parametrize("name", MEANS)
def test_copies_of_means_are_the_same(name):
    mean = MEANS[name]().double()
    assert all(torch.equal(again(X), mean(X)) for again in copies(mean))


def test_shared_parts_stay_shared():
    model = ExactGP(kernel=rbf(), mean=means.Constant(), likelihood=Gaussian()).double()
    for first, second in copies(nn.ModuleList([model, Scale(model.kernel, 2.0).double()])):
        assert first.kernel is second.kernel
        assert first.kernel is not model.kernel


def test_a_shallow_copy_shares_its_parameters():
    kernel = rbf()
    again = copy.copy(kernel)
    kernel.lengthscale = torch.tensor([0.3, 0.4]).double()
    assert again is not kernel
    assert torch.equal(again.evaluate(X, NEW), kernel.evaluate(X, NEW))


def test_another_process_reads_it(tmp_path):
    """Where no parametrised class was ever made."""
    kernel = (rbf() + Linear(active_dims=[1]) + 0.5).double()
    file = tmp_path / "kernel.pickle"
    file.write_bytes(pickle.dumps((kernel, X, NEW)))
    code = (
        "import pickle, sys; kernel, x, new = pickle.load(open(sys.argv[1], 'rb')); "
        "print(repr(kernel.evaluate(x, new).sum().item()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == kernel.evaluate(X, NEW).sum().item()


def test_an_optimiser_continues_on_the_copy():
    """A step on a copy moves its own parameters by what the original's would have."""
    kernel = rbf()
    again = pickle.loads(pickle.dumps(kernel))

    def step(module: nn.Module) -> Tensor:
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        module.evaluate(X, NEW).sum().backward()
        optimiser.step()
        return module.lengthscale.detach()

    assert torch.equal(step(again), step(kernel))
    assert not torch.equal(again.lengthscale, rbf().lengthscale)
