"""The machine that a benchmark ran on, as its kernel and its drivers describe it."""
