"""The convolutional kernel: brute force, one patch, shifts, memory."""

import pytest
import torch
from draws import draws

from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, Convolutional, Linear, Matern12
from gpx.kernels.convolutional import shape_of_images

pytestmark = pytest.mark.usefixtures("float64_by_default")


def images(n=4, d=20):
    return torch.rand(n, d, generator=draws())


def kernel(**options):
    made = Convolutional(RBF(None, 0.6, 1.3), [4, 5], [2, 3], **options)
    if made.weights.requires_grad:
        with torch.no_grad():
            made.weights.copy_(torch.randn(made.num_patches, generator=draws(1)))
    return made


def brute(made, x1, x2):
    """Patch by patch, from the images themselves."""
    (channels, height, width), (a, b) = made.image_shape, made.patch_size
    cut = [
        [
            x.view(len(x), channels, height, width)[:, :, i : i + a, j : j + b].flatten(1)
            for i in range(height - a + 1)
            for j in range(width - b + 1)
        ]
        for x in (x1, x2)
    ]
    w = made.weights.detach()
    return sum(
        w[p] * w[q] * made.patch_kernel.evaluate(one, other)
        for p, one in enumerate(cut[0])
        for q, other in enumerate(cut[1])
    )


@pytest.mark.parametrize("most", [1, 2**22])
def test_it_is_the_sum_over_patches(monkeypatch, most):
    monkeypatch.setattr("gpx.kernels.convolutional.MAX_ENTRIES", most)
    made, x, z = kernel(), images(), images(3).flip(1)
    assert made.num_patches == 9
    torch.testing.assert_close(made.evaluate(x, z), brute(made, x, z), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(made.evaluate(x), brute(made, x, x), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(made.diagonal(x), brute(made, x, x).diagonal(), rtol=1e-10, atol=0)
    patches = torch.rand(5, 6, generator=draws(2))
    found = made.cross_with_patches(x, patches)
    want = sum(
        w * made.patch_kernel.evaluate(patches, made.patches(x)[:, p])
        for p, w in enumerate(made.weights.detach())
    )
    torch.testing.assert_close(found, want)


def test_channels():
    made = Convolutional(RBF(None, 0.9), [2, 3, 3], 2)
    x = images(3, 18)
    assert made.patch_inputs == 8
    torch.testing.assert_close(made.evaluate(x), brute(made, x, x), rtol=1e-10, atol=1e-12)


def test_one_patch_of_the_whole_image_is_the_patch_kernel():
    made, x = Convolutional(RBF(None, 0.9, 1.7), [4, 5], [4, 5]), images()
    torch.testing.assert_close(made.evaluate(x), made.patch_kernel.evaluate(x))
    torch.testing.assert_close(made.diagonal(x), torch.full((4,), 1.7))


def test_a_patch_kernel_of_some_pixels():
    made, x = Convolutional(RBF(None, 0.6, active_dims=[0, 3]), [4, 5], [2, 2]), images()
    torch.testing.assert_close(made.diagonal(x), brute(made, x, x).diagonal(), rtol=1e-10, atol=0)


def test_a_pattern_may_move_where_places_weigh_alike():
    """A block of pixels on a blank image, whole in it and with a patch's width around it."""
    made = Convolutional(RBF(None, 0.5), [9, 9], 3, weighted=False)
    blank = torch.zeros(2, 9, 9)
    pattern = torch.rand(2, 2, generator=draws())
    blank[0, 2:4, 2:4] = pattern
    blank[1, 5:7, 4:6] = pattern
    x = blank.flatten(1)
    torch.testing.assert_close(made.diagonal(x)[0], made.diagonal(x)[1])
    torch.testing.assert_close(made.evaluate(x, x)[0, 1], made.diagonal(x)[0])
    assert list(made.parameters()) == list(made.patch_kernel.parameters())


@pytest.mark.parametrize("most", [1, 2**22])
def test_gradients_of_the_diagonal_with_equal_patches(monkeypatch, most):
    """Those of the matrix, in blank regions and for a kernel with a kink, with and without pieces.

    A first-order subgradient: the rows of the matrix are not those of its own inputs.
    """
    monkeypatch.setattr("gpx.kernels.convolutional.MAX_ENTRIES", most)
    x = images(2)
    x[:, :10] = 0.0
    made = Convolutional(Matern12(None, 0.6, 1.3), [4, 5], [2, 3])
    made.diagonal(x).sum().backward()
    found = [p.grad.clone() for p in made.parameters()]
    made.zero_grad()
    sum(made.evaluate(row, row.clone()).sum() for row in x.split(1)).backward()
    for one, parameter in zip(found, made.parameters(), strict=True):
        assert bool(one.isfinite().all())
        torch.testing.assert_close(one, parameter.grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Convolutional(Linear(), [4, 4]), ConfigError, "patch_kernel=Linear is not stat"),
        (lambda: Convolutional(RBF(), [4]), ConfigError, r"image_shape=\[4\] and patch_size=5"),
        (
            lambda: Convolutional(RBF(), [4, 9]),
            ConfigError,
            "5 x 5 pixels does not fit into",
        ),
        (lambda: Convolutional(RBF(), [4, 4], 0), ConfigError, "patch_size=0 must be"),
        (lambda: kernel().evaluate(images(2, 21)), ShapeError, "got inputs of 21 columns"),
    ],
)
def test_what_does_not_fit(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_shapes_of_images():
    assert shape_of_images(64) == (1, 8, 8)
    assert shape_of_images(3072) == (3, 32, 32)
    assert shape_of_images(60, (3, 4, 5)) == (3, 4, 5)
    assert shape_of_images(20, (4, 5)) == (1, 4, 5)
    with pytest.raises(ConfigError, match="60 inputs are no square image of one or three"):
        shape_of_images(60)
    with pytest.raises(ConfigError, match=r"image_shape=\[3, 4\] does not hold 60 inputs"):
        shape_of_images(60, (3, 4))
