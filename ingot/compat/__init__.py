"""Network code written for TensorRT-LLM up to 1.2 runs on ingot: `ingot.compat.install()` registers its modules.

    import ingot.compat
    ingot.compat.install()
    import tensorrt_llm                     # ingot, under the names that the code knows

What the retired API had and ingot has is here under the same names; each other name is refused with what to write
instead (docs/migrating.md).
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from ingot.compat.modules import ROOTS, Finder, assembled
from ingot.compat.names import DOCS, TABLE
from ingot.errors import UserError

_finder = Finder()
_modules: dict[str, ModuleType] = {}
_shadowed: dict[str, ModuleType] = {}


def install(force: bool = False) -> None:
    """Registers `tensorrt_llm` and `tensorrt` with their submodules; once more does nothing.

    Args:
        force: also where the real packages are installed, which are then hidden until `uninstall`.

    Raises:
        UserError: a real `tensorrt` or `tensorrt_llm` is installed, and force is False.
    """
    if _modules:
        return
    real = [root for root in ROOTS if root in sys.modules or importlib.util.find_spec(root) is not None]
    if real and not force:
        raise UserError(
            f"the real {' and '.join(real)} {'is' if len(real) == 1 else 'are'} installed here; to run on ingot in its "
            "place, call ingot.compat.install(force=True), or leave the call out to keep it"
        )
    _shadowed.update({name: module for name, module in sys.modules.items() if name.partition(".")[0] in ROOTS})
    for name in _shadowed:
        del sys.modules[name]
    _modules.update(assembled(TABLE, DOCS))
    sys.modules.update(_modules)
    sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Takes the modules away again, and puts back real ones that `install(force=True)` has hidden."""
    if not _modules:
        return
    for name, module in _modules.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    sys.meta_path.remove(_finder)
    sys.modules.update(_shadowed)
    _modules.clear()
    _shadowed.clear()


__all__ = ["install", "uninstall"]
