"""Chat templates: the same text as transformers renders, and nothing a hostile template can gain."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ingot.errors import CheckpointError, IngotError, RequestError
from ingot.text import chat_template
from ingot.text.chat_template import MAX_TEMPLATE, ChatTemplate
from tests.text import hostile_templates

TALK = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Hello <b>you</b> & me"},
    {"role": "assistant", "content": " Hi! "},
    {"role": "user", "content": "Bye\n"},
]
CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{%- set ns = namespace(first='', n=0) -%}{%- if messages[0]['role'] == 'system' -%}"
    "{%- set ns.first = messages[0]['content'] ~ '\n\n' -%}{%- set loop_messages = messages[1:] -%}{%- else -%}"
    "{%- set loop_messages = messages -%}{%- endif -%}{%- for message in loop_messages -%}"
    "{%- set role = 'model' if message.role == 'assistant' else message.role -%}"
    "{{ '<start_of_turn>' + role + '\n' + (ns.first if loop.first else '') }}{{ message['content'] | trim }}"
    "{{ '<end_of_turn>\n' }}{%- set ns.n = ns.n + 1 -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
FEATURES = (
    "{%- macro show(m, i=0) -%}[{{ i }}:{{ m.role | upper }}:{{ m.content | length }}]{%- endmacro -%}"
    "{%- for m in messages if m.role != 'system' -%}{%- if loop.index > 2 -%}{%- break -%}{%- endif -%}"
    "{{ show(m, loop.index) }}{{ ', ' if not loop.last }}{%- endfor -%}"
    "{{ messages | map(attribute='role') | join('/') }}{{ {'a': [1, 2.5, none, 'ü']} | tojson }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ 'x' * 3 ~ 7 // 2 }}"
    "{{ messages[-1].content.split('y') | last | default('none', true) }}{{ messages[1].content.replace('b', 'i') }}"
)


def test_words_that_a_template_quotes() -> None:
    """Its roles are among them; a role that it only writes down, as CHATML does, is not."""
    assert ChatTemplate(CHATML).words == {"role", "content"}
    assert {"model", "assistant", "system"} <= ChatTemplate(GEMMA).words
    assert ChatTemplate("{{ messages[0].role in ['ipython', \"tool-2\", '', 'a b'] }}'").words == {"ipython", "tool-2"}


@pytest.mark.parametrize("source", [CHATML, LLAMA2, GEMMA, FEATURES], ids=["chatml", "llama2", "gemma", "features"])
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers_does(source: str, prompt: bool) -> None:
    utils: Any = pytest.importorskip("transformers.utils.chat_template_utils")
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    found = ChatTemplate(source, special).render(TALK, add_generation_prompt=prompt)
    (want,), _ = utils.render_jinja_template([TALK], chat_template=source, add_generation_prompt=prompt, **special)
    assert found == want


QUICK = (
    "classes",
    "code of a macro",
    "classes by format",
    "format found by attr",
    "changing a message",
    "percent format",
    "doubling",
    "power of one",
    "sum of a range",
    "nested as JSON",
    "sum of lists",
    "recursion",
    "sums",
)
HOSTILE = hostile_templates.ESCAPES | hostile_templates.TOO_MUCH | hostile_templates.UNREADABLE


def ends(source: str) -> str:
    """Why a template is refused, in bounded time and memory."""
    messages = [dict(m) for m in TALK]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises((RequestError, CheckpointError)) as caught:
        ChatTemplate(source).render(messages)
    gc.collect()  # so that the process has been waited for
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2 * chat_template.SECONDS + 0.5
    assert messages == TALK
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize("name", QUICK)
def test_hostile_templates_end_in_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.2)
    assert "chat template" in ends(HOSTILE[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_every_hostile_template_ends_in_an_error(name: str) -> None:
    assert "chat template" in ends(HOSTILE[name])
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10 <= chat_template.MEMORY


@pytest.mark.parametrize("name", hostile_templates.HARMLESS)
def test_templates_that_look_hostile_and_are_not(name: str) -> None:
    assert len(ChatTemplate(hostile_templates.HARMLESS[name]).render(TALK)) < 1000


def test_a_recursive_loop_renders_as_jinja_has_it() -> None:
    tree = "{% for m in messages recursive %}{{ m.content }}({{ loop(m.inner) if m.inner else '' }}){% endfor %}"
    nested = [{"role": "user", "content": "a", "inner": [{"role": "user", "content": "b"}]}]
    assert ChatTemplate(tree).render(nested) == "a(b())"


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
SOMETIMES = "{% if messages[0].content == 'long' %}" + ENDLESS + "{% endif %}{{ messages[0].content }}"


def say(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_a_conversation_that_goes_beyond_a_limit_leaves_the_next_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.2)
    template = ChatTemplate(SOMETIMES)
    for _ in range(2):
        assert template.render(say("brief")) == "brief"
        with pytest.raises(RequestError, match=r"takes more than 0\.2 seconds of processor time"):
            template.render(say("long"))
    assert template.render(say("\ud800 ü 🦆")) == "\ud800 ü 🦆"


def test_conversations_of_several_threads_keep_apart() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    texts = [str(i) * (i * 997 % 5000) for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: template.render(say(text)), texts)) == texts


def test_what_is_no_json_or_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ tools }}")
    with pytest.raises(RequestError, match="have to be JSON"):
        template.render(TALK, tools=[object()])
    monkeypatch.setattr(chat_template, "MAX_MESSAGES", 1000)
    with pytest.raises(RequestError, match="the limit is 1,000"):
        template.render(say("x" * 1000))


def test_a_fork_renders_in_a_process_of_its_own() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if template.render(say("child")) == "child" else 1)
    assert template.render(say("parent")) == "parent"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert template.render(say("again")) == "again"


RENDERS = """
import os, sys, threading, time
from ingot.text.chat_template import ChatTemplate
loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
template = ChatTemplate("{% if messages[0].content %}" + loops + "{% endif %}")
print(template._idle[0]._process.pid, flush=True)
threading.Thread(target=template.render, args=([{"content": sys.argv[1]}],), daemon=True).start()
time.sleep(60)
"""


@pytest.mark.parametrize("busy", ["", "busy"])
def test_the_process_ends_with_its_parent(busy: str) -> None:
    with subprocess.Popen([sys.executable, "-c", RENDERS, busy], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.1)
        parent.kill()
    end = time.monotonic() + 30
    while Path(f"/proc/{child}/stat").exists() and time.monotonic() < end:
        if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break  # nobody waits for it here
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{child}").exists()


def test_harmless_look_alikes_show_nothing() -> None:
    """Undefined names and forbidden attributes read as nothing, as Jinja has it, and give nothing away."""
    for source in ("{{ config }}", "{{ raise_exception.__globals__ }}", "{{ namespace.__init__ }}"):
        assert ChatTemplate(source).render(TALK) == ""


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ 'x", "{% block a %}" * 5, "x" * (MAX_TEMPLATE + 1), "{{" + "(" * 9000]
)
def test_what_does_not_parse_is_an_error_of_the_checkpoint(source: str) -> None:
    with pytest.raises(CheckpointError, match="chat template"):
        ChatTemplate(source)


def killed(template: ChatTemplate) -> None:
    """Ends the process that waits for the next conversation, as a system short of memory may."""
    (process,) = template._idle
    process._process.kill()


def test_a_process_that_ended_while_it_waited_costs_nobody_anything() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    for text in ("x", "y"):
        killed(template)
        assert template.render(say(text)) == text


def test_a_conversation_that_ends_two_processes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    started: list[int] = []

    def dying(self: Any, message: bytes) -> Any:
        started.append(self._process.pid)
        if len(started) < 4 and b'"source"' not in message:
            self._process.kill()
        return ask(self, message)

    ask = chat_template._Process.ask
    monkeypatch.setattr(chat_template._Process, "ask", dying)
    with pytest.raises(RequestError, match="ended with status -9"):
        template.render(say("x"))
    assert len(started) == 3 and len(set(started)) == 2, "a new one is asked once"
    assert template.render(say("again")) == "again"


def test_an_interrupted_conversation_is_nobody_elses_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C may do while the process renders."""
    template = ChatTemplate("{{ messages[0].content }}")
    (process,) = template._idle

    def interrupted(self: Any, count: int) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(chat_template._Process, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            template.render(say("the first"))
    assert process._process.returncode is not None
    assert template.render(say("the second")) == "the second"


def test_conversations_wait_for_two_processes_in_their_order() -> None:
    """Whoever comes with every turn that is free does not get ahead of those that wait."""
    turns, order, gates = chat_template._Turns(2), [], [threading.Event() for _ in range(6)]

    def take(i: int) -> None:
        with turns.taken():
            order.append(i)
            gates[i].wait(60)

    threads = [threading.Thread(target=take, args=(i,)) for i in range(6)]
    for i, thread in enumerate(threads):
        thread.start()
        while len(order) + len(turns._waiting) <= i:
            time.sleep(0.001)
    assert order == [0, 1]
    for i in (1, 0, 2, 3, 4, 5):
        gates[i].set()
        while len(order) < min(6, 3 + (1, 0, 2, 3, 4, 5).index(i)):
            time.sleep(0.001)
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2, 3, 4, 5] and turns._free == 2


def test_two_conversations_are_rendered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    both, ask = threading.Barrier(2), chat_template._Process.ask

    def meeting(self: Any, message: bytes) -> Any:
        if b'"source"' not in message:
            both.wait(60)
        return ask(self, message)

    monkeypatch.setattr(chat_template._Process, "ask", meeting)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: template.render(say(text)), "abcd")) == list("abcd")
    assert len(template._idle) == 2


def test_a_process_that_cannot_be_started_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no OSError, which a server takes for the end of its connection."""
    template = ChatTemplate("{{ messages[0].content }}")
    killed(template)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(IngotError, match="cannot be started"):
        template.render(say("x"))
    monkeypatch.undo()
    assert template.render(say("again")) == "again"
