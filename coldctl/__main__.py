"""`python -m coldctl` is `coldctl`."""

from __future__ import annotations

import sys

from coldctl.probe import main

sys.exit(main())
