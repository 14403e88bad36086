"""One table of engines: what their default loaders do with the page cache, and with tensors they do not know.

`--align every` adds filler tensors with names that most engines skip as left-over rotary buffers. The table holds
the pairs of engine and model type (config.json's `model_type`) that are known to refuse them, read in the named
versions; a pair that is not listed is believed to load, not proven to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Engine:
    """`fillers_refused_by` lists the model types whose loading code raises on a filler; where `fillers_only_by` is
    given, all other model types do. `page_cache` is what the engine's default loader does: `used` or `bypassed`."""

    name: str
    versions: str
    page_cache: Literal["used", "bypassed"]
    source: str
    fillers_refused_by: frozenset[str] = frozenset()
    fillers_only_by: frozenset[str] | None = None

    def refuses_fillers(self, model_type: str | None) -> bool:
        """True when a checkpoint of `model_type` with fillers is known to fail. An unknown type is taken for a rare one
        only where the engine accepts few."""
        if self.fillers_only_by is not None:
            return model_type not in self.fillers_only_by
        return model_type in self.fillers_refused_by


ENGINES = (
    Engine(
        "vllm",
        "0.33",
        "used",
        "model_executor/models/utils.py (AutoWeightsLoader skips it); bert_with_rope.py looks every name up",
        fillers_refused_by=frozenset({"nomic_bert", "new", "gte"}),
    ),
    Engine(
        "sglang",
        "0.5.23",
        "used",
        "models/gemma.py, gemma3_causal.py, gpt2.py and their kin look every name up",
        fillers_refused_by=frozenset(
            {
                "bert", "cohere", "cohere2", "dbrx", "deepseek_vl_v2", "gemma", "gemma2", "gemma3", "gemma3_text",
                "gpt2", "gpt_bigcode", "gptj", "llava", "mllama", "phimoe", "roberta", "xlm-roberta",
            }
        ),
    ),
    Engine(
        "mlx-lm",
        "d78bf58e",
        "used",
        "utils.py loads strictly; the sanitize() of few models drops it",
        fillers_only_by=frozenset(
            {
                "afmoe", "bitnet", "deepseek_v3", "dots1", "glm", "llama", "mimo", "ministral3", "mistral", "olmo2",
                "phi3small", "qwen2", "smollm3",
            }
        ),
    ),
    Engine("transformers", "5.24", "used", "modeling_utils.py: ignored, or named in a warning"),
    Engine("tgi", "db931fcf", "used", "utils/weights.py looks tensors up by name"),
    Engine("trtllm", "2026-11", "used", "models/checkpoints/hf/weight_loader.py selects by prefix"),
    Engine("llama.cpp", "2026-11", "used", "convert_hf_to_gguf.py skips it when the index lists it"),
    Engine("fastsafetensors", "0.5.0", "bypassed", "yields every tensor; opens local files with O_DIRECT"),
    Engine("runai", "0.17.1", "bypassed", "yields every tensor; io_uring and libaio with O_DIRECT"),
    Engine("instanttensor", "0.2.2", "bypassed", "yields every tensor; io_uring and libaio with O_DIRECT"),
)  # fmt: skip

NAMES = tuple(engine.name for engine in ENGINES)


def by_name(name: str) -> Engine | None:
    return next((engine for engine in ENGINES if engine.name == name), None)
