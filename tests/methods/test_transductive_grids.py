"""Models on grids that are placed by test inputs: who keeps these inputs."""

from functools import partial

import pytest
import torch

from gpx.bases import GridFeatures, GridOptions
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import GRIEF, QSGP, Direct, Reweighted

GRID = GridOptions(points_per_dim=5, transductive=True)
FEATURES = {"basis": partial(GridFeatures, num_inputs=2, grid=GRID), "num_basis": 6}
MODELS = {
    "grief": partial(GRIEF, num_inputs=2, num_eigenfunctions=6, grid=GRID),
    "direct": partial(Direct, **FEATURES),
    "reweighted": partial(Reweighted, **FEATURES),
    "qsgp": partial(QSGP, **FEATURES),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_model_keeps_test_inputs_and_its_posterior_does_not(name, tmp_path):
    tests = torch.rand(20_000, 2, dtype=torch.float64)
    model = MODELS[name](kernel=RBF(2), mean=Zero(), likelihood=Gaussian(0.1)).double()
    assert model.know_test_inputs(tests)
    posterior = model.new_posterior()
    torch.save(posterior, tmp_path / "posterior")
    assert (tmp_path / "posterior").stat().st_size < tests.nbytes / 2
    model.basis.place(tests[:9])
    assert model.basis.nodes.max() > tests.max()
