"""What the tests of the command line share: ways to run the program, and a small checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.cli.process import Run, run_python


@pytest.fixture
def coldctl() -> Run:
    """Run `coldctl ARGUMENTS…`; `environment` adds variables, other options go to subprocess.run."""
    return lambda *arguments, **options: run_python("-m", "coldctl", *arguments, **options)


@pytest.fixture
def coldctl_where() -> Run:
    """Run `coldctl ARGUMENTS…` after the Python statements in the first argument: for what no input can bring about."""

    def run(before: str, *arguments: str, **options: Any) -> Any:
        program = f"import sys\n{before}\nfrom coldctl.cli.main import main\nsys.exit(main())"
        return run_python("-c", program, *arguments, **options)

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with one safetensors file of two tensors."""
    folder = tmp_path / "model"
    folder.mkdir()
    weights: dict[str, np.ndarray[Any, Any]] = {
        "layers.0.weight": np.arange(4096, dtype=np.float32),
        "norm.weight": np.ones(7, dtype=np.float16),
    }
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder
