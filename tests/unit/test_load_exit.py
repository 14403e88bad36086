"""The interpreter ends soon, whatever a device that hangs still owes a load, and nothing is given back under a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.process import run_python
from tests.loads import MIB, save
from tests.tiny import made

PRELUDE = """
import atexit, gc, sys, threading
folder = sys.argv[1]


@atexit.register  # the first to be registered is the last to be called
def tell() -> None:
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("coldctl-give-back")]
    early = [violation for violation in device.violations if "copy" in violation]
    print("given back early", early, "left", left, flush=True)
    gc.enable()


import coldctl
from coldctl.errors import ColdctlError, DeviceError
from tests.standin import StandIn

device = StandIn()
device.copies = {3: lambda to, source: device.pause() or device._going.wait()}
ring = dict(mode="ring", chunk_bytes=1 << 20, ring_bytes=4 << 20)
checkpoint = coldctl.open(folder)
"""

A_LOAD_THAT_FAILED = """
try:
    checkpoint.load(device, deadline_seconds=0.2, **ring)
except DeviceError as error:
    print(error.stage)
assert [thread for thread in threading.enumerate() if thread.name == "coldctl-give-back"]
"""

A_HANDLE = """
device.copies = {12: device.copies[3]}
handle = checkpoint.load(device, first_layers=1, deadline_seconds=3600, **ring)
print("h2d")
"""

A_STREAM = """
import coldctl.loader.load.stream as module
module._FIRST_BATCH_BYTES = 4 << 20
device.copies = {12: device.copies[3]}
stream = checkpoint.stream(device, deadline_seconds=3600, **ring)
next(stream)
print("h2d")
"""

A_STREAM_WITHOUT_A_DEADLINE = """
import coldctl.loader.load.ending as ending
import coldctl.loader.load.stream as module
ending._PATIENCE_SECONDS = 0.5
module._FIRST_BATCH_BYTES = 4 << 20
plainly = device.copy_plainly
copies = []


def copy_plainly(to, source):
    copies.append(len(source))
    if len(copies) > 4:
        threading.Event().wait()
    plainly(to, source)


device.copy_plainly = copy_plainly
stream = checkpoint.stream(device, mode="per-tensor")
next(stream)
print("h2d")
"""

A_LOAD_AT_THE_VERY_END = """
class Last:
    def __init__(self):
        self.itself = self

    def __del__(self):
        assert sys.is_finalizing()
        try:
            checkpoint.load("cpu")
        except ColdctlError as error:
            print(error.message)


gc.disable()  # it goes with the collection that Python ends with
Last()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight layers of 2 MiB."""
    folder = tmp_path_factory.mktemp("layers")
    save(folder / "model.safetensors", {f"model.layers.{n}.mlp.up_proj.weight": made("U8", 2 * MIB) for n in range(8)})
    return folder


@pytest.mark.parametrize(
    "doing",
    [A_LOAD_THAT_FAILED, A_HANDLE, A_STREAM, A_STREAM_WITHOUT_A_DEADLINE],
    ids=["load", "handle", "stream", "plain"],
)
def test_the_interpreter_ends_though_a_copy_hangs(folder: Path, doing: str) -> None:
    done = run_python("-c", PRELUDE + doing, str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["h2d", "given back early [] left []"]


def test_a_load_while_the_interpreter_ends_is_refused(folder: Path) -> None:
    done = run_python("-c", PRELUDE + A_LOAD_AT_THE_VERY_END, str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    *_, last = done.stdout.splitlines()
    assert last == "cannot start a thread: the interpreter ends"
