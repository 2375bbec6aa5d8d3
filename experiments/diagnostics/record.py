"""Rows of the experiments in this folder: JSON files per script, one generated RESULTS.md.

Every script writes <name>.json through ``write``, one per table: what was run, its rows, what they
had to show, and the machine. RESULTS.md is made from all of them, so a table cannot disagree with
its rows.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import torch

from gpx.training.environment import environment_record

HERE = Path(__file__).resolve().parent


def write(
    name: str,
    title: str,
    notes: list[str],
    rows: list[dict[str, Any]],
    checks: dict[str, bool],
    *,
    picture: str | None = None,
) -> None:
    """Write <name>.json and RESULTS.md.

    Args:
        name: of the table; starts with the name of its script.
        title: of its section.
        notes: sentences under the title: setting, and where published numbers come from.
        rows: one dict per row of the table, all with the same keys.
        checks: what the rows had to show, and whether they do.
        picture: file name in this folder.
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
        "picture": picture,
        "machine": machine,
        "date": date.today().isoformat(),
    }
    (HERE / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    sections = [json.loads(path.read_text()) for path in sorted(HERE.glob("*.json"))]
    text = "# Diagnostics: what certificates show\n\n"
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
    if content.get("picture"):
        lines += [f"![{content['title']}]({content['picture']})", ""]
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
    if isinstance(value, list):
        return "[" + ", ".join(_cell(v) for v in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
