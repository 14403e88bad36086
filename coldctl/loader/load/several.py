"""One checkpoint on several devices at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

from coldctl.errors import CancelledError, UsageError
from coldctl.events import NULL
from coldctl.loader.device.protocol import Device
from coldctl.loader.load.host import refuse_without_room
from coldctl.loader.load.load import Load
from coldctl.loader.load.loaded import Loaded
from coldctl.loader.load.options import Part, Settings, Split
from coldctl.loader.load.watched import Watched
from coldctl.loader.pool import share_out


def load_each(load: Load, settings: Settings, devices: Sequence[Device | None], split: Split | None) -> list[Loaded]:
    """What each device loaded, in their order: with `split` its share, read by nobody else, and else everything.

    All load at the same time, each on a thread and through a ring of its own (where the system has no room for as many
    threads, one after the other). When one fails the others are stopped, and its error is raised when all have given
    their memory back. Those on the host are refused before anything is read when they do not fit together.
    """
    watched = Watched(settings.events)
    parts = [_part(replace(settings, events=watched), split, (i, len(devices))) for i in range(len(devices))]
    for part, device in zip(parts, devices, strict=True):
        part.check(on_device=device is not None)
    on_host = [part for part, device in zip(parts, devices, strict=True) if device is None]
    if len(on_host) > 1:  # one alone is refused by its own load
        refuse_without_room(sum(map(load.host_bytes, on_host)))
    loaded: list[Loaded | None] = [None] * len(devices)
    failures: list[BaseException] = []

    def one(index: int) -> Iterator[int]:
        try:
            loaded[index] = load.whole(parts[index], devices[index])
        except BaseException as error:  # so that the others end, too, and the caller hears of the first
            failures.append(error)
            watched.cancel()
        yield 0

    count = len(devices)
    try:
        share_out(range(count), lambda: nullcontext(one), NULL, first=count, cap=count, interrupted=watched.cancel)
    except BaseException:
        loaded.clear()
        raise
    if failures:
        loaded.clear()
        raise next((each for each in failures if not isinstance(each, CancelledError)), failures[0])
    return [each for each in loaded if each is not None]


def _part(settings: Settings, split: Split | None, part: Part) -> Settings:
    if split is None:
        return settings
    if getattr(settings, split) is not None:
        raise UsageError(
            f"split {split} and {split}={getattr(settings, split)} say two things", hint="give one of them"
        )
    if split == "tp":
        return replace(settings, tp=part)
    if split == "stage":
        return replace(settings, stage=part)
    return replace(settings, experts=part)
