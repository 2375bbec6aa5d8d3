"""The Triton backend behind a kernel matrix, against the chunked one."""

import pytest
import torch
from torch import nn
from triton_cases import error, points, rounding, skip_without_interpreter

skip_without_interpreter()
pytestmark = pytest.mark.triton

import gpx.backends.triton.availability as availability  # noqa: E402
from gpx.backends.entries import Entries  # noqa: E402
from gpx.backends.trial import Fault  # noqa: E402
from gpx.backends.triton import Triton, triton_refusal  # noqa: E402
from gpx.backends.triton.blocks import Blocks  # noqa: E402
from gpx.errors import BackendUnavailable, ConfigError  # noqa: E402
from gpx.inference.noisy_kernel import NoisyKernel  # noqa: E402
from gpx.kernels import (  # noqa: E402
    RBF,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)
from gpx.kernels.warped import Warped  # noqa: E402

KERNELS = [
    lambda: RBF(3, [0.5, 1.0, 2.0], 1.4),
    lambda: Matern12(None, 0.7, None, [2, 0]),
    lambda: Matern52(3) + 2.0 * Matern32(None, 1.5, 0.6, [1]),
    lambda: RationalQuadratic(3, 0.8, alpha=0.7),
    lambda: Periodic(3, 1.3, period=[2.0, 3.0, 5.0]),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make_kernel", KERNELS)
def test_products_and_all_gradients_are_those_of_the_chunked_backend(make_kernel, dtype):
    x, z = points(39, 3).split([21, 18])
    right, other = points(21, 3, seed=2), points(18, 3, seed=3)
    found = []
    for backend, kind in (("triton", dtype), ("chunked", torch.float64)):
        kernel = make_kernel().to(kind)
        leaves = [t.to(kind).clone().requires_grad_() for t in (x, z, right, other)]
        a, b, u, v = leaves
        square, oblong = kernel(a, backend=backend), kernel(a, b, backend=backend)
        assert square.backend == backend
        products = [square @ u, oblong @ v, oblong.mT @ u]
        # a cosine gives every entry of the results a weight of its own
        sum(p.cos().sum() for p in products).backward()
        results = (p.detach() for p in products)
        found.append([*results, *(t.grad for t in (*leaves, *kernel.parameters()))])
    for ours, reference in zip(*found, strict=True):
        assert reference.abs().max() > 1e-3
        assert error(ours, reference) < 4 * rounding(x.to(dtype), z)


def test_distances_are_prepared_once_and_again_after_a_change(monkeypatch):
    import gpx.backends.triton.product as product_module

    made = []
    original = product_module.distance_factors
    monkeypatch.setattr(
        product_module, "distance_factors", lambda *args: made.append(1) or original(*args)
    )
    kernel, x = RBF(2).double(), points(20, 2)
    matrix, right = kernel(x, backend="triton"), points(20, 2, seed=1)
    made.clear()  # the trial that a choice by hand makes
    with torch.no_grad():
        first = matrix @ right
        assert torch.equal(matrix @ right, first)
        assert torch.equal(matrix.mT @ right, first)
        assert len(made) == 1
        x[0] += 1.0
        assert error(matrix @ right, kernel.evaluate(x) @ right) < 1e-14
    assert len(made) == 2


def test_float32_itself_and_tiles_by_hand():
    kernel, x = Matern32(2), points(20, 2).float()
    entries = kernel(x, backend="triton").entries
    right = points(20, 2, seed=1).float()
    found = Triton("ieee", Blocks(16, 16, 4, 2)).product(entries, right, transposed=False)
    reference = kernel.double().evaluate(x.double()).detach() @ right.double()
    assert error(found, reference) < rounding(x)


def test_the_noisy_kernel_takes_the_gradient_of_its_backend():
    """Where a product is known the chunked backend has a cheaper gradient; this one needs none."""
    x, right = points(20, 2), points(20, 2, seed=1)[:, 0]
    found = []
    for backend in ("triton", "chunked"):
        kernel = RBF(2, [0.7, 1.2], 1.3).double()
        noisy = NoisyKernel(kernel, x, torch.tensor(0.1, dtype=x.dtype), backend=backend)
        product = noisy.matmul(right)
        gradients = noisy.derivative(right, right, product - 0.1 * right)
        found.append([product, *(gradients[p] for p in kernel.parameters())])
    for ours, reference in zip(*found, strict=True):
        assert error(ours.detach(), reference.detach()) < 4 * rounding(x)


def test_gradients_that_nobody_wants_are_none():
    kernel = RBF(2, outputscale=None).double()
    kernel.requires_grad_(False)
    entries = kernel(points(8, 2), backend="triton").entries
    assert Triton().derivative(entries, points(8, 1), points(8, 1)) == (None,) * len(
        entries.tensors
    )


def test_what_the_kernels_cannot_do_is_one_sentence():
    x = points(4, 3)
    for kernel in (Linear(3), RBF(3) * RBF(3), Warped(RBF(2), nn.Linear(3, 2))):
        with pytest.raises(ConfigError, match=r"rational quadratic kernels, and .* is not"):
            kernel.double()(x, backend="triton")
    with pytest.raises(BackendUnavailable, match=r"41 coordinates .*; choose backend=chunked"):
        RBF(41).double()(torch.zeros(4, 41, dtype=torch.float64), backend="triton")
    with pytest.raises(BackendUnavailable, match=r"float32 and float64, not torch\.float16"):
        RBF(3).half()(x.half(), backend="triton")


def entries(kernel, x):
    return Entries(kernel, (), (), x, x, True)


def no_compiler(*_):
    raise RuntimeError("no\nptxas")


def test_a_kernel_that_does_not_compile_or_is_wrong_is_passed_over(monkeypatch):
    for failing, words in (
        (
            no_compiler,
            "does not run here (RuntimeError: no ptxas)",
        ),
        (lambda *_: 0.5, "wrong here by 5.0e-01"),
        (lambda *_: float("nan"), "wrong here by nan"),
    ):
        monkeypatch.setattr(availability, "trial_error", failing)
        availability._profile_refusal.cache_clear()
        refusal = triton_refusal(entries(RBF(3).double(), points(4, 3)))
        assert words in refusal
        assert isinstance(refusal, Fault)  # which a check of the machine reports as a failure
    monkeypatch.undo()
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        availability._profile_refusal.cache_clear()
        with mode():
            assert triton_refusal(entries(RBF(3).double(), points(4, 3))) is None
