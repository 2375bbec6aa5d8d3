"""The operator contract, for every public operator: one line in the registry each."""

import copy
import pickle
from typing import Any

import gpytorch
import linear_operator
import numpy as np
import pytest
import torch
from linear_operator import LinearOperator
from linear_operator.operators import (
    ConstantDiagLinearOperator,
    IdentityLinearOperator,
    ZeroLinearOperator,
)
from operator_cases import (
    BATCHED,
    NAMES,
    POSITIVE,
    REGISTRY,
    close,
    dense_of,
    draw,
    leaves,
    positive,
)
from public_classes import public_classes
from torch import Tensor

import gpx.operators as operators
from gpx.errors import DTypeError, ShapeError

DTYPES = [torch.float64, torch.float32]
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]
every = pytest.mark.parametrize("name", NAMES)
every_positive = pytest.mark.parametrize("name", POSITIVE)
every_batched = pytest.mark.parametrize("name", BATCHED)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
every_device = pytest.mark.parametrize("device", DEVICES)


def test_every_public_operator_is_registered():
    public = public_classes(operators, LinearOperator)
    assert public == {case.operator for case in REGISTRY.values()}


@every
@every_dtype
@every_device
def test_products(name, dtype, device):
    values = leaves(name, dtype=dtype, device=device)
    operator, dense = REGISTRY[name].build(*values), dense_of(name, values)
    n, m = dense.shape
    assert operator.shape == dense.shape
    assert operator.dtype == dtype
    assert operator.device.type == device
    right, left = draw(m, 3, like=values[0]), draw(n, 2, like=values[0])
    close(operator @ right, dense @ right.double())
    close(operator @ right[:, 0], dense @ right[:, 0].double())
    close(operator.mT @ left, dense.mT @ left.double())
    close(left.mT @ operator, left.mT.double() @ dense)
    close(operator.to_dense(), dense)
    close(operator.mT.to_dense(), dense.mT)
    stacked = draw(2, m, 3, like=values[0])
    close(operator @ stacked, dense @ stacked.double())


@every
def test_every_kind_of_index(name):
    values = leaves(name)
    operator, dense = REGISTRY[name].build(*values), dense_of(name, values)
    n, m = dense.shape
    none = torch.tensor([], dtype=torch.long)
    mask, columns = torch.arange(n) % 3 == 1, torch.arange(m) % 2 == 0
    rows = torch.tensor([3, 0, 0])
    for where in [
        (-1, -2),
        (rows, torch.tensor([m - 1, 2, 2])),
        (rows, slice(0, 2)),
        (slice(None), slice(0, m, 2)),
        (slice(0, 3), slice(1, 3)),
        (slice(None), -1),
        (..., slice(-3, None)),
        (mask, slice(None)),
        (slice(None), columns),
        (mask, 1),
        ([0, -1], slice(None)),
        ([0, -1], [1, -2]),
        (torch.tensor(1), slice(None)),
        (torch.tensor([[0, 1], [2, -1]]), torch.tensor([[0, 1], [1, 0]])),
        (none, slice(None)),
        (slice(None), none),
        ([], slice(2, 2)),
        (slice(0, 1), slice(0, 1)),
        (np.array([0, -1]), slice(None)),
        (range(2), slice(None)),
        (range(2), [1, 0]),
    ]:
        part, expected = operator[where], dense[where]
        close(part if isinstance(part, Tensor) else part.to_dense(), expected)
        if not isinstance(part, Tensor):
            right = draw(expected.shape[1], 2)
            close(part @ right, expected @ right)
            close(part.mT @ draw(expected.shape[0], 1), expected.mT @ draw(expected.shape[0], 1))
            close(part.mT.to_dense(), expected.mT)
    for step in (-1, -2):  # tensors have no negative steps
        back = torch.arange(n - 1, -1, step)
        close(operator[::step].to_dense(), dense[back])
        close(operator[::step, ::-1].to_dense(), dense[back].flip(-1))
    for where in [n, -n - 1, torch.tensor([0, n]), (slice(None), [m]), (0, 0, 0), None, 0.5]:
        with pytest.raises(ShapeError, match=r"shape \("):
            operator[where]
    with pytest.raises(ShapeError, match=r"mask of dimension 0 .* expected"):
        operator[torch.ones(n + 1, dtype=torch.bool)]


