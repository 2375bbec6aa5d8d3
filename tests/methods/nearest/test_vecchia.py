"""The Vecchia approximation: its density is one, and that of the whole process in the limit."""

import copy
import pickle

import derivatives
import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.utils._python_dispatch import TorchDispatchMode

from gpx.errors import ConfigError
from gpx.inference import neighbour_conditional
from gpx.kernels import RBF, Cosine, Matern32
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.methods.nearest import vecchia
from gpx.models import ExactGP, Vecchia
from gpx.objectives import ExactMLL, VecchiaMLL


def data(n=90, d=2, seed=0):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=draws).double()
    y = x.sin().sum(1) + 0.3 * torch.randn(n, generator=draws).double()
    return x, y


def parts():
    return {
        "kernel": Matern32(2, lengthscale=[0.7, 1.5], outputscale=1.2),
        "mean": Constant(0.3),
        "likelihood": Gaussian(0.1),
    }


def model(x, y, **options):
    made = Vecchia(**parts(), **options).double()
    made.initialise(x, y, generator=torch.Generator())
    return made


def density(made, x):
    """Mean and covariance of all values under the model's own process, from its conditionals."""
    n = len(x)
    joint = made.kernel.evaluate(x) + made.likelihood.noise_variance * torch.eye(n).double()
    precision = torch.zeros(n, n).double()
    for given, block in zip(made.given, made.blocks, strict=True):
        given, block = given[given >= 0], block[block >= 0]
        weights = torch.linalg.solve(joint[given][:, given], joint[given][:, block]).mT
        rest = joint[block][:, block] - weights @ joint[given][:, block]
        rows = torch.zeros(len(block), n).double()
        rows[torch.arange(len(block)), block] = 1.0
        rows[:, given] -= weights
        precision += rows.mT @ torch.linalg.solve(rest, rows)
    return made.mean(x), precision


