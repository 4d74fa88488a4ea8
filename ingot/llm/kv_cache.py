"""Which blocks of the key-value cache belong to whom: plain ints and lists, no devices, no arrays.

The cache is a pool of equal blocks of `block_size` token positions. An owner (a request id) has a block table:
position `p` of its sequence lives in block `table[p // block_size]` at offset `p % block_size`. The memory itself
belongs to the session.
"""

from __future__ import annotations

from ingot.errors import IngotError


class KVCache:
    """The pool and its block tables. Not safe from several threads: the engine loop owns it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a cache needs at least one block of one token, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # A stack, lowest block on top: blocks freed last are used first, so a lightly loaded cache touches little
        # memory.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._tables: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold `tokens` positions."""
        return -(-tokens // self.block_size)

    def allocate(self, owner: int, tokens: int) -> bool:
        """Gives a new owner room for `tokens` positions; False, and nothing changes, when too few blocks are free."""
        if owner in self._tables:
            raise ValueError(f"request {owner} has a block table already")
        self._tables[owner] = []
        if self.append(owner, tokens):
            return True
        del self._tables[owner]
        return False

    def append(self, owner: int, tokens: int) -> bool:
        """Grows an owner's table to `tokens` positions in all; False, and nothing changes, when too few blocks are
        free.
        """
        table = self._tables[owner]
        missing = self.blocks_for(tokens) - len(table)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            table.append(self._free.pop())
        return True

    def table(self, owner: int) -> list[int]:
        """The owner's blocks in order of position. The list is the cache's own and grows with it: read only."""
        return self._tables[owner]

    def owners(self) -> set[int]:
        """Everybody with a block table."""
        return set(self._tables)

    def free(self, owner: int) -> None:
        """Takes back every block of an owner, which is then unknown."""
        self._free.extend(reversed(self._tables.pop(owner)))

    def check_integrity(self) -> None:
        """Raises IngotError unless every block is free or owned, exactly once."""
        seen: dict[int, str] = {}
        holders = [
            ("the free list", self._free),
            *((f"request {owner}", table) for owner, table in self._tables.items()),
        ]
        for holder, blocks in holders:
            for block in blocks:
                if not 0 <= block < self.num_blocks:
                    raise IngotError(
                        f"the key-value cache is corrupt: {holder} holds block {block} of {self.num_blocks}"
                    )
                if block in seen:
                    raise IngotError(
                        f"the key-value cache is corrupt: block {block} is held by {seen[block]} and {holder}"
                    )
                seen[block] = holder
        if len(seen) != self.num_blocks:
            lost = sorted(set(range(self.num_blocks)) - set(seen))
            raise IngotError(f"the key-value cache is corrupt: nobody holds block(s) {lost[:20]}")
