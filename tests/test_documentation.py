"""Every Python block of the pages and every example of the gallery runs as it stands."""

import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest

import gpx

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if "_build" not in path.parts and "```python" in path.read_text()
)
EXAMPLES = sorted(path.name for path in (ROOT / "docs" / "examples").glob("plot_*.py"))


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Run folders land in a folder of the test, figures on no screen."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    yield tmp_path
    plt.close("all")


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_a_page_run_in_their_order(page, own_folder, arrays_of_the_pages):
    """The blocks of a page share their names, as a reader who types them has it."""
    if page == "docs/api/botorch.md":
        pytest.importorskip("botorch", reason="pip install -e '.[botorch]'")
        # of two points of a batch in one place, of which the page tells
        warnings.filterwarnings("ignore", message="A not p.d., added jitter")
    names = {"__name__": "page", **arrays_of_the_pages}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    for block in blocks:
        exec(compile(with_run_folder(block, names), page, "exec"), names)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_of_the_gallery_runs(example):
    runpy.run_path(str(ROOT / "docs" / "examples" / example), run_name="__main__")


def test_modules_of_the_reference_are_attributes_of_the_package():
    pages = [path.read_text() for path in (ROOT / "docs" / "api").glob("*.md")]
    named = re.findall(r"automodule:: gpx\.(\w+)$", "\n".join(pages), re.MULTILINE)
    assert len(named) > 10
    assert set(named) <= gpx.PARTS


def test_pages_build_without_warnings(tmp_path):
    """Every docstring and page, without the gallery, whose examples run above, and figures."""
    for package in ("sphinx", "myst_parser", "sphinx_gallery", "furo", "botorch"):
        pytest.importorskip(package, reason="pip install -e '.[docs]'")
    options = [
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "-D",
        "plot_gallery=0",
        "-D",
        "method_figures=0",
    ]
    command = [sys.executable, "-m", "sphinx", *options, "-d", str(tmp_path / "trees")]
    built = subprocess.run(
        [*command, str(ROOT / "docs"), str(tmp_path / "html")], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "html" / "index.html").exists()


def with_run_folder(block, names):
    """The block with the folder of the reader's own run in the place of the one that is printed."""
    if "gpx.load(" not in block:
        return block
    assert "fitted" in names, "a page loads a folder before any of its blocks has made one"
    return re.sub(r'"outputs/[^"]*"', repr(str(names["fitted"].folder)), block)


@pytest.fixture
def arrays_of_the_pages():
    """What a reader brings: x, y and x_new with the eight inputs of the robot arm."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(200, 8))
    return {"x": x, "y": np.sin(x[:, 0]) + 0.1 * x[:, 1], "x_new": x[:3]}
