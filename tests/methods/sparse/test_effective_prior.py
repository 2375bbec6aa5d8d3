"""Effective priors as models: posteriors against dense definitions, limits, blocks, bad input."""

import itertools

import effective_priors
import pytest
import torch

from gpx.errors import ConfigError, DataError
from gpx.inducing import (
    ClusterBlocks,
    ColumnBlocks,
    Eigenfunctions,
    Eigenvectors,
    Points,
    RandomBlocks,
    Uniform,
)
from gpx.kernels import RBF, Linear
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import SGPR, EffectivePrior, ExactGP
from gpx.objectives import EffectiveEvidence
from gpx.operators import LowRankPlusDiagonal

PRIORS = ["sor", "dtc", "fitc", "fic", "pitc", "pic"]


def data(n=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return x, (2.0 * x).sin().sum(1) + 0.1 * noise, x[:25] * 1.3 + 0.05


def parts():
    return {
        "kernel": RBF(2, lengthscale=0.7, outputscale=1.4),
        "mean": Constant(0.3),
        "likelihood": Gaussian(0.05),
    }


def made(prior, n=60, m=8, blocks=4, **options):
    x, y, new = data(n)
    if prior in ("pitc", "pic") and "num_blocks" not in options:
        options.setdefault("block_centres", x[:blocks])
    model = EffectivePrior(
        **parts(), num_inputs=2, num_inducing=m, prior=prior, fit_noise=False, **options
    ).double()
    model.settle(x)
    model.initialise(x, y, generator=torch.Generator().manual_seed(1))
    return model, x, y, new


def exact(x, y):
    return ExactGP(**parts()).double().condition(x, y)


def close(found, mean, variance, tolerance=1e-9):
    torch.testing.assert_close(found.mean, mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.variance, variance, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("prior", PRIORS)
def test_predictions_equal_the_dense_definition(prior):
    model, x, y, new = made(prior)
    mean, covariance = effective_priors.dense_posterior(model, x, y, new, prior)
    close(model.condition(x, y).predict(new), mean.detach(), covariance.diagonal().detach())


@pytest.mark.parametrize("prior", ["sor", "dtc", "fitc", "fic", "pitc"])
def test_the_joint_covariance_equals_the_dense_definition(prior):
    model, x, y, new = made(prior)
    _, want = effective_priors.dense_posterior(model, x, y, new, prior)
    posterior = model.condition(x, y)
    found = posterior.covariance(new)
    torch.testing.assert_close(found.to_dense(), want.detach(), rtol=1e-9, atol=1e-10)
    variance = posterior.predict(new).variance
    torch.testing.assert_close(found.diagonal(), variance, rtol=1e-10, atol=1e-12)
    assert isinstance(found, LowRankPlusDiagonal) == (prior in ("sor", "fic"))


@pytest.mark.parametrize("prior", PRIORS)
def test_inducing_points_at_all_the_data_are_exact(prior):
    model, x, y, new = made(prior, n=40, m=40)
    model.place(x)
    want = exact(x, y).predict(new)
    if prior == "sor":  # its test covariance stays degenerate: on the data it is exact
        new = x
        want = exact(x, y).predict(new)
    close(model.condition(x, y).predict(new), want.mean, want.variance, 1e-6)


def test_sor_is_the_linear_model_of_its_kernel_functions():
    model, x, y, new = made("sor")
    z, s = model.inducing_points.detach(), model.likelihood.noise_variance.detach()
    k = model.kernel.evaluate
    with torch.no_grad():
        gram, cross, test = k(z, z), k(z, x), k(z, new)
        inner = gram + cross @ cross.mT / s
        weights = torch.linalg.solve(inner, cross @ (y - model.mean(x))) / s
        mean = model.mean(new) + test.mT @ weights
        variance = (test * torch.linalg.solve(inner, test)).sum(0)
    close(model.condition(x, y).predict(new), mean, variance)


def test_dtc_has_the_mean_of_sor_and_the_variance_that_u_leaves_on_top():
    sor, x, y, new = made("sor")
    dtc, _, _, _ = made("dtc")
    one, other = sor.condition(x, y).predict(new), dtc.condition(x, y).predict(new)
    torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=0)
    left = sor.kernel.diagonal(new) - effective_priors.dense_nystrom(sor, new, new).diagonal()
    close(other, one.mean, one.variance + left.detach())
    far = torch.full((1, 2), 30.0, dtype=torch.float64)
    assert sor.condition(x, y).predict(far).variance < 1e-12  # the defect of a degenerate prior
    assert dtc.condition(x, y).predict(far).variance > 1.39


def test_dtc_predicts_as_the_collapsed_posterior():
    model, x, y, new = made("dtc")
    other = SGPR(**parts(), num_inputs=2, num_inducing=8, fit_noise=False).double()
    other.place(model.inducing_points)
    want = other.condition(x, y).predict(new)
    close(model.condition(x, y).predict(new), want.mean, want.variance, 1e-12)


def test_fic_has_the_marginals_of_fitc():
    one, x, y, new = made("fitc")
    other, _, _, _ = made("fic")
    a, b = one.condition(x, y).predict(new), other.condition(x, y).predict(new)
    close(a, b.mean, b.variance, 1e-14)


def test_blocks_of_one_point_are_fitc_and_pic_is_then_fic():
    fitc, x, y, new = made("fitc", n=30)
    want = fitc.condition(x, y).predict(new)
    for prior in ("pitc", "pic"):
        # every point, of training or test, is a block
        model, x, y, new = made(prior, n=30, block_centres=torch.cat([x, new]))
        close(model.condition(x, y).predict(new), want.mean, want.variance, 1e-10)


def test_one_block_of_pic_is_exact_and_one_of_pitc_is_not():
    pic, x, y, new = made("pic", blocks=1)
    want = exact(x, y).predict(new)
    close(pic.condition(x, y).predict(new), want.mean, want.variance, 1e-8)
    pitc, x, y, new = made("pitc", blocks=1)
    found = pitc.condition(x, y).predict(new)
    assert (found.mean - want.mean).abs().max() > 0.05


def test_inducing_points_far_away_leave_independent_local_processes():
    model, x, y, new = made("pic")
    model.place(torch.full((8, 2), 1e3).double() + torch.randn(8, 2).double() * 10)
    found = model.condition(x, y).predict(new)
    mine, theirs = model.regions.nearest(x), model.regions.nearest(new)
    for block in range(4):
        rows = theirs == block
        want = exact(x[mine == block], y[mine == block]).predict(new[rows])
        close(type(found)(found.mean[rows], found.variance[rows]), want.mean, want.variance)


def test_the_kernel_of_pic_is_positive_semi_definite():
    model, x, _, _ = made("pic")
    matrix = effective_priors.training_covariance(model, x, "pic")
    assert torch.linalg.eigvalsh(matrix.detach()).min() > -1e-10


def test_a_test_point_in_a_block_without_data_uses_the_inducing_points_alone():
    centres = torch.cat([data()[0][:3], torch.full((1, 2), 50.0).double()])
    model, x, y, _ = made("pic", block_centres=centres)
    far = torch.full((3, 2), 49.0, dtype=torch.float64)
    mean, covariance = effective_priors.dense_posterior(model, x, y, far, "pic")
    posterior = model.condition(x, y)
    assert int(posterior.bounds[4] - posterior.bounds[3]) == 0
    close(posterior.predict(far), mean.detach(), covariance.diagonal().detach())
    draws = torch.Generator().manual_seed(0)
    assert torch.isfinite(posterior.sample_paths(2, generator=draws)(far)).all()


@pytest.mark.parametrize("prior", ["pitc", "pic"])
def test_blocks_are_clusters_of_the_inputs_with_a_size_that_fits(prior):
    model, x, _, new = made(prior, num_blocks=None, n=60, m=8)
    assert model.num_blocks == 8  # 60 / 8, rounded up
    assert model.regions.centres.shape == (8, 2)
    assert "8 blocks of" in model.note
    order, bounds = model.block_order(x)
    labels = model.labels[order]
    assert bounds[0] == 0
    assert bounds[-1] == 60
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        assert (labels[start:stop] == number).all()
    # the nearest centre, by brute force in units of the lengthscale
    gaps = torch.cdist(new, model.regions.centres)
    assert torch.equal(model.regions.nearest(new), gaps.argmin(1))


@pytest.mark.parametrize(
    ("options", "counts"),
    [({}, [8, 4]), ({"block_size": 5}, [12, 6]), ({"num_blocks": 3}, [3, 3])],
)
def test_a_number_of_blocks_that_was_not_given_is_chosen_anew_for_other_rows(options, counts):
    x, y, _ = data(60)
    model = EffectivePrior(**parts(), num_inputs=2, num_inducing=8, prior="pic", **options).double()
    found = []
    for size in (60, 30):
        model.initialise(x[:size], y[:size], generator=torch.Generator().manual_seed(1))
        found.append(model.num_blocks)
    assert found == counts
    assert len(model.regions) == counts[1]


@pytest.mark.parametrize(
    ("prior", "partition"),
    [
        ("pitc", RandomBlocks()),
        ("pitc", ClusterBlocks()),
        ("pic", ClusterBlocks()),
        ("pic", ColumnBlocks(1)),
    ],
)
def test_blocks_of_any_partition_give_the_dense_posterior_and_evidence(prior, partition):
    x, y, new = data()
    x[:, 1] = (torch.arange(60) % 3).double()
    count = None if isinstance(partition, ColumnBlocks) else 7
    model = EffectivePrior(
        **parts(), num_inputs=2, num_inducing=8, prior=prior, partition=partition, num_blocks=count
    ).double()
    draws = torch.Generator().manual_seed(1)
    model.initialise(x, y, generator=draws)
    sizes = [b - a for a, b in itertools.pairwise(model.block_order(x)[1])]
    assert len(sizes) == (count or 3)
    assert max(sizes) - min(sizes) <= 1
    mean, covariance = effective_priors.dense_posterior(model, x, y, new, prior)
    close(model.condition(x, y).predict(new), mean.detach(), covariance.diagonal().detach())
    want = effective_priors.dense_evidence(model, x, y, prior)
    found = EffectiveEvidence().evidence(model, x, y).value
    torch.testing.assert_close(found, want, rtol=1e-10, atol=0)
    with pytest.raises(ConfigError, match="60 training rows are in blocks and there are 59"):
        model.condition(x[1:], y[1:])


@pytest.mark.parametrize("prior", PRIORS)
def test_sampled_functions_have_the_posteriors_moments(prior):
    """1,000 paths at 25 points; 5.5 standard errors: false alarm about 1e-6."""
    model, x, y, new = made(prior)
    posterior = model.condition(x, y)
    draws = torch.Generator().manual_seed(2)
    if prior == "fic":
        with pytest.raises(ConfigError, match="FIC has no sampled functions"):
            posterior.sample_paths(1, generator=draws)
        return
    num = 1000
    mean, variance = posterior.predict(new)
    paths = posterior.sample_paths(num, generator=draws)
    values = paths(new)
    assert ((values.mean(0) - mean).abs() < 5.5 * (variance / num).sqrt() + 1e-9).all()
    slack = 5.5 * (2 / num) ** 0.5 * variance
    if prior != "sor":  # the prior's features: a relative covariance error of 1 / sqrt(2048)
        slack = slack + 5 / 2048**0.5 * 1.4
    assert ((values.var(0) - variance).abs() < slack).all()
    torch.testing.assert_close(paths(new[3:7]), values[:, 3:7], rtol=0, atol=1e-9)


def test_functions_of_sor_need_no_spectral_density():
    x, y, new = data()
    model = EffectivePrior(
        kernel=Linear(2), mean=Constant(), likelihood=Gaussian(0.1), num_inputs=2, num_inducing=2,
        prior="sor",
    ).double()  # fmt: skip
    model.place(torch.eye(2).double())
    draws = torch.Generator().manual_seed(2)
    paths = model.condition(x, y).sample_paths(5, generator=draws)
    assert paths(new).shape == (5, 25)


def test_which_inducing_points_are_trained():
    for prior in PRIORS:
        model, x, _, _ = made(prior)
        assert model.inducing_points.requires_grad == (prior not in ("sor", "dtc"))
        model, x, _, _ = made(prior, learn_inducing=False, selector=Uniform())
        assert not model.inducing_points.requires_grad
        assert (torch.cdist(model.inducing_points, x).min(1).values == 0.0).all()


def test_the_noise_of_a_degenerate_prior_explains_what_its_points_cannot():
    x, y, _ = data()
    model = EffectivePrior(**parts(), num_inputs=2, num_inducing=3, prior="dtc").double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = effective_priors.dense_evidence(model, x, y, "dtc")
        best = model.likelihood.noise_variance.clone()
        assert best > 0.1
        for factor in (0.9, 1.1):
            model.likelihood.noise_variance = factor * best
            assert effective_priors.dense_evidence(model, x, y, "dtc") < found


BAD = {
    "another name": ({"prior": "vfe"}, "prior=vfe: expected one of sor, dtc"),
    "no points": ({"num_inducing": 0}, "num_inducing=0 must be at least 1"),
    "half a point": ({"num_inducing": 7.5}, r"num_inducing=7\.5: expected a whole number"),
    "negative jitter": ({"jitter": -1.0}, r"jitter=-1\.0 must not be negative"),
    "blocks for fitc": ({"num_blocks": 3}, "prior=fitc has no blocks: leave out num_blocks"),
    "no blocks": ({"prior": "pic", "num_blocks": 0}, "num_blocks=0 must be at least 1"),
    "two ways": (
        {"prior": "pic", "num_blocks": 2, "block_size": 3},
        "num_blocks and block_size define the same thing",
    ),
    "random blocks of test points": (
        {"prior": "pic", "partition": RandomBlocks()},
        "prior=pic needs regions of the input space, which random blocks are not",
    ),
    "a partition for fitc": (
        {"partition": ClusterBlocks()},
        "prior=fitc has no blocks: leave out partition",
    ),
    "no partition": ({"prior": "pic", "partition": "kmeans"}, "'kmeans' is no partition"),
    "a partition and centres": (
        {"prior": "pic", "partition": ClusterBlocks(), "block_centres": [[0.0, 1.0]]},
        "partition and block_centres both define the blocks",
    ),
    "more blocks than points": (
        {"prior": "pitc", "num_blocks": 70, "num_data": 60},
        "num_blocks=70 is more than the 60 training points",
    ),
    "centres that do not fit": (
        {"prior": "pitc", "block_centres": [[0.0, 1.0, 2.0]]},
        r"block_centres have shape \(1, 3\), expected \(K, 2\)",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_invalid_options_are_refused(fault):
    options, words = BAD[fault]
    with pytest.raises(ConfigError, match=words) as error:
        EffectivePrior(**parts(), num_inputs=2, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("features", [Points, Eigenfunctions, Eigenvectors])
@pytest.mark.parametrize("prior", ["dtc", "fitc"])
def test_any_inducing_variables_are_exact_for_their_prior_and_survive_a_checkpoint(prior, features):
    model, x, y, new = made(prior, features=features())
    found = EffectiveEvidence().evidence(model, x, y).value
    z, kernel = model.inducing_points, model.kernel
    cross = model.features.cross(kernel, x, z)
    q = cross @ torch.linalg.solve(model.features.gram(kernel, z), cross.mT)
    noise = model.likelihood.noise_variance.expand(60)
    if prior == "fitc":
        noise = noise + kernel.diagonal(x) - q.diagonal()
    want = torch.distributions.MultivariateNormal(model.mean(x), q + noise.diag()).log_prob(y)
    torch.testing.assert_close(found, want, rtol=1e-9, atol=0.0)
    again = EffectivePrior(
        **parts(), num_inputs=2, num_inducing=8, prior=prior, features=features()
    ).double()
    again.load_state_dict(model.state_dict())  # of eigenvectors: 60 columns in the place of 2
    for one, other in zip(
        again.condition(x, y).predict(new), model.condition(x, y).predict(new), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


def test_more_inducing_points_or_blocks_than_data_are_reported():
    x, y, _ = data()
    draws = torch.Generator().manual_seed(0)
    with pytest.raises(DataError, match="70 inducing points were asked for but there are only 60"):
        EffectivePrior(**parts(), num_inputs=2, num_inducing=70).double().initialise(
            x, y, generator=draws
        )
    with pytest.raises(DataError, match="num_blocks=70 is more than the 60 training points"):
        EffectivePrior(
            **parts(), num_inputs=2, num_inducing=7, prior="pic", num_blocks=70
        ).double().initialise(x, y, generator=draws)
    capped = EffectivePrior(**parts(), num_inputs=2, num_inducing=70, num_data=60)
    assert capped.settle(x) == {"num_inducing": (60, "one per training point; 70 would be more")}
