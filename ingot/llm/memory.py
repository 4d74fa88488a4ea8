"""How much memory this process may still take, and how many blocks a cache needs."""

from __future__ import annotations

import resource
from pathlib import Path

_CGROUPS = (  # limit and use, of cgroup versions 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_UNKNOWN = 4 << 30  # a cautious guess where the system does not say


def cache_blocks(requests: int, context_length: int, block_size: int) -> int:
    """Blocks of keys and values with which so many requests of full length run at once."""
    return -(-context_length // block_size) * requests


def available_memory() -> int:
    """Bytes that can be taken without swapping: the system's estimate, or less where a control group or the process's
    limit of address space (`ulimit -v`) allows less."""
    found = [_UNKNOWN]
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found = [int(line.split()[1]) << 10]
    for limit, used in _CGROUPS:
        most, now = _read(limit).strip(), _read(used).strip()
        if most.isdigit() and now.isdigit():
            found.append(max(0, int(most) - int(now)))
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        pages, *_ = map(int, _read("/proc/self/statm").split() or ["0"])
        found.append(max(0, space - pages * resource.getpagesize()))
    return min(found)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
