"""Tables 7.1 and 7.2 from the folds that ``uci.py`` trained, published beside ours."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from published import PUBLISHED, PUBLISHED_LARGE, PUBLISHED_MIXTURE, PUBLISHED_SAMPLED
from record import Rows, tally, write
from row_files import read_lines
from uci_notes import NOTES, OUTSIDE

HERE = Path(__file__).resolve().parent
FOLDS = HERE / "uci_folds.jsonl"
FUNCTIONS = 2000
KEY = ("data", "split", "functions", "method", "start", "perturbation", "rate")
SEARCHES = ("Three searches", "Searches")
"""Beginnings of the captions of tables that compare searches."""
PLAIN = {"method": "mean_field", "start": "subset", "perturbation": 0.1, "rate": 0.05}
"""Values of keys that older rows lack, or rows of methods without such a setting."""
STARTS = {
    "subset": "training rows",
    "parsimonious": "one lengthscale",
    "noisy": "noise of one",
    "whole_set": "as published",
    "whole_set_root": "whole set, root",
}
"""Of the kernel, and its name in the tables."""

SETTINGS = {"mixture_around": "bounded", "mixture_sampled": "sampled"}
"""Mixtures with settings that are not published, and how their entropy is treated."""

Groups = dict[tuple[str, str, str], Rows]
"""Set, method and start -> folds."""


def read() -> Rows:
    """Folds that are done."""
    return [PLAIN | row for row in read_lines(FOLDS)]


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What identifies a fold."""
    return tuple((PLAIN | row)[key] for key in KEY)


def annealed_bounds(tables: dict[str, Rows]) -> dict[str, bool]:
    """Whether the annealed bound is at most one nat below those of other searches.

    Args:
        tables: caption -> rows of sets; a caption's words before the first comma name its searches.

    Returns:
        set, table and other search, as one text -> whether it is.
    """
    found = {}
    for title, rows in tables.items():
        kind = title.split(",")[0].lower()
        for row in rows:
            others = [key for key in row if key.endswith(": bound") and key != "annealed: bound"]
            for other in others:
                words = f"{row['data']}, {kind}, {other.removesuffix(': bound')}"
                found[words] = row["annealed: bound"] >= row[other] - 1.0
    return found


def mean_of(folds: Rows, key: str) -> float | None:
    """Mean of a column over the folds that have it."""
    values = [f[key] for f in folds if f.get(key) is not None]
    return statistics.fmean(values) if values else None


def largest_bounds(folds: Rows) -> Rows:
    """Of the runs of a fold with several settings, the one with the largest bound."""
    best: dict[int, dict[str, Any]] = {}
    for fold in folds:
        kept = best.get(fold["split"])
        if kept is None or fold["bound"] > kept["bound"]:
            best[fold["split"]] = fold
    return list(best.values())


def settings_of(chosen: Rows, folds: Rows, key: str) -> str:
    """Values of a setting in the runs that were chosen, and all values that were tried."""
    found, tried = (sorted({fold[key] for fold in rows}) for rows in (chosen, folds))
    words = ", ".join(f"{value:g}" for value in found)
    return words if found == tried else f"{words} of {', '.join(f'{v:g}' for v in tried)}"


def inside(found: float, published: float, spread: float) -> bool:
    """Whether an error is at most max(15 %, one published deviation) above the published."""
    return found <= published + max(0.15 * published, spread)


def beside(
    name: str, folds: Rows, published: tuple[float, float, float]
) -> tuple[dict[str, Any], bool, bool]:
    """Error and zeros beside the published ones, and whether they are within."""
    error, spread, zeros = published
    rmse, sparsity = mean_of(folds, "rmse"), mean_of(folds, "sparsity")
    assert rmse is not None
    assert sparsity is not None
    near = inside(rmse, error, spread)
    row = {
        "data": name,
        "folds": len(folds),
        "RMSE": rmse,
        "std": statistics.stdev(f["rmse"] for f in folds) if len(folds) > 1 else None,
        "published": error,
        "published std": spread,
        "within": "yes" if near else "no",
        "zeros, %": sparsity,
        "published zeros, %": zeros,
    }
    return row, near, abs(sparsity - zeros) <= 10.0


def costs(folds: Rows) -> dict[str, Any]:
    """Times of the folds, and the commits at which they were measured."""
    return {
        "evaluations": mean_of(folds, "evaluations"),
        "optimisation, s": mean_of(folds, "optimisation"),
        "seconds a fold": mean_of(folds, "seconds"),
        "commit": tally(folds),
    }


