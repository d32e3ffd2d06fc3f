"""The KV pool in blocks, with the prefix cache in the blocks that nobody owns."""

from collections import OrderedDict
from collections.abc import Sequence

Key = tuple[object, int]


class BlockPool:
    """Blocks are owned, or free; free ones may still hold a prefix and are reused least recently freed first.

    One block is vLLM's null block and never given out.
    """

    def __init__(self, blocks: int, caching: bool) -> None:
        self.usable = blocks - 1
        self.free = self.usable
        self._caching = caching
        self._owned: dict[Key, int] = {}  # cached content that somebody owns -> how many do
        # Reuse order: a cached block under its key, or a run of blocks without content under a number.
        self._queue: OrderedDict[Key | int, int] = OrderedDict({0: self.usable})
        self._runs = 0

    @property
    def usage(self) -> float:
        return 1.0 - self.free / self.usable

    def hits(self, keys: Sequence[Key]) -> int:
        """How many of the leading keys are in the pool."""
        if not self._caching:
            return 0
        for index, key in enumerate(keys):
            if key not in self._owned and key not in self._queue:
                return index
        return len(keys)

    def free_after(self, keys: Sequence[Key]) -> int:
        """Free blocks once `keys` (all hits) are owned again."""
        return self.free - sum(key in self._queue for key in keys)

    def acquire(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if key in self._queue:
                del self._queue[key]
                self.free -= 1
            self._owned[key] = self._owned.get(key, 0) + 1

    def allocate(self, count: int) -> None:
        """Take `count` free blocks (the caller has looked that they are there), evicting what they held."""
        self.free -= count
        while count:
            key, size = next(iter(self._queue.items()))
            if size > count:
                self._queue[key] = size - count
                return
            self._queue.popitem(last=False)
            count -= size

    def publish(self, key: Key) -> bool:
        """An owned block is full: others may find it. False if that content is already there."""
        if not self._caching or key in self._owned or key in self._queue:
            return False
        self._owned[key] = 1
        return True

    def release(self, keys: Sequence[Key], anonymous: int) -> None:
        """Give back published blocks (the last first, so that heads live longest) and `anonymous` others."""
        if anonymous:
            self._runs += 1
            self._queue[self._runs] = anonymous
            self.free += anonymous
        for key in reversed(keys):
            owners = self._owned[key] - 1
            if owners:
                self._owned[key] = owners
            else:
                del self._owned[key]
                self._queue[key] = 1
                self.free += 1
