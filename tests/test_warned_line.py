"""The line of the user's program that warnings point at."""

import importlib.util
from pathlib import Path

from gpx import warned_line


def test_the_folder_of_gpx_is_spelled_as_python_spells_it():
    """Found by ``sys.path.insert(0, "./")``, whose dot stays in the names of files."""
    root = Path(warned_line.__file__).parents[1]
    spec = importlib.util.spec_from_file_location("again", f"{root}/./gpx/warned_line.py")
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert again.users_line.__code__.co_filename.startswith(again.INNER)
