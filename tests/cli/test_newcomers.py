"""What a newcomer types wrong, or takes for granted: each command says what it made of it and what to do."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import nn
from ingot.cli.main import main
from ingot.cli.output import phases
from ingot.cli.typed import as_typed
from ingot.serve.server import SIGNALS
from tests.kept import PICO

Captured = pytest.CaptureFixture[str]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: ingot.Tensor) -> Any:
        return {"y": self.layer(x)}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "net.ingot"
    spec = ingot.Spec((ingot.Dim("N", 1, max=64), ingot.Dim("M", 1, max=64), 8), "float32")
    ingot.build(Net(), {"x": spec}, weights_from="random").save(path)
    return path


def failing(capsys: Captured, *words: object) -> str:
    """What a command that is the user's mistake says on standard error."""
    try:
        code: Any = main([str(word) for word in words])
    except SystemExit as e:
        code = e.code
    assert code == 2, capsys.readouterr()
    return str(capsys.readouterr().err)


def test_a_mistyped_word_is_shown_with_its_near_miss(capsys: Captured) -> None:
    said = failing(capsys, "build", PICO, "--percision", "bfloat16")
    assert "ingot build: error: there is no option --percision: did you mean --precision? (ingot build --help" in said
    assert len(said.splitlines()) == len(failing(capsys, "diff", "a.ingot").splitlines()) == 1
    both = failing(capsys, "run", "net.ingot", "--radnom", "--siez=N=4")
    assert "--radnom: did you mean --random?; there is no option --siez: did you mean --size?" in both
    for words, near in (
        (("generate", "m.ingot", "--promt", "x"), "--promt: did you mean --prompt?"),
        (("score", "m.ingot", "--txt=a"), "--txt: did you mean --text?"),
    ):
        assert f"there is no option {near}" in (said := failing(capsys, *words)) and "required" not in said
    assert "required: --text" in failing(capsys, "score", "m.ingot", "--", "--txt")
    assert "is required" in failing(capsys, "generate", "m.ingot", "--max-tok", "3")
    assert "there is no option --zzzz (" in failing(capsys, "doctor", "--zzzz")
    assert "nothing takes one too: ingot doctor --help" in failing(capsys, "doctor", "net.ingot", "one", "too")
    assert "'buidl' is none of build, " in (said := failing(capsys, "buidl", PICO)) and "did you mean build?" in said
    assert "did you mean bfloat16?" in failing(capsys, "build", PICO, "--precision", "bfloat61")
    assert "did you mean int4-g32?" in failing(capsys, "build", PICO, "--weights", "int4")
    assert "--temperature: 'hot' is no number (" in failing(capsys, "chat", PICO, "--temperature", "hot")
    assert "--top-k: 'two' is no whole number (" in failing(capsys, "chat", PICO, "--top-k", "two")
    assert "there is no op matmull: did you mean matmul?" in failing(capsys, "ops", "matmull")


def test_a_word_of_another_command_or_program_is_shown_with_ours(capsys: Captured) -> None:
    said = failing(capsys, "build", PICO, "--quantize", "int8")
    assert "there is no option --quantize: did you mean --weights or --activations? (" in said
    assert "--dtype: did you mean --precision? (" in failing(capsys, "generate", PICO, "--prompt", "x", "--dtype=half")
    assert "there is no option --prompt: use ingot generate for it (" in failing(capsys, "run", PICO, "--prompt", "hi")
    said = failing(capsys, "build", PICO, "--threads", "2")
    assert re.search(r"no option --threads: use (ingot \w+, ){4}… for it", said)
    said = failing(capsys, "build", PICO, "--weights", "int4-g128-int8")
    assert "is none of same, int8, " in said and said.endswith(": write --weights int4-g128 --activations int8 "
                                                               "(ingot build --help explains it)\n")  # fmt: skip
    with pytest.raises(ingot.IngotError, match="'int4-g128-int8': write weights='int4-g128', activations='int8'"):
        ingot.build(PICO, weights="int4-g128-int8")


def test_activations_of_a_net_want_data_first(capsys: Captured) -> None:
    """With weights of int8 alone, which other models get told to give, its convolutions would stay float."""
    for more in ((), ("--weights", "same")):
        said = failing(capsys, "build", "cnn.pt2", "--activations", "int8", "-o", "x.ingot", *more)
        assert "give samples of its inputs, --data calib.npz" in said and "give both" not in said


