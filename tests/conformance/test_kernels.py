"""The kernel contract, for every public kernel class: one line in the registry each."""

import copy
import inspect

import pytest
import torch
from copies import copies
from public_classes import public_classes

import gpx.kernels as kernels
from gpx.errors import ConfigError, ShapeError

D = 3
L = [0.7, 1.0, 1.6]
REGISTRY = {
    "RBF": lambda: kernels.RBF(D, L, 1.3),
    "Matern12": lambda: kernels.Matern12(D, L, 1.3),
    "Matern32": lambda: kernels.Matern32(D, L, 1.3),
    "Matern52": lambda: kernels.Matern52(D, L, 1.3),
    "MaternNu": lambda: kernels.MaternNu(D, L, 1.3, nu=3.5),
    "RationalQuadratic": lambda: kernels.RationalQuadratic(D, L, 1.3, alpha=0.8),
    "Wendland": lambda: kernels.Wendland(D, [2.1, 3.0, 4.8], 1.3),
    "Periodic": lambda: kernels.Periodic(D, L, 1.3, period=[1.1, 2.0, 3.0]),
    "Linear": lambda: kernels.Linear(D, [0.5, 1.0, 2.0]),
    "ArcCosine": lambda: kernels.ArcCosine(1, D, L, 1.3),
    "Polynomial": lambda: kernels.Polynomial(3, 0.7, 0.2, ard_num_dims=D, lengthscale=L),
    "Constant": lambda: kernels.Constant(0.6),
    "Convolutional": lambda: kernels.Convolutional(kernels.RBF(2, [0.7, 1.0], 1.3), [1, D], [1, 2]),
    "Cosine": lambda: kernels.Cosine(D, [1.5, 2.0, 4.0], 1.3),
    "SpectralMixture": lambda: kernels.SpectralMixture(D, 2, 1.3, 0.4, 0.2),
    "Scale": lambda: kernels.Scale(kernels.RBF(D, L), 0.4),
    "AxisProduct": lambda: kernels.AxisProduct("matern32", D, [[0, 2], [1]], L, 1.3),
    "Sum": lambda: kernels.RBF(D, L, 1.3) + kernels.Linear(active_dims=[1]) + 0.5,
    "Categorical": lambda: kernels.Categorical([[0, 2], [1]], [0.7, 1.6], 1.3),
    "ChangePoints": lambda: kernels.ChangePoints(
        [kernels.RBF(D, L, 1.3), kernels.Matern32(D, L, 0.8), kernels.Linear(active_dims=[1])],
        [-0.4, 0.5],
        [3.0, 6.0],
        axis=2,
    ),
    "Warped": lambda: kernels.Warped(
        kernels.RBF(D, L, 1.3), kernels.Kumaraswamy(D, [0.7, 1.0, 1.8], [1.4, 0.6, 1.0], reach=2.5)
    ),
    "Product": lambda: (
        kernels.Matern32(None, 0.9, None, [0]) * kernels.Periodic(None, active_dims=[2])
    ),
}
ABSTRACT = {"Kernel", "Stationary", "Matern"}
NAMES = sorted(REGISTRY)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]


pytestmark = pytest.mark.usefixtures("float64_by_default")


def inputs(n, seed):
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed))


def overlapping(n1=9, n2=7):
    """Two input sets that share three rows."""
    x, z = inputs(n1, 0), inputs(n2, 1)
    z[:3] = x[2:5]
    return x, z


def test_every_public_kernel_is_registered():
    public = public_classes(kernels, kernels.Kernel, abstract=True)
    assert public - ABSTRACT == set(REGISTRY)
    for name in ABSTRACT:
        assert inspect.isabstract(getattr(kernels, name))


