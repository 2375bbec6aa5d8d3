"""Tiles of frequencies, and the waves that are worked off in them."""

import torch
from draws import draw

from gpx.bases.fourier.native import fourier_pass
from gpx.bases.fourier.sweep import TILE_ANGLES, tiles, waves


def test_tiles_cover_all_frequencies_once():
    for count in (0, 1, 7, 64):
        covered = [r for some in tiles(count, torch.zeros(3000, 2)) for r in range(count)[some]]
        assert covered == list(range(count))


def test_tiles_are_of_equal_size_and_fit_the_cache():
    for count, n in ((64, 3000), (7, 2 * TILE_ANGLES), (1000, TILE_ANGLES // 300), (5, 0)):
        sizes = [some.stop - some.start for some in tiles(count, torch.zeros(n, 2))]
        assert sizes[0] * n <= TILE_ANGLES or sizes[0] == 1  # one frequency at least
        assert max(sizes[:-1], default=sizes[0]) == sizes[0] >= sizes[-1]
        assert len(sizes) == max(1, -(-count // max(1, TILE_ANGLES // max(1, n))))


def test_waves_are_scaled_cosines_and_sines_for_any_number_of_inputs(road):
    for inputs in (2, 40):  # the compiled pass makes the angles of few inputs itself
        frequencies, x = draw(6, inputs), draw(inputs, 11, seed=1)
        for scale in (1.0, 0.3):
            cosines, sines = torch.empty(2, 6, 11, dtype=torch.float64)
            native = fourier_pass(x) if road == "compiled" else None
            waves(frequencies, x, cosines, sines, native, scale)
            angles = frequencies @ x
            torch.testing.assert_close(cosines, scale * angles.cos(), rtol=0, atol=1e-13)
            torch.testing.assert_close(sines, scale * angles.sin(), rtol=0, atol=1e-13)
