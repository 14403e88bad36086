"""A load from beginning to end, whole or with its first layers first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from coldctl.loader.device.protocol import Device
from coldctl.loader.format.checkpoint import Checkpoint
from coldctl.loader.load.collector import collector_paused
from coldctl.loader.load.ending import stopped_at_exit
from coldctl.loader.load.frames import forget_frames
from coldctl.loader.load.handing import Handing
from coldctl.loader.load.integrity import Expected
from coldctl.loader.load.loaded import Loaded
from coldctl.loader.load.loading import Loading
from coldctl.loader.load.options import Settings
from coldctl.loader.load.planned import Planned, planned
from coldctl.loader.load.report import Outcome, report_of
from coldctl.loader.load.session import Prepared, Session
from coldctl.loader.load.spans import spans_of
from coldctl.loader.load.stream import stream
from coldctl.loader.load.tensors import Tensor
from coldctl.loader.load.watched import Watched
from coldctl.loader.order import Layers, order_facts
from coldctl.loader.pool import start
from coldctl.loader.scratch import shortage
from coldctl.results.load import LoadReport


class Load:
    """What loads of one checkpoint have in common. `layers` and `expected` are found out when they are first needed."""

    def __init__(self, checkpoint: Checkpoint, layers: Callable[[], Layers], expected: Callable[[], Expected]) -> None:
        self._checkpoint = checkpoint
        self._layers = layers
        self._expected = expected

    def whole(self, settings: Settings, device: Device | None) -> Loaded:
        """Every tensor of the plan, or an error and nothing."""
        running = self._begin(settings, device, None)
        try:
            return self._run_whole(running)
        except BaseException as error:
            forget_frames(error)
            raise
        finally:
            running.end()

    def host_bytes(self, settings: Settings) -> int:
        """What the tensors of a whole load to the host take of its memory: nothing where files are mapped."""
        if settings.alloc == "map":
            return 0
        return sum(each.nbytes for each in planned(self._checkpoint, settings, None, None).wanted)

    def _run_whole(self, running: Running) -> Loaded:
        for part in range(len(running.prepared.parts)):
            running.session.run(running.prepared, part)
        transform = running.session.settings.transform
        with collector_paused(), shortage(stage="allocate"):
            views = running.prepared.memory.views(range(len(running.names)))
            tensors = dict(Handing(running.names, transform).arrive(views)) if transform else views
            running.session.settle()
            return self.result(tensors, running, None)

    def first_layers(self, settings: Settings, device: Device | None, first_layers: int) -> Loading:
        """A handle, when what comes before the layers and the first of them are there; a thread brings the rest."""
        watched = Watched(settings.events)
        running = self._begin(replace(settings, events=watched), device, first_layers)
        try:
            return self._run_first_layers(running, watched)
        except BaseException as error:
            running.end()
            forget_frames(error)
            raise

    def _run_first_layers(self, running: Running, watched: Watched) -> Loading:
        loading = Loading(running.names, sum(each.nbytes for each in running.plan.wanted), watched)
        background = Background(self, running, loading, watched)
        background.run_first()
        thread = threading.Thread(target=background.run_rest, name="coldctl-loading", daemon=True)
        start(stopped_at_exit(thread, watched.cancel))
        return loading

    def stream(self, settings: Settings, device: Device | None) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the plan, in its order. See `coldctl.loader.load.stream`."""
        watched = Watched(settings.events)
        settings = replace(settings, events=watched)
        plan = planned(self._checkpoint, settings, None, None)
        return stream(lambda: self._session(settings, device), plan.wanted, watched)

    def _session(self, settings: Settings, device: Device | None) -> Session:
        try:
            return Session(settings, device, self._layers, self._expected)
        except BaseException as error:
            forget_frames(error)
            raise

    def _begin(self, settings: Settings, device: Device | None, first_layers: int | None) -> Running:
        session = self._session(settings, device)
        try:
            if settings.checks:
                session.expected()
            with collector_paused():
                with session.stages.timed("plan"):
                    layers = None if first_layers is None else self._layers()
                    plan = planned(self._checkpoint, settings, layers, first_layers)
                return Running(session, plan, session.prepare(plan.wanted, plan.first))
        except BaseException as error:
            session.close()
            forget_frames(error)
            raise

    def result(self, tensors: dict[str, Tensor], running: Running, first_layers_seconds: float | None) -> Loaded:
        """The result, with a report that is made when somebody reads it: for many tensors that takes its time."""
        session, plan, arrival_seconds = running.session, running.plan, running.prepared.batch.arrivals.seconds
        seconds = time.perf_counter() - session.stages.begun_seconds
        session.finish()

        def report() -> LoadReport:
            layers, wanted = self._layers(), plan.wanted
            attention = {n: layers.position(w.name) for n, w in enumerate(wanted) if layers.is_attention(w.name)}
            nbytes = sum(each.nbytes for each in wanted)
            facts = order_facts(session.settings.order, (each.tensor for each in wanted))
            outcome = Outcome(
                len(wanted), nbytes, arrival_seconds, attention, plan.replicated, seconds, first_layers_seconds, facts
            )
            return report_of(session, outcome)

        return Loaded(tensors, report, lambda: spans_of(session))


class Running:
    """A load under way."""

    def __init__(self, session: Session, plan: Planned, prepared: Prepared) -> None:
        self.session = session
        self.plan = plan
        self.prepared = prepared
        self.names = [each.name for each in plan.wanted]

    def end(self) -> None:
        """Give back all but the memory of the tensors that were handed out, which lives as long as they do."""
        self.session.close()
        del self.prepared


class Background:
    """The two parts of a load with its first layers first."""

    def __init__(self, load: Load, running: Running, loading: Loading, watched: Watched) -> None:
        self._load = load
        self._running = running
        self._loading = loading
        self._watched = watched
        self._checks = running.session.settings.checks
        self._handing = Handing(running.names, running.session.settings.transform)
        self._handed: dict[str, Tensor] = {}
        self._first_layers_seconds = 0.0

    def run_first(self) -> None:
        """The first layers, if they have a tensor at all."""
        if not self._checks:
            self._running.prepared.batch.arrivals.tell(self._arrived)
        if self._running.plan.first:
            self._run(0)
        self._first_layers_seconds = time.perf_counter() - self._running.session.stages.begun_seconds

    def run_rest(self) -> None:
        """All else; the handle is told how it ended."""
        loaded, failure = None, None
        try:
            for part in range(1 if self._running.plan.first else 0, len(self._running.prepared.parts)):
                self._run(part)
            loaded = self._load.result(self._handed, self._running, self._first_layers_seconds)
        except BaseException as error:  # carried to whoever waits, SystemExit included
            failure = error
        try:
            self._running.end()
        except BaseException as error:  # as above
            loaded, failure = None, failure or error
        if failure:
            forget_frames(failure)
        del self._handed, self._handing
        self._loading._finish(loaded, failure)

    def _run(self, part: int) -> None:
        self._running.session.run(self._running.prepared, part)
        if self._checks:
            self._arrived(self._running.prepared.bounds[part])

    def _arrived(self, numbers: Sequence[int]) -> None:
        views = self._running.prepared.memory.views(numbers)
        with self._watched.entered():
            handed = dict(self._handing.arrive(views))
            self._running.session.settle()
            self._handed |= handed
            self._loading._arrived(handed, sum(self._running.plan.wanted[number].nbytes for number in numbers))
