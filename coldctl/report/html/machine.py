"""The limits of the machine, and what it is."""

from __future__ import annotations

from coldctl.report.bench_words import LIMITS
from coldctl.report.html.facts import limit_rate
from coldctl.report.html.markup import Child, Safe, element
from coldctl.report.html.section import section
from coldctl.report.html.table import data_table
from coldctl.results.bench import BenchResult, DeviceFacts, HostFacts
from coldctl.units import format_rate, format_size


def limits_section(result: BenchResult) -> Safe:
    rows = [(words, _rate(result, name)) for name, words in LIMITS.items()]
    return section(
        "Limits of this machine",
        "Measured before the rounds and after them; the better one counts.",
        data_table("Limits", ("limit", "rate"), rows, "data prose"),
    )


def _rate(result: BenchResult, name: str) -> Child:
    rate = limit_rate(result.limits, name)
    if rate is None:
        reason = result.limits.unmeasured.get(name, "no reason was given")
        return element("span", f"not measured: {reason}", class_="muted")
    depth = result.limits.disk_depth
    return format_rate(rate) + (f", {depth} reads at once" if name == "disk_direct" and depth else "")


def host_section(result: BenchResult) -> Safe:
    facts = {**_host(result.host), **(_device(result.host.device) if result.host.device else {})}
    rows = [(name, value) for name, value in facts.items() if value is not None]
    versions = [(name, version or "not installed") for name, version in sorted(result.host.versions.items())]
    return section(
        "The machine",
        None,
        element(
            "div",
            data_table("Host and device", ("fact", "value"), rows, "data prose"),
            data_table("Versions", ("package", "version"), versions, "data prose"),
            class_="pair",
        ),
    )


def _host(host: HostFacts) -> dict[str, str | None]:
    """What the machine did not tell is null."""
    return {
        "CPU": f"{host.cpu}, {host.cpus} usable",
        "memory": None if host.memory_bytes is None else format_size(host.memory_bytes),
        "kernel": host.kernel,
        "hypervisor": host.virtual or "none found",
        "filesystem": host.filesystem,
        "mount": host.mount_point,
        "mount options": host.mount_options,
        "block device": host.block_device,
        "read-ahead": None if host.read_ahead_bytes is None else format_size(host.read_ahead_bytes),
        "transparent huge pages": host.transparent_huge_pages,
        "load average before": None if host.load_average is None else f"{host.load_average:.2f}",
    }


def _device(device: DeviceFacts) -> dict[str, str | None]:
    generation, width = device.pcie_generation, device.pcie_width
    return {
        "GPU": device.name,
        "GPU memory": None if device.memory_bytes is None else format_size(device.memory_bytes),
        "driver": device.driver,
        "CUDA": device.cuda,
        "link": f"PCIe {generation}" + (f" x{width}" if width else "") if generation else None,
    }
