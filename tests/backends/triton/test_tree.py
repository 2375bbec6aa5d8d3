"""Triton's products down a tree and their gradients, interpreted, against torch in float64."""

import pytest
import torch
from draws import draw
from triton_cases import error, skip_without_interpreter

skip_without_interpreter()
pytestmark = pytest.mark.triton

import gpx.backends.triton.availability as availability  # noqa: E402
import gpx.bases.grid_eigenfunctions.products as products_module  # noqa: E402
from gpx.backends.triton.tree import plain_tree, tree, tree_gradients  # noqa: E402
from gpx.bases.grid_eigenfunctions.products import ProductPlan, tree_products  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("points", "nodes"), [(1, 1), (7, 12), (8, 2), (17, 30)])
def test_nodes_and_gradients_at_every_edge(points, nodes, dtype):
    generator = torch.Generator().manual_seed(1)
    parent = torch.tensor(
        [0, *(int(torch.randint(j, (), generator=generator)) for j in range(1, nodes))],
        dtype=torch.int32,
    )
    which = torch.randint(5, (nodes,), generator=generator).to(torch.int32)
    leaves = [draw(points).requires_grad_(), (draw(5, points, seed=2) / 2).requires_grad_()]
    known, weights = plain_tree(*leaves, parent, which), draw(nodes, points, seed=3)
    expected = torch.autograd.grad(known, leaves, weights, materialize_grads=True)
    root, ratio = (t.detach().to(dtype) for t in leaves)
    found = tree(root, ratio, parent, which, block=8)
    eps = 8 * torch.finfo(dtype).eps
    assert error(found, known.detach()) < eps
    gradients = tree_gradients(ratio, parent, which, found, weights.to(dtype), block=8)
    for ours, reference in zip(gradients, expected, strict=True):
        assert float((ours.double() - reference).abs().max()) <= eps * (1 + reference.abs().max())


def test_no_points():
    parent = torch.zeros(3, dtype=torch.int32)
    nodes = tree(draw(0), draw(2, 0), parent, parent)
    assert nodes.shape == (3, 0)
    assert tree_gradients(draw(2, 0), parent, parent, nodes, nodes)[1].shape == (2, 0)


def test_the_package_s_eigenfunctions_by_it(monkeypatch):
    index = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 2, 0], [1, 2, 0], [0, 0, 1], [1, 2, 1]])
    plan = ProductPlan(index)
    made = draw(3, 3, 9) + 3.0
    found = []
    for compiled in (True, False):
        monkeypatch.setattr(products_module, "triton_tree", lambda root, taken=compiled: taken)
        factors = made.clone().requires_grad_()
        values = tree_products(factors, plan)
        values.cos().sum().backward()
        found.append((values.detach(), factors.grad))
    for ours, reference in zip(*found, strict=True):
        assert error(ours, reference) < 1e-14


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_trial_passes_whoever_asks(mode, monkeypatch):
    """The forward pass of an autograd function asks, in which nothing has a gradient."""
    monkeypatch.setattr(availability, "_device_refusal", lambda device: None)
    for dtype in (torch.float32, torch.float64):
        availability._pass_refusal.cache_clear()
        with mode():
            kind = "products of eigenfunctions"
            assert availability._pass_refusal(kind, torch.device("cpu"), dtype, 1) is None
        assert availability.tree_trial_error(torch.device("cpu"), dtype, 1) < 1e-6
    availability._pass_refusal.cache_clear()