def test_a_profile_without_a_folder_is_refused_before_the_model_is_read(capsys: Captured) -> None:
    said = failing(capsys, "bench", "no-such-model.ingot", "--profile", "/nosuch/t.json")
    assert "/nosuch/t.json cannot be written: there is no folder /nosuch" in said


def test_an_argument_of_the_library_is_named_as_it_was_typed(capsys: Captured) -> None:
    said = failing(capsys, "generate", PICO, "--prompt", "x", "--top-p", 3, "--max-tokens", 0)
    assert "error: --max-tokens must be an integer from 1 to 1000000, not 0; --top-p must be a number above" in said
    assert "give both, --weights int8 or" in failing(capsys, "generate", PICO, "--prompt", "x", "--activations", "int8")
    assert "error: --window must be" in failing(capsys, "score", PICO, "--text", PICO / "heldout.txt", "--window", 5000)
    assert "give its folder too, --lora FOLDER" in failing(capsys, "generate", PICO, "--prompt", "x", "--lora-scale", 2)
    parser = argparse.ArgumentParser()
    for option in ("--weights", "--top-p", "--report"):
        parser.add_argument(option)
    same = "the weights must be floats: a report={'x': array}, my.weights='int8', 'top_p must be' and top_p"
    assert as_typed(same, parser) == same
    mixed = "weights 'int8' conflicts; top_p must be 1"
    python = "give a template (in Python weights='plain', or text)"
    assert as_typed(python, parser) == python
    assert as_typed(mixed, parser) == "--weights int8 conflicts; --top-p must be 1"


def test_another_batch_than_the_one_that_was_built(tmp_path: Path, capsys: Captured) -> None:
    engine = ingot.build(Net(), {"x": ingot.Spec((1, 1, 8), "float32")}, weights_from="random")
    engine.save(tmp_path / "one.ingot")
    np.save(tmp_path / "two.npy", np.zeros((2, 1, 8), np.float32))
    way = "build it again with that dimension dynamic (dynamic={'x': {0: 'N'}} for a torch module"
    said = failing(capsys, "run", tmp_path / "one.ingot", "--input", tmp_path / "two.npy")
    assert "wanted x: f32[1, 1, 8]. Dimension 0 is fixed at 1 in this engine" in said and way in said
    for device in ("cpu", "torch"):  # the core and ingot.errors say the same
        with pytest.raises(ingot.IngotError, match=re.escape(ingot.errors.other_sizes("x", 0, 1)) + "$"):
            engine.on(device).run(np.zeros((2, 1, 8), np.float32))
    with pytest.raises(ingot.IngotError, match=re.escape(ingot.errors.ONE_OF_A_BATCH) + "$"):
        engine.run(np.zeros((1, 8), np.float32))
    said = failing(capsys, "run", tmp_path / "one.ingot", "--random", "--size", "N=3")
    assert "--size N=3: no size of this engine can change" in said


def test_a_score_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("import os\n" * 20)
    shown: list[tuple[str, int, int]] = []

    @contextlib.contextmanager
    def bar(out: Any) -> Iterator[Any]:
        yield lambda *told: shown.append(told)

    monkeypatch.setattr("ingot.cli.score.progress_bar", bar)
    assert main(["score", str(PICO), "--text", str(tmp_path / "text.txt"), "--window", "16", "--quiet"]) == 0
    windows = len(shown)
    assert windows > 1 and shown == [("score", i + 1, windows) for i in range(windows)]


def test_a_chat_offers_one_answer(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["chat", "--help"])
    assert "--n " not in capsys.readouterr().out
    assert "a conversation goes on from one answer" in failing(capsys, "chat", PICO, "--n", 3)


def test_what_is_typed_before_anything_is_known(capsys: Captured) -> None:
    assert main([]) == 2
    assert "examples:\n  ingot generate models/pico-python" in capsys.readouterr().err
    asked = {"help": "usage: ingot ", "help build": "usage: ingot build", "version": "ingot "}
    for words, shown in asked.items():
        with pytest.raises(SystemExit) as e:
            main(words.split())
        assert not e.value.code and capsys.readouterr().out.startswith(shown)
    assert "'http' is no port, a number from 0 to 65535" in failing(capsys, "serve", PICO, "--port", "http")


