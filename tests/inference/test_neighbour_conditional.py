"""Where rows are near to each other, for kernels made of others."""

import torch
from draws import draw

from gpx.inference.neighbour_conditional import near_coordinates
from gpx.kernels import RBF, Convolutional, Linear, Matern32, Warped


def test_coordinates_of_stationary_parts_lie_side_by_side():
    x = draw(5, 3)
    kernel = 2.0 * (RBF(3, [0.5, 1.0, 2.0]) + Matern32(1, 0.7, active_dims=[2]) * Linear())
    want = torch.cat([x / torch.tensor([0.5, 1.0, 2.0]), x[:, 2:] / 0.7], 1)
    torch.testing.assert_close(near_coordinates(kernel.double(), x), want)
    assert near_coordinates(Linear(), x) is x


def test_a_warp_comes_first_and_patches_are_no_inputs():
    """Inputs are float64 also where the network of the warp is not."""
    network, x = torch.nn.Linear(9, 2), draw(5, 9)
    with torch.no_grad():
        want = network(x.float()).double() / 0.5
    found = near_coordinates(Warped(RBF(2, 0.5), network), x)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, want)
    assert near_coordinates(Convolutional(RBF(4), [3, 3], 2).double(), x) is x
