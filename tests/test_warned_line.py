"""The line of the user's program that warnings point at."""

import ast
import importlib.util
from pathlib import Path

import pytest
import torch

from gpx import warned_line
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import SGPR


def test_the_folder_of_gpx_is_spelled_as_python_spells_it():
    """Found by ``sys.path.insert(0, "./")``, whose dot stays in the names of files."""
    root = Path(warned_line.__file__).parents[1]
    spec = importlib.util.spec_from_file_location("again", f"{root}/./gpx/warned_line.py")
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert again.users_line.__code__.co_filename.startswith(again.INNER)


def test_every_warning_points_at_the_users_line():
    calls = [
        (f"{path.name}:{node.lineno}", ast.unparse(node))
        for path in sorted(Path(warned_line.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"
    ]
    assert calls
    assert [place for place, call in calls if "stacklevel=users_line()" not in call] == []


def test_a_warning_of_the_digits_of_float32_points_here():
    parts = {"kernel": RBF(1, 1.0, 1e4), "mean": Zero(), "likelihood": Gaussian(1e-3)}
    model = SGPR(**parts, num_inputs=1, num_inducing=3)
    x = torch.linspace(0.0, 1.0, 9)[:, None]
    model.initialise(x, x[:, 0], generator=torch.Generator().manual_seed(0))
    model.likelihood.noise_variance = 1e-3
    with pytest.warns(UserWarning, match="float32 has too few digits") as told:
        model.condition(x, x[:, 0])
    assert told[0].filename == __file__
