"""Results are found again for the same memory in the same state, and for nothing else."""

import copy
import pickle

import torch

from gpx.linalg import Prepared


class Counter:
    def __init__(self):
        self.built = 0

    def __call__(self):
        self.built += 1
        return self.built


def test_the_same_tensor_is_built_once_even_detached():
    plan, build, a = Prepared(), Counter(), torch.randn(4)
    assert plan.get("x", (a,), build) == 1
    assert plan.get("x", (a,), build) == 1
    assert plan.get("x", (a.detach(),), build) == 1
    assert plan.get("other name", (a,), build) == 2


def test_a_change_a_view_and_a_copy_are_built_again():
    plan, build, a = Prepared(), Counter(), torch.randn(4, 4)
    plan.get("x", (a,), build)
    a[0] = 1.0  # in place: same address, new version
    assert plan.get("x", (a,), build) == 2
    for n, other in enumerate([a[:2], a.mT, a.clone(), a.float(), torch.randn(4, 4)]):
        assert plan.get("x", (other,), build) == 3 + n


def test_addresses_are_not_reused_while_a_result_is_kept():
    plan, build = Prepared(), Counter()
    for n in range(1, 20):  # each tensor is dropped by the caller at once
        assert plan.get("x", (torch.full((1000,), float(n)),), build) == n


def test_results_carry_no_graph():
    a = torch.randn(3, requires_grad=True)
    assert not Prepared().get("x", (a,), lambda: a * 2.0).requires_grad


def test_inference_tensors_and_copies_start_empty():
    plan, build = Prepared(), Counter()
    with torch.inference_mode():
        a = torch.randn(3)
    assert [plan.get("x", (a,), build) for _ in range(2)] == [1, 2]
    b = torch.randn(3)
    plan.get("x", (b,), build)
    for other in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert other.get("x", (b,), build) == build.built


def test_a_result_made_in_inference_mode_serves_a_later_gradient():
    plan, a, b = Prepared(), torch.randn(3), torch.randn(3, requires_grad=True)
    with torch.inference_mode():
        plan.get("x", (a,), lambda: a * 2.0)
    (plan.get("x", (a,), lambda: a * 2.0) * b).sum().backward()
    assert torch.equal(b.grad, 2.0 * a)
