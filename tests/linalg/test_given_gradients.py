import subprocess
import sys

import torch

from gpx.linalg.given_gradients import gradients_with_weights


def test_gradients_are_those_of_torch_to_the_bit():
    draws = torch.Generator().manual_seed(0)
    a, b, unused = (torch.randn(3, generator=draws).requires_grad_() for _ in range(3))
    outputs = [torch.outer(a, b).sin(), (a * b.exp()).sum().float(), a.double() ** 2]
    weights = [torch.randn(o.shape, generator=draws, dtype=o.dtype) for o in outputs]
    known = torch.autograd.grad(
        outputs, [a, b, unused], weights, allow_unused=True, retain_graph=True
    )
    for enabled in (True, False):  # the graph stays
        with torch.set_grad_enabled(enabled):
            found = gradients_with_weights(outputs, [a, b, unused], weights)
        assert torch.equal(found[0], known[0])
        assert torch.equal(found[1], known[1])
        assert found[2] is None


def test_an_exact_evidence_imports_no_symbolic_algebra():
    code = (
        "import sys, torch; from gpx.kernels import RBF; from gpx.likelihoods import Gaussian; "
        "from gpx.means import Zero; from gpx.models import ExactGP; "
        "from gpx.objectives import ExactMLL; x = torch.ones(4, 1).cumsum(0).double(); "
        "model = ExactGP(kernel=RBF(1), mean=Zero(), likelihood=Gaussian(0.1)).double(); "
        "ExactMLL()(model, x, x[:, 0]).backward(); print('sympy' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
