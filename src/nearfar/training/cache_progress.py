"""Show the progress of computing cached activations."""

from __future__ import annotations

import time
from collections.abc import Callable

from tqdm import tqdm

from nearfar.formatting import counted, disk_size, duration
from nearfar.training.distributed import process_group

MESSAGE_INTERVAL = 30  # seconds between messages where there is no progress bar


class CacheProgress:
    """Shows how many images are done: a progress bar in a terminal, otherwise a message every 30 seconds."""

    def __init__(self, total: int, say: Callable[[str], object]) -> None:
        self.total, self.say, self.done, self.done_bytes = total, say, 0, 0
        hidden = None if process_group.is_main_process() else True  # with None, tqdm shows the bar only in a terminal
        self.bar = tqdm(total=total, desc="cache", unit="image", leave=False, disable=hidden)
        self.start = self.last_message = time.monotonic()

    def __enter__(self) -> CacheProgress:
        return self

    def update(self, count: int, size: int) -> None:
        """Add `count` images with `size` bytes of activations to those that are done, and show the progress."""
        self.done += count
        self.done_bytes += size
        self.bar.update(count)
        now = time.monotonic()
        if self.bar.disable and now - self.last_message > MESSAGE_INTERVAL:
            self.last_message = now
            speed = self.done / (now - self.start)
            left = duration((self.total - self.done) / speed)
            self.say(f"cached {self.done:,} of {self.total:,} images, {speed:.1f} images/s, {left} left")

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.done:
            seconds = time.monotonic() - self.start
            size = disk_size(self.done_bytes)
            self.say(f"cached {counted(self.done, 'image')} ({size}) in {duration(seconds)}")