def as_published(groups: Groups, judged: dict[str, dict[str, bool]]) -> Rows:
    """Table 7.1 in the published protocol, beside the means with kernels of training rows."""
    rows = []
    for name, (n, d, _, error, spread, zeros) in (PUBLISHED | PUBLISHED_LARGE).items():
        folds = groups.get((name, "plain", "whole_set"), [])
        if not folds:
            continue
        row, near, sparse = beside(name, folds, (error, spread, zeros))
        if name in PUBLISHED:
            judged["near"][name], judged["zeros"][name] = near, sparse
        own = groups.get((name, "mean_field", "subset"), [])
        row |= {
            "bound": mean_of(folds, "bound"),
            "kernel of training rows": mean_of(own, "rmse"),
            "kernel of training rows: zeros, %": mean_of(own, "sparsity"),
        }
        rows.append({"n": n, "d": d} | row | costs(folds))
    return [{"data": row.pop("data"), **row} for row in rows]


def against_reparam(groups: Groups, better: dict[str, bool]) -> Rows:
    """Mean field and REPARAM in the published protocol, on the folds that both ran.

    Args:
        better: where the sets are noted, and whether the mean field's RMSE is at most REPARAM's.
    """
    rows = []
    for name, published in (PUBLISHED | PUBLISHED_LARGE).items():
        both = [groups.get((name, method, "whole_set"), []) for method in ("plain", "reparam")]
        splits = {f["split"] for f in both[0]} & {f["split"] for f in both[1]}
        if not splits:
            continue
        ours, other = ([f for f in folds if f["split"] in splits] for folds in both)
        errors = [statistics.fmean(f["rmse"] for f in folds) for folds in (ours, other)]
        better[name] = errors[0] <= errors[1]
        row: dict[str, Any] = {
            "data": name,
            "folds": len(splits),
            "mean field": errors[0],
            "REPARAM": errors[1],
            "published mean field": published[3],
            "published REPARAM": published[2],
            "smaller": "mean field" if better[name] else "REPARAM",
            "published smaller": "mean field" if published[3] <= published[2] else "REPARAM",
        }
        rows.append(row | {"commit": tally([*ours, *other])})
    return rows


def of_training_rows(groups: Groups, judged: dict[str, dict[str, bool]]) -> Rows:
    """The same sets with kernels of a fold's own rows, and the baselines."""
    rows = []
    for name, (_, _, reparam, error, spread, zeros) in (PUBLISHED | PUBLISHED_LARGE).items():
        for start in ("subset", "parsimonious", "noisy"):
            folds = groups.get((name, "mean_field", start), [])
            if not folds:
                continue
            row, near, _ = beside(name, folds, (error, spread, zeros))
            once = groups.get((name, "plain", start), [])
            simple = {
                words: mean_of(folds, key) or math.inf
                for words, key in (
                    ("linear", "linear"),
                    ("5-nn", "neighbours"),
                    ("trivial", "trivial"),
                )
            }
            if start == "subset" and name in PUBLISHED:
                judged["own"][name] = near
                judged["baselines"][name] = row["RMSE"] <= min(simple.values())
            compared = groups.get((name, "reparam", start), [])
            row |= {
                "start": STARTS[start],
                "Gaussian weights": mean_of(folds, "gaussian"),
                "SGPR": mean_of(folds, "sgpr"),
                **simple,
                "REPARAM": mean_of(compared, "rmse"),
                "published REPARAM": reparam,
                "zeros of one search, %": mean_of(once, "sparsity"),
                "RMSE of one search": mean_of(once, "rmse"),
                "MNLP": mean_of(folds, "mnlp"),
                "gain of one more sweep, nats": mean_of(folds, "sweep_gain"),
            }
            rows.append(row | costs(folds))
    return rows


