"""Circulant approximations: definitions as minimisers, Fourier identities, reference values."""

import math

import pytest
import scipy.linalg
import torch
from draws import draw

from gpx.errors import ConfigError, DTypeError, NotPositiveDefinite, ShapeError
from gpx.linalg import (
    chan,
    circulant_approximation,
    circulant_logdet,
    circulant_preconditioner,
    durbin,
    enough_wraps,
    strang,
    tyrtyshnikov,
    whittle,
)
from gpx.methods.ski.grid_spectrum import scaled_logdet

KINDS = ["strang", "chan", "tyrtyshnikov"]


def toeplitz(column):
    return torch.tensor(scipy.linalg.toeplitz(column))


def circulant(column):
    return torch.tensor(scipy.linalg.circulant(column))


def column(m):
    k = 0.3 * draw(m)
    k[0] = 4.0
    return k


def symmetric(c):
    return 0.5 * (c + c.flip(-1).roll(1, -1))


@pytest.mark.parametrize("m", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_symmetric_and_circulants_stay(m, kind):
    c = circulant_approximation(column(m), kind)
    assert c.shape == (m,)
    torch.testing.assert_close(c, symmetric(c), rtol=1e-12, atol=1e-12)
    already = symmetric(column(m))
    torch.testing.assert_close(
        circulant_approximation(already, kind), already, rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("m", [8, 9])
def test_each_minimises_its_norm(m):
    k = column(m)
    dense = toeplitz(k)
    identity = torch.eye(m, dtype=torch.float64)

    def one(c):
        return (circulant(c) - dense).abs().sum(0).max()

    def frobenius(c):
        return (circulant(c) - dense).norm()

    def preconditioned(c):
        return (identity - torch.linalg.solve(circulant(c), dense)).norm()

    for best, cost in ((strang(k), one), (chan(k), frobenius), (tyrtyshnikov(k), preconditioned)):
        least = cost(best)
        for seed in range(30):
            for size in (1e-1, 1e-3):
                other = best + size * symmetric(draw(m, seed=seed))
                assert cost(other) >= least - 1e-13


@pytest.mark.parametrize("m", [7, 12])
def test_eigenvalues_in_the_fourier_basis(m):
    k = column(m)
    dense = toeplitz(k).to(torch.complex128)
    fourier = torch.fft.fft(torch.eye(m, dtype=torch.float64)) / math.sqrt(m)
    first = (fourier @ dense @ fourier.mH).diagonal().real
    second = (fourier @ dense @ dense @ fourier.mH).diagonal().real
    torch.testing.assert_close(torch.fft.fft(chan(k)).real, first, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.fft.fft(tyrtyshnikov(k)).real, second / first, rtol=1e-10, atol=1e-10
    )
    assert first.min() >= torch.linalg.eigvalsh(toeplitz(k)).min() - 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    k = column(7).requires_grad_()
    assert torch.autograd.gradcheck(lambda k: circulant_approximation(k, kind), (k,))
    assert torch.autograd.gradcheck(
        lambda k: circulant_logdet(circulant_approximation(k, kind), 0.5), (k,)
    )


def test_logdet_is_that_of_the_grid_spectrum_in_the_size_of_the_grid():
    c = circulant_approximation(column(9), "chan")
    want = scaled_logdet(torch.fft.fft(c).real, 0.5, len(c))
    torch.testing.assert_close(circulant_logdet(c, 0.5), want)
    dense = torch.logdet(circulant(c) + 0.5 * torch.eye(9).double())
    torch.testing.assert_close(want, dense)


def squared_exponential(scale):
    return lambda tau: torch.exp(-0.5 * (tau**2).sum(-1) / scale**2)


def test_whittle_spectrum_is_the_aliased_density():
    m, h, scale = 50, 0.4, 1.0
    c = whittle(squared_exponential(scale), torch.tensor([h], dtype=torch.float64), (m,))
    frequency = torch.arange(m, dtype=torch.float64) / (m * h)
    total = torch.zeros(m, dtype=torch.float64)
    for r in range(-20, 21):
        s = frequency + r / h
        total += scale * math.sqrt(2 * math.pi) * torch.exp(-2 * (math.pi * scale * s) ** 2)
    torch.testing.assert_close(torch.fft.fft(c).real, total / h, rtol=0, atol=1e-13)


def test_whittle_of_a_separable_kernel_is_an_outer_product():
    spacing = torch.tensor([0.3, 0.5], dtype=torch.float64)
    both = whittle(squared_exponential(1.0), spacing, (10, 12))
    ones = [
        whittle(squared_exponential(1.0), h.view(1), (n,))
        for h, n in zip(spacing, (10, 12), strict=True)
    ]
    torch.testing.assert_close(both, torch.outer(*ones), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("scale", "errors"),
    [
        (0.1, {"strang": -1.7e-3, "chan": 9.6e-2, "tyrtyshnikov": 1.3, "whittle": -1.7e-3}),
        (1.0, {"strang": -2.1e-3, "chan": 1.7e-1, "tyrtyshnikov": 1.6, "whittle": -2.1e-3}),
    ],
)
def test_relative_errors_of_the_logdet_are_the_known_ones(scale, errors):
    m, h, noise = 1000, 20 / 999, 1e-3
    spacing = torch.tensor([h], dtype=torch.float64)
    k = squared_exponential(scale)(h * torch.arange(m, dtype=torch.float64).unsqueeze(-1))
    shifted = k.clone()
    shifted[0] += noise
    true = durbin(shifted)[0]
    for kind, expected in errors.items():
        if kind == "whittle":
            c = whittle(squared_exponential(scale), spacing, (m,))
        else:
            c = circulant_approximation(k, kind)
        found = (circulant_logdet(c, noise) - true) / true.abs()
        assert float(found) == pytest.approx(expected, rel=0.1), kind


def test_the_clip_has_no_gradient_and_no_nan():
    c = torch.tensor([1.0, 0.9, 0.2, 0.9], dtype=torch.float64).requires_grad_()
    assert torch.fft.fft(c.detach()).real.min() < 0
    value = circulant_logdet(c, 1e-3)
    (gradient,) = torch.autograd.grad(value, c)
    assert torch.isfinite(gradient).all()
    assert torch.isfinite(value)


def test_slow_kernels_need_more_wraps():
    assert enough_wraps(squared_exponential(1.0), 20.0) == 1
    assert enough_wraps(squared_exponential(10.0), 20.0) == 4  # exp(-t^2 / 200) < 1e-12 at 75
    assert enough_wraps(lambda t: 1 / (1 + t.squeeze(-1) ** 2), 1.0, most=30) == 30


def steps_of_cg(product, right, precondition):
    """Reference conjugate gradients: steps to a relative residual of 1e-8."""
    x, r = torch.zeros_like(right), right.clone()
    z = precondition(r)
    p, rz = z, (r * z).sum()
    for step in range(1, 2000):
        q = product(p)
        alpha = rz / (p * q).sum()
        x, r = x + alpha * p, r - alpha * q
        if r.norm() < 1e-8 * right.norm():
            return step, x
        z = precondition(r)
        rz, old = (r * z).sum(), rz
        p = z + rz / old * p
    raise AssertionError("no convergence")


@pytest.mark.parametrize("kind", KINDS)
def test_preconditioners_save_steps(kind):
    m = 512
    k = torch.exp(-torch.arange(m, dtype=torch.float64) / 30.0)
    k[0] += 1e-2
    dense, right = toeplitz(k), draw(m, 1)
    plain, _ = steps_of_cg(lambda v: dense @ v, right, lambda v: v)
    apply = circulant_preconditioner(k, kind=kind)
    fewer, x = steps_of_cg(lambda v: dense @ v, right, apply)
    assert fewer < plain / 4
    torch.testing.assert_close(x, torch.linalg.solve(dense, right), rtol=1e-5, atol=1e-5)
    inverse = circulant(circulant_approximation(k, kind)).inverse()
    torch.testing.assert_close(apply(right), inverse @ right, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(apply(right[:, 0]), apply(right)[:, 0])


def test_preconditioner_of_two_levels_saves_steps():
    axes = [torch.arange(n, dtype=torch.float64) for n in (16, 20)]
    corner = torch.exp(-(axes[0][:, None] ** 2 + axes[1] ** 2).sqrt() / 5.0)
    corner[0, 0] += 1e-2
    place = torch.cartesian_prod(*axes).long()
    lag = (place[:, None] - place).abs()
    dense, right = corner[lag[..., 0], lag[..., 1]], draw(320, 1)
    plain, _ = steps_of_cg(lambda v: dense @ v, right, lambda v: v)
    fewer, _ = steps_of_cg(
        lambda v: dense @ v, right, circulant_preconditioner(corner, kind="chan", levels=2)
    )
    assert fewer < plain / 2


def test_errors_name_the_way_out():
    with pytest.raises(ConfigError, match="one of"):
        circulant_approximation(column(4), "toeplitz")
    with pytest.raises(ConfigError, match="wraps"):
        whittle(squared_exponential(1.0), torch.ones(1), (4,), wraps=0)
    k = torch.exp(-0.5 * (torch.arange(200, dtype=torch.float64) / 80.0) ** 2)
    with pytest.raises(NotPositiveDefinite, match="chan"):
        circulant_preconditioner(k, kind="strang")
    with pytest.raises(ConfigError, match="one axis only"):
        circulant_preconditioner(draw(3, 3), kind="tyrtyshnikov", levels=2)


@pytest.mark.parametrize("m", [7, 8])
@pytest.mark.parametrize("spectrum", [[1.0, 0.0, 0.0, 0.0], [4.0, 0.0, 2.0, 0.0], [0.0] * 4])
def test_a_singular_circulant_is_its_own_super_optimal_circulant(m, spectrum):
    values = torch.tensor([*spectrum, 0.0][: m // 2 + 1], dtype=torch.float64)
    k = torch.fft.irfft(values + 0j, n=m).requires_grad_()
    found = tyrtyshnikov(k)
    torch.testing.assert_close(found.detach(), k.detach(), rtol=0, atol=1e-13)
    found[0].backward()
    assert torch.isfinite(k.grad).all()


def test_an_indefinite_matrix_without_a_super_optimal_circulant_is_an_error():
    k = torch.zeros(4, dtype=torch.float64)
    k[1] = 1.0  # skew part: f^H T f = 0 at frequency one, where T f is not zero
    with pytest.raises(NotPositiveDefinite, match="indefinite"):
        tyrtyshnikov(k)


def test_a_preconditioner_refuses_vectors_that_do_not_fit():
    apply = circulant_preconditioner(column(6))
    for wrong in (draw(7), draw(7, 2), draw(5, 6, 2)[:, :3]):
        with pytest.raises(ShapeError, match="6 rows"):
            apply(wrong)
    with pytest.raises(DTypeError, match="float32"):
        apply(draw(6).float())
