"""The package's build hook: adds the compiled kernels where they can be compiled, and is none the worse without."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledKernels(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """An editable install finds the library in the source tree, a wheel carries it and is for this platform only;
        it is for every Python, as nothing in it knows of one."""
        if version == "editable":
            self._compile()
            return
        self._folder = tempfile.TemporaryDirectory(prefix="coldctl-build-")
        library = Path(self._folder.name, "libcoldctl.so")
        if self._compile(str(library)):
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
            build_data["force_include"][str(library)] = "coldctl/kernels/libcoldctl.so"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if version != "editable":
            self._folder.cleanup()

    def _compile(self, *target: str) -> bool:
        compiled = subprocess.run([sys.executable, str(Path(self.root, "native", "compile.py")), *target])
        if compiled.returncode:
            self.app.display_warning("coldctl: built without compiled kernels, which changes its speed alone")
        return compiled.returncode == 0
