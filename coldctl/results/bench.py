"""What `bench` returns: every run that was made, the limits that were measured beside them, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coldctl.results.load import CopyFacts, RingFacts, Span, Stage

CacheState = Literal["cold", "warm"]


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to load. `name` is unique in a result, and short (`ring, 4 streams, 8 MiB`, `safetensors`).

    For coldctl's own ways the settings that were asked for (null: the loader's default); for a peer its `version`.
    """

    name: str
    kind: Literal["coldctl", "peer"]
    mode: str | None
    streams: int | None
    chunk_bytes: int | None
    order: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Of the process that loaded: anonymous memory (RssAnon, sampled) at its peak, and before the load but after the
    imports. Pages of the page cache are not in it."""

    peak_anon_bytes: int
    before_anon_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """What the driver said at one moment, `seconds` after the run's process began; null where it said nothing.

    `used_bytes` counts all processes on the device. Rates and shares are the driver's averages over its own window.
    """

    seconds: float
    used_bytes: int | None
    utilisation_share: float | None
    memory_utilisation_share: float | None
    pcie_received_bytes_per_second: float | None
    pcie_sent_bytes_per_second: float | None
    power_watts: float | None


@dataclass(frozen=True, slots=True)
class SegmentBlock:
    """A part of an allocator segment. `state` is `allocated`, `inactive` (free inside a split block) or `pending`."""

    offset_bytes: int
    size_bytes: int
    state: str


@dataclass(frozen=True, slots=True)
class Segment:
    """One allocation that torch's caching allocator holds from the driver, with its blocks in address order."""

    pool: str
    size_bytes: int
    blocks: tuple[SegmentBlock, ...]


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The device's memory around a load. `driver_*` are of the whole device, `*_peak_bytes` and the rest torch's.

    `fragmentation_share` is inactive split bytes / reserved bytes after the load (0 when nothing is reserved), and
    `fragmented` the alarm: 15 % and more. `allocator_settings` is what the allocator says it runs with.
    """

    driver_total_bytes: int
    driver_free_before_bytes: int
    driver_free_after_bytes: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    fragmentation_share: float
    fragmented: bool
    allocator_settings: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One load in a process of its own. A run that failed has `error`, and null where nothing was measured.

    `mode` is the path that was taken, and `seconds` when all was there: on the host when every byte had been touched (a
    mapping loads nothing until then), on a device when every byte was on it. `loaded_seconds` is when the loader
    returned. Both count from the first step of the load: `import_torch` and `cuda_context` come before it, and are
    stages with a negative start. `reason` is why coldctl's loader took its way, `direct_bytes` what it read past the
    page cache. `resident_before_bytes` may be off by `resident_bound_bytes`: by nothing, or where pages were sampled by
    that. `content_sum` is made of the names and bytes of all tensors (`jobs.bench.child.content`), in
    hexadecimal: the same for every run that counts.
    """

    contender: str
    cache: CacheState
    round: int
    mode: str | None
    error: str | None
    seconds: float | None
    loaded_seconds: float | None
    cpu_seconds: float | None
    bytes: int
    bytes_per_second: float | None
    tensors: int
    content_sum: str | None
    resident_before_bytes: int | None
    resident_after_bytes: int | None
    resident_bound_bytes: int | None
    stages: tuple[Stage, ...]
    first_layers_seconds: float | None
    attention_ready_seconds: tuple[float, ...]
    reason: str | None
    reader_streams: int | None
    direct_bytes: int | None
    ring: RingFacts | None
    copies: CopyFacts | None
    notes: tuple[str, ...]
    host_memory: HostMemory | None
    device_memory: DeviceMemory | None
    device_samples: tuple[DeviceSample, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine gives, measured beside the runs; null where it was not, with the reason in `unmeasured`.

    `disk_direct` is the best of several depths of O_DIRECT reads of the checkpoint's own files, `disk_buffered` cold
    reads through the page cache, `memcpy` copies between blocks of memory on as many threads as pay, `h2d_n` pinned
    copies on n streams.
    """

    disk_direct_bytes_per_second: float | None
    disk_buffered_bytes_per_second: float | None
    memcpy_bytes_per_second: float | None
    h2d_1_bytes_per_second: float | None
    h2d_2_bytes_per_second: float | None
    h2d_4_bytes_per_second: float | None
    disk_depth: int | None
    unmeasured: dict[str, str]


@dataclass(frozen=True, slots=True)
class Summary:
    """The runs of one contender in one cache state. `runs` counts those that succeeded, `failed` the others.

    Percentiles are null with too few rounds: P90 needs 10, P99 needs 100. `limit` names the limit that the load has to
    be measured by, `limit_share` is its median rate as a share of that (over 1: faster than the measurement of the
    limit), and `bound` is the sentence that says what holds it and what to try.
    """

    contender: str
    cache: CacheState
    runs: int
    failed: int
    error: str | None
    median_seconds: float | None
    min_seconds: float | None
    max_seconds: float | None
    p90_seconds: float | None
    p99_seconds: float | None
    bytes_per_second: float | None
    limit: str | None
    limit_share: float | None
    bound: str | None


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest of coldctl's own ways in one cache state, if the spreads allow to name one, and why (not)."""

    cache: CacheState
    contender: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """coldctl's best way in one cache state (by its median) beside one peer: the median of the rounds' ratios of
    throughput, ours / theirs, with the bootstrap's 95 % bounds. Over 1: ours was faster."""

    cache: CacheState
    contender: str
    peer: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Regression:
    """One contender in one cache state against the baseline: the ratio of median seconds (over 1: slower now), with the
    bootstrap's 95 % bounds. `regressed` only when even the lower bound is beyond what is allowed, and of no peer."""

    contender: str
    cache: CacheState
    ratio: float
    low: float
    high: float
    regressed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """One more load of the leading way in a cache state, watched, after the rounds: what all of its threads did when.

    It is none of the runs; its seconds and samples are to be read as a BenchRun's.
    """

    contender: str
    cache: CacheState
    seconds: float
    loaded_seconds: float | None
    first_layers_seconds: float | None
    spans: tuple[Span, ...]
    device_samples: tuple[DeviceSample, ...]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A GPU: its name, driver, memory, and the link to the host as the driver reports it; null where it does not."""

    name: str
    driver: str | None
    cuda: str | None
    memory_bytes: int | None
    pcie_generation: int | None
    pcie_width: int | None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the runs were made on; null where the machine does not tell. `virtual` names the hypervisor, `cpus` counts
    those that the process may use, and `load_average` is of the minute before the runs began."""

    cpu: str
    cpus: int
    memory_bytes: int | None
    kernel: str
    virtual: str | None
    filesystem: str
    mount_point: str | None
    mount_options: str | None
    block_device: str | None
    read_ahead_bytes: int | None
    transparent_huge_pages: str | None
    load_average: float | None
    device: DeviceFacts | None
    versions: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class ResidencyMap:
    """The page cache of the checkpoint's files around one run: one share from 0 to 1 a cell, file after file; null
    where the kernel does not tell."""

    contender: str
    cache: CacheState
    before: tuple[float, ...] | None
    after: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """`bytes` are the tensors', `file_bytes` those of their files, headers and all. `verify`, `first_layers`,
    `memory_fraction` and `max_split_size_bytes` are what was asked for that changes what a load does; only results with
    the same can be compared. `best` is a contender's name, or null with `best_reason`;
    `bests` has it for each cache state. `timelines` and `residency` are of one more load in each cache state, after the
    rounds. `regressions` is null without a baseline."""

    path: str
    device: str
    bytes: int
    tensors: int
    files: int
    file_bytes: int
    rounds: int
    verify: bool
    first_layers: int | None
    memory_fraction: float | None
    max_split_size_bytes: int | None
    host: HostFacts
    contenders: list[Contender]
    limits: Limits
    runs: list[BenchRun]
    summaries: list[Summary]
    best: str | None
    best_reason: str
    bests: list[Best]
    comparisons: list[Comparison]
    first_layers_seconds: float | None
    attention_ready_seconds: list[float]
    timelines: list[Timeline]
    residency: list[ResidencyMap]
    regressions: list[Regression] | None
    notes: list[str]
    seconds: float
