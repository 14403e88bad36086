"""One table of engines: how their default loaders read, what that does with the page cache, and what they do with
tensors that they do not know.

`--align every` adds filler tensors with names that most engines skip as left-over rotary buffers. The table holds
the pairs of engine and model type (config.json's `model_type`) that are known to refuse them, read in the named
versions; a pair that is not listed is believed to load, not proven to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Engine:
    """`page_cache` is what the engine's default loader does on a local disk, `used` or `bypassed`, and `reads` how;
    `page_cache_source` is where that stands in the engine's source, `fillers_source` where it stands what becomes of
    fillers. `fillers_refused_by` lists the model types whose loading code raises on a filler; where `fillers_only_by`
    is given, all other model types do."""

    name: str
    versions: str
    page_cache: Literal["used", "bypassed"]
    reads: str
    page_cache_source: str
    fillers_source: str
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
        name="vllm",
        versions="0.33",
        page_cache="used",
        reads="maps each shard, tensors by name",
        page_cache_source="model_loader/weight_utils.py: safetensors_weights_iterator, safe_open",
        fillers_source="models/utils.py: AutoWeightsLoader skips them; models/bert_with_rope.py looks every name up",
        fillers_refused_by=frozenset({"nomic_bert", "new", "gte"}),
    ),
    Engine(
        name="sglang",
        versions="0.5.23",
        page_cache="used",
        reads="maps shards, 8 at a time",
        page_cache_source=(
            "model_loader/weight_utils.py: buffered_multi_thread_safetensors_weights_iterator, safe_open"
        ),
        fillers_source="models/llama.py skips them; gemma.py, gemma3_causal.py, gpt2.py and others look every name up",
        fillers_refused_by=frozenset(
            {
                "bert", "cohere", "cohere2", "dbrx", "deepseek_vl_v2", "gemma", "gemma2", "gemma3", "gemma3_text",
                "gpt2", "gpt_bigcode", "gptj", "llava", "mllama", "phimoe", "roberta", "xlm-roberta",
            }
        ),
    ),
    Engine(
        name="mlx-lm",
        versions="d78bf58e",
        page_cache="used",
        reads="pread, 32 MiB pieces",
        page_cache_source="mlx_lm/utils.py: mx.load; mlx 021b9dac, mlx/io/load.h: ParallelFileReader",
        fillers_source="mlx_lm/utils.py loads strictly; the sanitize() of few models drops them",
        fillers_only_by=frozenset(
            {
                "afmoe", "bitnet", "deepseek_v3", "dots1", "glm", "llama", "mimo", "ministral3", "mistral", "olmo2",
                "phi3small", "qwen2", "smollm3",
            }
        ),
    ),
    Engine(
        name="transformers",
        versions="5.24",
        page_cache="used",
        reads="maps all shards, slices on demand",
        page_cache_source='modeling_utils.py: _load_pretrained_model, safe_open(backend="mmap")',
        fillers_source="modeling_utils.py: ignored, or named in a warning by utils/loading_report.py",
    ),
    Engine(
        name="tgi",
        versions="db931fcf",
        page_cache="used",
        reads="maps each shard, tensors by name",
        page_cache_source="utils/weights.py: safe_open, get_slice",
        fillers_source="utils/weights.py looks tensors up by name",
    ),
    Engine(
        name="trtllm",
        versions="2026-11",
        page_cache="used",
        reads="reads whole files ahead where they fit, then maps them",
        page_cache_source="models/checkpoints/hf/weight_loader.py: prefetch_files, load_file",
        fillers_source="models/checkpoints/hf/weight_loader.py loads all; filter_weights selects by prefix",
    ),
    Engine(
        name="llama.cpp",
        versions="2026-11",
        page_cache="used",
        reads="the converter maps each tensor",
        page_cache_source="gguf-py/gguf/utility.py: LocalTensor.mmap_bytes, np.memmap",
        fillers_source="convert_hf_to_gguf.py: prepare_tensors skips them, index_tensors wants them in the index",
    ),
    Engine(
        name="fastsafetensors",
        versions="0.5.0",
        page_cache="bypassed",
        reads="O_DIRECT, 16 threads; buffered on network filesystems and tmpfs",
        page_cache_source="copier/nogds.py: _open_checkpoint; common.py: is_odirect_enabled",
        fillers_source="common.py yields every tensor; the engine's model code decides",
    ),
    Engine(
        name="runai",
        versions="0.17.1",
        page_cache="bypassed",
        reads="O_DIRECT by io_uring or libaio; buffered where those fail",
        page_cache_source="libstreamer.so: the default of RUNAI_STREAMER_FS_STRATEGY",
        fillers_source="safetensors_pytorch.py yields every tensor; the engine's model code decides",
    ),
    Engine(
        name="instanttensor",
        versions="0.2.2",
        page_cache="bypassed",
        reads="O_DIRECT by io_uring or libaio; maps files on tmpfs",
        page_cache_source="_impl.py: default_backend, default_in_memory_backend",
        fillers_source="_impl.py yields every tensor; the engine's model code decides",
    ),
)  # fmt: skip

NAMES = tuple(engine.name for engine in ENGINES)


def by_name(name: str) -> Engine | None:
    return next((engine for engine in ENGINES if engine.name == name), None)
