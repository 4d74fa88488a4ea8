"""Kernels that are compiled where no GPU is: what is launched is foreseen, and only what its key names is taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingot.backends.cuda.driver import ARCHITECTURES, architecture
from ingot.backends.device import device_of
from ingot.cli import main
from ingot.errors import UserError
from tests.backends.cuda.interpreted import LONG, WITHOUT
from tests.kept import PICO

pytest.importorskip("triton", reason=WITHOUT)
torch: Any = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]


def run(what: str, place: Path, **variables: str) -> dict[str, Any]:
    """What ahead_checks.py says."""
    env = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "INGOT_KERNELS")}
    env |= {"PYTHONPATH": str(ROOT), **variables}
    script = Path(__file__).with_name("ahead_checks.py")
    done = subprocess.run([sys.executable, script, what, place], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("checks", tmp_path_factory.mktemp("ahead"))


@LONG
def test_the_engine_is_the_same_and_kernels_lie_beside_it(found: dict[str, Any]) -> None:
    assert found["same file"]
    assert found["files"] == [".kernel"]  # nothing that a host would run
    assert found["again"]["kernels"] == found["launched"] >= 3 and found["again"]["compiled"] == 0
    assert found["driver"]  # Triton is left as it was


@LONG
def test_what_is_in_the_folder_is_not_compiled(found: dict[str, Any]) -> None:
    count = found["launched"]
    assert found["from the folder"] == {"compiled": 0, "had": count, "taken": count, "missed": 0}
    assert found["from the cache"] == {"compiled": 0, "had": count, "taken": 0, "missed": 0}
    assert found["binary"]


@LONG
def test_steps_are_compiled_before_they_launch(tmp_path: Path) -> None:
    """All that a step launches, and of the next one what is new; nothing is compiled twice. torch's compiler and
    algebra, whose import takes as long as that, are not."""
    found = run("steps", tmp_path)
    steps = found["compiled"]
    assert all(said == compiled for said, compiled in steps.values())
    assert steps["four rows"][0] > 8 and steps["again"][0] == 0
    assert 0 < steps["eight rows"][0] < steps["four rows"][0]
    assert steps["prompts"][0] > 0 and steps["prompts, drawn"][0] == 1
    assert not found["imported"]


@LONG
def test_another_process_compiles_beside_steps(tmp_path: Path) -> None:
    """It foresees the same kernels, under the same keys, and compiles each that this one does not."""
    found = run("beside", tmp_path)
    assert found.pop("closed")  # where the cache cannot be written
    assert len(found) == 3
    for said in found.values():
        assert said["own"] > 0 and said["beside"] == said["lacked"] - said["own"] > 0
        assert not said["left"] and not said["files"]


@LONG
def test_damaged_and_exchanged_files_are_said_and_not_taken(found: dict[str, Any]) -> None:
    good = found["launched"] - 3
    assert found["damaged"] == {"compiled": 3, "had": good, "taken": good, "missed": 3}
    damaged, exchanged, foreign = found["told"]
    assert "is damaged: its digest is another one; " in damaged and damaged.endswith(" is compiled here")
    assert "is no kernel of ingot's" in exchanged and "is no kernel of ingot's" in foreign
    assert found["mended"] == 3 and found["as before"]


@LONG
def test_folders_of_no_use_are_errors(found: dict[str, Any]) -> None:
    assert "are for sm_90 by Triton" in found["other GPU"] and "this GPU is sm_80" in found["other GPU"]
    assert "--device cuda:sm_80" in found["other GPU"]
    assert "holds no kernels" in found["empty"]
    assert found["no folder"].startswith("FileError") and "is no folder" in found["no folder"]
    assert "set TRITON_CACHE_DIR" in found["no cache"]
    assert "cannot be written" in found["no kernels' folder"]
    assert found["broken"].endswith("does not compile for sm_90: unknown instruction")
    assert "C compiler" in found["no compiler"] and "CC" in found["no compiler"]
    assert found["named"]["compiled"] == found["launched"] and found["named"]["for"] == "sm_90" and found["not named"]


@LONG
def test_an_architecture_is_no_device_to_run_on(found: dict[str, Any]) -> None:
    assert "run them on cuda or cuda:N" in found["session"] and found["cache"] == found["session"]
    assert "sm_80, sm_86, sm_89, sm_90" in found["architecture"]
    assert device_of("cuda:sm_90").is_architecture and not device_of("cpu").is_architecture


@LONG
def test_the_launches_of_a_language_model(found: dict[str, Any]) -> None:
    """Each kernel of a decoded row, of prompts, and of a choice."""
    both = {"choose", "decode_attention", "follow", "prefill_attention", "rotate_write", "take_inputs", "table_rows",
            "angles"}
    assert both | {"product_rows"} <= set(found["model, same"])
    assert both | {"product_integers", "group_tiles", "expand_groups"} <= set(found["model, int4-g32"])
    assert {"product_rows", "layer_norm", "finished"} <= set(found["GPT-2"])


def test_architectures() -> None:
    for word, known in ARCHITECTURES.items():
        assert architecture(word) is known and known.word == word
        assert known.multiprocessors and known.shared % 1024 == 0
    with pytest.raises(UserError, match="cuda:sm_75"):
        architecture("sm_75")


def test_the_interpreter_compiles_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    ahead: Any = pytest.importorskip("ingot.backends.cuda.ahead")
    with pytest.raises(UserError, match="TRITON_INTERPRET"):
        ahead.build_kernels(None, ARCHITECTURES["sm_90"], tmp_path, lambda *said: None, lambda usual: {})


def test_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = str(PICO)
    for device, words in (("cuda:sm_1", "sm_80, sm_86"), ("torch", "kernels for cuda:sm_90")):
        assert main.main(["build", source, "-o", str(tmp_path / "x.ingot"), "--device", device]) == 2
        assert words in capsys.readouterr().err
    for more in ([], ["--activations", "int8", "--data", "x.npz"]):  # either way what it advises is right
        words = ["build", "net.pt2", "-o", str(tmp_path / "x.ingot"), "--tune", "5", "--device", "cuda:sm_90", *more]
        assert main.main(words) == 2
        assert "cuda:sm_90 is no GPU of this machine: leave out --tune; or --device, to" in capsys.readouterr().err
    assert main.main(["doctor", "--device", "cuda:sm_90"]) == 0
    assert "ingot build --device cuda:sm_90" in capsys.readouterr().out
    assert main.main(["build", source, "-o", str(tmp_path / "x.ingot"), "--size", "N=1"]) == 2
    assert "--device cuda:sm_90" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
def test_on_a_gpu(tmp_path: Path) -> None:
    """A process that has the kernels, or Triton's warm cache, compiles nothing, launchers neither: of what runs on the
    host Triton's driver alone, once for all kernels."""
    assert run("gpu", tmp_path)["built"] > 20
    alone = run("gpu", tmp_path, TRITON_CACHE_DIR=str(tmp_path / "alone"))
    assert len(alone["compiled"]) > 20
    kernels = str(tmp_path / "all.cuda")
    given = run("gpu", tmp_path, TRITON_CACHE_DIR=str(tmp_path / "given"), INGOT_KERNELS=kernels)
    assert not given["compiled"] and given["had"] > 20
    assert alone["on the host"] == given["on the host"] == ["cuda_utils"]
    warm = run("gpu", tmp_path, TRITON_CACHE_DIR=str(tmp_path / "given"))
    assert not warm["compiled"] and not warm["on the host"]


def test_words_that_come_to_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of kernels where none run, and a file where one should be made, are said before any work."""
    engine = tmp_path / "pico.ingot"
    assert main.main(["generate", str(engine), "--prompt", "x", "--kernels", str(tmp_path)]) == 2
    assert "--kernels names kernels for NVIDIA GPUs, and this runs on cpu" in capsys.readouterr().err
    (tmp_path / "pico.ingot.cuda").touch()
    assert main.main(["build", str(PICO), "-o", str(engine), "--device", "cuda:sm_90"]) == 2
    assert "pico.ingot.cuda, where the kernels of" in capsys.readouterr().err and not engine.exists()
