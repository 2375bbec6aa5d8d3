"""Kernels differentiated by their inputs, against autograd of plain formulas and differences."""

import copy
import math

import pytest
import torch
from draws import draws

from gpx import kernels
from gpx.errors import ConfigError
from gpx.kernels.derivatives import ByAutograd, check_derivatives

D = 3
L = [0.7, 1.0, 1.6]
PERIOD = [1.1, 2.0, 3.0]
INDICES = (None, 0, 1, 2)
pytestmark = pytest.mark.usefixtures("float64_by_default")


def r2(a, b, scale=L):
    return ((a - b) / torch.tensor(scale)).square().sum()


def matern52(a, b):
    t = (5.0 * r2(a, b)).sqrt()
    return 1.3 * (1.0 + t + t * t / 3.0) * (-t).exp()


def matern32(a, b):
    t = (3.0 * r2(a, b)).sqrt()
    return 1.3 * (1.0 + t) * (-t).exp()


def matern72(a, b):
    t = (7.0 * r2(a, b)).sqrt()
    return 1.3 * (1.0 + t + 0.4 * t * t + t**3 / 15.0) * (-t).exp()


def wendland(a, b):
    r = r2(a, b, [2.1, 3.0, 4.8]).sqrt()
    return 1.3 * (1.0 - r).relu() ** 4 * (4.0 * r + 1.0)


def periodic(a, b):
    sine = (math.pi * (a - b) / torch.tensor(PERIOD)).sin() / torch.tensor(L)
    return 1.3 * (-2.0 * sine.square().sum()).exp()


def mixture(a, b):
    tau = a - b
    waves = [(0.5 * 1.3, f) for f in (0.2, 0.4)]
    return sum(
        w
        * ((-2.0 * math.pi**2 * (0.2 * tau).square()).exp() * (2 * math.pi * f * tau).cos()).prod()
        for w, f in waves
    )


def change(a, b):
    at = [torch.sigmoid(3.0 * (x[2] + 0.4)) for x in (a, b)]
    before, after = (1 - at[0]) * (1 - at[1]), at[0] * at[1]
    return before * 1.3 * (-0.5 * r2(a, b)).exp() + after * a[1] * b[1]


def warped(a, b):
    g = [torch.stack([x[0].sinh() + x[1], x[2] * x[0]]) for x in (a, b)]
    return 1.3 * (-0.5 * (g[0] - g[1]).square().sum() / 0.49).exp()


class Warp(torch.nn.Module):
    def forward(self, x):
        return torch.stack([x[:, 0].sinh() + x[:, 1], x[:, 2] * x[:, 0]], 1)


class Own(kernels.Kernel):
    """Exponential of the inner product, with a covariance and a variance only."""

    def covariance(self, x1, x2):
        return (0.3 * x1 @ x2.mT).exp()

    def variance(self, x):
        return (0.3 * x.square().sum(1)).exp()


class OwnProfile(kernels.Stationary):
    """A profile without slopes, smooth in r2."""

    def of_squared_distance(self, r2):
        return (1.0 + r2).reciprocal()