def test_a_folder_that_was_mistyped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Where the one that was meant is beside it, nobody is sent to the Hub."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "pico-python").mkdir(parents=True)
    for name in ("models/pico", "models/pico-pyhton", "models/pico_python"):
        for command in (["generate", name, "--prompt", "x"], ["build", name], ["plan", name], ["inspect", name]):
            said = failing(capsys, *command)
            assert f"{name}: there is no such folder: did you mean models/pico-python?" in said
    assert "hf download meta-llama/Llama-3.2-1B" in failing(capsys, "build", "meta-llama/Llama-3.2-1B")
    (tmp_path / "models" / "pico-python" / "config.json").write_text("{}")
    assert f"did you mean {tmp_path}/models/pico-python, a folder in it?" in failing(capsys, "build", "models")


def test_a_folder_of_kernels_is_no_engine(tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "pico.ingot.cuda"
    folder.mkdir()
    (folder / "0123.kernel").touch()
    for command in ("inspect", "build"):
        said = failing(capsys, command, folder)
        assert f"{folder} is a folder of compiled kernels: run their engine with it, --device cuda --kernels" in said


def test_a_file_of_another_kind_that_was_mistyped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Nobody is sent to the Hub for a name that only a file has."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "model.pt2").write_bytes(b"")
    for name, said in (("model.pt", ": did you mean model.pt2?"), ("weights.safetensors", ""), ("net.pth", "")):
        assert failing(capsys, "build", name).endswith(f"{name}: there is no such file{said}\n")


def test_a_npz_file_in_the_place_of_an_array(net: Path, tmp_path: Path, capsys: Captured) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 1, 8), np.float32))
    said = failing(capsys, "run", net, "--input", f"x={tmp_path / 'x.npz'}")
    assert f"a .npz file has arrays by name: give it as --npz {tmp_path / 'x.npz'}" in said


def test_ops_by_the_names_that_torch_has(capsys: Captured) -> None:
    """What an importer's refusal, or torch's own print, shows: that name is what a user looks for."""
    for name in ("aten.relu6.default", "aten.relu6", "relu6"):
        assert main(["ops", name]) == 0
        shown = capsys.readouterr()
        assert f"{name} is an op of torch that ingot takes" in shown.err
        assert "\nclip " in shown.out and "\n1 op. Of" in shown.out
    assert main(["ops", "conv2d", "--dtype", "float16", "--json"]) == 0
    assert "conv" in [row["op"] for row in json.loads(capsys.readouterr().out)["ops"]]
    assert "ingot takes no op aten.linalg_inv.default of torch" in failing(capsys, "ops", "aten.linalg_inv.default")


def test_sizes_that_nobody_gave_are_said(net: Path, tmp_path: Path, capsys: Captured) -> None:
    for command in (["run", net, "--random"], ["bench", net, "--repeat", 1, "--bandwidth", 1]):
        assert main(list(map(str, command))) == 0
        assert "seeded inputs at N=1, M=1: --size N=4 gives another size" in capsys.readouterr().err
        assert main([*map(str, command), "--size", "N=3"]) == 0
        assert "seeded inputs at M=1: --size M=4 gives" in capsys.readouterr().err
        assert main([*map(str, command), "--size", "N=3", "--size", "M=2", "--quiet"]) == 0
        assert "seeded inputs" not in capsys.readouterr().err
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 8), np.float32))
    assert main(["run", str(net), "--input", f"x={tmp_path}/x.npy"]) == 0
    assert "seeded inputs" not in capsys.readouterr().err


def test_files_in_and_out_are_what_their_names_say(net: Path, tmp_path: Path, capsys: Captured) -> None:
    """An only input needs no name; a .npy file of results was a folder of that name, and so was a .json file."""
    np.save(tmp_path / "x.npy", np.ones((2, 3, 8), np.float32))
    assert main(["run", str(net), "--input", f"{tmp_path}/x.npy", "-o", f"{tmp_path}/y.npy"]) == 0
    assert np.load(tmp_path / "y.npy").shape == (2, 3, 4)
    assert "or to a folder" in failing(capsys, "run", net, "--random", "-o", tmp_path / "y.json")
    (tmp_path / "results.1").mkdir()
    for folder in ("results", "results.1", "results.2/"):
        assert main(["run", str(net), "--random", "-o", f"{tmp_path}/{folder}"]) == 0
        assert (tmp_path / folder / "y.npy").is_file()

    class Two(nn.Module):
        def forward(self, a: ingot.Tensor, b: ingot.Tensor) -> Any:
            return {"sum": a + b, "product": a * b}

    spec = ingot.Spec((4,), "float32")
    ingot.build(Two(), {"a": spec, "b": spec}, report=False).save(tmp_path / "two.ingot")
    two = ["run", tmp_path / "two.ingot"]
    assert "write NAME=FILE.npy; the inputs are a, b" in failing(capsys, *two, "--input", tmp_path / "x.npy")
    assert "there are 2: write to a .npz file" in failing(capsys, *two, "--random", "-o", tmp_path / "out.npy")


@pytest.fixture
def signals() -> Iterator[None]:
    """Puts back what `ingot serve`, whose process ends with it, leaves ignored: children would inherit that."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("command", ["generate --prompt x", "chat", "serve --port 0", "score --text {text}"])
def test_a_network_is_sent_to_its_own_command(command: str, net: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "text").write_text("some text")
    name, *words = command.format(text=tmp_path / "text").split()
    said = failing(capsys, name, net, *words)
    assert f"{net} is a plain network, not a language model: `ingot run` runs it" in said


def test_build_without_a_name_says_what_a_wrong_file_is(net: Path, tmp_path: Path, capsys: Captured) -> None:
    """It was taken for an engine, whatever it was."""
    (tmp_path / "model.py").write_text("import torch\n")
    (tmp_path / "weights.pt").write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04 archive/data.pkl")
    (tmp_path / "notes").write_text("hello")
    for name, words in (
        ("model.py", "is Python code, which ingot does not run"),
        ("weights.pt", "is a file of torch.save, a pickle"),
        ("pytorch_model.bin", "is a file of torch.save, a pickle"),
        ("notes", "it is cut off or no engine"),
    ):
        assert words in failing(capsys, "build", tmp_path / name)
    assert f"{net} is an engine already: name the file of the other one" in failing(capsys, "build", net)


def test_plan_says_what_a_wrong_file_is(net: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\x08\x07")
    (tmp_path / "model.py").write_text("import torch\n")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    for name, words in (
        ("net.onnx", "is a plain network, and plans are made for requests to a language model: `ingot inspect"),
        ("model.py", "is Python code, which ingot does not run"),
        ("adapter", "is a LoRA adapter: build its base model with it"),
        ("net.ingto.ingot", "there is no such file: build it first"),
    ):
        assert words in failing(capsys, "plan", tmp_path / name)
    said = failing(capsys, "plan", net)
    assert f"{net} is a plain network, and plans are made for requests" in said
    assert f"`ingot inspect {net} --size DIM=N` tells the memory" in said


def test_devices_and_full_disks(net: Path, capsys: Captured) -> None:
    """A stream that is there is written as it is; what is wrong with it is said, not that it exists."""
    engine = ingot.load(net)
    assert engine.save("/dev/null") == net.stat().st_size
    with pytest.raises(ingot.errors.FileError, match="No space left on device"):
        engine.save("/dev/full")


def test_a_text_that_the_context_ends_says_so(capsys: Captured) -> None:
    words = ["generate", str(PICO), "--prompt", "def f(x):", "--context", "16", "--ignore-end", "--max-tokens"]
    assert main([*words, "500", "--json"]) == 0
    shown = capsys.readouterr()
    done = json.loads(shown.out)
    made = done["completion_tokens"]
    assert done["finish_reason"] == "length" and made + done["prompt_tokens"] == 16
    assert f"ended after {made} of the 500 tokens asked for: the context of 16 tokens is full" in shown.err
    assert main([*words, "4"]) == 0
    assert "tokens asked for" not in capsys.readouterr().err


def test_phases_stand_in_two_columns() -> None:
    assert phases({"read": 0.5, "calibrate": 12.25}).splitlines() == ["read          0.50 s", "calibrate    12.25 s"]
    assert phases({}) == ""


def test_a_folder_that_takes_no_file_is_said_before_the_build(tmp_path: Path, capsys: Captured) -> None:
    missing = tmp_path / "none" / "x.ingot"  # the source is missing as well: it has not been looked for
    shown = failing(capsys, "build", "nothing", "-o", missing)
    assert f"cannot be written: there is no folder {missing.parent}" in shown
