"""What goes wrong outside of us: one readable error each from the command line, with the code of docs/errors.md."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attacks.directories import Directory
from ingot import load
from tests.cli.command import run

# The shape of a model of 200 MB in bfloat16: large enough to be met while it is written.
LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6, "vocab_size": 8192,
         "num_attention_heads": 16, "num_key_value_heads": 8}  # fmt: skip


def ingot(*arguments: str | Path, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """A command; in a process of its own where that has a limit."""
    if limit is None:
        return run(*arguments)
    return subprocess.run(
        [sys.executable, "-m", "ingot", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=limit,
    )


def fails(done: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    """The command ended with this code and one readable error, and no traceback."""
    assert done.returncode == code, done.stderr
    assert re.search(message, done.stderr, re.DOTALL), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("ingot: error:") == 1
    assert "internal error" not in done.stderr


def random_model(folder: Path, **changes: object) -> Path:
    """A directory with nothing but config.json."""
    made = Directory(files={"no.bin": b""})
    made.config.update(changes)
    made.write(folder)
    (folder / "no.bin").unlink()
    return folder


def parts(folder: Path) -> list[str]:
    """What lies in a folder where only the model directory should."""
    return [name for name in os.listdir(folder) if name != "model"]


# ------------------------------------------------------------------------------------------------- wrong sources


def test_no_such_file() -> None:
    fails(ingot("generate", "nowhere.ingot", "--prompt", "x"), 2, "nowhere.ingot")


def test_a_hub_id_that_is_no_folder() -> None:
    done = ingot("generate", "meta-llama/Llama-3.2-1B", "--prompt", "x")
    fails(done, 2, r"hf download meta-llama/Llama-3\.2-1B --local-dir")


def test_an_unknown_architecture(tmp_path: Path) -> None:
    made = Directory()
    made.config.update(architectures=["EvilForCausalLM"], model_type="evil")
    made.write(tmp_path / "model")
    fails(ingot("build", tmp_path / "model", "-o", tmp_path / "x.ingot"), 2, "EvilForCausalLM.*LlamaForCausalLM")
    assert parts(tmp_path) == []


def test_missing_weights_are_listed_all_at_once(tmp_path: Path) -> None:
    made = Directory()
    del made.tensors["model.norm.weight"], made.tensors["lm_head.weight"]
    made.write(tmp_path / "model")
    done = ingot("build", tmp_path / "model", "-o", tmp_path / "x.ingot")
    fails(done, 2, "lm_head.weight")
    assert "model.norm.weight" in done.stderr
    assert parts(tmp_path) == []


def test_an_engine_of_another_precision_is_not_converted(pico_engine: Path) -> None:
    done = ingot("generate", pico_engine, "--prompt", "x", "--precision", "float32")
    fails(done, 2, "(?=.*float32)(?=.*bfloat16)")


def test_a_file_that_is_no_engine(tmp_path: Path) -> None:
    (tmp_path / "x.ingot").write_bytes(b"\x7fELF" * 2000)
    fails(ingot("generate", tmp_path / "x.ingot", "--prompt", "x"), 2, "x.ingot")


def test_a_prompt_longer_than_the_context(pico_engine: Path, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt"
    prompt.write_text("import os\n" * 2000)
    fails(ingot("generate", pico_engine, "--prompt-file", prompt), 2, "1024|1,024")


def test_a_sampling_value_out_of_range(pico_engine: Path) -> None:
    fails(ingot("generate", pico_engine, "--prompt", "x", "--top-p", "2"), 2, "top_p|top-p")


# ------------------------------------------------------------------------------------------------- places to write


def test_a_file_too_large_for_the_disk(pico: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    fails(ingot("build", pico, "-o", tmp_path / "x.ingot", "--no-report", limit=limit), 2, "x.ingot.*(large|space)")
    assert parts(tmp_path) == []


def test_a_full_disk(pico: Path, tmp_path: Path) -> None:
    """A file system of 4 MB in a mount namespace of its own, where the system allows that."""
    build = f"{sys.executable} -m ingot build {pico} -o {tmp_path}/x.ingot --no-report"
    script = f"mount -t tmpfs -o size=4m none {tmp_path} && {build}; code=$?; ls -A {tmp_path}; exit $code"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("the system allows no mount namespace")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=300)
    fails(done, 2, "No space left on device")
    assert done.stdout == "", "something was left behind"


def test_a_folder_that_cannot_be_written(pico: Path) -> None:
    # Not even root may create files in sysfs.
    fails(ingot("build", pico, "-o", "/sys/x.ingot", "--no-report"), 2, "/sys/x.ingot.*(denied|permitted|ead-only)")


def test_a_folder_that_is_not_there(pico: Path, tmp_path: Path) -> None:
    fails(ingot("build", pico, "-o", tmp_path / "no" / "x.ingot", "--no-report"), 2, "there is no folder")


def test_a_folder_as_output(pico: Path, tmp_path: Path) -> None:
    fails(ingot("build", pico, "-o", tmp_path, "--no-report"), 2, "folder")


# ------------------------------------------------------------------------------------------------- memory, interrupts


def test_out_of_memory(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    huge = {"hidden_size": 8192, "intermediate_size": 32768, "num_attention_heads": 64, "num_key_value_heads": 64}
    folder = random_model(tmp_path / "model", **huge)
    done = ingot("build", folder, "-o", tmp_path / "x.ingot", "--weights-from", "random", "--no-report", limit=limit)
    fails(done, 1, "memory")
    assert parts(tmp_path) == []


def test_ctrl_c_as_soon_as_the_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal may be seen when the file has been made and the call that made it has not returned."""
    plain = os.open

    def interrupted(path: Any, flags: int, *rest: Any) -> int:
        descriptor = plain(path, flags, *rest)
        if flags & os.O_CREAT:
            os.close(descriptor)
            raise KeyboardInterrupt
        return descriptor

    engine = load(Path(__file__).parent / "engine/golden/convnet-float32.ingot")
    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.save(tmp_path / "x.ingot")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_building_leaves_nothing(tmp_path: Path) -> None:
    folder = random_model(tmp_path / "model", **LARGE)
    command = [sys.executable, "-m", "ingot", "build", str(folder), "-o", str(tmp_path / "x.ingot"), "--no-report"]
    for _ in range(10):  # the file may be whole before we look, or before the signal is seen
        with subprocess.Popen([*command, "--weights-from", "random"], stdout=-1, stderr=-1, text=True) as process:
            while process.poll() is None and not parts(tmp_path):
                time.sleep(0.0005)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=300)
        assert process.returncode in (0, 130), errors
        assert "Traceback" not in errors
        if not parts(tmp_path):
            assert process.returncode == 130
            break
        assert parts(tmp_path) == ["x.ingot"]  # never a file of another name, and this one is whole
        assert ingot("inspect", tmp_path / "x.ingot", "--verify").returncode == 0
        (tmp_path / "x.ingot").unlink()
    else:
        pytest.fail("no signal came while the file was being written")


SHORTENED = """
import os, sys
from ingot.engine.session import load
engine = load(sys.argv[1])
os.truncate(sys.argv[1], 4096 * (os.path.getsize(sys.argv[1]) // 8192))
for name in engine.header["weights"]:
    engine.tensor(name).sum()
print("unreachable")
"""


def test_an_engine_shortened_under_its_mapping(pico_engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.ingot"
    shutil.copyfile(pico_engine, path)
    done = subprocess.run([sys.executable, "-c", SHORTENED, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done
    assert "short.ingot was shortened" in done.stderr
    assert "unreachable" not in done.stdout


def test_json_is_the_last_line_and_one_object(pico_engine: Path) -> None:
    done = ingot("generate", pico_engine, "--prompt", "import os", "--max-tokens", "4", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["schema"] == 1
