"""The one place that maps exceptions to exit codes, and to the words that go with them."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from coldctl import __version__
from coldctl.errors import ColdctlError, EnvironmentLacksError, UsageError, from_os_error

BUG_EXIT_CODE = ColdctlError.exit_code

_MORE_MEMORY = "raise the memory limit of the process or of its container"
_MORE_THREADS = "raise the limit of processes (ulimit -u, or the container's pids limit)"


@dataclass(frozen=True, slots=True)
class Failure:
    """How a run ended that did not reach its result. `traceback` is null where it would help nobody."""

    code: str
    exit_code: int
    message: str
    hint: str | None = None
    traceback: str | None = None


def describe(error: BaseException, *, command: str | None, debug: bool, environ: Mapping[str, str]) -> Failure:
    """The Failure that `error` means. Our own bugs have a traceback, others only with `debug`."""
    failure = _failure(error, command, environ)
    if debug or failure.exit_code == BUG_EXIT_CODE:
        return replace(failure, traceback="".join(traceback.format_exception(error)))
    return failure


def _failure(error: BaseException, command: str | None, environ: Mapping[str, str]) -> Failure:
    usage = _parser_failure(error, command)
    if usage is not None:
        return usage
    known = _known(error)
    if known is None or known.exit_code == BUG_EXIT_CODE:
        return _bug(error)
    message = known.message
    if isinstance(known, UsageError):
        message += _variables_in_play(command, environ)
    return Failure(known.code, known.exit_code, message, known.hint)


def _known(error: BaseException) -> ColdctlError | None:
    if isinstance(error, ColdctlError):
        return error
    if isinstance(error, MemoryError):
        return EnvironmentLacksError("out of memory", hint=_MORE_MEMORY)
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return EnvironmentLacksError("cannot start a thread", hint=_MORE_THREADS)
    if isinstance(error, OSError) and error.errno is not None:
        return from_os_error(error, "use", _path_of(error))
    return _unusable_package(error) if isinstance(error, ImportError) else None


def _unusable_package(error: ImportError) -> EnvironmentLacksError | None:
    """The error for a package of others that is not there or does not load; null for a module of our own."""
    # numpy raises an error of its own, without a name, from the one that says which library would not load.
    named = next((cause for cause in _causes(error) if isinstance(cause, ImportError) and cause.name), None)
    if named is None or str(named.name).startswith("coldctl"):
        return None
    if isinstance(named, ModuleNotFoundError):
        return EnvironmentLacksError(f"the Python package {named.name} is missing", hint="install coldctl again")
    return EnvironmentLacksError(
        f"the Python package {named.name} does not load: {named.msg}", hint=f"install coldctl again, or {_MORE_MEMORY}"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _path_of(error: OSError) -> str:
    name = error.filename
    if isinstance(name, bytes):
        return os.fsdecode(name)
    if isinstance(name, str):
        return name
    # Only the current folder is looked for without a name, by os.getcwd. The link says that it was deleted.
    return os.readlink("/proc/self/cwd") if error.errno == errno.ENOENT else "what it needs"


def _bug(error: BaseException) -> Failure:
    return Failure(
        ColdctlError.code,
        BUG_EXIT_CODE,
        f"this is a bug of coldctl {__version__}: {type(error).__name__}: {error}",
        "please report it with the traceback and the command line",
    )


def _parser_failure(error: BaseException, command: str | None) -> Failure | None:
    """The Failure for what typer raises about a command line, null for all else.

    typer ships a copy of click whose module is private, and of its exceptions exports only BadParameter. That one
    derives from click's UsageError, and so all of them are reached through it.
    """
    typer = sys.modules.get("typer")
    if typer is None or not isinstance(error, typer.BadParameter.__mro__[1]):
        return None
    return Failure(UsageError.code, UsageError.exit_code, _parser_message(error), f"see {_help_of(command)}")


def _parser_message(error: BaseException) -> str:
    where = _where(error)
    if where is not None:
        # What pydantic (typer 0.29 and newer) puts before the text of a ValueError.
        text = str(getattr(error, "message", error)).removeprefix("Value error, ")
        return f"invalid value for {where}: {text}"
    format_message = getattr(error, "format_message", None)
    return str(format_message() if callable(format_message) else error)


def _where(error: BaseException) -> str | None:
    """The variable or the option that holds a bad value; null when the error is of another kind."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or parameter is None or not getattr(error, "message", ""):
        return None
    source = context.get_parameter_source(parameter.name)
    if source is not None and source.name == "ENVIRONMENT":
        return str(parameter.envvar or f"{context.auto_envvar_prefix}_{parameter.name.upper()}")
    return " / ".join(parameter.opts) if parameter.param_type_name == "option" else str(parameter.metavar)


def _help_of(command: str | None) -> str:
    return f"coldctl {command} --help" if command else "coldctl --help"


def _variables_in_play(command: str | None, environ: Mapping[str, str]) -> str:
    """Names the variables that set options of `command`: a bad value may have come from one of them."""
    if command is None:
        return ""
    prefix = f"COLDCTL_{command.upper()}_"
    names = sorted(name for name, value in environ.items() if name.startswith(prefix) and value)
    return f" (set in the environment: {', '.join(names)})" if names else ""
