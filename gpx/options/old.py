"""Options that have been renamed: configs of old runs are converted, and users are told.

The configs in run folders and checkpoints are read through ``current``; nothing else in gpx knows
how configs of earlier versions looked.
"""

from __future__ import annotations

import copy
from typing import Any

FOURIER = ("seed", "block_frequencies", "spread")
BASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "random_fourier": ("RandomFourier", FOURIER),
    "orthogonal": ("OrthogonalFourier", FOURIER),
    "structured_orthogonal": ("StructuredOrthogonalFourier", FOURIER),
    "quasi_monte_carlo": ("QuasiMonteCarloFourier", FOURIER),
    "gauss_hermite": ("GaussHermiteFourier", FOURIER[:2]),
    "grief": (
        "GridFeatures",
        ("num_inputs", "grid", "factor_jitter", "noise_first", "search_sweeps"),
    ),
    "dictionary": ("TrainingPoints", ("num_inputs", "num_data")),
    "importance_weighted": ("ImportanceWeightedFourier", ("num_inputs", "seed", "proposal")),
}
"""Former values of ``approx.basis``: the class, and its options, which were options of the
model."""

MOVED = {option for _, options in BASES.values() for option in options}
"""Former options of approx=qsgp and approx=reweighted that are options of their basis now."""

SELECTORS = {
    "greedy": "gpx.inducing.GreedyConditionalVariance",
    "rpcholesky": "gpx.inducing.SampledConditionalVariance",
    "kmeans": "gpx.inducing.KMeans",
    "uniform": "gpx.inducing.Uniform",
    "dpp": "gpx.inducing.Determinantal",
    "rls": "gpx.inducing.RidgeLeverage",
    "rls_adaptive": "gpx.inducing.AdaptiveRidgeLeverage",
}

FAMILIES = {"full": "gpx.methods.sparse.FullCholesky", "mean_field": "gpx.methods.sparse.MeanField"}

SOLVERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "gpx.models.CGLB": (
        "approx=cglb",
        "gpx.models.AuxiliarySolver",
        ("epsilon", "max_iterations", "product_dtype", "memory_budget"),
    ),
    "gpx.objectives.CGLowerBound": (
        "objective=cg_lower_bound",
        "gpx.models.AuxiliarySolver",
        ("epsilon", "max_iterations", "restart_every", "product_dtype", "memory_budget"),
    ),
    "gpx.models.GridGP": (
        "approx=grid",
        "gpx.models.GapOptions",
        (
            *("gaps", "tolerance", "max_iterations"),
            *("precondition_rank", "precondition_power", "penalty"),
        ),
    ),
}
"""Classes that had the options of their solver: choice of the class, class of the solver,
options."""

GROUPS = {"calibration": "calibrate"}
"""Renamed groups."""

CHOICES = {
    "approx=deep_gp": "approx=deep_rf",
    "approx=cnn_gp": "approx=cnn_rf (with other heads cnn and cnn_mcd)",
    "optimizer=deep_gp": "optimizer=deep_rf",
}
"""Renamed choices."""

GP_HEAD = ("depth", "width", "frequencies", "directions", "covariance", "learn_kernel", "kernel")
"""Options of ``gpx.models.CNNGP`` that ``gpx.models.CNN`` does not have."""

SPARSE = ("gpx.models.SGPR", "gpx.models.SVGP", "gpx.models.CGLB")
"""Models whose ``selector`` and ``family`` were words instead of nodes."""


def current(config: Any) -> Any:
    """A copy of a config, converted to the form of this version.

    Args:
        config: plain values, from a run folder or a checkpoint; unknown entries are kept.
    """
    found = copy.deepcopy(config)
    if isinstance(found, dict):
        for before, now in GROUPS.items():
            if before in found and now not in found:
                found[now] = found.pop(before)
    for group in ("approx", "objective"):
        if isinstance(found, dict) and isinstance(found.get(group), dict):
            _gather_solver(found[group])
    approx = found.get("approx") if isinstance(found, dict) else None
    if not isinstance(approx, dict):
        return found
    if approx.get("_target_") == "gpx.models.CNNGP" and "head" in approx:
        _name_head(approx)
    if approx.get("_target_") in SPARSE:
        for option, classes in (("selector", SELECTORS), ("family", FAMILIES)):
            word = approx.get(option)
            if isinstance(word, str) and word in classes:
                approx[option] = {"_target_": classes[word]}
    word, facts = approx.get("basis"), found.get("facts")
    if isinstance(word, str) and word in BASES:
        approx["basis"] = _basis(approx, word, facts if isinstance(facts, dict) else {})
    return found


def _name_head(node: dict[Any, Any]) -> None:
    """Convert a convolutional network: without a Gaussian process as head it is a ``CNN`` now."""
    head = node.pop("head")
    if head == "gp":
        return
    for option in GP_HEAD:
        node.pop(option, None)
    node |= {"_target_": "gpx.models.CNN", "dropout": head == "dropout"}


def _gather_solver(node: dict[Any, Any]) -> None:
    """Move options of the solver into a node ``solver``."""
    named = node.get("_target_")
    if "solver" in node or not isinstance(named, str) or named not in SOLVERS:
        return
    _, target, options = SOLVERS[named]
    given = {option: node.pop(option) for option in options if option in node}
    if named == "gpx.models.CGLB":  # its former defaults
        given = {"epsilon": 1e-3, "max_iterations": 1000} | given
    node["solver"] = {"_target_": target} | given


def _basis(approx: dict[Any, Any], word: str, facts: dict[Any, Any]) -> dict[str, Any]:
    """The node of a basis, with the options that used to be those of the model."""
    name, options = BASES[word]
    given = {option: approx.pop(option) for option in sorted(MOVED) if option in approx}
    node = {"_target_": f"gpx.bases.{name}"} | {o: given[o] for o in options if o in given}
    if "num_inputs" in options and "num_inputs" not in given:
        node["num_inputs"] = facts.get("num_inputs")
    frequencies = given.get("block_frequencies")
    if name == "GridFeatures" and isinstance(frequencies, int):
        node["block_columns"] = 2 * frequencies
    return node


def new_name(option: str) -> str | None:
    """The present name of an option of an earlier version; None if it is unknown."""
    if option in ("approx.memory_budget_gib", "approx.iterative.memory_budget_gib"):
        return "trainer.memory_budget"
    group, _, rest = option.partition(".")
    if group in GROUPS:
        return GROUPS[group]
    if group == "approx" and rest.partition(".")[0] in MOVED:
        return f"approx.basis.{rest}"
    return f"{group}.solver.{rest}" if solver_owners(option) else None


def solver_owners(option: str) -> list[str]:
    """Choices whose solver has the former option now: approx=grid for approx.gaps."""
    group, _, rest = option.partition(".")
    return [
        choice
        for choice, _, options in SOLVERS.values()
        if choice.startswith(f"{group}=") and rest in options
    ]
