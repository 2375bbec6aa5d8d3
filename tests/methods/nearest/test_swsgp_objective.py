"""The objective of nearest inducing points: caching, neighbours of a batch, reports."""

import pytest
import torch
from draws import draws

from gpx.errors import ConfigError
from gpx.kernels import Matern52
from gpx.lazy_rows import LazyRows
from gpx.likelihoods import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant
from gpx.methods.base.batch import Batch
from gpx.methods.nearest import swsgp_objective
from gpx.models import SWSGP
from gpx.objectives import SWSGPObjective

NUM, M = 40, 12


def data():
    x = torch.randn(NUM, 2, generator=draws()).double()
    return x, x.sin().sum(1)


def model(h=4, **options):
    made = SWSGP(
        kernel=Matern52(2, lengthscale=[0.8, 1.3]),
        mean=Constant(0.2),
        likelihood=Gaussian(0.1),
        num_inputs=2,
        num_inducing=M,
        num_neighbours=h,
        **{"learn_inducing": True, **options},
    ).double()
    with torch.no_grad():
        made.inducing.copy_(torch.randn(M, 2, generator=draws(1)))
        made.q_scaled_mean.copy_(torch.randn(M, 1, generator=draws(2)))
    return made


@pytest.mark.parametrize(
    ("scope", "options"), [("point", {}), ("batch", {"learn_inducing": False})]
)
def test_neighbours_that_change_or_differ_from_batch_to_batch_are_not_kept(scope, options):
    x, y = data()
    objective = SWSGPObjective(NUM, scope)
    objective.prepare(model(**options), x, y)
    assert not objective.table.numel()


def test_points_that_are_frozen_for_some_steps_have_no_neighbours_kept():
    x, y = data()
    made, objective = model(), SWSGPObjective(NUM, "point", refresh=1)
    made.inducing.requires_grad_(False)  # as an optimiser does until the role is free
    objective.prepare(made, x, y)
    objective.before_step(made, x, y, torch.arange(5))
    objective.after_step(made)
    assert not objective.table.numel()


def test_a_batch_shares_the_neighbours_of_all_its_rows():
    x, y = data()
    made = model(2)
    found = SWSGPObjective(NUM, "batch").evidence(made, x[:3], y[:3])
    near = made.nearest(x[:3]).unique()
    assert len(near) > 2
    terms = made.local_terms(x[:3], near[None])
    fit = made.likelihood.expected_log_prob(y[:3], *terms.marginals).sum() * NUM / 3
    torch.testing.assert_close(found.value, fit - terms.kl.mean())


@pytest.mark.parametrize(
    ("scope", "h", "kind", "bound"),
    [
        ("point", 4, "estimate", False),
        ("point", M, "lower_bound", True),
        ("batch", 4, "estimate", False),
        ("independent", 4, "estimate", False),
    ],
)
def test_the_evidence_of_all_rows_states_whether_it_is_a_bound(scope, h, kind, bound):
    x, y = data()
    made, objective = model(h), SWSGPObjective(NUM, scope)
    found = objective.full_evidence(made, x, y, batch_size=7, generator=draws())
    assert (found.kind, found.facts["bound"]) == (kind, bound)
    if scope == "point":
        torch.testing.assert_close(found.value, objective.evidence(made, x, y).value)
    else:
        assert found.facts["evidence_batches"] == 5
    assert objective.num_data(x[:3]) == NUM


@pytest.mark.parametrize(("size", "searches"), [(10**6, 1), (8 * 4 * 14, 3), (1, 6)])
def test_neighbours_are_searched_for_in_many_batches_at_once(size, searches, monkeypatch):
    """Each search among many inducing points makes a tree of them."""
    x, y = data()
    made, objective = model(), SWSGPObjective(NUM)
    want, asked, search = objective.evidence(made, x, y).value, [], made.nearest
    monkeypatch.setattr(made, "nearest", lambda rows: asked.append(len(rows)) or search(rows))
    monkeypatch.setattr(swsgp_objective, "SEARCH_BYTES", size)
    found = objective.full_evidence(made, x, y, batch_size=7).value
    torch.testing.assert_close(found, want)
    assert (len(asked), sum(asked)) == (searches, NUM)


