"""What all tests share: tests marked `root` skip for other users, with the reason."""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["tests.skips"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="not root: needs loop devices, cgroups or other users"))
