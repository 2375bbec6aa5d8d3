"""Joint laws of a mixture's processes: as one batch, they are those of each by itself."""

import copy

import pytest
import torch

from gpx.errors import NotAvailable
from gpx.inference.joint_law import Conditioned
from gpx.inference.sampled_hyperparameters.stacked_law import StackedLaw
from gpx.inference.several_laws import SeveralLaws
from gpx.kernels import RBF, Linear, Matern52, Periodic
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import FullyBayesianGP

KERNELS = {
    "stationary": lambda: Matern52(2),
    "sum": lambda: RBF(2) + Linear(2),
    "of one's own code": lambda: Periodic(active_dims=[0]) * Matern52(active_dims=[1]),
}


def drawn(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).double()


def mixture(kernel="stationary", samples=4, n=12):
    model = FullyBayesianGP(
        kernel=KERNELS[kernel](), mean=Constant(0.2), likelihood=Gaussian(0.1)
    ).double()
    place = model.hyper_position().read()
    draws = torch.randn(samples, len(place), generator=torch.Generator().manual_seed(1))
    model.samples = place + 0.4 * draws.double()
    x = drawn(n, 2)
    return model.condition(x, (4.0 * x).sin().sum(1))


def of_each(law):
    return SeveralLaws([part.posterior for part in law.components()])


def assert_same(found, want, x):
    there, expected = found.project(x), want.project(x)
    torch.testing.assert_close(there.mean, expected.mean)
    torch.testing.assert_close(
        found.covariance_between(there), want.covariance_between(expected), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_batch_is_each_process_by_itself(kernel):
    law = mixture(kernel)
    batch, noise = law.joint_laws(4)
    assert isinstance(batch, StackedLaw)
    each = of_each(law)
    for x in (drawn(1, 3, 2, seed=2), drawn(5, 1, 3, 2, seed=3), drawn(2, 5, 4, 3, 2, seed=4)):
        assert_same(batch, each, x)
    torch.testing.assert_close(noise, torch.stack([part.noise for part in law.components()]))
    new = drawn(6, 2, seed=5)
    for found, want in zip(batch.predict(new), each.predict(new), strict=True):
        torch.testing.assert_close(found, want)


def test_covariances_between_two_groups_of_inputs():
    law = mixture()
    batch, each = law.joint_laws(4)[0], of_each(law)
    left, right = drawn(5, 1, 3, 2, seed=3), drawn(1, 4, 2, 2, seed=4)
    found, want = (
        one.covariance_between(one.project(left), one.project(right)) for one in (batch, each)
    )
    assert found.shape == (5, 4, 3, 2)
    torch.testing.assert_close(found, want)


def test_processes_may_have_rows_of_their_own():
    law = mixture()
    x, y, noise = drawn(1, 3, 2, seed=6), drawn(4, 3, seed=7), torch.full((4, 3), 0.1).double()
    given = Conditioned.of(law.joint_laws(4)[0], x, y, noise)
    at = drawn(5, 1, 2, 2, seed=8)
    there = given.project(at)
    covariance = given.covariance_between(there)
    for number, part in enumerate(law.components()):
        alone = Conditioned.of(part.posterior, x[0], y[number], noise[number])
        own = alone.project(at[:, 0])
        torch.testing.assert_close(there.mean[:, number], own.mean)
        torch.testing.assert_close(covariance[:, number], alone.covariance_between(own))


def test_gradients_by_inputs():
    batch = mixture(n=6).joint_laws(2)[0]

    def moments(x):
        there = batch.project(x)
        return there.mean, batch.covariance_between(there)

    assert torch.autograd.gradcheck(moments, drawn(2, 1, 2, 2, seed=3).requires_grad_())


def test_few_stand_for_many_in_proportion_to_their_weights():
    law = mixture(samples=6)
    assert len(law.joint_laws(10)[0]) == 6
    parts = [part.noise for part in law.components()]
    assert law.joint_laws(2)[1].tolist() == [float(parts[i]) for i in (1, 4)]
    law.weights = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0]).double()
    assert law.joint_laws(4)[1].tolist() == [float(parts[i]) for i in (1, 1, 3, 4)]


def test_a_copy_is_independent_of_the_mixture():
    law = mixture()
    batch = law.joint_laws(4)[0]
    x = drawn(1, 3, 2, seed=2)
    want = batch.covariance_between(batch.project(x))
    copied = copy.deepcopy(batch)
    del law, batch
    torch.testing.assert_close(copied.covariance_between(copied.project(x)), want)


def test_functions_are_drawn_from_the_mixture():
    for law in (mixture().joint_laws(4)[0], of_each(mixture())):
        with pytest.raises(NotAvailable, match="no functions of its own"):
            law.sample_paths(2, generator=torch.Generator())
