"""How FP8 weights are stored, by convention, and what engines make of it. One table, read in the named versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from coldctl.errors import RefusedError
from coldctl.fp8.scales import Grid
from coldctl.fp8.targets import Target
from coldctl.fp8.weight import Weight
from coldctl.results.fp8 import Verdict

Name = Literal["raw", "compressed-tensors", "coldctl", "deepseek"]
NAMES: tuple[Name, ...] = get_args(Name)

Format = Literal["e4m3", "e5m2"]
FORMATS: dict[Format, str] = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2"}

BLOCK = 128
"""Rows and columns that share a scale: DeepSeek-V3, config.json, weight_block_size."""


class Seen(NamedTuple):
    """What an engine does with a tensor of such a role, `embedding` or `head`, in this convention, and where its source
    says so."""

    engine: str
    versions: str
    roles: tuple[str, ...]
    verdict: Verdict
    note: str
    source: str


@dataclass(frozen=True, slots=True)
class Convention:
    """`scale`: what shares one. `scale_dtype`: of the tensor of scales; `model` is the dtype that config.json names.
    `needs_config`: config.json has to say something. `max_error`: the relative error that is let through by default."""

    name: Name
    scale: Literal["none", "row", "block"]
    scale_suffix: str
    scale_dtype: Literal["F32", "model"]
    formats: tuple[Format, ...]
    needs_config: bool
    max_error: float
    config: str
    seen: tuple[Seen, ...]

    def weight(self, target: Target, fmt: Format, model_dtype: str | None) -> Weight:
        """What `target` becomes. Raises RefusedError where blocks do not divide it."""
        rows, columns = target.tensor.shape
        grid = None
        if self.scale == "row":
            grid = Grid((rows, columns), 1, columns)
        elif self.scale == "block":
            if rows % BLOCK or columns % BLOCK:
                raise RefusedError(
                    f"tensor {target.name} is {rows} x {columns}, which is no whole number of blocks of {BLOCK} x"
                    f" {BLOCK}: readers that divide it by the number of scales would take other blocks",
                    hint="choose others with --tensors",
                )
            grid = Grid((rows, columns), BLOCK, BLOCK)
        name = None if grid is None else target.name + self.scale_suffix
        dtype = model_dtype if self.scale_dtype == "model" and model_dtype else "F32"
        return Weight(target, FORMATS[fmt], grid, name, dtype)


_BOTH = ("embedding", "head")

CONVENTIONS: dict[Name, Convention] = {
    "raw": Convention(
        name="raw",
        scale="none",
        scale_suffix="",
        scale_dtype="F32",
        formats=("e4m3", "e5m2"),
        needs_config=False,
        max_error=0.035,
        config="nothing",
        seen=(
            Seen("vllm", "0.33", _BOTH, "loads", "casts on load",
                 "model_executor/layers/vocab_parallel_embedding.py: weight_loader, copy_"),
            Seen("sglang", "0.5.23", _BOTH, "loads", "casts on load",
                 "srt/layers/vocab_parallel_embedding.py: weight_loader, copy_"),
            Seen("transformers", "5.24", _BOTH, "loads", "casts on load to the dtype in config.json",
                 "run: logits equal those of the decoded weights"),
        ),
    ),
    "compressed-tensors": Convention(
        name="compressed-tensors",
        scale="row",
        scale_suffix="_scale",
        scale_dtype="model",
        formats=("e4m3",),
        needs_config=True,
        max_error=0.04,
        config="a quantization_config of compressed-tensors: float-quantized, one scale a row, these modules only",
        seen=(
            Seen("transformers", "5.24", _BOTH, "loads", "with compressed-tensors installed",
                 "run: logits equal those of the decoded weights"),
            Seen("vllm", "0.33", ("embedding",), "refuses", "",
                 "quantization/compressed_tensors/compressed_tensors.py: ValueError for FP8 embeddings"),
            Seen("vllm", "0.33", ("head",), "untested", "",
                 "quantization/compressed_tensors/compressed_tensors.py has a scheme for it"),
            Seen("sglang", "0.5.23", ("embedding",), "wrong", "takes the codes for values, with a warning",
                 "models/llama.py: load_weights skips a scale that it does not know"),
            Seen("sglang", "0.5.23", ("head",), "untested", "",
                 "quantization/compressed_tensors has a scheme for it"),
        ),
    ),
    "coldctl": Convention(
        name="coldctl",
        scale="row",
        scale_suffix="_scale",
        scale_dtype="F32",
        formats=("e4m3", "e5m2"),
        needs_config=True,
        max_error=0.04,
        config="a quantization_config that other readers stop at",
        seen=(
            Seen("coldctl", "this version", _BOTH, "loads", "with transform=Dequantise()",
                 "loader/load/transform.py"),
            Seen("transformers", "5.24", _BOTH, "refuses", "",
                 "run; quantizers/auto.py: supports_quant_method looks the list up in a dict"),
            Seen("vllm", "0052a5b8", _BOTH, "refuses", "",
                 "config/model.py: _verify_quantization wants a text"),
            Seen("sglang", "001adf56", _BOTH, "refuses", "",
                 "srt/configs/model_config.py: _verify_quantization wants a text"),
        ),
    ),
    "deepseek": Convention(
        name="deepseek",
        scale="block",
        scale_suffix="_scale_inv",
        scale_dtype="F32",
        formats=("e4m3",),
        needs_config=True,
        max_error=0.04,
        config="nothing: its quantization_config is that of block FP8 already",
        seen=(
            Seen("coldctl", "this version", _BOTH, "loads", "with transform=Dequantise()",
                 "loader/load/transform.py"),
            Seen("transformers on a CPU", "5.24", _BOTH, "loads", "with accelerate installed: decodes on load",
                 "run: logits equal those of the decoded weights"),
            Seen("transformers on a GPU", "5.24", _BOTH, "wrong",
                 "takes the codes for values, with a warning, unless FineGrainedFP8Config(dequantize=True) is given",
                 "integrations/finegrained_fp8.py replaces Linear alone; quantizers/base.py leaves the head out"),
            Seen("vllm", "0.33", _BOTH, "refuses", "",
                 "quantization/fp8.py knows linear layers and experts; the name of the scale raises"),
            Seen("sglang", "0.5.23", _BOTH, "wrong", "takes the codes for values, with a warning",
                 "models/deepseek_common/deepseek_weight_loader.py skips a scale that it does not know"),
        ),
    ),
}  # fmt: skip