@pytest.mark.parametrize("block_size", [1, 6])
def test_the_evidence_is_the_log_density_of_one_process(block_size):
    x, y = data()
    made = model(x, y, num_neighbours=9, block_size=block_size)
    with torch.no_grad():
        mean, precision = density(made, x)
        want = MultivariateNormal(mean, precision_matrix=precision).log_prob(y)
        got = VecchiaMLL().evidence(made, x, y).value
    torch.testing.assert_close(got, want, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("block_size", [1, 7, 90])
def test_given_all_rows_before_it_is_the_exact_process(block_size):
    x, y = data()
    made = model(x, y, num_neighbours=90, block_size=block_size, prediction_neighbours=90)
    exact = ExactGP(**parts()).double()
    got, want = VecchiaMLL().evidence(made, x, y).value, ExactMLL().evidence(exact, x, y).value
    torch.testing.assert_close(got, want, rtol=1e-11, atol=0.0)
    found = torch.autograd.grad(got, list(made.parameters()))
    expected = torch.autograd.grad(want, list(exact.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
    asked, _ = data(20, seed=5)
    mine, others = (m.condition(x, y).predict(asked) for m in (made, exact))
    torch.testing.assert_close(mine.mean, others.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(mine.variance, others.variance, rtol=1e-8, atol=1e-9)


def test_predictions_are_those_of_the_nearest_rows_in_the_kernels_metric():
    x, y = data()
    made = model(x, y, prediction_neighbours=11)
    asked, _ = data(6, seed=5)
    got = made.condition(x, y).predict(asked)
    scale = made.kernel.lengthscale.detach()
    near = torch.cdist(asked / scale, x / scale).topk(11, largest=False).indices
    for i, rows in enumerate(near):
        exact = ExactGP(**parts()).double().condition(x[rows], y[rows]).predict(asked[i : i + 1])
        torch.testing.assert_close(got.mean[i : i + 1], exact.mean, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(got.variance[i : i + 1], exact.variance, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kernel", [None, Cosine()])
def test_derivatives_by_the_inputs_hold_over_several_chunks_of_rows(monkeypatch, kernel):
    """Also where the nearest rows are those of the inputs as they are."""
    x, y = data()
    made = model(x, y, num_neighbours=5)
    made.kernel = kernel or made.kernel
    posterior = made.double().condition(x, y)
    monkeypatch.setattr(neighbour_conditional, "CHUNK_BYTES", 4 * 8 * 91**2)
    derivatives.check(posterior.predict, data(9, seed=1)[0])


def test_sampled_functions_have_the_marginals_of_predictions():
    """2,000 paths with frequencies of their own: five standard errors, twelve figures."""
    from gpx.sampling import Frequencies

    x, y = data(40)
    made = Vecchia(
        kernel=RBF(2, outputscale=1.2),
        mean=Constant(0.3),
        likelihood=Gaussian(0.1),
        prediction_neighbours=15,
    ).double()
    posterior = made.condition(x, y)
    asked, _ = data(6, seed=5)
    want = posterior.predict(asked)
    paths = posterior.sample_paths(
        2000,
        generator=torch.Generator().manual_seed(0),
        frequencies=Frequencies(count=64, per_path=True),
    )
    values = paths(asked)
    assert torch.equal(values[:, 2:4], paths(asked[2:4]))
    error = (want.variance / 2000).sqrt()
    assert ((values.mean(0) - want.mean).abs() < 5.0 * error).all()
    # the features' kurtosis adds to the scatter of a variance: see Frequencies
    ratio = values.var(0) / want.variance
    assert ((ratio - 1.0).abs() < 5.0 * (2.5 / 2000) ** 0.5).all()


def test_neighbours_are_searched_for_anew_in_the_metric_that_was_found():
    x, y = data()
    made = model(x, y, num_neighbours=5, block_size=1, research=2)
    draws = torch.Generator()
    assert made.num_rounds == 3
    with torch.no_grad():
        made.kernel.lengthscale = torch.tensor([3.0, 0.2]).double()
    assert made.next_round(x, y, 0.0, generator=draws)
    fresh = Vecchia(**parts(), num_neighbours=5, block_size=1).double()
    fresh.kernel.lengthscale = torch.tensor([3.0, 0.2]).double()
    fresh.find_groups(x)
    assert torch.equal(made.given, fresh.given)
    assert not made.next_round(x, y, 0.0, generator=draws)  # nothing has moved
    assert not made.next_round(x, y, 0.0, generator=draws)  # and there is no other round


def test_a_second_run_of_a_model_searches_neighbours_again():
    x, y = data()
    draws = torch.Generator()
    made = model(x, y, num_neighbours=5, block_size=1, research=1)
    for stretch in ([3.0, 0.2], [0.2, 3.0]):
        made.initialise(x, y, generator=draws)
        with torch.no_grad():
            made.kernel.lengthscale = torch.tensor(stretch).double()
        assert made.next_round(x, y, 0.0, generator=draws)
        assert not made.next_round(x, y, 0.0, generator=draws)


def test_data_other_than_those_of_the_groups_are_refused():
    x, y = data()
    made = model(x, y)
    with pytest.raises(ConfigError, match="blocks are of other data than these 50 rows"):
        VecchiaMLL().evidence(made, x[:50], y[:50])


@pytest.mark.parametrize("option", ["num_neighbours", "block_size", "prediction_neighbours"])
def test_sizes_are_positive(option):
    with pytest.raises(ConfigError, match=f"{option}=0"):
        Vecchia(**parts(), **{option: 0})


def test_sizes_are_whole():
    with pytest.raises(ConfigError, match=r"^num_neighbours=2\.5: expected a whole number$"):
        Vecchia(**parts(), num_neighbours=2.5)


def test_rows_are_prepared_for_the_search_once(monkeypatch):
    """A tree of all rows takes much longer than a prediction."""
    x, y = data()
    posterior = model(x, y, prediction_neighbours=15).condition(x, y)
    want, made = posterior.predict(x[:3] + 0.1), []
    search = neighbour_conditional.NearestSearch
    monkeypatch.setattr(
        neighbour_conditional, "NearestSearch", lambda *given: made.append(0) or search(*given)
    )
    assert torch.equal(posterior.predict(x[:3] + 0.1).mean, want.mean)
    posterior.sample_paths(2, generator=torch.Generator())(x[:3])
    assert not made
    for twin in (copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        assert torch.equal(twin.predict(x[:3] + 0.1).mean, want.mean)
    posterior.kernel.lengthscale = torch.tensor([1e3, 0.1]).double()
    changed = posterior.predict(x[:3] + 0.1)
    fresh = copy.deepcopy(posterior).predict(x[:3] + 0.1)
    assert torch.equal(changed.mean, fresh.mean)


def test_sampled_functions_take_the_memory_of_a_chunk_of_rows(monkeypatch):
    x, y = data()
    posterior = model(x, y, prediction_neighbours=15).condition(x, y)
    paths = posterior.sample_paths(20, generator=torch.Generator().manual_seed(0))
    want = paths(x)
    monkeypatch.setattr(vecchia, "CHUNK_BYTES", 8 * 20 * 15 * 4)
    with LargestTensor() as seen:
        assert torch.equal(paths(x), want)
    assert 0 < seen.largest[(20, 15)] <= 4


class LargestTensor(TorchDispatchMode):
    """Most rows b of the results (num, b, k), by (num, k)."""

    def __init__(self):
        super().__init__()
        self.largest = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.ndim == 3:
            num, rows, k = found.shape
            self.largest[num, k] = max(rows, self.largest.get((num, k), 0))
        return found
