"""Functions drawn from the prior: their covariance is the kernel's, and they are functions."""

import math
import pickle

import pytest
import torch

from gpx.errors import ConfigError
from gpx.kernels import RBF, Constant, Linear, Matern12, Matern32, Scale, SpectralMixture, Warped
from gpx.kernels.warped import Kumaraswamy, LinearWarp
from gpx.sampling import Frequencies, prior_functions
from gpx.sampling.prior import _Waves


@pytest.mark.parametrize("name", [RBF, Matern32])
def test_covariance_over_draws_is_the_kernel(name):
    """3000 draws of 1000 waves: five standard errors of both sums."""
    kernel = name(2, (0.7, 1.3), 1.7).double()
    generator = torch.Generator().manual_seed(0)
    functions = prior_functions(kernel, 3000, 2, generator=generator, frequencies=Frequencies(1000))
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    values = functions(x)
    with torch.no_grad():
        want = kernel.evaluate(x)
    found = values.mT @ values / 3000
    error = 1.7 * (math.sqrt(2.0 / 3000) + math.sqrt(0.5 / 1000))
    assert float((found - want).abs().max()) < 5 * error
    assert float(values.mean(0).abs().max()) < 5 * math.sqrt(1.7 / 3000)
    assert torch.equal(functions(x[2:4]), values[:, 2:4])  # wherever they are asked


def covariance(kernel, x, num, frequencies, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = prior_functions(kernel, num, 2, generator=generator, frequencies=frequencies)(x)
    return values.mT @ values / num


SUMS = {
    "two": lambda: RBF(2, (0.7, 1.3), 1.7) + Matern12(2, 0.4, 0.6),
    "nested": lambda: Scale(RBF(2, 0.7, 1.0) + Scale(Matern32(2, 1.5, 0.5), 0.8), 1.3) + RBF(2),
    "with a constant": lambda: RBF(2, 0.7, 0.9) + 1.1,
    "with a mixture": lambda: SpectralMixture(2, 2, 1.3, 0.4, 0.2) + Matern32(2, 1.5, 0.5),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_drawn_part_by_part(name):
    """4000 draws of 2000 waves: five standard errors of both sums (36 entries: 1e-5 in all)."""
    kernel = SUMS[name]().double()
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        want = kernel.evaluate(x)
    variance = float(want[0, 0])
    found = covariance(kernel, x, 4000, Frequencies(2000))
    error = variance * (math.sqrt(2.0 / 4000) + math.sqrt(1.0 / 2000))
    assert float((found - want).abs().max()) < 5 * error
    # every part has its functions: without the smaller one the diagonal would be off by more
    with torch.no_grad():
        smallest = min(float(s * k.diagonal(x[:1])) for k, s in kernel.summands())
    assert smallest > 5 * variance * math.sqrt(2.0 / 4000)


def test_the_stated_error_is_that_of_the_frequencies():
    """Of 200 calls, each with its exact covariance given the frequencies it drew.

    The mean square over calls has a relative standard error of about 0.1: bounds at six of them.
    """
    kernel = (RBF(2, 0.7, 0.9) + Matern12(2, 0.4, 0.6)).double()
    far = torch.tensor([[0.0, 0.0], [3.0, 2.0]]).double()
    frequencies = Frequencies(64)
    with torch.no_grad():
        want = float(kernel.evaluate(far)[0, 1])
    generator = torch.Generator().manual_seed(0)
    squares = []
    for _ in range(200):
        waves = _Waves.draw(kernel, 1, 2, frequencies.count, generator)
        phase = waves.frequencies @ (far[0] - far[1])
        covariance_of_call = float((waves.scales.square() * phase.cos()).sum())
        squares.append((covariance_of_call - want) ** 2)
    found = math.sqrt(sum(squares) / 200) / 1.5
    assert frequencies.covariance_error == pytest.approx(math.sqrt(1 / 128))
    assert found < frequencies.covariance_error * 1.3
    assert found > frequencies.covariance_error * 0.6


def test_paths_with_frequencies_of_their_own_average_to_the_kernel():
    """With 16 shared frequencies covariances are 18 % of k(0) off, whatever the number of paths.

    4000 paths: the product of two values has a variance of at most 3.5 k(0)^2 here; 5.5 standard
    errors over 36 entries, false alarm 1e-6.
    """
    kernel = Matern32(2, (0.7, 1.3), 1.7).double()
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        want = kernel.evaluate(x)
    own = covariance(kernel, x, 4000, Frequencies(16, per_path=True))
    bound = 5.5 * 1.7 * math.sqrt(3.5 / 4000)
    assert float((own - want).abs().max()) < bound
    shared = covariance(kernel, x, 4000, Frequencies(16))
    assert float((shared - want).abs().max()) > bound
    assert Frequencies(16, per_path=True).covariance_error == 0.0


def test_rows_are_taken_in_pieces(monkeypatch):
    kernel = RBF(2).double()
    x = torch.randn(50, 2, dtype=torch.float64)
    whole = prior_functions(kernel, 3, 2, generator=torch.Generator().manual_seed(0))(x)
    monkeypatch.setattr("gpx.sampling.prior.CHUNK_BYTES", 3 * 2048 * 8 * 7)
    pieces = prior_functions(kernel, 3, 2, generator=torch.Generator().manual_seed(0))(x)
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-12)
    assert (
        pieces[:, :0].shape
        == prior_functions(kernel, 3, 2, generator=torch.Generator())(x[:0]).shape
    )


def test_functions_of_a_kernel_warped_twice_go_through_both_maps():
    first, second = Kumaraswamy(2, 2.0), LinearWarp(2)
    second.root.data = torch.tensor([[3.0, 0.0], [0.5, 0.1]])
    kernel = Warped(Warped(RBF(2), second), first).double()
    plain = prior_functions(RBF(2).double(), 3, 2, generator=torch.Generator().manual_seed(0))
    warped = prior_functions(kernel, 3, 2, generator=torch.Generator().manual_seed(0))
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(pickle.loads(pickle.dumps(warped))(x), plain(second(first(x))))


def test_what_cannot_be_drawn_is_explained():
    generator = torch.Generator()
    with pytest.raises(ConfigError, match="at least one function must be drawn, got 0"):
        prior_functions(RBF(2), 0, 2, generator=generator)
    with pytest.raises(ConfigError):
        prior_functions(Linear(2), 1, 2, generator=generator)
    rows = r"Linear has no such spectral.*at given rows need none: fitted\.sample\(x, num, jointly"
    with pytest.raises(ConfigError, match=rows):
        prior_functions(RBF(2) + Linear(2), 1, 2, generator=generator)
    with pytest.raises(ConfigError, match="at least one frequency"):
        Frequencies(0)
    constant = prior_functions(Constant(2.0), 3, 2, generator=generator)(torch.randn(4, 2))
    assert torch.equal(constant, constant[:, :1].expand(3, 4))
