"""Errors that hold nothing but what they say."""

from __future__ import annotations

import traceback


def forget_frames(error: BaseException) -> None:
    """Let go of the memory of a load that failed: the frames of the traceback would hold it as long as the error."""
    chain: list[BaseException | None] = [error]
    while chain:
        if (seen := chain.pop()) is not None:
            traceback.clear_frames(seen.__traceback__)
            chain += [seen.__cause__, seen.__context__]
