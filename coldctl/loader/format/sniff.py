"""What a file really is when it is not safetensors, by its first bytes. Standard library only."""

from __future__ import annotations

PREFIX_BYTES = 512

_CONVERT = "convert it with its own library; renaming does not make it safetensors"
_UNPACK = "unpack it first"
_MAGIC = (
    (b"GGUF", "a GGUF file", _CONVERT),
    (b"tjgg", "a ggml file", _CONVERT),
    (b"lmgg", "a ggml file", _CONVERT),
    (b"fmgg", "a ggml file", _CONVERT),
    (b"PK\x03\x04", "a zip archive, such as torch.save writes", _CONVERT),
    (b"\x1f\x8b", "gzip-compressed", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", _UNPACK),
    (b"\xfd7zXZ\x00", "xz-compressed", _UNPACK),
    (b"BZh", "bzip2-compressed", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", _CONVERT),
    (b"\x93NUMPY", "a NumPy array", _CONVERT),
    (b"\x7fELF", "a program or library", "fetch the weights again"),
)
_HTML = (b"<!doctype html", b"<html", b"<head", b"<body")


def sniff(prefix: bytes) -> tuple[str, str] | None:
    """(what it is, what to do) for the first PREFIX_BYTES bytes of a file; None when they say nothing.

    A guess for messages only: nothing is decided by it.
    """
    for magic, kind, hint in _MAGIC:
        if prefix.startswith(magic):
            return kind, hint
    return _pickle(prefix) or _text(prefix) or _other(prefix)


def lfs_size_bytes(prefix: bytes) -> int | None:
    """The size of the real file that a git-lfs pointer stands for; None when `prefix` is no such pointer."""
    if not prefix.startswith(b"version https://git-lfs."):
        return None
    for line in prefix.splitlines():
        key, _, value = line.partition(b" ")
        if key == b"size" and value.isdigit() and len(value) <= 20:
            return int(value)
    return None


def _pickle(prefix: bytes) -> tuple[str, str] | None:
    if len(prefix) > 2 and prefix[0] == 0x80 and 2 <= prefix[1] <= 5:
        return "a pickle, such as old torch.save files are", _CONVERT
    return None


def _text(prefix: bytes) -> tuple[str, str] | None:
    if prefix.startswith(b"version https://git-lfs."):
        size_bytes = lfs_size_bytes(prefix)
        real = "" if size_bytes is None else f" for a file of {size_bytes:,} bytes"
        return f"a git-lfs pointer{real}", "run `git lfs pull` in the repository, or download the real file"
    start = prefix.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith(_HTML):
        return "an HTML page", "download the file again: the server sent a page instead, perhaps for want of a login"
    if start.startswith(b"<?xml"):
        return "an XML document", "download the file again: the server sent an error message instead"
    if prefix[:1] in (b"{", b"["):
        return "a JSON document", "a safetensors file has 8 bytes of length before its JSON: write it anew"
    return None


def _other(prefix: bytes) -> tuple[str, str] | None:
    if prefix[257:262] == b"ustar":
        return "a tar archive", _UNPACK
    if prefix[:1] == b"\x08" and prefix[2:3] == b"\x12" and (b"pytorch" in prefix[:64] or b"onnx" in prefix[:64]):
        return "an ONNX model", _CONVERT
    if prefix and not any(prefix):
        return "zeros from its start", "fetch the file again: space was allocated but never written"
    return None
