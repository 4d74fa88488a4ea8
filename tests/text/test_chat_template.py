"""Chat templates: the same text as transformers renders, and nothing a hostile template can gain."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ingot.errors import CheckpointError, RequestError
from ingot.text.chat_template import MAX_TEMPLATE, ChatTemplate, check_messages

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


@pytest.mark.parametrize("source", [CHATML, LLAMA2, GEMMA, FEATURES], ids=["chatml", "llama2", "gemma", "features"])
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers_does(source: str, prompt: bool) -> None:
    utils: Any = pytest.importorskip("transformers.utils.chat_template_utils")
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    found = ChatTemplate(source, special).render(TALK, add_generation_prompt=prompt)
    (want,), _ = utils.render_jinja_template([TALK], chat_template=source, add_generation_prompt=prompt, **special)
    assert found == want


HOSTILE = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "classes by filter": "{{ ''|attr('__class__') }}",
    "globals of a function": "{{ raise_exception.__globals__.os }}",
    "code of a macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "environment": "{{ self.__init__.__globals__ }}",
    "loop internals": "{% for i in [1] %}{{ loop._iterator }}{{ loop.__init__.__globals__ }}{% endfor %}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "format string": "{{ '{0.__class__}'.format(1) }}",
    "percent format": "{{ '%1000000000d' % 1 }}",
    "long text": "{{ 'x' * 1000000000 }}",
    "long list": "{{ [0] * 1000000000 }}",
    "doubling": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}",
    "doubling by plus": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}",
    "doubling by join": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}"
    "{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
    "replace": "{% set a = 'x' * 100000 %}{{ a.replace('', a) }}",
    "pad": "{{ 'x'.ljust(1000000000) }}",
    "centre": "{{ 'x'|center(1000000000) }}",
    "indent": "{{ 'x'|indent(1000000000) }}",
    "power": "{{ 10 ** 10000000 }}",
    "big products": "{% set ns = namespace(x=99999999999) %}{% for i in range(9000) %}{% set ns.x = ns.x * ns.x %}"
    "{% endfor %}{{ ns.x }}",
    "endless": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "endless with output": "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}",
    "long range": "{% for i in range(1000000000) %}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "changing a message": "{{ messages.append(1) }}",
    "clearing": "{{ messages[0].clear() }}",
    "refuses": "{{ raise_exception('never ' * 1000) }}",
    "undefined call": "{{ nothing() }}",
    "wide date": "{{ strftime_now('%Y' * 1000) }}",
    "deep json": "{{ messages | tojson(indent=1000000) }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_hostile_templates_end_in_an_error(source: str) -> None:
    messages = [dict(m) for m in TALK]
    begin = time.process_time()
    with pytest.raises((RequestError, CheckpointError)) as caught:
        ChatTemplate(source).render(messages)
    assert len(str(caught.value)) < 1000
    assert time.process_time() - begin < 20
    assert messages == TALK


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


@pytest.mark.parametrize(
    "messages",
    [None, [], "hello", [1], [{"role": "user"}], [{"content": "x"}], [{"role": 5, "content": "x"}],
     [{"role": "user", "content": None}], [{"role": "user", "content": ["x"]}], [{"role": "", "content": "x"}]],
)  # fmt: skip
def test_messages_are_checked(messages: Any) -> None:
    with pytest.raises(RequestError, match="messages"):
        check_messages(messages)
