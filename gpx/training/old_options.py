"""Options that have other names now: those of finished runs are read, those of users are told."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

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
"""What ``approx.basis`` named when it was a word: the class, and its options, then of the model."""

MOVED = {option for _, options in BASES.values() for option in options}
"""Options of approx=qsgp and approx=reweighted that are those of their basis now."""


def with_new_names(config: DictConfig) -> DictConfig:
    """The config of a run as this version writes it; nothing of it is resolved.

    Args:
        config: of a run folder; changed in place.
    """
    content = OmegaConf.to_container(config, resolve=False)
    assert isinstance(content, dict)
    approx, facts = content.get("approx"), content.get("facts")
    if not isinstance(approx, dict) or not isinstance(approx.get("basis"), str):
        return config
    if approx["basis"] not in BASES:
        return config
    name, options = BASES[approx["basis"]]
    given = {option: approx.pop(option) for option in sorted(MOVED) if option in approx}
    node = {"_target_": f"gpx.bases.{name}"} | {o: given[o] for o in options if o in given}
    if "num_inputs" in options and "num_inputs" not in given and isinstance(facts, dict):
        node["num_inputs"] = facts.get("num_inputs")
    frequencies = given.get("block_frequencies")
    if name == "GridFeatures" and isinstance(frequencies, int):
        node["block_columns"] = 2 * frequencies
    config.approx = approx | {"basis": node}
    return config


def new_name(option: str) -> str | None:
    """What an option of an earlier version is called now; None where it never was one."""
    group, _, rest = option.partition(".")
    if group == "approx" and rest.partition(".")[0] in MOVED:
        return f"approx.basis.{rest}"
    return None
