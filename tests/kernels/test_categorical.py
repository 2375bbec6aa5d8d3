"""Categories: the dense definition, what tables make of texts, and a category never seen."""

import warnings

import numpy as np
import pytest
import torch

import gpx
from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, Categorical

QUICK = (
    *("data.test_fraction=0", "trainer.tensorboard=false", "trainer.figures=false"),
    *("trainer.baselines=false", "trainer.device=cpu"),
)


def one_hot(codes, num):
    return torch.nn.functional.one_hot(torch.as_tensor(codes), num).double()


def test_it_is_the_dense_definition():
    rng = np.random.default_rng(0)
    colour, size = rng.integers(0, 3, 40), rng.integers(0, 4, 40)
    x = torch.cat([one_hot(colour, 3), torch.from_numpy(size).double()[:, None]], 1)
    kernel = Categorical([[0, 1, 2], [3]], [0.8, 2.5], 1.7).double()
    apart = lambda codes: (codes[:, None] != codes[None]).astype(float)  # noqa: E731
    want = 1.7 * np.exp(-apart(colour) / 0.8 - apart(size) / 2.5)
    with torch.no_grad():
        np.testing.assert_allclose(kernel.evaluate(x), want, rtol=1e-14)
        np.testing.assert_allclose(kernel(x, x[:7]).to_dense(), want[:, :7], rtol=1e-14)
        whole = Categorical(None, 0.8, None).double()
        same = (x[:, None] == x[None]).all(-1).double()
        np.testing.assert_allclose(whole.evaluate(x), same + (1 - same) * np.exp(-1.25))


def test_a_table_with_a_category_never_seen():
    """Waves that differ between two categories; of a third nothing is known but the prior."""
    rng = np.random.default_rng(0)
    size = rng.uniform(-2.0, 2.0, 80)
    colour = np.where(np.arange(80) % 2, "red", "blue")
    y = np.where(colour == "red", np.sin(3.0 * size), np.cos(2.0 * size))
    rows = [[float(a), str(b)] for a, b in zip(size, colour, strict=True)]
    for approx in (("approx=exact",), ("approx=sgpr", "approx.num_inducing=40")):
        fitted = gpx.fit(
            *(rows, y, *approx, *QUICK, "trainer.max_steps=30"),
            "kernel=rbf(active_dims=[0])*categorical(groups=[[1,2]])",
            quiet=True,
            keep=False,
        )
        assert fitted.model.input_names[0] == fitted.model.columns[0]
        grid = np.linspace(-1.5, 1.5, 9)
        red = fitted.latent([[a, "red"] for a in grid])
        blue = fitted.latent([[a, "blue"] for a in grid])
        np.testing.assert_allclose(red.mean, np.sin(3.0 * grid), atol=0.1)
        np.testing.assert_allclose(blue.mean, np.cos(2.0 * grid), atol=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # says that no training row has it
            other = fitted.latent([[a, "green"] for a in grid])
        assert (other.std > 3.0 * red.std).all()


def test_mistakes():
    with pytest.raises(ConfigError, match=r"groups holds \[\]: each group must list column"):
        Categorical([[0], []])
    with pytest.raises(ConfigError, match=r"groups holds 1: each group must list column numbers"):
        Categorical([1, 2])
    with pytest.raises(ConfigError, match=r"groups holds \[-1\]"):
        Categorical([[-1]])
    with pytest.raises(
        ConfigError, match=r"3 values were given for len\(groups\)=2; .* one value for each"
    ):
        Categorical([[0], [1]], [1.0, 2.0, 3.0])
    with pytest.raises(ShapeError, match="groups ask for column 4, but the inputs have only 3"):
        (RBF(3) * Categorical([[4]])).evaluate(torch.zeros(2, 3))
