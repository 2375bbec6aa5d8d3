"""The convolutional process: SVGP of its kernel, with inducing patches."""

import pytest
import torch
from draws import draws

from gpx.errors import ConfigError
from gpx.inducing import Patches
from gpx.kernels import RBF, Linear
from gpx.likelihoods import Gaussian, Softmax
from gpx.means import Constant, Zero
from gpx.models import SVGP, ConvGP
from gpx.objectives import SVGPELBO

pytestmark = pytest.mark.usefixtures("float64_by_default")


def data(n=20):
    x = torch.rand(n, 25, generator=draws())
    return x, x[:, :12].sum(1) - 6.0 + 0.1 * torch.randn(n, generator=draws(1))


def model(likelihood=None, **options):
    given = {"num_inputs": 25, "patch_size": 3, "num_inducing": 7, "jitter": 0.0, **options}
    return ConvGP(
        kernel=RBF(None, 1.0, 1.5),
        mean=Zero(),
        likelihood=Gaussian(0.1) if likelihood is None else likelihood,
        **given,
    )


def test_the_bound_is_the_dense_one_and_below_the_evidence():
    """With u = g(Z): Q = K_fu K_uu^-1 K_uf, and the bound at the best q is the collapsed one."""
    x, y = data()
    made = model(warm_start=False)
    made.initialise(x, y, generator=draws())
    made.fit_variational(x, y)
    found = SVGPELBO(20).evidence(made, x, y).value.detach()
    with torch.no_grad():
        cross = made.kernel.cross_with_patches(x, made.inducing)
        gram = made.kernel.patch_kernel.evaluate(made.inducing)
        q = cross.mT @ torch.linalg.solve(gram, cross)
        dense = made.kernel.evaluate(x)
        noise = made.likelihood.noise_variance

        def log_density(covariance):
            zero = torch.zeros(20)
            return torch.distributions.MultivariateNormal(zero, covariance).log_prob(y)

        trace = (dense - q).diagonal().sum() / (2.0 * noise)
        want = log_density(q + noise * torch.eye(20)) - trace
        evidence = log_density(dense + noise * torch.eye(20))
    torch.testing.assert_close(found, want, rtol=1e-8, atol=0.0)
    assert float(found) < float(evidence)


def test_one_patch_of_the_whole_image_is_svgp():
    x, y = data()
    made = model(patch_size=5)
    made.initialise(x, y, generator=draws())
    lengthscale = made.kernel.patch_kernel.lengthscale.item()
    other = SVGP(
        kernel=RBF(None, lengthscale, 1.5),
        mean=Zero(),
        likelihood=made.likelihood,
        num_inputs=25,
        num_inducing=7,
        jitter=0.0,
    )
    other.place(made.inducing.detach())
    other.fit_variational(x, y)
    a, b = (SVGPELBO(20).evidence(each, x, y).value for each in (made, other))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=0.0)
    for one, two in zip(
        made.condition(x, y).predict(x), other.condition(x, y).predict(x), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-9)


def test_paths_have_the_marginals():
    """1,000 paths within 4.5 standard errors; variances within 5 % of the prior's besides."""
    x, y = data()
    made, num = model(), 1000
    made.initialise(x, y, generator=draws())
    posterior = made.condition(x, y)
    f = posterior.sample_paths(num, generator=draws(3))(x)
    mean, variance = posterior.predict(x)
    prior = made.kernel.diagonal(x).detach()
    assert bool(((f.mean(0) - mean).abs() < 4.5 * (variance / num).sqrt() + 1e-3).all())
    gap = (f.var(0) - variance).abs()
    assert bool((gap < 0.05 * prior + 4.5 * variance * (2.0 / num) ** 0.5).all())


def test_where_it_starts():
    x, y = data()
    made = model()
    made.initialise(x, y, generator=draws())
    patches = made.kernel.patches(x).flatten(0, 1)
    torch.testing.assert_close(
        made.kernel.patch_kernel.lengthscale.detach(),
        torch.pdist(patches).median(),
        rtol=0.1,
        atol=0.0,
    )
    assert made.inducing.shape == (7, 9)
    assert float(made.inducing.detach().min()) >= 0.0
    assert made.hyperparameters() is None


def test_classes_and_pieces(monkeypatch):
    x, y = data()
    made = model(Softmax(3))
    labels = (y > 0).double()
    made.initialise(x, labels, generator=draws())
    evidence = SVGPELBO(20).evidence(made, x, labels)
    evidence.value.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())
    posterior = made.condition(x, labels)
    found = posterior.predict(x)
    monkeypatch.setattr("gpx.kernels.convolutional.MAX_ENTRIES", 1)
    for one, other in zip(posterior.predict(x), found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_shape": [4, 5]}, r"image_shape=\[4, 5\] does not hold 25 inputs"),
        ({"patch_size": 6}, "a patch of 6 x 6 pixels does not fit into images of 5 x 5"),
        ({"patch_size": [3]}, r"patch_size=\[3\]: expected one number, or \[height, width\]"),
        ({"num_inducing": 0}, "num_inducing=0 must be at least 1"),
    ],
)
def test_invalid_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        model(**options)


def test_images_of_three_channels_need_no_shape():
    made = model(num_inputs=3 * 6 * 6, patch_size=2)
    assert made.kernel.image_shape == (3, 6, 6)


def test_unsupported_kernels_are_refused():
    with pytest.raises(ConfigError, match="one stationary or arc-cosine kernel"):
        ConvGP(kernel=Linear(), mean=Constant(), likelihood=Gaussian(), num_inputs=25)
    with pytest.raises(ConfigError, match="inducing patches are those of a Convolutional kernel"):
        SVGP(kernel=RBF(), mean=Zero(), likelihood=Gaussian(), num_inputs=25, features=Patches())


def test_a_lengthscale_that_is_not_trained_stays():
    x, y = data()
    made = model()
    made.kernel.patch_kernel.lengthscale = torch.tensor(5.0)
    made.kernel.patch_kernel.requires_grad_(False)
    made.initialise(x, y, generator=draws())
    assert made.kernel.patch_kernel.lengthscale.item() == pytest.approx(5.0)


def test_the_number_of_images_limits_that_of_their_patches():
    x, y = data(2)
    assert len(model(num_data=2, num_inducing=12).inducing) == 12
    made = model(num_data=2, num_inducing=100)
    size, why = made.settle(x)["num_inducing"]
    assert size == len(made.inducing) == 2 * 9
    assert why == "one per patch of the training images; 100 would be more"
    size, why = model(num_data=2, num_inducing=None).settle(x)["num_inducing"]
    assert (size, why) == (9, "half the patches of the training images, at most 512")
    made.initialise(x[:1].expand(2, 25), y, generator=draws())
    assert len(made.inducing) == 9  # that differ
