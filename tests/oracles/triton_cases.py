"""What tests of Triton kernels share: precisions, spread points, how errors are measured."""

import numpy as np
import pytest
import torch

from gpx.backends import triton_installed
from gpx.backends.triton.availability import interpreted

PRECISIONS = [
    pytest.param(torch.float32, "tf32x3", id="tf32x3"),
    pytest.param(torch.float32, "ieee", id="float32"),
    pytest.param(torch.float64, "ieee", id="float64"),
]


def skip_without_interpreter():
    """Skip a module: Triton reads TRITON_INTERPRET once, when its kernels are imported."""
    if not triton_installed():
        pytest.skip("triton is not installed", allow_module_level=True)
    if not interpreted():
        reason = "needs TRITON_INTERPRET=1 (tests/backends/test_triton.py runs it in a process)"
        pytest.skip(reason, allow_module_level=True)


def points(count, inputs, seed=0):
    """(count, inputs) in float64, no two closer than 0.3: square roots stay well-conditioned."""
    generator = torch.Generator().manual_seed(seed)
    if inputs == 1:
        order = torch.randperm(count, generator=generator)[:, None] - 0.5 * count
        return 0.5 * order + 0.2 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    found = torch.empty(0, inputs, dtype=torch.float64)
    while found.shape[0] < count:
        drawn = torch.randn(1, inputs, generator=generator, dtype=torch.float64)
        if not found.shape[0] or torch.cdist(drawn, found).min() > 0.3:
            found = torch.cat((found, drawn))
    return found


def rounding(*coordinates):
    """Error to be expected beside the largest number of a result.

    Squared distances come out up to eight roundings of the squared radius too small (norms are
    shrunk on purpose), with a few roundings more; half of that is the relative error of an RBF.
    """
    radius = max(float(z.double().square().sum(1).max()) for z in coordinates if z.shape[0])
    return 8.0 * torch.finfo(coordinates[0].dtype).eps * (1.0 + radius)


def error(found, reference):
    """Largest difference over the largest entry of the reference."""
    assert found.shape == reference.shape
    if not reference.numel():
        return 0.0
    return float((found.double() - reference).abs().max() / reference.abs().max())


def truncate_dots(monkeypatch):
    """Make ``tl.dot`` in float32 what tensor cores compute: a sum that is exact, then truncated.

    Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021.
    """
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def dot(self, a, b, d, *_):
        exact = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64)) + d.data
        return TensorHandle(_truncated(exact, d.data.dtype), d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)


def tensor_core_products(left, right, step=8, bits=25):
    """left_i . right_i (n,) as tensor cores sum them, ``step`` columns at a time.

    In a step terms and the sum so far are aligned to the largest, truncated to ``bits``, added, and
    truncated to float32.
    """
    products, total = (left.double() * right.double()).numpy(), np.zeros(len(left))
    for start in range(0, products.shape[1], step):
        terms = np.column_stack((products[:, start : start + step], total))
        unit = 2.0 ** (np.floor(np.log2(np.abs(terms).max(1))) - bits + 1)
        exact = (np.trunc(terms / unit[:, None]) * unit[:, None]).sum(1)
        total = _truncated(exact, np.float32).astype(np.float64)
    return torch.from_numpy(total)


def _truncated(exact, dtype):
    found = exact.astype(dtype)
    over = np.abs(found.astype(np.float64)) > np.abs(exact)
    return np.where(over, np.nextafter(found, np.zeros_like(found)), found)
