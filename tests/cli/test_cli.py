"""The command line as its users meet it: results, JSON, exit codes, errors, signals."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ingot import _interrupt, foreign
from ingot.cli import options
from ingot.cli.main import main
from ingot.cli.options import byte_count
from ingot.cli.output import in_words, size, table
from ingot.engine.session import load
from ingot.llm.llm import LLM
from ingot.serve import frames
from ingot.version import __version__
from tests.cli.command import ENVIRONMENT, ROOT, as_json, ingot, process
from tests.kept import PICO
from tests.tuned import tuned

GOLDEN = ROOT / "tests" / "engine" / "golden"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "pico.ingot"
    built = as_json("build", PICO, "-o", path, "--precision", "bfloat16")
    summary = {"ops", "inputs", "outputs", "dims", "host_share", "remarks", "notes"}
    assert set(built) == {"path", "bytes", "seconds", "accuracy"} | summary
    assert built["ops"]["host"] == 0 and built["ops"]["native"] > 0 and built["remarks"] == []
    assert built["path"] == str(path)
    assert built["bytes"] == path.stat().st_size
    assert {"read", "trace", "lower", "pack", "report", "write", "other"} <= set(built["seconds"])
    assert next(iter(built["seconds"])) == "load" and built["seconds"]["other"] < sum(built["seconds"].values()) / 2
    assert [row["name"] for row in built["accuracy"]["outputs"]] == ["logits", "hidden"]
    return path


# ---------------------------------------------------------------------------------------------------------------
# results


def test_generate_streams_the_text(engine: Path) -> None:
    done = process("generate", engine, "--prompt", "def quicksort(items):", "--max-tokens", 16)
    assert "tokens" in done.stderr
    assert done.stdout.startswith("\n    ") and done.stdout.endswith("\n")
    quiet = ingot("--quiet", "generate", engine, "--prompt", "def quicksort(items):", "--max-tokens", 16)
    assert quiet.stdout == done.stdout
    assert quiet.stderr == ""


def test_generate_json(engine: Path) -> None:
    words = ("generate", engine, "--prompt", "import os", "--max-tokens", 12)
    found = as_json(*words)
    assert set(found) == {"text", "token_ids", "finish_reason", "prompt_tokens", "completion_tokens", "seconds"}
    assert set(found["seconds"]) == {"load", "first_token", "total"}
    assert found["finish_reason"] == "length"
    assert found["completion_tokens"] == len(found["token_ids"]) == 12
    assert found["prompt_tokens"] == 3
    assert ingot(*words, "--quiet").stdout == found["text"] + ("" if found["text"].endswith("\n") else "\n")
    stopped = as_json(*words, "--stop", found["text"][5:9], "--stop", "zzz")
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == found["text"][: found["text"].index(found["text"][5:9])]


def test_generate_by_seed_and_from_a_directory(engine: Path, tmp_path: Path) -> None:
    sampling = ("--temperature", 0.8, "--top-k", 40, "--top-p", 0.95, "--min-p", 0.01, "--seed", 7, "--max-tokens", 12)
    first = as_json("generate", engine, "--prompt", "import os", *sampling)
    file = tmp_path / "prompt.txt"
    file.write_text("import os")
    second = as_json("generate", PICO, "--prompt-file", file, "--precision", "bfloat16", *sampling)
    third = as_json("generate", engine, "--prompt-file", "-", *sampling, stdin="import os")
    assert first["token_ids"] == second["token_ids"] == third["token_ids"]
    fourth = process("generate", engine, "--prompt-file", "-", *sampling, "--json", stdin="import os").stdout
    assert json.loads(fourth)["token_ids"] == first["token_ids"]


def test_score(engine: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text((PICO / "heldout.txt").read_text()[:6000])
    found = as_json("score", engine, "--text", text, "--window", 128)
    assert set(found) == {"nats_per_token", "tokens", "windows", "left_out"}
    assert found["tokens"] == 128 * found["windows"]
    assert 1 < found["nats_per_token"] < 3
    words = ingot("score", engine, "--text", text, "--window", 128).stdout
    assert f"{found['nats_per_token']:.4f} nats" in words
    assert 0 < found["left_out"] < 128 and f"; {found['left_out']} at the end, which fill no window, are left" in words


def test_build_random_weights_and_the_default_name(tmp_path: Path) -> None:
    shape = tmp_path / "shape"
    shape.mkdir()
    (shape / "config.json").write_text((PICO / "config.json").read_text())
    done = ingot("build", shape, "--weights-from", "random", "--seed", 3, "--no-report", cwd=tmp_path)
    assert (tmp_path / "shape.ingot").exists()
    assert "shape.ingot" in done.stdout
    first = (tmp_path / "shape.ingot").read_bytes()
    ingot("build", shape, "--weights-from", "random", "--seed", 3, "--no-report", "-o", "again.ingot", cwd=tmp_path)
    assert (tmp_path / "again.ingot").read_bytes() == first


def test_inspect(engine: Path) -> None:
    assert "LlamaForCausalLM" in ingot("inspect", engine).stdout
    assert ingot("inspect", engine, "--network").stdout.startswith("network main {")
    assert "paged_attention" in ingot("inspect", engine, "--program").stdout
    assert "rewritten" in ingot("inspect", engine, "--why").stdout
    assert "agree" in ingot("inspect", engine, "--verify").stdout
    found = as_json("inspect", engine)
    memory = found["memory"]["main"]
    assert memory["arena"] >= memory["buffers"] + memory["working"] > memory["lower_bound"] > 0
    assert memory["weights"] > 14e6 and memory["most_at"]["kernel"]
    assert found["fusion"]["main"]["fused_operations"] > 8
    assert found["kind"] == "llm" and found["config"]["precision"] == "bfloat16"
    assert [port["name"] for port in found["outputs"]] == ["logits", "hidden"]
    assert {d["rule"] for d in as_json("inspect", PICO, "--why")["decisions"]}


def test_inspect_of_a_directory(tmp_path: Path) -> None:
    shown = ingot("inspect", PICO).stdout
    for words in (
        "family llama (LlamaForCausalLM)", "8 layers, 256 wide; 4 heads, 2 for keys and values; 4,096 tokens",
        "7,344,384 parameters; stored: 14.7 MB of bfloat16", "tokenizer: BPE, 4,096 tokens", "--chat-template plain",
        "makes pico-python.ingot", "33 matmul_packed", "tokenizer.json",
    ):  # fmt: skip
        assert words in shown
    found = as_json("inspect", PICO, "--size", "T=8", "--threads", 1)
    assert found["memory"]["main"]["sizes"]["T"] == 8 and found["memory"]["main"]["threads"] == 1
    assert found["directory"]["chat_template"] is None and found["directory"]["tokenizer"]["begins_with"] == 0
    assert "ingot inspect pico-python.ingot --verify" in ingot("inspect", PICO, "--verify", code=2).stderr
    (tmp_path / "config.json").write_bytes((PICO / "config.json").read_bytes())
    alone = as_json("inspect", tmp_path)
    assert alone["directory"]["tokenizer"] is None and alone["directory"]["stored"] == {}
    assert "config.json" in ingot("inspect", tmp_path.parent, code=2).stderr


def test_a_folder_of_more_names_than_are_looked_at(tmp_path: Path) -> None:
    """It is closed again: a warning of Python would say so."""
    for number in range(foreign.MAX_NAMES + 1):
        (tmp_path / str(number)).touch()
    for path in (tmp_path, tmp_path / "x.ingot"):
        assert "Warning" not in process("inspect", path, code=2).stderr


def test_several_answers_and_penalties(engine: Path) -> None:
    words = ("--prompt", "import os", "--max-tokens", 12, "--temperature", 1, "--seed", 3)
    penalties = {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    told = [word for name, value in penalties.items() for word in (f"--{name.replace('_', '-')}", value)]
    found = as_json("generate", engine, *words, *told, "--n", 3)
    with LLM(engine) as llm:
        wanted = llm.generate("import os", max_tokens=12, temperature=1, seed=3, n=3, **penalties)
    assert [one["text"] for one in found["answers"]] == [one.text for one in wanted]
    assert found["text"] == wanted[0].text and len({one.text for one in wanted}) == 3
    shown = ingot("generate", engine, *words, *told, "--n", 3).stdout
    assert all(one.text in shown for one in wanted) and "--- 3 of 3 (length) ---" in shown
    assert "n must be" in ingot("generate", engine, *words, "--n", 0, code=2).stderr
    assert "goes on from one answer" in ingot("chat", engine, "--chat-template", "plain", "--n", 2, code=2).stderr


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.ingot")), ids=lambda path: path.stem)
def test_inspect_of_every_golden_engine(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Copies that end in a view of something larger have a number of bytes too."""
    assert main(["inspect", str(path), "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory and all(entry is None or entry["copied"] >= 0 for entry in memory.values())


def test_inspect_verify_finds_a_flipped_bit(engine: Path, tmp_path: Path) -> None:
    data = bytearray(engine.read_bytes())
    data[-100_000] ^= 1
    (tmp_path / "bad.ingot").write_bytes(data)
    assert "damaged" in ingot("inspect", tmp_path / "bad.ingot", "--verify", code=2).stderr


def test_bench_and_its_profile(engine: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    words = ("bench", engine, "--repeat", 3, "--threads", 1, "--bandwidth", 10)
    found = as_json(*words, "--profile", trace)
    plain = {"name", "ms", "tokens_per_s", "bytes", "share_of_bandwidth"}
    assert set(found) == plain | {"profiled_runs", "roofs", "waiting_ms", "kernels", "calls"}
    attention = next(k for k in found["kernels"] if k["kernel"] == "paged_attention")
    assert attention["flops"] == 8 * 4 * 256 * 129  # layers, then queries and keys of 129 tokens: products both ways
    assert found["name"] == "decode"
    assert 0 < found["ms"]["min"] <= found["ms"]["median"] <= found["ms"]["p90"]
    assert 14e6 < found["bytes"] < 16e6
    assert found["share_of_bandwidth"] == pytest.approx(found["bytes"] / found["ms"]["median"] * 1e3 / 10e9)
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"name", "ph", "ts", "dur", "pid", "tid"} <= set(events[0])
    assert "matmul_packed" in {event["name"] for event in events}
    prefill = as_json(*words, "--what", "prefill", "--length", 600)
    assert set(prefill) == plain
    assert prefill["name"] == "prefill" and prefill["tokens_per_s"] > 0


def test_bench_of_an_adapter(engine: Path, tmp_path: Path) -> None:
    words = ("--repeat", 1, "--threads", 1, "--bandwidth", 10, "--lora", tuned(tmp_path))
    for source in (PICO, engine):
        assert as_json("bench", source, *words)["name"] == "decode"
    assert "give its folder" in ingot("bench", engine, "--lora-scale", 2, code=2).stderr
    assert "rank" in ingot("bench", engine, "--lora", _broken(tmp_path), code=2).stderr


def test_build_of_an_engine_merges_an_adapter(engine: Path, tmp_path: Path) -> None:
    """The same engine as by the directory; one that is there already has no phases of a build, and needs a name."""
    words = ("--lora", tuned(tmp_path), "--no-report")
    found = as_json("build", engine, "-o", tmp_path / "merged.ingot", *words)
    assert set(found) == {"path", "bytes", "seconds", "accuracy", "notes"}
    ingot("build", PICO, "-o", tmp_path / "whole.ingot", *words)
    one, other = (load(tmp_path / name) for name in ("merged.ingot", "whole.ingot"))
    assert all(one.tensor(n).tobytes() == other.tensor(n).tobytes() for n in other.header["weights"])
    assert "bytes" not in ingot("build", engine, "-o", tmp_path / "same.ingot").stderr
    assert "is an engine already: name the file" in ingot("build", engine, code=2).stderr


def _broken(folder: Path) -> Path:
    """An adapter without rank."""
    path = folder / "tuned" / "adapter_config.json"
    path.write_text(path.read_text().replace('"r": 4', '"r": 0'))
    return path.parent


def test_bench_counts_the_rows_of_a_table_that_is_only_looked_up(tmp_path: Path) -> None:
    config = json.loads((PICO / "config.json").read_text()) | {"tie_word_embeddings": False, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ingot("build", tmp_path, "-o", tmp_path / "untied.ingot", "--weights-from", "random", "--no-report")
    found = as_json("bench", tmp_path / "untied.ingot", "--repeat", 1, "--length", 16, "--bandwidth", 10)
    layer = 256 * (256 + 2 * 128 + 256 + 3 * 768) + 2 * 256  # products, norms; then the head, and one row of the table
    cache = 17 * 2 * 2 * 64 * 2
    rotary = 32 * 4
    assert found["bytes"] == pytest.approx(2 * (layer + 4096 * 256 + 256 + 256) + cache + rotary, rel=0.01)


def test_doctor_and_ops(engine: Path) -> None:
    found = as_json("doctor", engine)
    assert found["versions"]["ingot"] == __version__
    assert found["machine"]["level"] in found["machine"]["levels"]
    assert {row["runs"] for row in found["ops"]} == {"native"}
    assert as_json("doctor")["ops"] is None
    listed = as_json("ops")
    kernels = {row["op"]: row["kernels"] for row in listed["ops"]}
    assert kernels["matmul"] == ["matmul_packed", "matmul", "matmul_float64", "matmul_integer"]
    assert kernels["log_softmax"] == ["softmax"]
    assert kernels["relu"] == ["elementwise"] and kernels["nonzero"] == ["nonzero"]
    assert {k["name"]: k["ops"] for k in listed["kernels"]}["softmax"] == ["softmax", "log_softmax"]
    some = as_json("ops", "relu", "moe", "--dtype", "float32", "--host")["ops"]
    assert [(row["op"], row["cpu"]) for row in some] == [("moe", {"float32": "host"})]
    assert "there is no op nonsense" in ingot("ops", "nonsense", code=2).stderr
    assert "float31" in ingot("ops", "--dtype", "float31", code=2).stderr


def test_what_a_compiler_needs() -> None:
    """tests/native/test_cpp_page.py compiles by it."""
    found = as_json("config")
    assert (Path(found["lib_dir"]) / "libingot.so").is_file() and (Path(found["include_dir"]) / "ingot.h").is_file()
    assert found["version"] == __version__ and shlex.split(found["cflags"]) == [f"-I{found['include_dir']}"]
    assert ingot("config", "--libs", "--cflags").stdout == f"{found['libs']} {found['cflags']}\n"
    assert ingot("config", "--cmake-dir").stdout == f"{found['cmake_dir']}\n"
    assert "pkg-config-dir  " in ingot("config").stdout


def test_help_teaches() -> None:
    text = ingot("--help").stdout
    for command in ("build", "generate", "chat", "score", "plan", "run", "inspect", "bench", "doctor", "ops",
                    "config"):  # fmt: skip
        assert command in text
        assert "examples:" in ingot(command, "--help").stdout
    assert process("--version").stdout == f"ingot {__version__}\n"


# ----------------------------------------------------------------------------------------------------------------
# errors


def test_the_users_mistakes_are_2_and_one_line(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "junk.ingot").write_bytes(b"junk" * 100)
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "long.txt").write_text("import os\n" * 1000)
    (tmp_path / "empty").mkdir()
    generate = ("generate", engine, "--prompt", "x")
    cases: list[tuple[tuple[object, ...], str]] = [
        (("generate", "nobody/no-model", "--prompt", "x"), "download"),
        (("generate", tmp_path / "empty", "--prompt", "x"), "config.json"),
        (("generate", tmp_path / "junk.ingot", "--prompt", "x"), "junk.ingot"),
        ((*generate, "--temperature", "-1"), "--temperature must be a number"),
        ((*generate, "--max-tokens", "0"), "--max-tokens must be an integer from 1 "),
        ((*generate, "--seed", str(2**70)), "seed"),
        ((*generate, "--stop", ""), "stop"),
        ((*generate, "--precision", "float32"), "conflicts"),
        ((*generate, "--device", "cuda"), "cuda"),
        ((*generate, "--context", "5000"), "--context must be an integer from 1 to 1024, not 5000"),
        ((*generate, "--kv-memory", "1"), "--kv-memory must be "),
        (("generate", engine, "--prompt-file", tmp_path / "long.txt"), "context"),
        (("generate", engine, "--prompt-file", tmp_path / "latin.txt"), "UTF-8"),
        (("generate", engine, "--prompt-file", tmp_path / "missing.txt"), "missing.txt"),
        (("score", engine, "--text", tmp_path / "missing.txt"), "missing.txt"),
        (("score", engine, "--text", tmp_path / "latin.txt"), "UTF-8"),
        (("score", engine, "--text", tmp_path / "long.txt", "--window", "5000"), "window"),
        (("build", PICO, "-o", tmp_path / "no" / "such" / "folder.ingot", "--no-report"), "folder.ingot"),
        (("build", tmp_path / "empty"), "config.json"),
        (("build", engine, "-o", engine), "the source itself"),
        (("bench", engine, "--length", "5000"), "--length"),
        (("inspect", tmp_path / "missing.ingot"), "missing.ingot"),
    ]
    for number, (words, match) in enumerate(cases):
        done = (ingot if number else process)(*words, code=2)
        assert match in done.stderr, (words, done.stderr)
        assert done.stdout == ""
        assert "ingot: error: " in done.stderr
        assert len(done.stderr) < 1500


def test_a_bad_command_line_is_2(engine: Path) -> None:
    assert process(code=2).stderr.startswith("usage: ")
    for words in (
        ("fly",),
        ("generate", engine),
        ("generate", engine, "--prompt", "x", "--prompt-file", "y"),
        ("generate", engine, "--prompt", "x", "--threads", "0"),
        ("build",),
        ("build", PICO, "--precision", "int3"),
        ("generate", engine, "--prompt", "x", "--kv-memory", "lots"),
        ("generate", engine, "--prompt", "x", "--temperature", "nan"),
        ("generate", engine, "--prompt", "x", "--kv-memory", "9" * 400),
        ("plan", engine, "--memory", "8388608TiB"),
    ):
        said = ingot(*words, code=2).stderr
        assert re.fullmatch(r"ingot(?: \w+)?: error: .+ \(ingot(?: \w+)? --help explains it\)\n", said), said


def test_debug_shows_the_traceback() -> None:
    command = [sys.executable, "-m", "ingot", "--debug", "generate", "nobody/no-model", "--prompt", "x"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_read_only_folder_is_a_readable_error(tmp_path: Path) -> None:
    # /proc refuses new files even to root, whom a folder's mode would not stop.
    assert "cannot be written" in ingot("build", PICO, "-o", "/proc/pico.ingot", "--no-report", code=2).stderr


# ---------------------------------------------------------------------------------------------------------------
# signals


def start(*words: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "ingot", *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, **options
    )


def test_ctrl_c_while_generating(engine: Path) -> None:
    process = start("generate", engine, "--prompt", "import os", "--max-tokens", 1000, "--ignore-end", "--threads", 1)
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if process.returncode != 0:  # all text may have been there already
        assert process.returncode == 130
        assert "interrupted" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("between", [0.0, 0.02])
def test_ctrl_c_twice_while_generating(engine: Path, between: float) -> None:
    """The second one may come while the engine is closed: no abort, no traceback."""
    process = start("generate", engine, "--prompt", "import os", "--max-tokens", 1000, "--ignore-end", "--threads", 1)
    assert process.stdout is not None and process.stdout.read(1)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(between)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, 0)
    assert "Traceback" not in errors and "terminate" not in errors


def test_ctrl_c_at_any_time_of_a_build_leaves_nothing_or_a_whole_engine(tmp_path: Path) -> None:
    for delay in (0.1, 0.3, 0.6):  # while it imports, while it lowers, while it reports or writes
        process = start("build", PICO, "-o", tmp_path / "x.ingot")
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        left = sorted(path.name for path in tmp_path.iterdir())
        assert process.returncode in (130, 0, -signal.SIGINT), errors
        assert left in ([], ["x.ingot"]), left
        assert left or process.returncode != 0
        if left:  # the signal came after the file had got its name
            ingot("inspect", tmp_path / "x.ingot", "--verify")
        (tmp_path / "x.ingot").unlink(missing_ok=True)


def test_ctrl_c_that_an_import_made_an_error_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NumPy's extension imports datetime while it is imported, and drops the KeyboardInterrupt that ends that."""

    def fails(*_: object) -> None:
        raise ImportError('PyCapsule_Import could not import module "datetime"')

    monkeypatch.setattr("ingot.cli.ops.run", fails)
    before = signal.getsignal(signal.SIGINT)
    assert main(["ops"]) == 1  # nobody pressed it
    assert "internal error: ImportError" in capsys.readouterr().err
    _interrupt.watch()
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert main(["ops"]) == 130
        assert capsys.readouterr().err == "\ninterrupted\n"
    finally:
        signal.signal(signal.SIGINT, before)
        monkeypatch.setattr(_interrupt, "_last", -_interrupt.SECONDS)


def test_a_reader_who_leaves(engine: Path) -> None:
    process = start("generate", engine, "--prompt", "import os", "--max-tokens", 1000, "--ignore-end", "--threads", 1)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 0
    assert "Traceback" not in errors and "Exception" not in errors


# -----------------------------------------------------------------------------------------------------------------
# parts


def test_byte_counts() -> None:
    given = {
        "5": 5, "5B": 5, "2K": 2000, "2kB": 2000, "20MB": 20_000_000, "2G": 2 * 10**9, "1TB": 10**12, "1 TiB": 1 << 40,
        "2KiB": 2048, "512Mi": 512 << 20, "512mib": 512 << 20, "1.5GiB": 3 << 29,
    }  # fmt: skip
    assert {text: byte_count(text) for text in given} == given
    for text in ("", "MB", "5iB", "5 XB", "-1", "1e3", "5MBB", "9300000TB"):
        with pytest.raises(argparse.ArgumentTypeError):
            byte_count(text)
    assert size(byte_count("20MB")) == "20.0 MB", "what is given is shown in the same units"
    assert [size(n) for n in (5, 1500, 14_700_000, 2.2e9, 3e12)] == [
        "5 bytes",
        "1.5 kB",
        "14.7 MB",
        "2.2 GB",
        "3000.0 GB",
    ]


def test_tables_show_what_a_terminal_would_obey() -> None:
    assert "\x1b" not in table([("a\x1b[2Jb", 1)], ("name", "n"))
    assert "\x1b" not in in_words({"a\x1b[2J": ["b\x1b[2J"]})


def test_values_of_a_config_in_words() -> None:
    config = {"a": True, "b": None, "c": [0, 2], "d": ["one, two", "three"], "e": {"f": "last", "g": ""}, "h": []}
    assert [in_words(value) for value in config.values()] == [
        "yes", "none", "0, 2", "one, two; three", "f last, g none", "none",
    ]  # fmt: skip
    assert (in_words(False), in_words(0), in_words(0.5)) == ("no", "0", "0.5")


def test_people_read_no_python(engine: Path) -> None:
    """What commands print for people has neither lists nor words of Python."""
    fit = ("--memory", "2GB", "--concurrency", 2, "--context", 64)
    for words in (
        ("inspect", engine), ("inspect", engine, "--why"), ("inspect", engine, "--program"), ("doctor", engine),
        ("plan", engine, *fit), ("plan", PICO, *fit), ("ops",),
        ("bench", engine, "--repeat", 1, "--profile"), ("diff", engine, engine, "--size", "T=4"),
    ):  # fmt: skip
        done = ingot(*words)
        assert words != ("ops",) or "rms_norm" in done.stdout
        found = re.findall(r"\b(?:None|True|False)\b|\[['\"]|\{'|<ingot|np\.|dtype\(", done.stdout + done.stderr)
        assert not found, (words, found, done.stdout)


def test_tables_line_up() -> None:
    assert table([("a", 1, 0.5), ("long", 1000, None)], ("name", "n", "x")).splitlines() == [
        "name      n    x", "a         1  0.5", "long  1,000    -",
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------------- plain
# networks


def test_an_engine_of_a_plain_network(tmp_path: Path) -> None:
    path = tmp_path / "net.ingot"
    code = f"""
import numpy as np
import ingot
from ingot import functional as fn, nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
    def forward(self, x):
        rows = ingot.ops.permute(ingot.ops.cast(x, "float64"), (1, 0))
        line = fn.conv1d(fn.unsqueeze(rows, 0), np.ones((4, 8, 1)))
        return {{"y": self.layer(x), "where": ingot.ops.nonzero(x), "line": line}}
spec = ingot.Spec((ingot.Dim("N", 1, 4, 64), 8), "float32")
ingot.build(Net(), {{"x": spec}}, weights_from="random").save({str(path)!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
    found = as_json("inspect", path)
    assert found["kind"] == "network" and found["memory"] == {"main": None}
    assert found["host_calls"] == {"cpu": {"conv": 1}}
    assert {row["op"]: row["runs"] for row in as_json("doctor", path)["ops"]}["conv"].startswith("host call")
    bench = as_json("bench", path, "--size", "N=8", "--repeat", 3, "--bandwidth", 10)
    assert bench["name"] == "run" and bench["tokens_per_s"] is None
    assert "the dims are N" in ingot("bench", path, "--size", "Q=3", code=2).stderr
    assert "plain network" in ingot("generate", path, "--prompt", "x", code=2).stderr


def test_a_server_gets_every_word_of_a_model() -> None:
    """What the commands take of a model's formats and resources travels to the process that loads it."""
    parser = argparse.ArgumentParser()
    options.add_model(parser)
    args = parser.parse_args(["DIR", "--weights", "int8", "--activations", "int8", "--threads", "3"])
    words = options.model_words(args)
    start = frames.Start("DIR", **words, max_running=1, prefix_cache=True, chat_template=None)
    assert {name: getattr(start, name) for name in words} == words
