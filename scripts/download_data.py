"""Download benchmark sets in advance: python scripts/download_data.py kin40k pol abalone

Runs download their data themselves; this is for machines that will be offline later.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from gpx.cache_folder import cache_folder
from gpx.data.sets.originals import ORIGINAL_SETS, OriginalTable
from gpx.data.sets.uci import UCI, UCI_SETS, resolve_name
from gpx.errors import GPXError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets, e.g. kin40k pol kegg")
    parser.add_argument("--all", action="store_true", help="all sets that can be downloaded")
    parser.add_argument("--list", action="store_true", help="show the known sets and stop")
    parser.add_argument(
        "--to",
        type=Path,
        default=cache_folder() / "uci",
        metavar="FOLDER",
        help="folder that gets one folder per set (default: the cache, %(default)s); "
        "point data.root or $GPX_DATA at another one",
    )
    parser.add_argument("--url", help="mirror of the collection (default: $GPX_DATA_URL, public)")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if chosen.list:
        for name, known in UCI_SETS.items():
            size = f"{known.data.size / 1024:8.0f} KiB" if known.data else "not downloadable"
            aliases = f"  ({', '.join(known.aliases)})" if known.aliases else ""
            print(f"{name:16} {known.n:9,} x {known.d:<4} {size}{aliases}")
        for name, table in ORIGINAL_SETS.items():
            size = f"{table.pinned.size / 1024:8.0f} KiB"
            print(f"{name:16} {table.n:9,} x {len(table.columns) - 1:<4} {size}")
        return 0
    if not chosen.names and not chosen.all:
        parser.error("name at least one data set, or --all; --list shows them")
    failed = 0
    try:
        names = [n if n in ORIGINAL_SETS else resolve_name(n) for n in chosen.names]
    except GPXError as error:
        parser.error(str(error))
    if chosen.all:
        known_sets = [name for name, known in UCI_SETS.items() if known.data] + [*ORIGINAL_SETS]
        names += [name for name in known_sets if name not in names]
    for name in names:
        try:
            original = name in ORIGINAL_SETS
            source = OriginalTable(name) if original else UCI(name, base_url=chosen.url)
            files = source.fetch(chosen.to)
        except GPXError as error:
            print(error, file=sys.stderr)
            failed += 1
        else:
            print(f"{name}: {', '.join(str(file) for file in files)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