def mixtures(
    groups: Groups,
    method: str,
    start: str,
    published: dict[str, tuple[float, float, float]],
    judged: tuple[dict[str, bool], dict[str, bool], dict[str, bool]] | None,
) -> Rows:
    """Mixtures of five, the mean field on the same folds beside them.

    Args:
        judged: where errors, zeros and bounds of sets with up to 20,000 rows are noted.
    """
    rows = []
    for name, values in published.items():
        tried = groups.get((name, method, start), [])
        if not tried:
            continue
        folds = largest_bounds(tried)
        row, near, sparse = beside(name, folds, values)
        splits = {f["split"] for f in folds}
        alone = groups.get((name, "plain" if start == "whole_set" else "mean_field", start), [])
        same = [f for f in alone if f["split"] in splits]
        bound, other = mean_of(folds, "bound"), mean_of(same, "bound")
        if judged is not None and name in PUBLISHED:
            judged[0][name], judged[1][name] = near, sparse
            if bound is not None and other is not None:
                judged[2][name] = bound >= other - 1.0
        row |= {
            "mean field on these folds": mean_of(same, "rmse"),
            "MNLP": mean_of(folds, "mnlp"),
            "bound": bound,
            "mean field's bound": other,
        }
        if method != "mixture":
            row["perturbation"] = settings_of(folds, tried, "perturbation")
        if method == "mixture_sampled":
            row["rate"] = settings_of(folds, tried, "rate")
        rows.append(row | costs(folds))
    return rows


def settings_tried(groups: Groups) -> Rows:
    """Mixtures of folds that were run with several settings, by their bounds."""
    rows = []
    for (name, method, start), folds in groups.items():
        if method not in SETTINGS or start != "whole_set":
            continue
        alone = {f["split"]: f for f in groups.get((name, "plain", start), [])}
        for split in sorted({f["split"] for f in folds} & set(alone)):
            tried = [f for f in folds if f["split"] == split]
            if len(tried) < 2:
                continue
            for fold in sorted(tried, key=lambda f: f["bound"]):
                rows.append(
                    {
                        "data": name,
                        "fold": split,
                        "entropy": SETTINGS[method],
                        "perturbation": fold["perturbation"],
                        "rate": fold["rate"] if method == "mixture_sampled" else None,
                        "bound": fold["bound"],
                        "above the mean field's": fold["bound"] - alone[split]["bound"],
                        "RMSE": fold["rmse"],
                        "mean field's RMSE": alone[split]["rmse"],
                        "evaluations": fold["evaluations"],
                        "commit": fold["commit"],
                    }
                )
    return rows


def side_by_side(groups: Groups, keys: dict[str, tuple[str, str]], more: tuple[str, ...]) -> Rows:
    """First folds of several methods or starts, of the sets that have all of them.

    Args:
        keys: words -> method and start.
        more: further columns beside bound, RMSE and zeros.
    """
    rows = []
    for name, published in PUBLISHED.items():
        found = {
            words: [f for f in groups.get((name, *key), []) if f["split"] == 0]
            for words, key in keys.items()
        }
        if not all(found.values()):
            continue
        row: dict[str, Any] = {"data": name, "published zeros, %": published[5]}
        shown = [("zeros, %", "sparsity"), ("RMSE", "rmse"), ("bound", "bound")]
        for title, key in [*shown, *((each, each) for each in more)]:
            row |= {f"{words}: {title}": folds[0][key] for words, folds in found.items()}
        rows.append(row | {"commit": tally([folds[0] for folds in found.values()])})
    return rows


def counted(what: str, found: dict[str, bool]) -> str:
    """Text of a check with the number of sets that pass it and the names of the others."""
    outside = ", ".join(name for name, fine in found.items() if not fine) or "none"
    return (
        f"{what} on {sum(found.values())} of {len(found)} sets run, of {len(PUBLISHED)} with up to "
        f"20,000 rows (outside: {outside})"
    )


def compared_with_reparam(found: dict[str, bool]) -> str:
    """Text of the check against REPARAM, with the sets where REPARAM is better, here and there."""
    every = PUBLISHED | PUBLISHED_LARGE
    published = {name: every[name][3] <= every[name][2] for name in found}
    return (
        f"as published: RMSE at most REPARAM's on most sets: on {sum(found.values())} of "
        f"{len(found)} (not on {', '.join(failed(found)) or 'none'}); published: on "
        f"{sum(published.values())} of these (not on {', '.join(failed(published)) or 'none'})"
    )


def most(found: dict[str, bool]) -> bool | None:
    """Whether more than half pass; None without any."""
    return 2 * sum(found.values()) > len(found) if found else None


def failed(found: dict[str, bool]) -> list[str]:
    """Names that do not pass."""
    return [name for name, fine in found.items() if not fine]


