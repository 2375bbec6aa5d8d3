"""Registers and instructions of the Triton kernels on an H200 (sm_90), counted without a GPU.

    python scripts/triton_counts.py

compiles every kernel with the tiles that are used at run time, and writes registers, spilled bytes,
shared memory and the instructions of its main loop, per entry of the kernel matrix or per angle, to
experiments/gpu/triton_counts.json. It needs Triton, whose wheel contains the assembler. Instruction
counts are not times: a multiprocessor may also wait for memory and tensor cores. A loop inside the
main loop is counted once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "experiments"))

ARCHITECTURE = 90
INPUTS, COLUMNS = 8, 16
PROFILES = ("rbf", "matern12", "matern32", "matern52", "rational_quadratic")
PRECISIONS = (("float32", "tf32x3"), ("float32", "ieee"), ("float64", "ieee"))
MOST_PER_PAIR, MOST_PER_ANGLE = 25, 50


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], blocks: Any) -> Any:
    """The kernel compiled for the architecture, with pointers aligned as in torch's arrays."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32")
        for name in kernel.arg_names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*")
    }
    return triton.compile(
        ASTSource(kernel, signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", ARCHITECTURE, 32),
        options={
            "num_warps": blocks.warps,
            "num_stages": blocks.stages,
            "enable_fp_fusion": True,
        },
    )


def counted(binary: Any) -> dict[str, int]:
    """Registers, spilled bytes, shared memory; instructions and stores of the longest loop."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()

        def dump(what: str) -> str:
            command = [str(program), what, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        usage, code = dump("--dump-resource-usage"), dump("--dump-sass")
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+((?:@!?U?P\w+\s+)?[A-Z0-9_.]+)([^;]*);", code)
    loop: list[str] = []
    for address, operation, rest in lines:
        target = re.search(r"0x([0-9a-f]+)", rest) if "BRA" in operation else None
        if target and int(target.group(1), 16) < int(address, 16):
            low, high = int(target.group(1), 16), int(address, 16)
            loop = max(loop, [op for at, op, _ in lines if low <= int(at, 16) <= high], key=len)
    return {
        "registers": int(found.group(1)),
        "spilled bytes": int(found.group(2)),
        "shared KiB": binary.metadata.shared // 1024,
        "loop": len(loop),
        "stores": sum("STG" in operation for operation in loop),
    }


def row(
    what: str,
    of: str,
    dtype: str,
    precision: str,
    kernel: Any,
    types: Any,
    constants: Any,
    tile: Any,
) -> dict[str, Any]:
    """A row of the table; ``of`` names the unit that counts are divided by, one per tile entry.

    A loop that stores was unrolled by the compiler: it has one entry for every store (of a
    gradient down a tree: two stores).
    """
    found = counted(compiled(kernel, types, constants, tile))
    loop, stores = found.pop("loop"), found.pop("stores")
    each = loop * 32 * tile.warps / (tile.rows * tile.columns)
    if of == "product":
        each *= (2 if "ratio_grad" in kernel.arg_names else 1) / stores
    return {
        "kernel": what,
        "dtype": dtype,
        "precision": precision,
        "tile": f"{tile.rows} x {tile.columns}, {tile.warps} warps",
        **found,
        "instructions": round(each, 1),
        "per": of,
    }


def product_row(profile: str, dtype: str, precision: str) -> dict[str, Any]:
    """The product of a square matrix with vectors."""
    import torch

    from gpx.backends.triton.factors import distance_width
    from gpx.backends.triton.product import product_blocks, product_kernel

    split = precision == "tf32x3"
    number = "*fp32" if dtype == "float32" else "*fp64"
    wide = distance_width(INPUTS, precision)
    tile = product_blocks(getattr(torch, dtype), precision, wide)
    types = dict.fromkeys(("left", "right", "shape", "out"), number)
    types |= dict.fromkeys(("high", "low"), "*fp16" if split else number)
    constants = {
        **{"PROFILE": profile, "SQUARE": True, "HALVES": split, "WIDTH": wide},
        **{"ROWS": tile.rows, "COLUMNS": tile.columns, "VECTORS": COLUMNS},
    }
    name = f"product, {profile}"
    return row(name, "pair", dtype, precision, product_kernel, types, constants, tile)


def gradient_row(profile: str, dtype: str, precision: str) -> dict[str, Any]:
    """Derivatives for coordinates, scale and shape of a square matrix."""
    import torch

    from gpx.backends.triton.factors import distance_width, width
    from gpx.backends.triton.gradient import WEIGHTS_BLOCK, gradient_blocks, gradient_kernel

    split = precision == "tf32x3"
    number = "*fp32" if dtype == "float32" else "*fp64"
    wide = distance_width(INPUTS, precision)
    tile = gradient_blocks(getattr(torch, dtype), precision, wide)
    arrays = (
        "left right weights_left weights_right points points_low shape moments values by_shapes"
    )
    constants = {
        **{"PROFILE": profile, "SQUARE": True, "HALVES": split, "MOMENTS": True},
        **{"SHAPES": profile == "rational_quadratic", "WIDTH": wide, "POINTS": width(INPUTS + 1)},
        **{"ROWS": tile.rows, "COLUMNS": tile.columns, "WEIGHTS": WEIGHTS_BLOCK},
    }
    name, types = f"gradient, {profile}", dict.fromkeys(arrays.split(), number)
    return row(name, "pair", dtype, precision, gradient_kernel, types, constants, tile)


def fourier_row(which: str, columns: int, made: bool, dtype: str, precision: str) -> dict[str, Any]:
    """A pass over Fourier features."""
    import torch

    from gpx.backends.triton import fourier
    from gpx.backends.triton.factors import width

    split, product = precision == "tf32x3", which == "product"
    number = "*fp32" if dtype == "float32" else "*fp64"
    tile = fourier.fourier_blocks(
        getattr(torch, dtype), precision, width(INPUTS), seeded=made and product
    )
    single = product and columns == 1
    arrays = "inputs_high inputs_low high low inverse out"
    types = dict.fromkeys(arrays.split(), number) | {"addresses": "*i64", "key": "i64"}
    vectors = ("weights", "weights_low") if product else ("directions", "directions_low")
    types |= dict.fromkeys(vectors, "*fp16" if split and not single else number)
    rows, frequencies = (tile.rows, tile.columns) if product else (tile.columns, tile.rows)
    constants = {
        **{
            "SEEDED": made,
            "FREEDOM": 0,
            "HALVES": split,
            "WIDTH": width(INPUTS),
            "VECTORS": width(columns),
        },
        **{"ROWS": rows, "FREQUENCIES": frequencies},
        **({"SINGLE": single} if product else {}),
    }
    kernel = fourier.fourier_product_kernel if product else fourier.fourier_moments_kernel
    name = f"Fourier {which}, {columns} column{'s' * (columns > 1)}, "
    name += "frequencies made" if made else "frequencies given"
    return row(name, "angle", dtype, precision, kernel, types, constants, tile)


def tree_row(which: str, dtype: str) -> dict[str, Any]:
    """Products of eigenfunctions down a tree, or their gradient."""
    from gpx.backends.triton import tree
    from gpx.backends.triton.blocks import Blocks

    number = "*fp32" if dtype == "float32" else "*fp64"
    types = dict.fromkeys(("root", "ratio", "nodes", "grad", "ratio_grad"), number)
    types |= dict.fromkeys(("parent", "which"), "*i32")
    kernel = tree.tree_kernel if which == "products" else tree.tree_gradient_kernel
    tile = Blocks(tree.POINTS, 1, tree.WARPS, 1)
    name = f"eigenfunctions, {which}"
    return row(name, "product", dtype, "ieee", kernel, types, {"POINTS": tree.POINTS}, tile)


def table() -> list[dict[str, Any]]:
    """All rows of the table."""
    rows = []
    for dtype, precision in PRECISIONS:
        rows += [product_row(profile, dtype, precision) for profile in PROFILES]
    for dtype, precision in PRECISIONS:
        rows += [gradient_row(profile, dtype, precision) for profile in PROFILES]
    for dtype, precision in PRECISIONS:
        for which, columns, made in (
            *(("product", 1, False), ("product", 1, True), ("product", COLUMNS, False)),
            *(("moments", COLUMNS, False), ("moments", COLUMNS, True)),
        ):
            rows.append(fourier_row(which, columns, made, dtype, precision))
    for dtype in ("float32", "float64"):
        rows += [tree_row(which, dtype) for which in ("products", "gradient")]
    return rows


def checks(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Statements about the counts, and whether they hold."""
    fast = [r for r in rows if r["precision"] == "tf32x3"]
    products = [r for r in fast if r["kernel"].startswith("product")]
    passes = [r for r in fast if r["per"] == "angle"]
    return {
        f"products in tf32x3 take at most {MOST_PER_PAIR} instructions a pair": all(
            r["instructions"] <= MOST_PER_PAIR for r in products
        ),
        f"Fourier passes in tf32x3 take at most {MOST_PER_ANGLE} instructions an angle": all(
            r["instructions"] <= MOST_PER_ANGLE for r in passes
        ),
        "products and Fourier passes in tf32x3 spill no registers": not any(
            r["spilled bytes"] for r in (*products, *passes)
        ),
        "no kernel spills registers": not any(r["spilled bytes"] for r in rows),
    }


def main() -> None:
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        sys.exit("TRITON_INTERPRET is set, with which Triton compiles nothing; unset it")
    try:
        import triton
    except ImportError:
        sys.exit("triton is not installed: pip install 'gpx-torch[triton]'")
    from record import write

    rows = table()
    write(
        REPOSITORY / "experiments" / "gpu",
        "triton_counts",
        "Instructions of the Triton kernels",
        [
            f"Compiled by Triton {triton.__version__} for sm_{ARCHITECTURE}; square matrices, "
            f"{INPUTS} inputs, {COLUMNS} columns of vectors (weights, directions). Instructions of "
            "a thread's main loop over the entries of the tile that it owns; a loop inside it "
            "(weights of a gradient, 32 columns at a time) counts once.",
            "",
            "The limits, 25 instructions a pair and 50 an angle, hold for tf32x3; without tensor "
            "cores (IEEE float32, float64) the same work takes two to ten times as many.",
            "",
            "No GPU was used. An instruction count is not a time.",
        ],
        rows,
        dict(checks(rows)),
    )


if __name__ == "__main__":
    main()
