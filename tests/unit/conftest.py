"""The checkpoint that tests of loads read, and what is in it. Modules may have a `folder` of their own instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.loads import library, save_mixed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of tensor (`tests.loads.save_mixed`). Nobody writes to it."""
    made = tmp_path_factory.mktemp("mixed")
    save_mixed(made)
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of `folder`, as the safetensors library reads them."""
    return library(folder)
