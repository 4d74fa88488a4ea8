"""Files and folders that are no engines: what each is, and the command that takes it. Names and first bytes tell;
nothing is unpacked, unpickled or run.
"""

from __future__ import annotations

import difflib
import os
from itertools import islice
from pathlib import Path

EXPORT = "torch.export.save(torch.export.export(model.eval(), (x,)), 'model.pt2')"
ENDS = 1 << 16  # bytes at both ends of a file that are looked at
MAX_INSIDE = 100  # names in a folder that may be folders of models
MAX_NAMES = 1000  # in a folder, of which a name that was mistyped may mean one

_CONVERTED = "convert it to ONNX (python -m tf2onnx.convert), and build that: ingot build model.onnx"
_BUILT_OF = "build what it was made of: the ONNX file, the torch module, or the folder of the Hugging Face model"
_ARRAYS = "holds arrays and no network: give it to a run, ingot run ENGINE --input NAME={path}"
_WEIGHTS = "holds weights and no network: build takes the whole folder of a Hugging Face model, config.json included"
_SUFFIXES = {
    ".py": f"is Python code, which ingot does not run: import its module and build that, ingot.build(model, (x,)), or "
           f"save it, {EXPORT}, and build the file",
    ".ipynb": "is a notebook: call ingot.build(model, (x,)) in it",
    ".npy": _ARRAYS, ".npz": _ARRAYS, ".safetensors": _WEIGHTS, ".bin": _WEIGHTS,
    ".h5": f"is a file of Keras or HDF5: {_CONVERTED}", ".hdf5": f"is a file of HDF5: {_CONVERTED}",
    ".keras": f"is a Keras model: {_CONVERTED}", ".pb": f"is a TensorFlow graph: {_CONVERTED}",
    ".tflite": f"is a TensorFlow Lite model: {_CONVERTED}",
    ".mlmodel": f"is a Core ML model: {_BUILT_OF}", ".mlpackage": f"is a Core ML model: {_BUILT_OF}",
    ".engine": f"is an engine of TensorRT, for one kind of NVIDIA GPU: {_BUILT_OF}",
    ".plan": f"is an engine of TensorRT, for one kind of NVIDIA GPU: {_BUILT_OF}",
    ".trt": f"is an engine of TensorRT, for one kind of NVIDIA GPU: {_BUILT_OF}",
    ".pdmodel": f"is a Paddle model: {_BUILT_OF}",
    ".ort": "is a model in ONNX Runtime's own format: build the .onnx file that it was made of",
    ".json": "is text: build takes the folder that it is in, where that is a model's",
    **dict.fromkeys((".md", ".txt", ".csv", ".yaml", ".yml", ".toml", ".html"), "is text, and no network"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".wav", ".mp3"), "is data and no network: make an array of it, and give "
                    "that to a run"),
    **dict.fromkeys((".tar", ".gz", ".tgz", ".xz", ".bz2", ".zst", ".7z", ".rar"), "is an archive: unpack it, and give "
                    "the folder or the file of the model in it"),
}  # fmt: skip


def refusal(path: Path) -> str | None:
    """Why a file is nothing that can be opened or built, with the way out; None for an engine, .pt2, .onnx or .gguf
    file as it should be, and for what is not known.
    """
    ends = _ends(path)
    if ends is None:
        return None
    if ends.startswith(b"version https://git-lfs"):
        return f"{path} is a pointer that git LFS left in the place of the file: fetch the file itself, git lfs pull"
    if ends[:200].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return f"{path} is a web page, as a download leaves that went wrong: download the file again"
    if path.suffix in (".onnx", ".gguf"):
        return None
    if (why := _of_torch(path, ends)) is not None:
        return why
    if path.suffix == ".pt2":
        return None
    what = _SUFFIXES.get(path.suffix.lower())
    if what is None and ends.startswith(b"PK\x03\x04"):
        what = f"is a zip archive: unpack it, and give the folder of the model in it, ingot build {path.stem}"
    if what is None and ends.startswith(b"\x93NUMPY"):
        what = _ARRAYS
    if what in (_WEIGHTS, _SUFFIXES[".json"]) and (path.parent / "config.json").is_file():
        what = f"is a part of a model: build the folder that it is in, ingot build {path.parent}"
    return None if what is None else f"{path} {what.replace('{path}', str(path))}"


