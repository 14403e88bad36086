"""Things that are called *.safetensors and are something else, and names and links that trouble tools."""

from __future__ import annotations

import gzip
import pickle
import socket
import struct
from pathlib import Path

from tests.anomaly.hostile import (
    GOOD,
    INPUT_ERROR,
    FileRow,
    accept,
    entry,
    fifo,
    file_of,
    folder_with,
    link_to,
    reject,
    sparse,
)

_MIB = 1 << 20
_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4976698672\n"


def _socket(path: Path) -> None:
    # a socket's own path is limited to 108 bytes, so it is made under a short name and renamed
    short = Path("/tmp") / f"s{abs(hash(path)) % 10**8}"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(short))
    short.rename(path)


FILES: list[FileRow] = [
    reject("lfs_pointer", "header.length", _LFS, says="4,976,698,672 bytes"),
    reject("lfs_pointer_hint", "header.length", _LFS, says="git lfs pull"),
    reject("html", "header.length", b"<!DOCTYPE html><html><body>403</body></html>", says="HTML"),
    reject("html_after_newline", "header.length", b"\n\n  <HTML><body>Sign in</body></html>", says="HTML"),
    reject("xml", "header.length", b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>', says="XML"),
    reject("json_without_prefix", "header.length", b'{"w":{"dtype":"F32","shape":[1]}}', says="JSON"),
    reject("gguf", "header.length", b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(64), says="GGUF"),
    reject("ggml", "header.length", b"tjgg" + struct.pack("<II", 0, 0) + bytes(64), says="ggml"),
    reject("torch_zip", "header.length", b"PK\x03\x04\0\0\x08\x08" + bytes(64), says="zip"),
    reject("pickle", "header.length", pickle.dumps({"w": [1.0] * 20}, protocol=2), says="pickle"),
    reject("gzip", "header.length", gzip.compress(GOOD, mtime=0), says="gzip"),
    reject("zstd", "header.length", b"\x28\xb5\x2f\xfd\x24\x42\x11\x02" + bytes(64), says="zstd"),
    reject("hdf5", "header.length", b"\x89HDF\r\n\x1a\n" + bytes(64), says="HDF5"),
    reject("numpy", "header.length", b"\x93NUMPY\x01\0v\0" + bytes(118), says="NumPy"),
    reject("tar", "header.length", b"model.bin".ljust(257, b"\0") + b"ustar\x0000" + bytes(400), says="tar"),
    reject("onnx", "header.length", b"\x08\x08\x12\x07pytorch\x1a\x052.1.0" + bytes(64), says="ONNX"),
    reject("folder", INPUT_ERROR, folder_with("notes.txt")),
    reject("fifo", "file.not-regular", fifo, says="named pipe"),
    reject("socket", "file.not-regular", _socket, says="socket"),
    reject("device", "file.not-regular", link_to("/dev/zero"), says="character device"),
    reject("link_to_fifo", "file.not-regular", link_to("fifo.safetensors")),
    reject("link_to_itself", INPUT_ERROR, link_to("link_to_itself.safetensors"), says="back to itself"),
    reject("link_to_nothing", INPUT_ERROR, link_to("nothing"), says="link to nothing"),
    reject("below_a_file", INPUT_ERROR, link_to("two.safetensors/x")),
    accept("link_to_file", link_to("two.safetensors")),
    accept("sp ace 'q' $(x) ;名\n", GOOD),
    accept("not_utf8_\udce9", GOOD),
    accept(
        "hole",
        sparse(file_of({"w": entry(0, 8 * _MIB)}, 0), len(file_of({"w": entry(0, 8 * _MIB)}, 0)) + 8 * _MIB),
        "layout.sparse",
    ),
]
