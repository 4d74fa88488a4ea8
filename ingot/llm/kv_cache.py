"""Which blocks of the KV cache belong to whom: plain ints and lists, no devices, no arrays.

The cache is a pool of equal blocks of `block_size` token positions. An owner (a request id) has a block table:
position `p` of its sequence lives in block `table[p // block_size]` at offset `p % block_size`. The memory itself
belongs to the session.

Full blocks are *named* by what they hold: their tokens, and the name of the block before. A new owner whose tokens
begin as others' did gets those blocks again, shared and counted. A named block that nobody owns can be found until
its memory is needed; the one that has been unowned for longest goes first. Since an owner lets go of its blocks from
the last to the first, the end of a sequence goes before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from ingot.errors import IngotError

RELEASED = -1  # stands in a table for a block that lies before everything its owner still attends to

Name = tuple[int, tuple[int, ...]]  # number of the block content before, and the tokens


class _Owner:
    """A block table. `named`: how many leading blocks have a name; `content`: the number of the last such content."""

    __slots__ = ("content", "named", "released", "table")

    def __init__(self, table: list[int], named: int, content: int) -> None:
        self.table = table
        self.named = named
        self.content = content
        self.released = 0


class KVCache:
    """The pool and its block tables. Not safe from several threads: the engine loop owns it.

    Args:
        num_blocks, block_size: the pool.
        reuse: whether full blocks are found again by their tokens.
    """

    def __init__(self, num_blocks: int, block_size: int, reuse: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a cache needs at least one block of one token, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reuse = reuse
        self.tokens_asked = 0  # of owners that came with their tokens
        self.tokens_found = 0  # of those, how many were there already
        # A stack, lowest block on top: blocks freed last are used first, so a lightly loaded cache touches little
        # memory.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # named blocks without owner, the longest unowned first
        self._owners_of = [0] * num_blocks
        self._owners: dict[int, _Owner] = {}
        self._block_by_name: dict[Name, tuple[int, int]] = {}  # → block, number of its content
        self._name_of: dict[int, Name] = {}
        self._roots: dict[Hashable, int] = {}
        self._contents = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns, those that can still be found by their tokens included."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        """Blocks that nobody owns and that can be found by their tokens."""
        return len(self._idle)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold `tokens` positions."""
        return -(-tokens // self.block_size)

    def allocate(
        self, owner: int, length: int, tokens: Sequence[int] | None = None, salt: Hashable = None
    ) -> int | None:
        """Gives a new owner room for `length` positions.

        Args:
            tokens: what the positions will hold; blocks that hold the same already are shared. At least one token is
                left to compute, since its logits are wanted.
            salt: only owners of an equal salt share blocks (an adapter, a tenant).

        Returns how many leading positions are there already; None, and nothing changes, when too few blocks are free.
        """
        if owner in self._owners:
            raise ValueError(f"request {owner} has a block table already")
        content = self._root(salt)
        found: list[int] = []
        if tokens is not None and self.reuse:
            found, content = self._match(tokens, content)
        kept = sum(1 for block in found if not self._owners_of[block])  # idle now, no longer free then
        if self.blocks_for(length) - len(found) > self.num_free - kept:
            return None
        for block in found:
            self._take(block)
        hit = len(found) * self.block_size
        self._owners[owner] = _Owner(found, len(found), content)
        self.append(owner, length)
        if tokens is not None:
            self.tokens_asked += length
            self.tokens_found += hit
        return hit

    def append(self, owner: int, length: int) -> bool:
        """Grows an owner's table to `length` positions in all; False, and nothing changes, when too few blocks are
        free.
        """
        table = self._owners[owner].table
        missing = -(-length // self.block_size) - len(table)
        if missing <= 0:
            return True
        if missing > len(self._free) + len(self._idle):
            return False
        for _ in range(missing):
            block = self._free.pop() if self._free else self._evict()
            self._owners_of[block] = 1
            table.append(block)
        return True

    def record(self, owner: int, tokens: Sequence[int], computed: int) -> None:
        """Names the blocks that are full now that `computed` positions, those of `tokens`, have been computed."""
        if not self.reuse:
            return
        has, size = self._owners[owner], self.block_size
        while (has.named + 1) * size <= computed:
            block = has.table[has.named]
            start = has.named * size
            name = (has.content, tuple(tokens[start : start + size]))
            known = self._block_by_name.get(name)
            if known is None:
                self._contents += 1
                known = self._block_by_name[name] = (block, self._contents)
                self._name_of[block] = name
            has.content = known[1]  # another block may hold the same: then this one stays without a name
            has.named += 1

    def release(self, owner: int, before: int) -> None:
        """Gives back the blocks whose positions all lie before `before`: nothing will attend to them again."""
        has = self._owners[owner]
        last = min(before // self.block_size, has.named if self.reuse else len(has.table), len(has.table))
        while has.released < last:
            self._drop(has.table[has.released])
            has.table[has.released] = RELEASED
            has.released += 1

    def trim(self, owner: int, length: int) -> None:
        """Takes back the blocks behind those of `length` positions. They must be of tokens that were never accepted."""
        has = self._owners[owner]
        kept = self.blocks_for(length)
        if kept < max(has.named, has.released):
            raise ValueError(f"request {owner} has {has.named} blocks that can be found by their tokens, not {kept}")
        if kept < len(has.table):
            for block in reversed(has.table[kept:]):
                self._drop(block)
            has.table = has.table[:kept]

    def table(self, owner: int) -> list[int]:
        """The owner's blocks in order of position. The list is the cache's own: read only.

        It grows with the owner; when blocks are taken off its end there is another list in its place.
        """
        return self._owners[owner].table

    def named(self, owner: int) -> int:
        """How many of the owner's leading blocks can be found by their tokens, or could be but for an equal one."""
        return self._owners[owner].named

    def owners(self) -> set[int]:
        """Everybody with a block table."""
        return set(self._owners)

    def free(self, owner: int) -> None:
        """Takes back every block of an owner, which is then unknown."""
        has = self._owners.pop(owner)
        for block in reversed(has.table[has.released :]):
            self._drop(block)

    def forget(self) -> None:
        """No block is found by its tokens any more: the weights have changed. Tables stay as they are."""
        self._free.extend(reversed(self._idle))
        self._idle.clear()
        self._block_by_name.clear()
        self._name_of.clear()
        self._roots.clear()
        for has in self._owners.values():
            self._contents += 1  # what is named from now on follows a content that nobody can find
            has.content = self._contents

    def _root(self, salt: Hashable) -> int:
        if salt not in self._roots:
            self._contents += 1
            self._roots[salt] = self._contents
        return self._roots[salt]

    def _match(self, tokens: Sequence[int], content: int) -> tuple[list[int], int]:
        """The blocks that hold a beginning of `tokens`, its last token excluded."""
        found: list[int] = []
        size = self.block_size
        for start in range(0, (len(tokens) - 1) // size * size, size):
            known = self._block_by_name.get((content, tuple(tokens[start : start + size])))
            if known is None:
                break
            block, content = known
            found.append(block)
        return found, content

    def _take(self, block: int) -> None:
        if not self._owners_of[block]:
            del self._idle[block]
        self._owners_of[block] += 1

    def _drop(self, block: int) -> None:
        self._owners_of[block] -= 1
        if self._owners_of[block]:
            return
        if block in self._name_of:
            self._idle[block] = None
        else:
            self._free.append(block)

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        del self._block_by_name[self._name_of.pop(block)]
        return block

    def check_integrity(self) -> None:
        """Raises IngotError unless every block is free, idle or owned, its owners are counted, and names fit."""
        owned = [0] * self.num_blocks
        for owner, has in self._owners.items():
            if has.named > len(has.table):
                raise _corrupt(f"request {owner} has {has.named} named blocks of {len(has.table)}")
            for i, block in enumerate(has.table):
                if (block == RELEASED) != (i < has.released):
                    raise _corrupt(f"request {owner} has released {has.released} blocks, and block {i} is {block}")
                if block != RELEASED:
                    if not 0 <= block < self.num_blocks:
                        raise _corrupt(f"request {owner} holds block {block} of {self.num_blocks}")
                    owned[block] += 1
        if owned != self._owners_of:
            wrong = [b for b in range(self.num_blocks) if owned[b] != self._owners_of[b]]
            raise _corrupt(f"the owners of block(s) {wrong[:20]} are miscounted")
        places = {"owned": {b for b in range(self.num_blocks) if owned[b]}, "idle": set(self._idle)}
        seen: dict[int, str] = {}
        for place, blocks in (("free", self._free), *places.items()):
            for block in blocks:
                if not 0 <= block < self.num_blocks:
                    raise _corrupt(f"block {block} of {self.num_blocks} is {place}")
                if block in seen:
                    raise _corrupt(f"block {block} is {seen[block]} and {place}")
                seen[block] = place
        if len(seen) != self.num_blocks:
            raise _corrupt(f"nobody holds block(s) {sorted(set(range(self.num_blocks)) - set(seen))[:20]}")
        if {block: name for name, (block, _) in self._block_by_name.items()} != self._name_of:
            raise _corrupt("blocks and names disagree")
        if nameless := places["idle"] - set(self._name_of):
            raise _corrupt(f"idle block(s) {sorted(nameless)[:20]} have no name")
        if lost := {block for block in self._free if block in self._name_of}:
            raise _corrupt(f"free block(s) {sorted(lost)[:20]} have a name")


def _corrupt(why: str) -> IngotError:
    return IngotError(f"the KV cache is corrupt: {why}")
