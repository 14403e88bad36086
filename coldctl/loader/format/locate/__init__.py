"""Which files a path means: a file, an index, or a folder with or without one (a hub-cache snapshot of links is one).

Standard library only, and little of it: a probe that runs every second imports this. No weight file is opened here.
"""

from __future__ import annotations

import os
import stat

from coldctl.errors import InputError, from_os_error
from coldctl.loader.format.locate.folder import (
    INDEX_SUFFIX,
    WEIGHTS_SUFFIX,
    Listing,
    choose_index,
    list_folder,
    without_index,
)
from coldctl.loader.format.locate.index import with_index
from coldctl.loader.format.locate.model import Fault, Located, Member
from coldctl.loader.regular import refusal

__all__ = ["Fault", "Located", "Member", "locate"]


def locate(path: str) -> Located:
    """The files of the checkpoint at `path`, and the faults of its index and folder.

    A file means that file alone, an index the shards that it names. In a folder the index decides; without one
    `model.safetensors`, else the one set named -00001-of-0000N, else all *.safetensors. Raises InputError when there
    is no such path or no checkpoint at it, EnvironmentLacksError or UnreadableError when it cannot be looked at. That
    a file is listed says that it is there and regular, not that it is sound.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError:
        raise InputError(f"no file can be called {path}", hint="check the path") from None
    except OSError as error:
        refused = refusal(error, path, path)
        if refused is None:
            raise from_os_error(error, "find", path) from error
        raise InputError(refused[1], hint="check the path") from error
    if stat.S_ISDIR(mode):
        return _folder(path)
    root, name = os.path.split(path)
    if name.endswith(INDEX_SUFFIX):
        return with_index(root or ".", name, _list(root or "."))
    return _single(root or ".", name, path)


def _list(folder: str) -> Listing:
    try:
        return list_folder(folder)
    except OSError as error:
        raise from_os_error(error, "list", folder) from error


def _folder(root: str) -> Located:
    listing = _list(root)
    index_name = choose_index(root, listing)
    if index_name is None:
        return without_index(root, listing)
    return with_index(root, index_name, listing)


def _single(root: str, name: str, path: str) -> Located:
    located = Located(root)
    located.single_file = True
    located.add_members([(name, path)])
    if not name.endswith(WEIGHTS_SUFFIX):
        located.faults.append(Fault("file.suffix", f"{name} does not end in {WEIGHTS_SUFFIX}", name))
    return located