@every
def test_nothing_to_multiply(name):
    operator = REGISTRY[name].build(*[v.requires_grad_() for v in leaves(name)])
    n, m = operator.shape
    right = draw(m, 0).requires_grad_()
    found = operator @ right
    assert found.shape == (n, 0)
    found.sum().backward()
    assert right.grad is not None
    assert (draw(0, n) @ operator).shape == (0, m)
    if REGISTRY[name].positive:
        assert operator.solve(draw(n, 0)).shape == (n, 0)


@every_positive
def test_the_package_s_functions(name):
    values = leaves(name)
    operator, dense = REGISTRY[name].build(*values), dense_of(name, values)
    n = dense.shape[0]
    right, left = draw(n, 2), draw(3, n)
    solution, eye = torch.linalg.solve(dense, right), torch.eye(n, dtype=torch.float64)
    close(linear_operator.solve(operator, right), solution, 10.0)
    close(linear_operator.solve(operator, right, left), left @ solution, 10.0)
    close(torch.linalg.solve(operator, right), solution, 10.0)
    close(torch.logdet(operator), torch.logdet(dense), 10.0)
    close(linear_operator.inv_quad(operator, right), (right * solution).sum(), 10.0)
    quad, logdet = linear_operator.inv_quad_logdet(operator, right, logdet=True)
    close(quad, (right * solution).sum(), 10.0)
    close(logdet, torch.logdet(dense), 10.0)
    for values_found, vectors in (
        linear_operator.diagonalization(operator),
        torch.linalg.eigh(operator),
    ):
        q = vectors.to_dense() if isinstance(vectors, LinearOperator) else vectors
        close(q * values_found @ q.mT, dense, 100.0)
    close(linear_operator.add_jitter(operator, 0.1).to_dense(), dense + 0.1 * eye)
    close(
        linear_operator.add_diagonal(operator, right[:, 0]).to_dense(), dense + right[:, 0].diag()
    )
    factor = linear_operator.pivoted_cholesky(operator, rank=n)
    close(factor @ factor.mT, dense, 1e3)
    close(linear_operator.root_decomposition(operator).to_dense(), dense, 10.0)
    close(linear_operator.root_inv_decomposition(operator).to_dense() @ dense, eye, 100.0)
    close(operator.add_low_rank(right).to_dense(), dense + right @ right.mT)
    close(
        linear_operator.operators.cat([operator, operator], dim=-2) @ right,
        (dense @ right).tile(2, 1),
    )


@every
def test_products_and_multiples_keep_the_values(name):
    values = leaves(name)
    operator, dense = REGISTRY[name].build(*values), dense_of(name, values)
    n, m = dense.shape
    rows, columns = draw(n, 1, seed=3), draw(1, m, seed=4)
    scales = torch.tensor([2.0, -0.5], dtype=torch.float64)[:, None, None]
    for found, expected in [
        (operator @ operator.mT, dense @ dense.mT),
        (operator.mT @ operator, dense.mT @ dense),
        (operator * operator, dense * dense),
        (operator * dense, dense * dense),
        (operator * rows, dense * rows),
        (operator * columns, dense * columns),
        (operator * scales, dense * scales),
        (-3 * operator / 2, -1.5 * dense),
        (-operator, -dense),
        (operator - ZeroLinearOperator(n, m, dtype=torch.float64), dense),
        (operator @ ConstantDiagLinearOperator(scales[0, 0], diag_shape=m), 2.0 * dense),
        (operator @ IdentityLinearOperator(m, dtype=torch.float64), dense),
    ]:
        close(found.to_dense(), expected)
        right = draw(expected.shape[-1], 2)
        close(found @ right, expected @ right, 10.0)
    nothing = operator @ ZeroLinearOperator(m, 2, dtype=torch.float64)
    close(nothing.to_dense(), dense.new_zeros(n, 2))
    close(operator.sum(), dense.sum(), 10.0)
    close(operator.sum(-1), dense.sum(-1), 10.0)
    close(operator.sum(-2), dense.sum(-2), 10.0)


