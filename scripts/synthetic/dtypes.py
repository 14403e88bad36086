"""The dtypes of synthetic checkpoints: how options, headers and config.json name them, and how wide they are."""

from __future__ import annotations

DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
CONFIG_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# The safetensors library lays tensors out by dtype, widest first, then by name.
LAYOUT_RANK = {"F32": 0, "BF16": 1, "F16": 2, "F8_E4M3": 3}
WIDTH_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1}
