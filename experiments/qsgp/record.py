"""Rows of the experiments in this folder: one JSON file per script, one generated RESULTS.md.

Every script writes <name>.json through ``write``: what was run, what was published, its rows and
the machine. RESULTS.md is made from all of them, so a table cannot disagree with its rows.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpx.data.dataset import load
from gpx.data.uci import UCI
from gpx.kernels import RBF
from gpx.training.environment import environment_record

HERE = Path(__file__).resolve().parent

# type-II maximum of an exact SE-ARD GP on 1,000 training rows of kin40k, split 0
KIN40K_LENGTHSCALES = (3.28, 3.08, 1.60, 1.74, 1.70, 1.41, 1.38, 1.94)
KIN40K_OUTPUTSCALE = 1.73
KIN40K_NOISE = 0.0069


def kin40k(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Training inputs (36000, 8) and targets of split 0, standardised."""
    data = load(UCI("kin40k"), task="regression")
    return data.train_x.to(dtype), data.train_y.to(dtype)


def kin40k_kernel(lengthscale: tuple[float, ...] | float = KIN40K_LENGTHSCALES) -> RBF:
    """SE-ARD kernel at the reference hyperparameters, or at other lengthscales."""
    return RBF(ard_num_dims=8, lengthscale=lengthscale, outputscale=KIN40K_OUTPUTSCALE)


def write(
    name: str,
    title: str,
    notes: list[str],
    rows: list[dict[str, Any]],
    checks: dict[str, bool],
) -> None:
    """Write <name>.json and RESULTS.md.

    Args:
        name: of the script.
        title: of its section.
        notes: sentences under the title: setting, and where published numbers come from.
        rows: one dict per row of the table, all with the same keys.
        checks: what the rows had to show, and whether they do.
    """
    environment = environment_record(torch.device("cpu"), 0, {})
    machine = {
        key: environment[key] for key in ("device_name", "num_threads", "versions", "git_commit")
    }
    content = {
        "title": title,
        "notes": notes,
        "rows": rows,
        "checks": checks,
        "machine": machine,
        "date": date.today().isoformat(),
    }
    (HERE / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    sections = [json.loads(path.read_text()) for path in sorted(HERE.glob("*.json"))]
    text = "# Quadruply stochastic Gaussian processes: reproductions\n\n"
    text += "Written by the scripts of this folder from their JSON files.\n"
    text += "".join(_section(section) for section in sections if "checks" in section)
    (HERE / "RESULTS.md").write_text(text)
    print(_section(content))


def _section(content: dict[str, Any]) -> str:
    header = list(content["rows"][0])
    lines = [f"\n## {content['title']}\n", *content["notes"], ""]
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in content["rows"]:
        lines.append("| " + " | ".join(_cell(row[key]) for key in header) + " |")
    lines.append("")
    lines += [f"- {'pass' if ok else 'FAIL'}: {what}" for what, ok in content["checks"].items()]
    machine = content["machine"]
    lines.append(
        f"- {content['date']}, {machine['device_name']}, {machine['num_threads']} threads, "
        f"torch {machine['versions']['torch']}, commit {str(machine['git_commit'])[:12]}"
    )
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
