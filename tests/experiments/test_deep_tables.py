"""Checks and notes of the experiments on images: what is compared, and what their rows say."""

from __future__ import annotations

import pytest


def alexnet_row(method, classes, error):
    measures = {"ERR": error, "MNLL": error, "ECE": error, "Brier": error}
    size = 2_000_000 if "SORF" in method else 30_000_000
    return {"method": method, "classes": classes, "side": 16, "parameters": size} | measures


def test_networks_that_learned_nothing_pass_no_comparison(script):
    alexnet = script("deep/alexnet")
    rows = [alexnet_row("CNN+MCD", 100, 0.91), alexnet_row("CNN+GP(SORF)", 100, 0.87)]
    small = {what: ok for what, ok in alexnet.judged(rows).items() if "100 classes, 16" in what}
    # three of errors; they have fewer parameters; the published order is not asked
    assert sorted(small.values()) == [False, False, False, True]
    assert len(alexnet.notes_of_chance(rows)) == 2
    rows = [alexnet_row("CNN+MCD", 100, 0.41), alexnet_row("CNN+GP(SORF)", 100, 0.43)]
    small = {what: ok for what, ok in alexnet.judged(rows).items() if "100 classes, 16" in what}
    assert [what.split(": ")[1] for what, ok in small.items() if not ok] == [
        f"{measure} of CNN+GP(SORF) below that of CNN+MCD" for measure in ("ERR", "MNLL", "Brier")
    ]
    assert alexnet.notes_of_chance(rows) == []


def test_orders_against_the_source_have_the_standard_error_of_their_differences(script):
    digits = script("deep/noisy_digits")

    def row(method, seed, error):
        return {"method": method, "seed": seed, "MNLL": 1.0, "ECE": 0.1, "Brier": 0.4, "ERR": error}

    few = [row("CNN+GP(RF)", seed, 0.3 + 0.01 * seed) for seed in range(3)]
    few += [row("GPDNN", seed, 0.28) for seed in range(3)]
    *_, line = digits.against_the_source(few)
    # differences 0.02, 0.03, 0.04: deviation 0.01, three of them
    assert line == "- GPDNN before CNN+GP(RF): ERR by 0.030 (0.006)."
    assert digits.against_the_source([each for each in few if each["seed"] < 2]) == []
    assert digits.against_the_source([row("CGP", seed, 0.2) for seed in range(3)]) == []


@pytest.mark.parametrize(
    ("measure", "there", "found", "near"),
    [
        ("ERR", 0.005, 0.024, True),
        ("ERR", 0.005, 0.026, False),
        ("MNLL", 0.100, 0.109, True),
        ("MNLL", 0.100, 0.111, False),
        ("ECE", 0.03, 0.011, True),
    ],
)
def test_measures_are_as_near_to_published_ones_as_is_asked(script, measure, there, found, near):
    row = {measure: found, f"published {measure}": there}
    assert script("deep/mnist").is_accepted(row, measure) is near


def test_published_figures_stand_beside_the_measures(script):
    mnist = script("deep/mnist")
    row = {"method": "GPDNN+MCD", "AUROC, letters": 0.9} | dict.fromkeys(mnist.MEASURES, 0.1)
    found = mnist.published(row)
    assert found["published MNLL"] == 0.019
    assert list(found) == [
        "method",
        *mnist.MEASURES,
        *(f"published {measure}" for measure in mnist.MEASURES),
        "AUROC, letters",
    ]
    assert mnist.published(found) == found  # of a row that was read again
    assert mnist.published(row | {"method": "CNN"})["published ERR"] is None


def test_letters_are_compared_with_digits_and_with_the_recalibrated_network(script):
    sizes = script("deep/sizes")
    levels = len(sizes.LEVELS)

    def row(method, digits, letters):
        shares = {"digits": [digits] * levels, "letters": [letters] * levels}
        return {"data": "MNIST", "N": 8000, "seed": 0, "method": method, sizes.ENTROPIES: shares}

    rows = [row("CNN+CAL", 0.9, 0.5), row("CNN+MCD", 0.8, 0.2), row("GPDNN", 0.4, 0.6)]
    other = row("CNN", 0.9, 0.5) | {"N": 4000}  # fewer methods
    assert sizes.of_letters([*rows, other, row("CNN", 0.9, 0.5) | {sizes.ENTROPIES: None}]) == rows
    small = [{**each, "N": 1000} for each in rows]
    assert sizes.of_letters([*rows, *small]) == rows
    assert sizes.of_letters([*rows[:1], *small]) == small
    assert sizes.of_letters([]) == []
    checks = sizes.judged_letters(rows)
    assert [ok for what, ok in checks.items() if "digits below" in what] == [
        None,
        True,
        True,
        None,
        False,
    ]
    assert [ok for what, ok in checks.items() if "than by CNN+CAL" in what] == [True, None, False]


def test_notes_of_masks_hold_the_figures_of_their_rows(script):
    masks = script("deep/masks")

    def row(setting, gap, error):
        return {"method": "CNN+MCD", "N": 4000, "setting": setting, masks.GAP: gap, "ERR": error}

    lines = masks.notes([row(masks.AS_IS, -0.2, 0.25), row(masks.FEWER, -0.05, 0.2)])
    assert [line for line in lines if line.startswith("-")] == [
        "- CNN+MCD, as it is to keep 0.75: -0.200 to -0.050; ERR 0.250 to 0.200"
    ]
