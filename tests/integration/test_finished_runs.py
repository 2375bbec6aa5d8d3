"""Run folders that an earlier version of the package finished still predict what they did."""

import json
from pathlib import Path

import numpy as np
import pytest

import gpx

FOLDERS = sorted((Path(__file__).parent / "finished_runs").iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_finished_run_predicts_what_it_did(folder):
    expected = json.loads((folder / "predictions.json").read_text())
    found = gpx.load(str(folder)).predict(expected["inputs"])
    # the same numbers up to the order of additions, which versions and processors may change
    np.testing.assert_allclose(found.mean, expected["mean"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.std, expected["std"], rtol=1e-5)


def test_there_are_runs_of_every_kind():
    assert len(FOLDERS) >= 12
