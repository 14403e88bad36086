"""The header of a safetensors file: read strictly, or built. Every fault has a rule id and names the tensor."""

from __future__ import annotations

from coldctl.loader.format.header.build import TensorSpec, build
from coldctl.loader.format.header.file import Inspected, examine_file, inspect_file, parse, read_header
from coldctl.loader.format.header.model import MAX_HEADER_BYTES, Header, Tensor

__all__ = [
    "MAX_HEADER_BYTES",
    "Header",
    "Inspected",
    "Tensor",
    "TensorSpec",
    "build",
    "examine_file",
    "inspect_file",
    "parse",
    "read_header",
]