CASES = {
    "RBF": (lambda: kernels.RBF(D, L, 1.3), lambda a, b: 1.3 * (-0.5 * r2(a, b)).exp()),
    "Matern52": (lambda: kernels.Matern52(D, L, 1.3), matern52),
    "Matern32": (lambda: kernels.Matern32(D, L, 1.3), matern32),
    "MaternNu": (lambda: kernels.MaternNu(D, L, 1.3, nu=3.5), matern72),
    "RationalQuadratic": (
        lambda: kernels.RationalQuadratic(D, L, 1.3, alpha=0.8),
        lambda a, b: 1.3 * (1.0 + r2(a, b) / 1.6) ** -0.8,
    ),
    "Wendland": (lambda: kernels.Wendland(D, [2.1, 3.0, 4.8], 1.3), wendland),
    "Periodic": (lambda: kernels.Periodic(D, L, 1.3, period=PERIOD), periodic),
    "Linear": (
        lambda: kernels.Linear(D, [0.5, 1.0, 2.0]),
        lambda a, b: (a * b * torch.tensor([0.5, 1.0, 2.0])).sum(),
    ),
    "Polynomial": (
        lambda: kernels.Polynomial(3, 0.7, 0.2, ard_num_dims=D, lengthscale=L),
        lambda a, b: 0.2 * ((a * b / torch.tensor(L).square()).sum() + 0.7) ** 3,
    ),
    "Polynomial of degree one": (
        lambda: kernels.Polynomial(1, 0.7, 0.2),
        lambda a, b: 0.2 * ((a * b).sum() + 0.7),
    ),
    "Constant": (lambda: kernels.Constant(0.6), lambda a, b: 0.6 + 0.0 * (a * b).sum()),
    "Cosine": (
        lambda: kernels.Cosine(D, PERIOD, 1.3),
        lambda a, b: 1.3 * (2 * math.pi * ((a - b) / torch.tensor(PERIOD)).sum()).cos(),
    ),
    "SpectralMixture": (lambda: kernels.SpectralMixture(D, 2, 1.3, 0.4, 0.2), mixture),
    "AxisProduct": (
        lambda: kernels.AxisProduct("rbf", D, None, L, 1.3),
        lambda a, b: 1.3 * (-0.5 * r2(a, b)).exp(),
    ),
    "ChangePoints": (
        lambda: kernels.ChangePoints(
            [kernels.RBF(D, L, 1.3), kernels.Linear(active_dims=[1])], [-0.4], 3.0, axis=2
        ),
        change,
    ),
    "Warped": (lambda: kernels.Warped(kernels.RBF(None, 0.7, 1.3), Warp()), warped),
    "a product of sums in some columns": (
        lambda: (
            (0.7 * kernels.Matern52(None, 0.9, None, [2, 0]) + 0.5)
            * (kernels.RBF(None, 0.8, active_dims=[1]) + kernels.Linear(active_dims=[0]))
            * kernels.Periodic(None, 0.9, period=1.5, active_dims=[1])
        ),
        lambda a, b: (
            (0.7 * matern_columns(a, b) + 0.5)
            * ((-0.5 * ((a - b)[1] / 0.8).square()).exp() + a[0] * b[0])
            * (-2.0 * ((math.pi * (a - b)[1] / 1.5).sin() / 0.9).square()).exp()
        ),
    ),
    "one of its own": (Own, lambda a, b: (0.3 * (a * b).sum()).exp()),
    "a profile of its own": (
        lambda: OwnProfile(D, L, 1.3),
        lambda a, b: 1.3 / (1.0 + r2(a, b)),
    ),
}


def matern_columns(a, b):
    t = (5.0 * ((a - b)[[0, 2]] / 0.9).square().sum()).sqrt()
    return (1.0 + t + t * t / 3.0) * (-t).exp()


def rows(n, seed):
    return torch.randn(n, D, generator=draws(seed))


def oracle(formula, a, b, i, j):
    """The derivative by autograd of the formula at one pair of rows."""
    a, b = (x.clone().requires_grad_() for x in (a, b))
    value = formula(a, b)
    for x, column in ((a, i), (b, j)):
        if column is not None and value.requires_grad:
            (slope,) = torch.autograd.grad(value, x, create_graph=True, allow_unused=True)
            value = torch.zeros(()) if slope is None else slope[column]
    return value.detach()