@every
def test_copies_are_the_same_matrix(name):
    values = leaves(name)
    operator, dense = REGISTRY[name].build(*values), dense_of(name, values)
    operator @ draw(dense.shape[1])  # what is kept from a product does not travel
    close(copy.deepcopy(operator).to_dense(), dense)
    close(pickle.loads(pickle.dumps(operator)).to_dense(), dense)


@every_positive
@every_dtype
@every_device
def test_solve_logdet_and_inverse_quadratic(name, dtype, device):
    values = leaves(name, dtype=dtype, device=device)
    operator, dense = REGISTRY[name].build(*values), dense_of(name, values)
    n = dense.shape[0]
    right, left = draw(n, 3, like=values[0]), draw(2, n, like=values[0])
    solution = torch.linalg.solve(dense, right.double())
    close(operator.solve(right), solution, 10.0)
    close(operator.solve(right[:, 0]), solution[:, 0], 10.0)
    close(operator.solve(right, left), left.double() @ solution, 10.0)
    close(operator.logdet(), torch.logdet(dense), 10.0)
    quads = (right.double() * solution).sum(0)
    for reduce, expected in ((True, quads.sum()), (False, quads)):
        quad, logdet = operator.inv_quad_logdet(right, logdet=True, reduce_inv_quad=reduce)
        close(quad, expected, 10.0)
        close(logdet, torch.logdet(dense), 10.0)
    close(operator.inv_quad(right), quads.sum(), 10.0)


@every_positive
@every_dtype
def test_root_for_sampling(name, dtype):
    values = leaves(name, dtype=dtype)
    operator, dense = REGISTRY[name].build(*values), dense_of(name, values)
    root = operator.root_decomposition().root
    close(root.to_dense() @ root.to_dense().mT, dense, 10.0)
    draws = draw(root.shape[-1], 2, like=values[0])
    close(root @ draws, root.to_dense().double() @ draws.double(), 10.0)


def test_samples_have_the_covariance():
    torch.manual_seed(0)
    for name in POSITIVE:
        values = leaves(name)
        operator, dense = REGISTRY[name].build(*values), dense_of(name, values)
        draws = operator.zero_mean_mvn_samples(20_000)
        assert draws.shape == (20_000, dense.shape[0])
        found = draws.mT @ draws / 20_000
        deviation = (dense.square() + torch.outer(dense.diagonal(), dense.diagonal())).sqrt()
        # standard error of an entry is deviation / sqrt(20,000); six of them, one in 10^9 each
        assert ((found - dense).abs() <= 6.0 * deviation / 20_000**0.5).all(), name


@every
def test_gradients_of_products_and_diagonal(name):
    case = REGISTRY[name]
    values = [v.requires_grad_() for v in leaves(name)]
    n, m = case.build(*values).shape
    right, left = draw(m, 2).requires_grad_(), draw(n, 2).requires_grad_()

    def product(right, *values):
        return case.build(*values) @ right

    def transposed(left, *values):
        return left.mT @ case.build(*values)

    assert torch.autograd.gradcheck(product, (right, *values))
    assert torch.autograd.gradcheck(transposed, (left, *values))
    if n == m:
        assert torch.autograd.gradcheck(lambda *v: case.build(*v).diagonal(), tuple(values))


