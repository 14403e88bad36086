"""The exception tree: codes that do not clash, and system errors sorted into it."""

from __future__ import annotations

import copy
import errno
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from coldctl import errors

EXIT_CODES = {
    "ColdctlError": 70,
    "UsageError": 2,
    "RefusedError": 3,
    "UnreadableError": 3,
    "InputError": 4,
    "FaultError": 4,
    "ChangedError": 4,
    "EnvironmentLacksError": 5,
    "NoSpaceError": 6,
    "OutOfMemoryError": 5,
    "PinError": 5,
    "DeviceError": 5,
    "CorruptedError": 3,
    "CancelledError": 3,
    "NotLoadedError": 3,
}


def tree(root: type[errors.ColdctlError]) -> Iterator[type[errors.ColdctlError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_every_class_has_the_exit_code_that_is_promised() -> None:
    found = {kind.__name__: kind.exit_code for kind in tree(errors.ColdctlError) if kind is not errors.StoppedError}
    assert found == EXIT_CODES


@pytest.mark.parametrize(("number", "exit_code"), [(2, 130), (15, 143)])
def test_a_stop_has_the_exit_code_of_its_signal(number: int, exit_code: int) -> None:
    assert errors.StoppedError(number).exit_code == exit_code


def test_a_fault_carries_its_rule_and_place() -> None:
    fault = errors.FaultError("overlap", rule="header.overlap", file="a.safetensors", tensor="w", hint="rewrite it")
    assert (fault.code, fault.rule, fault.file, fault.tensor, fault.hint) == (
        "header.overlap",
        "header.overlap",
        "a.safetensors",
        "w",
        "rewrite it",
    )
    assert str(fault) == fault.message == "overlap"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, errors.InputError),
        (errno.ENOTDIR, errors.InputError),
        (errno.ELOOP, errors.InputError),
        (errno.EACCES, errors.EnvironmentLacksError),
        (errno.EPERM, errors.EnvironmentLacksError),
        (errno.EROFS, errors.EnvironmentLacksError),
        (errno.ENOSPC, errors.NoSpaceError),
        (errno.EDQUOT, errors.NoSpaceError),
        (errno.EFBIG, errors.NoSpaceError),
        (errno.EIO, errors.UnreadableError),
        (errno.EMFILE, errors.EnvironmentLacksError),
    ],
)
def test_a_system_error_finds_its_class(number: int, kind: type[errors.ColdctlError]) -> None:
    made = errors.from_os_error(OSError(number, os.strerror(number)), "read", "/a/b")
    assert type(made) is kind
    assert made.message == f"cannot read /a/b: {os.strerror(number)}"


def test_an_error_says_where_it_happened_once() -> None:
    error = errors.UnreadableError("cannot read a.safetensors at byte 7", file="a.safetensors", offset_bytes=7)
    error.locate(stage="read", tensor="w")
    error.locate(stage="h2d", tensor="other")
    assert str(error) == error.message == "cannot read a.safetensors at byte 7 (stage read, tensor w)"
    assert (error.stage, error.file, error.tensor, error.offset_bytes) == ("read", "a.safetensors", "w", 7)


def test_a_tensor_that_is_not_there_yet_is_a_key_error_that_reads_well() -> None:
    error = errors.NotLoadedError("w has not arrived")
    assert isinstance(error, KeyError)
    assert str(error) == "w has not arrived"


def made(kind: type[errors.ColdctlError]) -> errors.ColdctlError:
    """One of that class with everything set that it can carry."""
    error: errors.ColdctlError
    if issubclass(kind, errors.StoppedError):
        error = kind(signal.SIGTERM)
    elif issubclass(kind, errors.FaultError):
        error = kind("it overlaps", rule="header.overlap", file="a.safetensors", tensor="w", hint="rewrite it")
    else:
        error = kind("it failed", hint="try again", file="a.safetensors", offset_bytes=7)
    error.locate(stage="read", file="a.safetensors", tensor="w")
    return error


def said(error: BaseException) -> dict[str, object]:
    attributes = ("message", "hint", "file", "offset_bytes", "tensor", "stage", "exit_code", "code", "rule", "args")
    told = {name: getattr(error, name, None) for name in attributes}
    return told | {"kind": type(error), "str": str(error)} | vars(error)


AGAIN: list[Callable[[errors.ColdctlError], errors.ColdctlError]] = [
    *(lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol)) for protocol in range(6)),
    copy.copy,
    copy.deepcopy,
]


@pytest.mark.parametrize("kind", list(tree(errors.ColdctlError)), ids=lambda kind: kind.__name__)
def test_an_error_of_any_class_is_the_same_when_pickled_or_copied(kind: type[errors.ColdctlError]) -> None:
    error = made(kind)
    error.add_note("on rank 3")
    for again in AGAIN:
        other = again(error)
        assert other is not error
        assert said(other) == said(error)
        assert isinstance(other, kind)


def test_the_classes_are_all_of_the_module() -> None:
    """A class that is found by no introspection would be tested by none."""
    of_module = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert of_module <= set(tree(errors.ColdctlError))


def fails(number: int) -> None:
    raise made(list(tree(errors.ColdctlError))[number])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_every_error_comes_out_of_pools_of_processes() -> None:
    """A class that cannot be made again lets `multiprocessing.Pool` wait for ever, and breaks the executor."""
    forked = multiprocessing.get_context("fork")
    kinds = list(tree(errors.ColdctlError))
    with forked.Pool(1) as pool:
        for number, kind in enumerate(kinds):
            with pytest.raises(kind) as caught:
                pool.apply_async(fails, (number,)).get(timeout=60)
            assert said(caught.value) | {"__notes__": None} == said(made(kind)) | {"__notes__": None}
    with ProcessPoolExecutor(1, mp_context=forked) as executor:
        for number, kind in enumerate(kinds):
            with pytest.raises(kind):
                executor.submit(fails, number).result(timeout=60)