def because(found: dict[str, bool], reasons: dict[str, str]) -> str:
    """Known reasons for the sets that do not pass, as the end of a check's text."""
    known = [f"{name}: {reasons[name]}" for name in failed(found) if name in reasons]
    return f"; {'; '.join(known)}" if known else ""


def gaussian_weights(groups: Groups, names: Sequence[str]) -> dict[str, str]:
    """Errors of the exact posterior of Gaussian weights on the same functions."""
    errors = {name: mean_of(groups[name, "mean_field", "subset"], "gaussian") for name in names}
    return {name: f"Gaussian weights {error:.4g}" for name, error in errors.items() if error}


def lost_by_gaussian_weights(groups: Groups, outside: Sequence[str]) -> str:
    """On how many of these sets the exact posterior on the same functions loses as well."""
    lost = []
    for name in outside:
        folds = groups[name, "mean_field", "subset"]
        simple = [mean_of(folds, key) or math.inf for key in ("linear", "neighbours", "trivial")]
        lost += [name] if (mean_of(folds, "gaussian") or math.inf) > min(simple) else []
    return (
        f"; on {len(lost)} of these Gaussian weights on the same functions are worse than a "
        "baseline too"
    )


def table() -> None:
    """Means over folds beside the published ones."""
    groups: Groups = defaultdict(list)
    for row in read():
        if row["functions"] == FUNCTIONS:
            groups[row["data"], row["method"], row["start"]].append(row)
    judged: dict[str, dict[str, bool]] = defaultdict(dict)
    kinds = {
        "one search": ("plain", "subset"),
        "restarts": ("mean_field", "subset"),
        "annealed": ("annealed", "subset"),
    }
    searches = {
        "one search": ("plain", "whole_set"),
        "annealed": ("annealed", "whole_set"),
    }
    scales = {"variance": ("plain", "whole_set"), "root": ("plain", "whole_set_root")}
    tables = {
        "Mean field, as published (table 7.1)": as_published(groups, judged),
        "The deviation of the function: variance or root, first fold": side_by_side(
            groups, scales, ()
        ),
        "Mean field and REPARAM, as published (table 7.1), on the same folds": against_reparam(
            groups, judged["reparam"]
        ),
        "Searches, as published otherwise, first fold": side_by_side(
            groups, searches, ("evaluations",)
        ),
        "Mixtures of five by sampled entropies, settings as published (table 7.1, last "
        "columns)": mixtures(
            groups,
            "mixture_sampled",
            "whole_set",
            PUBLISHED_SAMPLED,
            (judged["sampled"], judged["sampled zeros"], judged["sampled bounds"]),
        ),
        "Mixtures of five by the entropy bound, as published (table 7.2)": mixtures(
            groups,
            "mixture_around",
            "whole_set",
            PUBLISHED_MIXTURE,
            (judged["mixture"], judged["mixture zeros"], judged["mixture bounds"]),
        ),
        "Mixtures with several settings": settings_tried(groups),
        "Mean field, kernels of training rows": of_training_rows(groups, judged),
        "Mixtures, kernels of training rows": mixtures(
            groups, "mixture", "subset", PUBLISHED_MIXTURE, None
        ),
        "Three searches for one bound, kernels of training rows, first fold": side_by_side(
            groups, kinds, ("evaluations",)
        ),
    }
    tables = {caption: rows for caption, rows in tables.items() if rows}
    worse = annealed_bounds(
        {title: rows for title, rows in tables.items() if title.startswith(SEARCHES)}
    )
    error = "RMSE within max(15 %, one published standard deviation)"
    contained = "bound at most one nat below that of the mean field, which is a special case,"
    share = "zeros within 10 percentage points (three quarters of the sets required)"
    checks: dict[str, bool | None] = {
        counted(f"as published: {error}", judged["near"]) + because(judged["near"], OUTSIDE): (
            share_passes(judged["near"], 1.0)
        ),
        counted(f"as published: {share}", judged["zeros"]): share_passes(judged["zeros"], 0.75),
        compared_with_reparam(judged["reparam"]): most(judged["reparam"]),
        counted(f"sampled entropies: {error}", judged["sampled"])
        + because(judged["sampled"], OUTSIDE): (share_passes(judged["sampled"], 1.0)),
        counted(f"sampled entropies: {share}", judged["sampled zeros"]): share_passes(
            judged["sampled zeros"], 0.75
        ),
        counted(f"sampled entropies: {contained}", judged["sampled bounds"]): share_passes(
            judged["sampled bounds"], 1.0
        ),
        counted(f"table 7.2: {error}", judged["mixture"]) + because(judged["mixture"], OUTSIDE): (
            share_passes(judged["mixture"], 1.0)
        ),
        counted(f"table 7.2: {share}", judged["mixture zeros"]): share_passes(
            judged["mixture zeros"], 0.75
        ),
        counted(f"table 7.2: {contained}", judged["mixture bounds"]): share_passes(
            judged["mixture bounds"], 1.0
        ),
        counted(f"kernels of training rows: {error}", judged["own"])
        + because(judged["own"], gaussian_weights(groups, tuple(judged["own"]))): all(
            judged["own"].values()
        ),
        counted(
            "kernels of training rows: RMSE at most that of every baseline", judged["baselines"]
        )
        + lost_by_gaussian_weights(groups, failed(judged["baselines"])): all(
            judged["baselines"].values()
        ),
        f"the bound from the annealed start is at most one nat below the other bounds in "
        f"{sum(worse.values())} of {len(worse)} comparisons (outside: "
        f"{'; '.join(failed(worse)) or 'none'})": all(worse.values()),
    }
    by_own = [
        f"{name}, folds run: {len(groups[name, 'mean_field', 'subset'])}"
        for name, near in judged["near"].items()
        if not near
    ]
    either = {name: near or judged["own"].get(name, False) for name, near in judged["near"].items()}
    checks[
        counted(
            f"as published, or with kernels of training rows ({', '.join(by_own) or 'none'}): "
            f"{error}",
            either,
        )
    ] = share_passes(either, 1.0)
    first = tables[next(iter(tables))]
    few = [f"{row['data']} ({row['folds']})" for row in first if row["folds"] < 10]
    notes = [*NOTES, *better_than_published(first)]
    notes += [*large_set_by_the_root(groups), *first_fold_by_the_root(groups)]
    notes += [f"Fewer than ten folds, as published: {', '.join(few)}."] if few else []
    write(HERE, "uci", "UCI regression", notes, tables, checks)


