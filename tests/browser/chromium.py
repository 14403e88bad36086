"""A real Chromium without a window, driven by its command line."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

_CONSOLE = re.compile(r':CONSOLE[(:]\d+\)?\] "(.*)", source: ')


class Chromium:
    """Opens local files, each in a profile of its own below `folder`."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which("chromium")
        if found is None:
            pytest.skip("chromium is not installed")
        self._program = found
        self._folder = folder

    def screenshot(self, page: Path, *, width: int, height: int = 900, dark: bool = False) -> tuple[Path, list[str]]:
        """The top `height` pixels of the page as a PNG file, and what the page's console was told.

        A window is at least 500 pixels wide when it opens; the browser narrows it to `width` for the picture.
        """
        target = page.with_name(f"{page.stem}-{width}-{'dark' if dark else 'light'}.png")
        command = [
            self._program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--enable-logging=stderr",
            f"--user-data-dir={self._folder / 'profile'}",
            f"--window-size={width},{height}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--screenshot={target}",
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return target, _CONSOLE.findall(done.stderr)