@pytest.mark.parametrize("name", CASES)
def test_every_block_is_the_derivative_of_the_formula(name):
    make, formula = CASES[name]
    x, z = rows(3, 0), rows(2, 1)
    found = make().derivatives(x[:, None], z[None])
    for i in INDICES:
        for j in INDICES:
            want = torch.stack([oracle(formula, a, b, i, j) for a in x for b in z])
            own = found.entry(i, j).detach().reshape(-1)
            torch.testing.assert_close(own, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_at_one_row_they_are_limits_of_differences(name):
    """Also where the profile has an infinite second derivative at zero, or a masked root."""
    kernel, x, step = CASES[name][0](), rows(3, 2), 1e-4
    x[:, 2] += 0.1  # away from the points where Warp has no derivative by one input
    found = kernel.derivatives(x, x)
    all_pairs = kernel.derivatives(x[:, None], x[None])
    for i in range(D):
        for j in range(D):
            # a covariance of differences of the function, of random steps' ends
            ends = [x + sign * 0.5 * step * torch.eye(D)[i] for sign in (1.0, -1.0)]
            others = [x + sign * 0.5 * step * torch.eye(D)[j] for sign in (1.0, -1.0)]
            values = [[kernel.pairs(a, b) for b in others] for a in ends]
            quotient = values[0][0] - values[0][1] - values[1][0] + values[1][1]
            torch.testing.assert_close(found.entry(i, j), quotient / step**2, rtol=3e-3, atol=3e-3)
            torch.testing.assert_close(
                all_pairs.entry(i, j).diagonal(), found.entry(i, j), rtol=1e-12, atol=1e-12
            )


@pytest.mark.parametrize("name", CASES)
def test_the_covariance_of_function_and_derivatives_is_positive_semidefinite(name):
    x = torch.cat([rows(6, 3), rows(1, 3)])  # the last row repeats the first one
    found = CASES[name][0]().derivatives(x[:, None], x[None])
    matrix = torch.cat([torch.cat([found.entry(i, j) for j in INDICES], 1) for i in INDICES], 0)
    torch.testing.assert_close(matrix, matrix.mT, rtol=1e-12, atol=1e-12)
    values = torch.linalg.eigvalsh(matrix.detach())
    assert values[0] > -1e-12 * values[-1]


@pytest.mark.parametrize("name", [n for n in CASES if n != "MaternNu"])
def test_gradients_by_parameters_and_inputs_are_right(name):
    kernel = CASES[name][0]()
    x, z = rows(3, 4), torch.cat([rows(2, 5), rows(1, 4)])  # one pair of equal rows
    parameters = dict(kernel.named_parameters())

    def of_parameters(*values):
        chosen = dict(zip(parameters, values, strict=True))
        own = copy.deepcopy(kernel)
        return torch.func.functional_call(
            Entries(own), {f"k.{n}": v for n, v in chosen.items()}, (x, z)
        )

    given = tuple(p.detach().clone().requires_grad_() for p in parameters.values())
    if given:
        assert torch.autograd.gradcheck(of_parameters, given, atol=1e-6, fast_mode=True)
    apart = rows(3, 6).requires_grad_()  # derivatives of third order may not exist at equal rows
    assert torch.autograd.gradcheck(
        lambda x: Entries(kernel)(x, z), (apart,), atol=1e-6, fast_mode=True
    )


class Entries(torch.nn.Module):
    """A few blocks of every order, as one tensor."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x, z):
        found = self.k.derivatives(x[:, None], z[None])
        chosen = ((None, None), (0, None), (None, 1), (1, 1), (0, 2))
        return torch.stack([found.entry(i, j) for i, j in chosen])


def test_a_graph_is_kept_only_where_one_is_wanted():
    for name in CASES:
        kernel = CASES[name][0]()
        with torch.no_grad():
            found = kernel.derivatives(rows(2, 0), rows(2, 1))
            assert not found.entry(0, 1).requires_grad, name
            assert not found.entry(None, None).requires_grad, name


class Rough(kernels.Stationary):
    """Of a root of the distance, whose functions are not differentiable."""

    def of_squared_distance(self, r2):
        return (-(r2.sqrt())).exp()


class Wrong(kernels.RBF):
    """Slopes of another kernel."""

    def slopes(self, r2):
        return kernels.Matern52.slopes(self, r2)


REFUSED = {
    "nowhere differentiable": (kernels.Matern12, r"Matern12 .* nowhere differentiable"),
    "a root of its own": (Rough, r"Rough .* variance nan, and difference quotients"),
    "an angle": (lambda: kernels.ArcCosine(order=0), r"ArcCosine .* difference quotients"),
    "a category": (lambda: kernels.Categorical([[0, 2]]), r"Categorical .* input 0 is a category"),
    "no derivative by hand": (
        lambda: kernels.Convolutional(kernels.Matern12(2), [1, D], [1, 2]),
        r"Convolutional .* torch cannot differentiate it twice",
    ),
    "of little smoothness": (lambda: kernels.MaternNu(nu=1.7), r"MaternNu .* above 2"),
    "slopes of another profile": (Wrong, r"Wrong .* difference quotients"),
    "within a sum": (
        lambda: kernels.RBF() + kernels.Matern12(),
        r"Matern12 .* take kernel=RBF\(\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_kernels_without_derivatives_are_refused_in_one_sentence(name):
    make, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words) as refusal:
        check_derivatives(make(), rows(3, 0), range(D))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("order", [1, 2])
def test_networks_of_units_with_a_slope_have_derivatives(order):
    check_derivatives(kernels.ArcCosine(order=order), rows(3, 0), range(D))


def test_patches_of_a_smooth_kernel_have_derivatives_by_autograd():
    check_derivatives(kernels.Convolutional(kernels.RBF(2), [1, D], [1, 2]), rows(3, 0), range(D))


@pytest.mark.parametrize("name", CASES)
def test_kernels_with_derivatives_pass_the_check(name):
    for lengthscale in (None, 0.01, 100.0):
        kernel = CASES[name][0]()
        if lengthscale is not None and hasattr(kernel, "lengthscale"):
            if name == "Polynomial of degree one":
                continue
            kernel.lengthscale = torch.full_like(kernel.lengthscale, lengthscale)
        check_derivatives(kernel, rows(3, 0), range(D))
        check_derivatives(kernel.float(), rows(3, 0).float(), range(D))


def test_a_category_is_no_obstacle_to_derivatives_by_other_inputs():
    kernel = kernels.RBF(1, 0.7, 1.3, active_dims=[1]) * kernels.Categorical([[0, 2]], 2.0)
    x = rows(4, 0)
    x[:2, [0, 2]] = 1.0
    check_derivatives(kernel, x, [1])
    found = kernel.derivatives(x[:, None], x[None])
    plain = kernels.RBF(1, 0.7, 1.3, active_dims=[1]).derivatives(x[:, None], x[None])
    same = kernels.Categorical([[0, 2]], 2.0).evaluate(x)
    torch.testing.assert_close(found.entry(1, 1), plain.entry(1, 1) * same)


def test_closed_forms_agree_with_autograd_of_pairs():
    x, z = rows(3, 0), rows(2, 1)
    kernel = kernels.RBF(D, L) * kernels.Linear(D)
    closed, by_autograd = (
        kernel.derivatives(x[:, None], z[None]),
        ByAutograd(kernel, x[:, None], z[None]),
    )
    for i in INDICES:
        for j in INDICES:
            torch.testing.assert_close(closed.entry(i, j), by_autograd.entry(i, j))


def test_another_covariance_does_not_inherit_derivatives():
    class Doubled(kernels.RBF):
        def covariance(self, x1, x2):
            return 2.0 * (-0.5 * (x1[:, None] - x2[None]).square().sum(-1)).exp()

        def variance(self, x):
            return 2.0 * torch.ones_like(x[:, 0])

    kernel = Doubled()
    check_derivatives(kernel, rows(3, 0), range(D))
    torch.testing.assert_close(
        kernel.derivatives(rows(3, 0), rows(3, 0)).entry(0, 0), torch.full((3,), 2.0)
    )
