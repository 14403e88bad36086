#!/usr/bin/env python3
"""Write a synthetic checkpoint with the names, shape proportions and config.json of a real model family.

    scripts/make_checkpoint.py /data/llama --shape llama --size 2GiB --shard-size 500MB

The data are pseudo-random and finite, and depend on the seed and on a tensor's place in the model, not on the shards.
Memory does not grow with the size: tensors are written block by block.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:  # run by its path, where Python looks for modules beside the script and not above it
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coldctl.errors import UsageError
from coldctl.units import GIB, parse_size
from scripts.synthetic.dtypes import DTYPES
from scripts.synthetic.families import SHAPES
from scripts.synthetic.fit import fit
from scripts.synthetic.tensors import tensors_of
from scripts.synthetic.writer import write_model


def make_checkpoint(
    folder: Path,
    *,
    shape: str,
    size_bytes: int,
    shard_bytes: int,
    dtype: str = "bf16",
    seed: int = 0,
    sparse: bool = False,
    tensor_count: int | None = None,
) -> list[Path]:
    """Write the checkpoint into `folder` (made when missing) and return its weight files in order.

    The tensors take at most `size_bytes`, and less than that by under 64 rows of the embedding and of the head.
    `sparse` leaves all data as holes. With `tensor_count` the model is cut after that many tensors, so it is one for
    tools, not for engines. Raises UsageError when the family has no model that small.
    """
    size = fit(shape, size_bytes, DTYPES[dtype], tensor_count)
    tensors = tensors_of(shape, size, DTYPES[dtype], tensor_count)
    config, _ = SHAPES[shape](size, DTYPES[dtype])
    return write_model(folder, config, tensors, shard_bytes, seed=seed, sparse=sparse)


def size_argument(text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.message}: {error.hint}") from error


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write a synthetic safetensors checkpoint.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to write it; made when missing")
    parser.add_argument("--shape", choices=SHAPES, default="llama", help="model family (default: llama)")
    parser.add_argument("--size", type=size_argument, default=2 * GIB, help="tensor bytes to aim at (default: 2GiB)")
    parser.add_argument(
        "--shard-size", type=size_argument, default=500_000_000, help="most bytes a file (default: 500MB)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of all but FP8 tensors (default: bf16)")
    parser.add_argument("--seed", type=int, default=0, help="of the pseudo-random data (default: 0)")
    parser.add_argument("--sparse", action="store_true", help="leave the data as holes: any size, no disk")
    parser.add_argument("--tensors", type=int, metavar="N", help="exactly N tensors (deepseek-moe only)")
    parsed = parser.parse_args(arguments)
    if parsed.tensors is not None and (parsed.shape != "deepseek-moe" or parsed.tensors < 1):
        parser.error("--tensors takes a number from 1 and goes with --shape deepseek-moe")
    return parsed


def main() -> None:
    options = parse_arguments()
    try:
        paths = make_checkpoint(
            options.folder,
            shape=options.shape,
            size_bytes=options.size,
            shard_bytes=options.shard_size,
            dtype=options.dtype,
            seed=options.seed,
            sparse=options.sparse,
            tensor_count=options.tensors,
        )
    except UsageError as error:
        sys.exit(f"make_checkpoint: {error.message}")
    for path in paths:
        print(path)


if __name__ == "__main__":
    main()
