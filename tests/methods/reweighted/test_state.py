"""Stored statistics are neither stale nor rounded, and give exact weights."""

import copy
import pickle

import pytest
import torch
from linear_features import draw, features_and_targets, position, posterior, value
from torch import nn

from gpx.bases import RandomFourier
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.kernels import RBF
from gpx.methods.reweighted.state import ReweightedState, reweighted_form
from gpx.methods.reweighted.weights import CompressedStatistics


class Kept(ReweightedState):
    """Nothing but the state."""

    def __init__(self, structure="diagonal"):
        super().__init__()
        self.structure = structure
        self.basis = RandomFourier(RBF(1), 4)
        self.other = nn.Parameter(torch.ones(1))
        self.register_state(3)


def statistics(n=12, m=5):
    phi, y = features_and_targets(n, m)
    return SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)


def same(found, want):
    assert torch.equal(found.gram, want.gram)
    assert torch.equal(found.projected, want.projected)
    assert torch.equal(found.squared, want.squared)
    assert found.num_data == want.num_data


def test_sums_stay_in_double_and_the_rest_does_not():
    kept, sums = Kept(), statistics()
    kept.statistics = sums
    kept.samples = torch.full((2, 6), 1.0 / 3.0, dtype=torch.float64)
    kept.float()
    assert kept.other.dtype == torch.float32
    same(kept.statistics, sums)
    assert torch.equal(kept.samples, torch.full((2, 6), 1.0 / 3.0, dtype=torch.float64))


def test_the_path_is_computed_once_and_follows_the_statistics():
    kept = Kept()
    kept.statistics = statistics(12, 5)
    first = kept.form
    assert kept.form is first
    assert first.path == "covariance"
    kept.statistics = statistics(5, 12)  # fewer rows than functions
    assert kept.form.path == "compressed"
    other = Kept()
    other.statistics = statistics(12, 5)
    assert other.form.num_weights == 5
    other.load_state_dict(kept.state_dict())
    assert (other.form.path, other.form.num_weights) == ("compressed", 12)


@pytest.mark.parametrize("structure", ["diagonal", "orthogonal", "householder"])
def test_only_turned_axes_need_a_frame_in_a_stored_state(structure):
    kept = Kept(structure)
    kept.statistics = statistics()
    kept.frame = torch.eye(5, dtype=torch.float64)
    state = kept.state_dict()
    del state["frame"]
    fresh = Kept(structure)
    if structure == "householder":
        with pytest.raises(RuntimeError, match="frame"):
            fresh.load_state_dict(state)
    else:
        fresh.load_state_dict(state)
        same(fresh.statistics, kept.statistics)


def problem(n, m, rank=None):
    phi, y = features_and_targets(n, m, rank)
    return phi, y, SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, n)


@pytest.mark.parametrize("structure", ["diagonal", "orthogonal"])
@pytest.mark.parametrize("size", [(40, 7), (12, 30), (30, 30)])
def test_posterior_equals_function_space(size, structure):
    phi, y, statistics = problem(*size)
    features = draw(5, size[1], seed=6)
    form = reweighted_form(statistics, structure)
    u, s = position(form.num_weights)
    found = form.weights(u, s)
    if structure == "diagonal":
        prior = u.exp().diag()
    else:
        vectors = CompressedStatistics(statistics).vectors
        unseen = torch.eye(size[1], dtype=torch.float64) - vectors @ vectors.mT
        prior = vectors * u.exp() @ vectors.mT + u.exp().mean() * unseen
    mean, covariance = posterior(phi, y, prior, s.exp(), features)
    marginals = found.marginals(form.prepare_features(features))
    torch.testing.assert_close(marginals.mean, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(marginals.variance, covariance.diagonal(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(features @ found.mean(), mean, rtol=1e-9, atol=1e-9)
    drawn = found.draw(40_000, generator=torch.Generator().manual_seed(0)) @ features.mT
    scale = covariance.diagonal().max()
    # 40,000 draws: standard errors below 1 % of the largest variance
    assert float((drawn.mean(0) - marginals.mean).abs().max()) < 0.03 * float(scale.sqrt())
    assert float((drawn.mT.cov() - covariance).abs().max()) < 0.05 * float(scale)


@pytest.mark.parametrize("structure", ["orthogonal", "householder"])
def test_a_stored_frame_keeps_the_rank_whatever_the_rounding(structure):
    """Which eigenvalues count as zero may change where the sums are decomposed again."""
    kept = Kept(structure)
    kept.statistics = statistics(40, 7)
    kept.frame = CompressedStatistics(kept.statistics).vectors[:, :5]
    fresh = Kept(structure)
    fresh.load_state_dict(kept.state_dict())
    assert fresh.form.sums.rank == 5
    assert torch.equal(fresh.form.sums.vectors, kept.frame)


def test_householder_turns_the_axes_of_its_frame():
    """Signs of eigenvectors are arbitrary and others are another prior: the frame says which."""
    _, _, statistics = problem(40, 7)
    frame = CompressedStatistics(statistics).vectors
    learned = reweighted_form(statistics, "householder", frame)
    u, s = position(learned.num_weights)
    turned = frame * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    again = reweighted_form(statistics, "householder", turned)
    assert (learned.path, learned.num_weights) == ("reflections", 28)
    assert torch.equal(learned.sums.vectors, frame)
    assert float((value(learned.weights(u, s)) - value(again.weights(u, s))).abs()) > 1e-3


def test_the_path_follows_the_rank_and_is_named():
    _, _, wide = problem(12, 30)
    assert reweighted_form(wide, "diagonal").path == "compressed"
    _, _, deficient = problem(60, 30, rank=9)
    form = reweighted_form(deficient, "diagonal")
    assert form.path == "compressed"
    assert form.sums.rank == 9
    _, _, tall = problem(60, 30)
    assert reweighted_form(tall, "diagonal").path == "covariance"
    assert reweighted_form(tall, "orthogonal").path == "orthogonal"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("structure", ["diagonal", "orthogonal"])
def test_cuda_agrees_with_cpu(structure):
    phi, y, statistics = problem(40, 30)
    form = reweighted_form(statistics, structure)
    u, s = position(form.num_weights)
    phi, y = phi.cuda(), y.cuda()
    there = SufficientStatistics(phi.mT @ phi, phi.mT @ y, y @ y, 40)
    got = reweighted_form(there, structure).weights(u.cuda(), s.cuda())
    torch.testing.assert_close(value(got).cpu(), value(form.weights(u, s)), rtol=1e-9, atol=0)


def test_copies_and_pickles_drop_derived_quantities():
    kept = Kept("householder")
    kept.statistics = statistics()
    kept.frame = torch.eye(5, dtype=torch.float64)[:, :2]
    form = kept.form
    for made in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert made._form is None
        same(made.statistics, kept.statistics)
        assert type(made.form) is type(form)
    assert kept.form is form
