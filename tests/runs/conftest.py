import numpy as np
import pytest


@pytest.fixture
def arrays():
    """Inputs (60, 2) and targets (60,) of ``gpx.fit``."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-2.0, 2.0, (60, 2))
    return x, 50.0 + 9.0 * np.sin(x[:, 0]) * x[:, 1]
