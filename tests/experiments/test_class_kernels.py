"""The table of kernels for classes: means over draws, and checks that can fail."""

import itertools

import pytest


@pytest.fixture
def kernels(script):
    return script("classification/kernels")


def cells(module, worse=()):
    """A cell for every table and method; kernel=auto leads, but on the sets ``worse``."""
    nlp = dict(zip([*module.METHODS, *module.PEERS], (0.30, 0.31, 0.32, 0.33, 0.34), strict=True))
    found = []
    for name, size, draw in itertools.product(
        (*module.NEW, *module.KNOWN), module.SIZES, module.DRAWS
    ):
        for method, value in nlp.items():
            lost = 0.2 if method == "auto" and name in worse else 0.0
            row = {"set": name, "rows": size, "draw": draw, "method": method, "inputs": 3}
            row |= {"nlp": value + lost + 0.01 * draw, "error": 0.1, "seconds": 1.0}
            found.append(row | {"kernel": "kernel='rbf'", "commit": "0" * 40})
    return found


def test_rows_are_means_over_draws_and_all_checks_pass_where_auto_leads(kernels):
    rows, checks = kernels.tables(cells(kernels))
    assert len(rows["NLP of each table"]) == 2 * len((*kernels.NEW, *kernels.KNOWN))
    assert rows["NLP of each table"][0]["NLP, auto"] == pytest.approx(0.305)
    assert [row["NLP"] for row in rows["Means over tables"]][:2] == pytest.approx([0.305, 0.315])
    assert all(checks.values())


def test_one_bad_set_fails_the_checks_of_its_group_alone(kernels):
    _, checks = kernels.tables(cells(kernels, worse=[kernels.NEW[0]]))
    failed = [what for what, holds in checks.items() if not holds]
    assert any("nowhere worse" in what for what in failed)
    assert any("boosted trees" in what for what in failed)
    assert all(what.startswith("new sets") for what in failed)


def test_a_run_that_fails_is_told_and_its_table_left_out(kernels):
    found = cells(kernels)
    found[0] |= {"nlp": None, "failed": "no convergence"}
    rows, checks = kernels.tables(found)
    assert len(rows["NLP of each table"]) == 2 * len((*kernels.NEW, *kernels.KNOWN)) - 1
    assert not checks["every run ends with predictions (1 do not)"]


def test_checks_of_sets_that_lack_cells_are_not_run(kernels):
    found = [cell for cell in cells(kernels) if cell["set"] != kernels.KNOWN[-1]]
    _, checks = kernels.tables(found)
    assert [holds for what, holds in checks.items() if what.startswith("known")] == [None]
