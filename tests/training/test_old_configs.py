"""What older versions wrote into their configs is read as what it is called now."""

import pytest

from gpx.training.build import build_model
from gpx.training.composition import composed
from gpx.training.old_options import FAMILIES, SELECTORS, current


@pytest.mark.parametrize(("word", "target"), SELECTORS.items())
def test_selectors_that_were_words(word, target):
    old = {
        "approx": {"_target_": "gpx.models.SGPR", "selector": word},
        "kernel": {"family": "full"},
    }
    found = current(old)
    assert found["approx"]["selector"] == {"_target_": target}
    assert old["approx"]["selector"] == word
    assert found["kernel"] == old["kernel"]
    assert composed([f"selector={word}"]).approx.selector._target_ == target


@pytest.mark.parametrize(("word", "target"), FAMILIES.items())
def test_families_that_were_words(word, target):
    old = {"approx": {"_target_": "gpx.models.SVGP", "selector": None, "family": word}}
    assert current(old)["approx"] == {
        "_target_": "gpx.models.SVGP",
        "selector": None,
        "family": {"_target_": target},
    }
    assert composed([f"family={word}"]).approx.family._target_ == target


def test_other_words_and_other_models_stay():
    for old in (
        {"approx": {"_target_": "gpx.models.SVGP", "family": "mine", "selector": "mine"}},
        {"approx": {"_target_": "mine.Model", "family": "full", "selector": "greedy"}},
        {"approx": None},
        {},
    ):
        assert current(old) == old


def test_options_of_a_selector_are_options_of_the_command_line():
    config = composed(
        ["approx=svgp", "selector=kmeans", "approx.selector.max_points=123", "family=mean_field"]
    )
    config.facts.num_inputs, config.facts.num_train = 2, 50
    model = build_model(config)
    assert model.selector.max_points == 123
    assert type(model.q).__name__ == "MeanField"