@every_positive
def test_gradients_of_solve_logdet_and_inverse_quadratic(name):
    case = REGISTRY[name]
    values = [v.requires_grad_() for v in leaves(name)]
    n = case.build(*values).shape[0]
    right = draw(n, 2).requires_grad_()
    arguments = (right, *values)
    assert torch.autograd.gradcheck(lambda r, *v: case.build(*v).solve(r), arguments)
    assert torch.autograd.gradcheck(lambda *v: case.build(*v).logdet(), tuple(values))

    def both(r, *v):
        return case.build(*v).inv_quad_logdet(r, logdet=True)

    assert torch.autograd.gradcheck(both, arguments)


@every_positive
def test_one_operator_serves_several_backward_passes(name):
    """What is kept between calls carries no graph that a first backward pass would free."""
    built = REGISTRY[name].build(*leaves(name))
    right = draw(built.shape[0], 1)
    tensors = [
        t.detach().requires_grad_() if t.is_floating_point() else t for t in built.representation()
    ]
    operator = built.representation_tree()(*tensors)
    sources = [t for t in tensors if t.requires_grad]
    found = [
        torch.autograd.grad(term(), sources, materialize_grads=True, allow_unused=True)
        for term in (operator.logdet, lambda: operator.solve(right).sum(), operator.logdet)
    ]
    for first, last in zip(found[0], found[2], strict=True):
        torch.testing.assert_close(first, last, rtol=0, atol=0)


@every_batched
def test_batches(name):
    case = REGISTRY[name]
    values = leaves(name, 2)
    operator, dense = case.build(*values), dense_of(name, values, 2)
    n, m = dense.shape[-2:]
    assert operator.shape == dense.shape
    right = draw(2, m, 3)
    close(operator @ right, dense @ right)
    close(operator @ right[0], dense @ right[0])
    close(operator @ right[0, :, 0], dense @ right[0, :, 0])
    close(operator.mT @ draw(2, n, 3), dense.mT @ draw(2, n, 3))
    close(operator.to_dense(), dense)
    if n == m:
        close(operator.diagonal(), dense.diagonal(dim1=-2, dim2=-1))
    close(operator[1].to_dense(), dense[1])
    close(operator[torch.tensor([1, 0, 1])].to_dense(), dense[[1, 0, 1]])
    close(operator[..., 1:3, :].to_dense(), dense[..., 1:3, :])
    close(operator[1, :, 1], dense[1, :, 1])
    rows = torch.tensor([0, 2, 1])
    close(operator[torch.tensor([0, 1, 1]), rows, rows], dense[[0, 1, 1], rows, rows])
    close(operator.unsqueeze(0).to_dense(), dense.unsqueeze(0))
    close(operator.expand(3, 2, n, m).to_dense(), dense.expand(3, 2, n, m))
    close(operator.unsqueeze(0).permute(1, 0, 2, 3).to_dense(), dense.unsqueeze(1))
    close(operator.sum(0).to_dense(), dense.sum(0))


@every_batched
def test_batches_of_some_leaves_only(name):
    """Leaves without the batch dimension broadcast, also under indexing."""
    case = REGISTRY[name]
    values = leaves(name)
    values[-1] = draw(2, *case.leaves[-1], seed=99)
    operator = case.build(*values)
    dense = torch.stack([case.dense(*values[:-1], values[-1][i]) for i in range(2)])
    right = draw(dense.shape[-1], 2)
    close(operator @ right, dense @ right)
    close(operator[1].to_dense(), dense[1])
    close(operator[1, 2], dense[1, 2])
    close(operator.expand(3, *dense.shape).to_dense(), dense.expand(3, *dense.shape))