def better_than_published(rows: Rows) -> list[str]:
    """Note on errors that are below the published ones by more than the tolerance."""
    found = [
        f"{row['data']} ({row['RMSE']:.4g}, published {row['published']})"
        for row in rows
        if not inside(row["published"], row["RMSE"], row["published std"])
    ]
    words = "'Within' has no lower limit. Better than published by more than the tolerance: "
    return [f"{words}{', '.join(found)}."] if found else []


def large_set_by_the_root(groups: Groups) -> list[str]:
    """Note on keggu, whose published figures are those of the other reading of the deviation."""
    name = "keggu"
    by_variance = groups.get((name, "plain", "whole_set"), [])
    by_root = groups.get((name, "mean_field", "subset"), [])
    if not by_variance or not by_root:
        return []
    values = [
        f"RMSE {mean_of(folds, 'rmse'):.4g} and {mean_of(folds, 'sparsity'):.4g} % of zeros"
        for folds in (by_variance, by_root)
    ]
    _, _, _, error, _, zeros = PUBLISHED_LARGE[name]
    return [
        f"Reading (2) does not hold on {name}, or its kernel is another: it has {values[0]}, but "
        f"with kernels of training rows and the root of the variance {values[1]}; published are "
        f"{error} and {zeros} %."
    ]


def first_fold_by_the_root(groups: Groups) -> list[str]:
    """Note on kegg, whose published error is that of the other reading of the deviation."""
    name = "kegg"
    folds = [
        [fold for fold in groups.get((name, "plain", start), []) if fold["split"] == 0]
        for start in ("whole_set", "whole_set_root")
    ]
    if not all(folds):
        return []
    values = [
        f"RMSE {found[0]['rmse']:.4g} and {found[0]['sparsity']:.4g} % of zeros" for found in folds
    ]
    _, _, _, error, _, zeros = PUBLISHED_LARGE[name]
    return [
        f"Nor on {name}: the first fold has {values[0]}, by the root of the variance {values[1]}; "
        f"published are {error} and {zeros} %."
    ]


def share_passes(found: dict[str, bool], share: float) -> bool | None:
    """Whether that share of all published sets passes; None where the sets run do not tell."""
    wanted = share * len(PUBLISHED)
    if sum(found.values()) >= wanted:
        return True
    missing = len(PUBLISHED) - len(found)
    return None if sum(found.values()) + missing >= wanted else False