def test_neighbours_of_other_rows_are_unbiased_and_those_of_the_same_batch_are_not():
    x, y = data()
    made, objective = model(4), SWSGPObjective(NUM, "independent")
    alone = objective.evidence(made, x[:8], y[:8], generator=draws())
    assert alone.kind == "estimate"
    objective.prepare(made, x, y)
    assert objective.evidence(made, x[:8], y[:8], generator=draws()).kind == "unbiased"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "num_data=0 must be at least 1"),
        ((9, "far"), "scope=far: expected one of"),
        ((9, "point", -1), "refresh=-1 must be at least 0"),
    ],
)
def test_invalid_objectives_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        SWSGPObjective(*arguments)


def test_data_of_another_size_than_the_objective_was_made_for():
    with pytest.raises(ConfigError, match="num_data"):
        SWSGPObjective(NUM + 1).prepare(model(), *data())


class InFiles(LazyRows):
    """Rows of a tensor as if they lay in files."""

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.device = (
            values,
            values.shape,
            values.dtype,
            values.device,
        )
        self.chunk_rows, self.buffer_rows = 4, 4

    def __getitem__(self, rows):
        return self.values[rows]


def test_of_rows_in_files_the_evidence_is_estimated_from_some_batches(monkeypatch):
    """Every row costs H^3: all of millions would take longer than their training."""
    x, y = data()
    made, objective = model(), SWSGPObjective(NUM)
    whole = objective.full_evidence(made, x, y, batch_size=8, generator=draws(3))
    all_of_them = objective.full_evidence(
        made, InFiles(x), InFiles(y), batch_size=8, generator=draws(3)
    )
    assert "evidence_batches" not in all_of_them.facts
    torch.testing.assert_close(all_of_them.value, whole.value)
    for module in ("base.objective", "nearest.swsgp_objective"):
        monkeypatch.setattr(f"gpx.methods.{module}.MAX_EVIDENCE_BATCHES", 3)
    some = objective.full_evidence(made, InFiles(x), InFiles(y), batch_size=8, generator=draws(3))
    assert some.facts["evidence_batches"] == 3
    assert some.facts["evidence_standard_error"] > 0.0
    assert some.facts["bound"] is False
    assert some.kind == "estimate"


def test_the_error_of_an_estimate_is_right_where_rows_that_are_near_are_alike(monkeypatch):
    """Files in the order of their targets: batches of one buffer would hold few of the places."""
    draw = draws(5)
    x = torch.rand(20_000, 2, generator=draw, dtype=torch.float64)
    y = torch.linspace(-2.0, 2.0, len(x), dtype=torch.float64)
    files = InFiles(x), InFiles(y)
    for rows in files:
        rows.chunk_rows, rows.buffer_rows = 500, 2000
    made, objective = model(), SWSGPObjective(len(x))
    whole = objective.full_evidence(made, x, y, batch_size=500).value
    for module in ("base.objective", "nearest.swsgp_objective"):
        monkeypatch.setattr(f"gpx.methods.{module}.MAX_EVIDENCE_BATCHES", 40)
    errors = []
    for seed in range(40):
        found = objective.full_evidence(made, *files, batch_size=16, generator=draws(seed))
        assert found.facts["evidence_batches"] == 40
        errors.append((found.value - whole) / found.facts["evidence_standard_error"])
    spread = torch.stack(errors).square().mean().sqrt()
    # of 40 independent errors of deviation one: within four of its own, 0.11
    assert 0.55 < float(spread) < 1.45


def test_rows_of_weight_two_count_twice_in_the_mean_of_divergences():
    """They counted once there and twice in the fit, so that other rows were pulled to the prior."""
    x, y = data()
    weights = 1 + torch.arange(NUM) % 3
    twice = torch.repeat_interleave(torch.arange(NUM), weights)
    whole, made = model(), model()
    made.know_noise(RowNoise(torch.zeros(NUM).double(), 1.0 / weights.double()))
    repeated, objective = SWSGPObjective(len(twice)), SWSGPObjective(NUM)
    want = repeated.evidence(whole, x[twice], y[twice]).parts["complexity"].detach()
    found = objective.evidence(made, x, y).parts["complexity"]
    torch.testing.assert_close(found.detach(), want)
    for size in (7, NUM):
        found = objective.full_evidence(made, x, y, batch_size=size).parts["complexity"]
        torch.testing.assert_close(found, want)
    each = [
        objective.evidence_of(made, Batch.of(made, x, y, rows)).parts["complexity"]
        for rows in torch.arange(NUM).split(5)
    ]
    torch.testing.assert_close(torch.stack(each).mean().detach(), want)