@pytest.mark.parametrize("name", NAMES)
def test_diagonal_pairs_and_transpose_agree_with_evaluate(name):
    kernel = REGISTRY[name]()
    x, z = overlapping()
    dense = kernel.evaluate(x, z)
    assert dense.shape == (9, 7)
    torch.testing.assert_close(
        kernel.diagonal(x), kernel.evaluate(x).diagonal(), rtol=1e-13, atol=0
    )
    torch.testing.assert_close(kernel.evaluate(z, x), dense.mT, rtol=1e-6, atol=1e-7)
    # square roots turn rounding in the squared distance, 1e-15, into 3e-8 at coincident rows
    torch.testing.assert_close(kernel.pairs(x[:7], z), dense[:7].diagonal(), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(kernel.pairs(x, x), kernel.diagonal(x), rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_square_matrix_is_positive_semidefinite(name):
    x = inputs(200, 3)
    dense = REGISTRY[name]().evaluate(x).detach()
    torch.testing.assert_close(dense, dense.mT, rtol=1e-12, atol=1e-13)
    smallest = torch.linalg.eigvalsh(dense)[0].item()
    assert smallest >= -1e-13 * dense.diagonal().sum().item()


@pytest.mark.parametrize("name", NAMES)
def test_a_dense_matrix_may_be_changed_in_place(name):
    matrix = REGISTRY[name]().evaluate(inputs(4, 2)).detach()
    expected = matrix + torch.eye(4)
    matrix.diagonal().add_(1.0)
    torch.testing.assert_close(matrix, expected)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_in_parameters_and_inputs(name):
    kernel = REGISTRY[name]()
    x, z = inputs(5, 4), inputs(4, 5)
    names = [n for n, _ in kernel.named_parameters()]
    raw = [p.detach().clone().requires_grad_() for p in kernel.parameters()]

    def value(x, z, *parameters):
        operator = kernel(x, z)
        return type(operator)(
            x, z, *parameters, kernel=kernel, names=tuple(names), square=False
        ).to_dense()

    arguments = (x.requires_grad_(), z.requires_grad_(), *raw)
    assert torch.autograd.gradcheck(value, arguments, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_and_right_at_coincident_rows(name):
    kernel = REGISTRY[name]()
    x, z = overlapping()
    x.requires_grad_()
    weights = torch.randn(9, 7, generator=torch.Generator().manual_seed(6))
    (kernel.evaluate(x, z) * weights).sum().backward()
    got = torch.zeros_like(x) if x.grad is None else x.grad.clone()  # Constant ignores x
    assert torch.isfinite(got).all()
    for parameter in kernel.parameters():
        assert torch.isfinite(parameter.grad).all()
    # the same by central differences; |t| has the central difference 0 at 0, as the subgradient
    step = 1e-5
    numeric = torch.zeros_like(got)
    with torch.no_grad():
        for i in range(9):
            for j in range(D):
                shift = torch.zeros_like(got)
                shift[i, j] = step
                difference = kernel.evaluate(x + shift, z) - kernel.evaluate(x - shift, z)
                numeric[i, j] = (difference * weights).sum() / (2 * step)
    # 2e-3: Matern 1/2 loses a tenth of its digits at distance 1e-5 through the rounding of r2
    torch.testing.assert_close(got, numeric, rtol=1e-5, atol=2e-3 if name == "Matern12" else 1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", DEVICES)
def test_float32_agrees_with_float64(name, device):
    kernel = REGISTRY[name]()
    x, z = inputs(40, 7), inputs(30, 8)
    exact = kernel.evaluate(x, z).detach()
    single = copy.deepcopy(kernel).to(device, torch.float32)
    found = single.evaluate(x.to(device).float(), z.to(device).float())
    assert found.dtype == torch.float32
    scale = exact.abs().max().item()
    torch.testing.assert_close(found.cpu().double(), exact, rtol=0, atol=3e-5 * scale)


@pytest.mark.parametrize("name", NAMES)
def test_a_float32_kernel_takes_float64_inputs(name):
    """Sparse methods in float32 evaluate the matrix of the inducing points so, to factorise it."""
    kernel = REGISTRY[name]()
    x, z = inputs(20, 7), inputs(10, 8)
    exact = kernel.evaluate(x, z).detach()
    found = copy.deepcopy(kernel).float().evaluate(x, z)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=3e-5 * exact.abs().max().item())


@pytest.mark.parametrize("name", NAMES)
def test_float32_values_and_gradients_are_never_subnormal(name):
    kernel = REGISTRY[name]().float()
    x = (torch.logspace(-3, 2, 60)[:, None] * torch.tensor([[1.0, -1.0, 0.5]])).float()
    tiny = torch.finfo(torch.float32).tiny
    x.requires_grad_()
    values = kernel.evaluate(x, x.detach()[:50])
    nonzero = values.detach()[values.detach() != 0].abs()
    assert (nonzero >= tiny).all()
    values.sum().backward()
    assert all(
        torch.isfinite(p.grad).all() for p in (x, *kernel.parameters()) if p.grad is not None
    )


@pytest.mark.parametrize("name", NAMES)
def test_operator_agrees_and_state_dict_round_trips(name):
    kernel = REGISTRY[name]()
    x, z = overlapping()
    torch.testing.assert_close(kernel(x, z).to_dense(), kernel.evaluate(x, z), rtol=0, atol=0)
    other = REGISTRY[name]()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.3)
    other.load_state_dict(kernel.state_dict())
    torch.testing.assert_close(other.evaluate(x, z), kernel.evaluate(x, z), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_copies_are_the_same_and_on_their_own(name):
    kernel = REGISTRY[name]()
    x, z = overlapping()
    first = next(kernel.parameters()).requires_grad_(False)  # a choice that must survive
    dense = kernel.evaluate(x, z)
    others = list(copies(kernel))
    first.data.add_(1.0)
    assert not torch.equal(kernel.evaluate(x, z), dense)
    for again in others:
        assert torch.equal(again.evaluate(x, z), dense)
        if any(p.requires_grad for p in again.parameters()):
            again.evaluate(x, z).sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_edges_empty_inputs_and_wrong_shapes(name):
    kernel = REGISTRY[name]()
    assert kernel.evaluate(inputs(4, 0), torch.zeros(0, D)).shape == (4, 0)
    assert kernel.evaluate(torch.zeros(0, D), inputs(4, 0)).shape == (0, 4)
    with pytest.raises(ShapeError, match="matrix"):
        kernel.evaluate(torch.zeros(4))
    with pytest.raises(ShapeError, match=r"columns"):
        kernel.evaluate(inputs(4, 0), torch.zeros(2, D + 1))


WITHOUT_SPECTRUM = {
    "Categorical",
    "ChangePoints",
    "Convolutional",
    "Warped",
    "Wendland",
    "RationalQuadratic",
    "Periodic",
    "Linear",
    "ArcCosine",
    "Polynomial",
    "Constant",
    "Sum",
    "Product",
}


@pytest.mark.parametrize("name", sorted(WITHOUT_SPECTRUM))
def test_a_kernel_without_spectrum_says_so_in_one_sentence(name):
    kernel = REGISTRY[name]()
    for ask in (
        lambda: kernel.spectral_normals,
        lambda: kernel.spectral_frequencies(torch.zeros(1, 3)),
        lambda: kernel.spectral_density(torch.zeros(1, 3)),
    ):
        with pytest.raises(ConfigError, match=f"kernel {name} has no such spectral representation"):
            ask()


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - WITHOUT_SPECTRUM))
def test_frequencies_have_the_shape_of_the_inputs(name):
    kernel = REGISTRY[name]()
    assert kernel.spectral_frequencies(torch.randn(8, kernel.spectral_normals)).shape == (8, D)
