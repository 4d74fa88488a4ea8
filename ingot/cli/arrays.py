"""Arrays from and to .npy and .npz files, as the commands take and write them."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingot import dtypes, npz_file
from ingot.engine.session import Port
from ingot.errors import FileError, UserError
from ingot.llm.memory import available_memory
from ingot.npz_file import read_npy
from ingot.written import beside, write_whole

__all__ = ["fitted", "read_npy", "read_npz", "storable", "write_arrays"]

Array = np.ndarray[Any, Any]


def read_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of a .npz file by name. Raises FileError, and MemoryLimitError before it unpacks more than this
    machine has memory for.
    """
    return npz_file.read_npz(path, available_memory())


def fitted(array: Array, port: Port) -> Array:
    """The array as an input takes it, where only the file's format stands between. .npy has no name for bfloat16: its
    bits (as 'V2'), and float32 with values that bfloat16 has, are taken for it. The other byte order is converted.
    """
    wanted = dtypes.get(port.dtype).numpy
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if port.dtype != "bfloat16" or array.dtype == wanted:
        return array
    if array.dtype == np.dtype("V2"):
        return array.view(wanted)
    if array.dtype == np.float32:
        narrow: Array = array.astype(wanted)
        if np.array_equal(narrow.astype(np.float32), array, equal_nan=True):
            return narrow
    return array


def storable(array: Array) -> Array:
    """The array as .npy can hold it: bfloat16 becomes float32, which has all its values."""
    return array.astype(np.float32) if dtypes.get(array.dtype) is dtypes.bfloat16 else array


def check_name(path: str, results: Sequence[str]) -> None:
    """Raises UserError for a path that write_arrays would take otherwise than it looks."""
    kind = Path(path).suffix
    if kind == ".npy" and len(results) != 1:
        raise UserError(f"-o {path}: one .npy file holds one array, and there are {len(results)}: write to a .npz file")
    if kind not in ("", ".npy", ".npz") and not path.endswith("/") and not Path(path).is_dir():
        raise UserError(f"-o {path}: write to a .npz file, to a .npy file, or to a folder, {path}/")


def write_arrays(path: str, arrays: Mapping[str, Array]) -> None:
    """Writes NAME.npy files into one .npz file, when the path ends so, or else into a folder; an only array into a file
    that ends in .npy. Raises FileError, and UserError as check_name does.
    """
    check_name(path, list(arrays))
    if path.endswith(".npy"):
        (array,) = arrays.values()
        write_whole(Path(path), _npy(array))
        return
    if not path.endswith(".npz"):
        _write_folder(Path(path), arrays)
        return
    with beside(Path(path)) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            # A fixed date: the same results are the same file.
            member = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, storable(array), allow_pickle=False)


def _write_folder(folder: Path, arrays: Mapping[str, Array]) -> None:
    for name in arrays:  # an engine from elsewhere must not choose where files go
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise UserError(f"output {name!r} cannot be the name of a file: write to a .npz file instead")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise FileError(f"{folder} cannot be written: {e.strerror}") from None
    for name, array in arrays.items():
        write_whole(folder / f"{name}.npy", _npy(array))


def _npy(array: Array) -> bytes:
    data = io.BytesIO()
    np.lib.format.write_array(data, storable(array), allow_pickle=False)
    return data.getvalue()