@every_batched
def test_batches_of_one_beside_larger_ones(name):
    """Leaves whose batch has one member serve them all, also where entries are looked up."""
    case = REGISTRY[name]
    rows, columns = torch.tensor([0, 2, 1]).view(-1, 1), torch.tensor([1, 0])
    members = torch.arange(2).view(-1, 1, 1)
    for wide in range(len(case.leaves)):
        values = [v.unsqueeze(0) for v in leaves(name)]
        values[wide] = leaves(name, 2)[wide]
        operator = case.build(*values)
        dense = torch.stack([case.dense(*(v[i % len(v)] for v in values)) for i in range(2)])
        close(operator.to_dense(), dense)
        close(operator[1].to_dense(), dense[1])
        close(operator[members, rows, columns], dense[members, rows, columns])


@pytest.mark.parametrize("name", [name for name in BATCHED if name in POSITIVE])
def test_batched_solves_and_their_gradients(name):
    case = REGISTRY[name]
    values = leaves(name, 2)
    operator, dense = case.build(*values), dense_of(name, values, 2)
    right = draw(2, dense.shape[-1], 3)
    close(operator.solve(right), torch.linalg.solve(dense, right), 10.0)
    close(operator.solve(right[0]), torch.linalg.solve(dense, right[0].expand(2, -1, -1)), 10.0)
    close(operator.logdet(), torch.logdet(dense), 10.0)
    root = operator.root_decomposition().root.to_dense()
    close(root @ root.mT, dense, 10.0)
    values = [v.requires_grad_() for v in values]
    values[-1] = draw(*case.leaves[-1], seed=99).requires_grad_()  # one that broadcasts
    arguments = (right[0, :, :1].clone().requires_grad_(), *values)
    assert torch.autograd.gradcheck(lambda r, *v: case.build(*v).solve(r), arguments)
    assert torch.autograd.gradcheck(lambda *v: case.build(*v).logdet(), tuple(values))


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(BATCHED)))
def test_one_matrix_repeated_is_a_batch(name):
    """Operators whose leaves have no batches still take part in batched algebra."""
    values = leaves(name)
    one, dense = REGISTRY[name].build(*values), dense_of(name, values)
    n, m = dense.shape
    batched = {
        "expanded": (one.expand(2, n, m), dense.expand(2, n, m)),
        "unsqueezed": (one.unsqueeze(0), dense.unsqueeze(0)),
        "repeated": (one.repeat(2, 1, 1), dense.repeat(2, 1, 1)),
        "permuted": (
            one.expand(3, 2, n, m).permute(1, 0, 2, 3),
            dense.expand(3, 2, n, m).permute(1, 0, 2, 3),
        ),
    }
    for operator, expected in batched.values():
        batch = expected.shape[:-2]
        assert operator.shape == expected.shape
        close(operator.to_dense(), expected)
        right, left = draw(*batch, m, 2), draw(*batch, n, 2)
        close(operator @ right, expected @ right)
        close(operator @ right[0], expected @ right[0])
        close(operator.mT @ left, expected.mT @ left)
        close(operator[0].to_dense(), expected[0])
        close(operator[..., 1:3, :].to_dense(), expected[..., 1:3, :])
        close(operator.sum(0).to_dense(), expected.sum(0))
        if not REGISTRY[name].positive:
            continue
        close(operator.diagonal(), expected.diagonal(dim1=-2, dim2=-1))
        close(operator.solve(left), torch.linalg.solve(expected, left), 10.0)
        close(operator.logdet(), torch.logdet(expected), 10.0)
        quad, logdet = operator.inv_quad_logdet(left, logdet=True)
        close(quad, (left * torch.linalg.solve(expected, left)).sum((-2, -1)), 10.0)
        close(logdet, torch.logdet(expected), 10.0)


