"""A page for every method, and what is made for it from configs and classes."""

import sys
from pathlib import Path

import pytest

from gpx.options.composition import composed
from gpx.options.config import CONFIGS

DOCS = Path(__file__).resolve().parents[1] / "docs"
METHODS = sorted(path.stem for path in (CONFIGS / "approx").glob("*.yaml"))
SECTIONS = ("## When to use it", "## What can go wrong", "## Read", "## Options")


@pytest.fixture(scope="module")
def pages():
    """The module that makes the directives, which only the documentation imports."""
    pytest.importorskip("sphinx", reason="pip install -e '.[docs]'")
    sys.path.insert(0, str(DOCS))
    try:
        import method_pages

        yield method_pages
    finally:
        sys.path.remove(str(DOCS))


def drawn_with(pages):
    draw = pages.draw_methods
    return {**draw.REGRESSION, **draw.CLASSES, **draw.OUTPUTS, **draw.SLOPES, **draw.IMAGES}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_one_page_with_all_sections(method):
    found = list((DOCS / "methods").rglob(f"{method}.md"))
    assert len(found) == 1, found
    text = found[0].read_text()
    if method == "auto":
        return
    for directive in ("facts", "figure", "options"):
        assert f"```{{method-{directive}}} {method}\n" in text
    for section in SECTIONS:
        assert f"\n{section}\n" in text, section


def test_options_are_those_of_the_config_with_its_comments(pages):
    found = {option.name: option for option in pages.options_of("direct")}
    assert found["approx.weights.num_values"].default == "15"
    assert found["approx.noise"].meaning.startswith("null: the noise variance stays as initialised")
    assert found["trainer.max_steps"].default == "1000"
    assert not any("_target_" in name or "defaults" in name for name in found)
    solver = {option.name: option.default for option in pages.options_of("cglb")}
    assert solver["approx.solver.memory_budget"] == "that of trainer.memory_budget"
    assert "approx.num_data" not in solver  # follows from the data


@pytest.mark.parametrize("method", METHODS)
def test_options_of_a_page_and_of_its_picture_are_options_of_a_run(pages, method):
    config = composed([f"approx={method}", *drawn_with(pages).get(method, ())])
    for option in pages.options_of(method):
        node = config
        for part in option.name.split("."):
            node = node._get_node(part)
            assert node is not None, option.name


def test_facts_are_asked_of_model_and_objective(pages):
    exact, svgp = pages.facts_of("exact"), pages.facts_of("svgp")
    assert exact["likelihoods"] == "`gaussian`"
    assert "known noise" in exact["takes"]
    assert "torchrun" in exact["takes"]
    assert "data=stream" in exact["refuses"]
    assert "needs the Gaussian likelihood" in exact["and says"]
    assert "approx=svgp" in exact["and says"]  # options, not classes
    assert svgp["likelihoods"] == "any"
    assert "data=stream" in svgp["takes"]
    assert "known noise" in svgp["refuses"]


def test_every_method_is_drawn(pages):
    drawn = {*drawn_with(pages), *pages.draw_methods.ELSEWHERE}
    assert drawn == set(METHODS) - {"auto"}


@pytest.mark.parametrize("method", ["sor", "laplace", "coregional", "conv_gp", "grid"])
def test_a_picture_of_each_kind_is_drawn(pages, method, tmp_path):
    found = pages.draw_methods.drawn(method, tmp_path, "trainer.max_steps=3")
    assert (tmp_path / f"{method}.png").stat().st_size > 5000
    assert found.caption
    again = (tmp_path / f"{method}.png").stat().st_mtime_ns
    if method != "grid":
        assert pages.draw_methods.drawn(method, tmp_path) == found
        assert (tmp_path / f"{method}.png").stat().st_mtime_ns == again
