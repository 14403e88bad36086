"""Variables that are set and that nothing reads: most likely a name that was misspelled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coldctl.cli.settings import NAMES

_PREFIX = "COLDCTL_"


def unknown_variables(environ: Mapping[str, str], options: Mapping[str, Iterable[str]]) -> list[str]:
    """A sentence about the COLDCTL_ variables in `environ` that no global setting and no option of any command reads;
    none where there are none. `options`: the names of the options of each command."""
    known = {
        f"{_PREFIX}{command}_{option}".upper().replace("-", "_")
        for command, names in options.items()
        for option in names
    }
    known.update(NAMES)
    unknown = sorted(name for name in environ if name.startswith(_PREFIX) and name not in known)
    if not unknown:
        return []
    return [f"set in the environment, but read by nothing: {', '.join(_guess(name, known) for name in unknown)}"]


def _guess(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(known), n=1, cutoff=0.9)
    return f"{name} (did you mean {near[0]}?)" if near else name