@every_positive
def test_gpytorch_takes_it_as_a_covariance(name):
    """Evidence, its gradient, marginals and noise through the package that users come from."""
    values = [v.requires_grad_() for v in leaves(name)]
    y = draw(dense_of(name, values).shape[0])
    mean = torch.zeros_like(y)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.3
    model = gpytorch.models.ExactGP(None, None, likelihood)
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    prior = gpytorch.distributions.MultivariateNormal(mean, REGISTRY[name].build(*values))
    found = evidence(prior, y)
    noise = likelihood.noise.detach()
    noisy = dense_of(name, values) + noise * torch.eye(len(y), dtype=y.dtype)
    expected = torch.distributions.MultivariateNormal(mean, noisy).log_prob(y) / len(y)
    close(found.detach(), expected.detach(), 10.0)
    close(likelihood(prior).variance.detach(), noisy.diagonal().detach())
    for ours, exact in zip(
        torch.autograd.grad(found, values), torch.autograd.grad(expected, values), strict=True
    ):
        close(ours, exact, 100.0)


@every
def test_conversion_keeps_the_matrix(name):
    values = leaves(name)
    operator, dense = REGISTRY[name].build(*values), dense_of(name, values)
    right = draw(dense.shape[1], 2).float()
    for single in (operator.to(torch.float32), operator.float()):
        assert single.dtype == torch.float32
        close(single @ right, dense @ right.double())
    detached = REGISTRY[name].build(*[v.requires_grad_() for v in leaves(name)]).detach()
    assert not (detached @ right.double()).requires_grad


@every
def test_mismatches_are_one_clear_error_each(name):
    operator = REGISTRY[name].build(*leaves(name))
    n, m = operator.shape
    with pytest.raises(ShapeError, match=r"\d"):
        operator @ draw(m + 1, 2)
    with pytest.raises(ShapeError, match=r"\d"):
        operator @ draw(m + 1)
    with pytest.raises(DTypeError, match=r"float32.*convert one of them|float64.*float32"):
        operator @ draw(m, 2).float()
    with pytest.raises(DTypeError, match="tensors and operators, got list"):
        operator @ ([1.0] * m)
    other = draw(m, 2).to("meta")
    with pytest.raises(DTypeError, match="meta"):
        operator @ other
    for combined in (lambda: operator + operator.float(), lambda: operator @ operator.mT.float()):
        with pytest.raises(DTypeError, match=r"float32.*convert one of them"):
            combined()
    for combined in (lambda: operator + draw(n + 1, m), lambda: operator * draw(n + 1, m)):
        with pytest.raises(ShapeError, match=r"shape"):
            combined()
    with pytest.raises(ShapeError, match="do not broadcast"):
        operator.expand(2, n, m) @ draw(3, m, 1)
    if REGISTRY[name].positive:
        with pytest.raises(ShapeError, match="left-hand side"):
            operator.solve(draw(n, 1), draw(2, n + 1))
        with pytest.raises(ShapeError, match="diagonal of shape"):
            operator.add_diagonal(draw(n + 1))
    if n != m:
        for refused in (lambda: operator.solve(draw(n, 1)), operator.logdet):
            with pytest.raises(ShapeError, match="square"):
                refused()


@every_positive
def test_scaling_and_adding_keep_the_values(name):
    values = leaves(name)
    operator, dense = REGISTRY[name].build(*values), dense_of(name, values)
    n = dense.shape[0]
    noise, weights = torch.tensor(0.7, dtype=torch.float64), positive(draw(n, seed=5))
    eye, right = torch.eye(n, dtype=torch.float64), draw(n, 2)
    combinations: list[tuple[Any, Tensor]] = [
        (operator * 2.5, 2.5 * dense),
        (operator.add_diagonal(noise), dense + 0.7 * eye),
        (operator.add_diagonal(weights), dense + torch.diag(weights)),
        ((operator * 2.5).add_diagonal(weights), 2.5 * dense + torch.diag(weights)),
        (operator + operator, 2 * dense),
        (operator + dense, 2 * dense),
    ]
    for found, expected in combinations:
        close(found.to_dense(), expected)
        close(found @ right, expected @ right)
        close(found.solve(right), torch.linalg.solve(expected, right), 10.0)
        close(found.logdet(), torch.logdet(expected), 10.0)
    close((operator - operator @ operator).to_dense(), dense - dense @ dense)