def _ends(path: Path) -> bytes | None:
    """The first and the last bytes of a file; None for what is no file, or cannot be read: the reader says it."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            head = file.read(ENDS)
            file.seek(max(path.stat().st_size - ENDS, 0))
            return head + file.read(ENDS)
    except OSError:
        return None


def _of_torch(path: Path, ends: bytes) -> str | None:
    """The same for files that torch writes in other formats than .pt2."""
    zipped, exported = ends[:4] == b"PK\x03\x04", b"/models/" in ends and b"/archive_format" in ends
    if zipped and (b"/code/__torch__" in ends or b"/constants.pkl" in ends):
        return (
            f"{path} is a TorchScript file, of a scripted or traced module: export the Python module that it was made "
            f"from, {EXPORT}"
        )
    if exported:
        wrong = f"{path} is a file of torch.export.save: give it a name ending in .pt2"
        return None if path.suffix == ".pt2" else wrong
    if zipped and b"/data.pkl" in ends or path.suffix != ".pt2" and ends[:2] in (b"\x80\x02", b"\x80\x04"):
        return (
            f"{path} is a file of torch.save, a pickle: reading it can run any code, so ingot never does, and weights "
            f"alone are no network. Load it into its module and export that, {EXPORT}"
        )
    return None


def to_build(path: Path) -> str | None:
    """What to do with a file or a folder that is built before it is run, where an engine is wanted; None for others."""
    if path.is_dir():
        of_it = f"ingot build {path} -o {path.resolve().name}.ingot"
        return folder(path) or f"{path} is a folder: build an engine of it first, {of_it}"
    if path.is_file() and path.suffix in (".onnx", ".pt2", ".gguf"):
        kind = {".onnx": "an ONNX file", ".pt2": "a file of torch.export.save"}.get(path.suffix, "a GGUF file")
        return f"{path} is {kind}: build an engine of it first, ingot build {path} -o {path.stem}.ingot"
    return None


def missing(path: Path) -> str | None:
    """What to say of a file that is not there; None for what does not look like the name of a file."""
    if path.suffix not in (".ingot", ".onnx", ".pt2", ".gguf", ".pt", ".pth", *_SUFFIXES) or path.exists():
        return None
    near = f": did you mean {likely}?" if (likely := _near(path)) else ""
    if path.suffix == ".ingot" and not near:
        near = f": build it first, ingot build SOURCE -o {path}"
    return f"{path}: there is no such file{near}"


def near_folder(path: Path) -> Path | None:
    """The folder that was probably meant by one that is not there: its name is close to this, or begins so."""
    try:
        with os.scandir(path.parent) as entries:
            folders = islice((entry.name for entry in entries if entry.is_dir()), MAX_NAMES)
            names = [name for name in folders if not name.startswith(".")]
    except OSError:
        return None
    begun = [name for name in names if name.startswith(path.name)] if len(path.name) > 2 else []
    found = difflib.get_close_matches(path.name, names, 1, 0.7) or (begun if len(begun) == 1 else [])
    return path.parent / found[0] if found else None


def _near(path: Path) -> Path | None:
    """A file or a folder beside it whose name is close."""
    try:
        names = _names(path.parent)
    except OSError:
        return None
    found = difflib.get_close_matches(path.name, names, 1, 0.7)
    return path.parent / found[0] if found else None


def _names(path: Path) -> list[str]:
    """Of what lies in a folder, MAX_NAMES at most. Raises OSError."""
    with os.scandir(path) as entries:
        return [entry.name for entry in islice(entries, MAX_NAMES)]


def folder(path: Path) -> str | None:
    """Why a folder is no model, with the way out; None where it has a config.json, or nothing is known of it."""
    try:
        names = sorted(_names(path))
    except OSError:
        return None
    if "config.json" in names:
        return None
    if "adapter_config.json" in names:
        return f"{path} is a LoRA adapter: build its base model with it, ingot build BASE --lora {path}"
    if "model_index.json" in names:
        return f"{path} is a pipeline of diffusers: export its parts one by one, {EXPORT}, and build these files"
    if "saved_model.pb" in names:
        return f"{path} is a SavedModel of TensorFlow: {_CONVERTED}"
    if any(name.endswith(".kernel") for name in names):
        return f"{path} is a folder of compiled kernels: run their engine with it, --device cuda --kernels {path}"
    files = [name for name in names if name.endswith((".ingot", ".onnx", ".pt2"))]
    if files:
        more = f", or another of its {len(files)}" if len(files) > 1 else ""
        return f"{path} is a folder and no model: give the file in it, {path / files[0]}{more}"
    if any(name.endswith((".safetensors", ".bin")) for name in names):
        return f"{path} has weights but no config.json, which says what they are of: download the model's whole folder"
    inside = (path / name for name in names[:MAX_INSIDE] if (path / name / "config.json").is_file())
    near = f": did you mean {model}, a folder in it?" if (model := next(inside, None)) else ""
    return f"{path} has no config.json, so it is not a Hugging Face model directory{near}"
