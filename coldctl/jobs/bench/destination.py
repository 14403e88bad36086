"""Where the loads go: the host, or a GPU that was found to work, with what its bus gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coldctl.errors import EnvironmentLacksError
from coldctl.events import Events
from coldctl.jobs.bench.limits import bus
from coldctl.jobs.bench.limits.bus import Bus, measure_bus


@dataclass(frozen=True, slots=True)
class Destination:
    """`device` is as torch spells it, with its number; `bus` is null for the host, and `note` says why it is the host
    where a GPU would have been taken."""

    device: str
    bus: Bus | None
    note: str | None


def find_destination(asked: str, events: Events, *, command: Sequence[str] = bus.COMMAND) -> Destination:
    """The device called `asked`; `auto` is torch's current GPU, and the host where there is none.

    Raises what `measure_bus` raises for a GPU that was asked for, and also with `auto` for one that is there and does
    not work. StoppedError.
    """
    if asked == "cpu":
        return Destination("cpu", None, None)
    try:
        found = measure_bus("cuda" if asked == "auto" else asked, events, command=command)
    except EnvironmentLacksError as error:
        if asked != "auto" or type(error) is not EnvironmentLacksError:
            raise
        return Destination("cpu", None, f"loads go to host memory: {error.message}")
    return Destination(found.device, found, None)
