"""Chat templates with the features of well-known families', each written anew from what those do: tools, calls and
their results, thoughts that are left out later, dates, roles that have to alternate. Texts and names are short, ours.
"""

from tests.text.llama_qwen_templates import LLAMA_AND_QWEN

FAMILIES = {
    **LLAMA_AND_QWEN,
    "Mistral": """\
{{ bos_token }}{% set ns = namespace() %}{% set ns.index = 0 %}{% for m in messages if m.role != 'system' %}\
{% if not (m.role == 'tool' or m.tool_calls is defined and m.tool_calls is not none) %}\
{% if (m['role'] == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('user and assistant take turns') }}{% \
endif %}\
{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}
{%- set users = messages | selectattr("role", "equalto", "user") | list %}
{%- for m in messages %}
    {%- if m["role"] == "user" %}
        {%- if tools is not none and (m == users[-1]) %}
            {{- "[TOOLS][" }}
            {%- for tool in tools %}
                {{- '{"function": {' }}
                {%- for key, val in tool.function.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{{- ", " if not loop.last else "]" }}
            {%- endfor %}
            {{- "[/TOOLS]" }}
        {%- endif %}
        {{- "[INST]" + m["content"] + "[/INST]" }}
    {%- elif m.tool_calls is defined and m.tool_calls is not none %}
        {{- "[CALLS][" }}
        {%- for call in m.tool_calls %}
            {%- set out = call.function | tojson %}{{- out[:-1] }}
            {%- if not call.id is defined or call.id | length != 9 %}{{- raise_exception("nine letters") }}{%- \
endif %}
            {{- ', "id": "' + call.id + '"}' }}{{- ", " if not loop.last else "]" + eos_token }}
        {%- endfor %}
    {%- elif m["role"] == "assistant" %}
        {{- m["content"] + eos_token }}
    {%- elif m["role"] == "tool" %}
        {{- '[RESULTS]{"content": ' + m.content|string + ', "call_id": "' + m.tool_call_id + '"}[/RESULTS]' }}
    {%- endif %}
{%- endfor %}
""",
    "Mistral Small": """\
{%- set today = strftime_now("%Y-%m-%d") %}{%- set default = "Today is " + today + ". Help." %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}{%- set first = messages[0]['content'] %}
    {%- else %}{%- set first = messages[0]['content'][0]['text'] %}{%- endif %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set first = default %}{%- set rest = messages %}
{%- endif %}
{{- '[SYSTEM]' + first + '[/SYSTEM]' }}
{%- for m in rest %}{%- if m['role'] == 'user' %}{{- '[INST]' + m['content'] + '[/INST]' }}
{%- elif m['role'] == 'assistant' and m['content'] %}{{- m['content'] + eos_token }}{%- endif %}{%- endfor %}""",
    "Gemma 2": """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no turn of the system') }}{% endif %}\
{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('roles have to alternate') }}{% endif %}{% if (m['role'] == 'assistant') %}{% set role = \
'model' %}\
{% else %}{% set role = m['role'] %}{% endif %}{{ '<turn>' + role + '\n' + m['content'] | trim + '</turn>\n' }}\
{% endfor %}{% if add_generation_prompt %}{{'<turn>model\n'}}{% endif %}""",
    "Gemma 3": """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<turn>' + role + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '</turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<turn>model\n' }}
{%- endif -%}
""",
    "Gemma 4": """\
{%- macro shown(value, quote=True) -%}
    {%- if value is string -%}{{- '<|"|>' + value + '<|"|>' if quote else value -}}
    {%- elif value is boolean -%}{{- 'true' if value else 'false' -}}
    {%- elif value is mapping -%}
        {{- '{' -}}
        {%- for k, v in value | dictsort -%}
            {{- k -}}:{{- shown(v) -}}{%- if not loop.last %},{% endif -%}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif value is sequence -%}
        {{- '[' -}}{%- for v in value -%}{{- shown(v, quote=quote) -}}{%- if not loop.last %},{% endif -%}{%- \
endfor -%}{{- ']' -}}
    {%- else -%}{{- value -}}{%- endif -%}
{%- endmacro -%}
{{ bos_token }}{%- for t in tools or [] -%}
declaration:{{ t.function.name }}{{ shown(t.function.parameters) | trim }}
{%- endfor -%}
{%- for m in messages -%}
    {{- '<|turn>' ~ m.role ~ '\\n' -}}{%- set ns = namespace(text='') -%}
    {%- for part in (m.content or '').split('</think>') -%}
        {%- if '<think>' in part -%}{%- set ns.text = ns.text + part.split('<think>')[0] -%}
        {%- else -%}{%- set ns.text = ns.text + part -%}{%- endif -%}
    {%- endfor -%}
    {{- ns.text | trim -}}
    {%- for call in m['tool_calls'] or [] -%}{{- shown(call['function']['arguments']) -}}{%- endfor -%}
    {{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if not enable_thinking | default(false) -%}{{- '<|none|>' -}}{%- endif -%}
""",
    "Phi 3": """\
{% for m in messages %}{% if m['role'] == 'system' and m['content'] %}{{'<|system|>\n' + m['content'] + '<|end|>\n'}}\
{% elif m['role'] == 'user' %}{{'<|user|>\n' + m['content'] + '<|end|>\n'}}{% elif m['role'] == 'assistant' %}\
{{'<|assistant|>\n' + (m['content'] or '') + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}\
{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "Phi 4 mini": """\
{% for m in messages %}{% if m['role'] == 'system' and tools is not none %}\
{{ '<|' + m['role'] + '|>' + m['content'] + '<|tool|>' + tools|tojson + '<|/tool|>' + '<|end|>' }}{% else %}\
{{ '<|' ~ m['role'] ~ '|>' ~ m['content'] ~ '<|end|>' }}{% endif %}{% endfor %}{{ '<|assistant|>' if \
add_generation_prompt else eos_token }}""",
    "DeepSeek R1": """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}\
{%- for m in messages %}{%- if m['role'] == 'system' %}{% set ns.system_prompt = m['content'] %}{%- endif %}{%- \
endfor %}\
{{bos_token}}{{ns.system_prompt}}{%- for m in messages %}{%- if m['role'] == 'user' %}{%- set ns.is_tool = false -%}\
{{'<｜User｜>' + m['content']}}{%- endif %}{%- if m['role'] == 'assistant' and m['tool_calls'] %}\
{%- for tool in m['tool_calls'] %}{%- if not ns.is_first %}{{'<｜Assistant｜><｜calls｜>' + '```json' + '\\n' + \
tool['function']['arguments'] | tojson + '\\n' + '```'}}{%- set ns.is_first = true -%}{%- else %}{{'\\n' ~ \
tool['function']['name']}}{%- endif %}{%- endfor %}{%- endif %}{%- if m['role'] == 'assistant' and not \
m['tool_calls'] %}\
{%- if ns.is_tool %}{{'<｜outputs▁end｜>' + m['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false \
-%}{%- else %}\
{% set content = m['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] \
%}{% endif %}\
{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}{%- if m['role'] == 'tool' %}\
{%- set ns.is_tool = true -%}{{'<｜output｜>' + m['content']}}{%- endif %}{%- endfor -%}{% if ns.is_tool %}\
{{'<｜outputs▁end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool \
%}{{'<｜Assistant｜><think>\\n'}}{% endif %}""",
    "DeepSeek 3.1": """\
{%- set ns = namespace(first=true, prompt='', user=false) -%}
{%- for m in messages -%}{%- if m['role'] == 'system' -%}
  {%- set ns.prompt = ns.prompt + ('' if ns.first else '\\n\\n') + m['content'] -%}{%- set ns.first = false -%}
{%- endif -%}{%- endfor -%}{{ bos_token }}{{ ns.prompt }}
{%- for m in messages -%}
  {%- if m['role'] == 'user' -%}{%- set ns.user = true -%}{{ '<U>' + m['content'] }}{%- endif -%}
  {%- if m['role'] == 'assistant' and m['tool_calls'] is defined and m['tool_calls'] is not none -%}
    {%- if ns.user -%}{{ '<A></think>' }}{%- endif -%}{%- set ns.user = false -%}
    {%- for tool in m['tool_calls'] -%}{{ (m['content'] or '') ~ tool['function']['name'] ~ '<sep>' ~ \
tool['function']['arguments'] }}{%- endfor -%}{{ '<end>' }}
  {%- endif -%}
  {%- if m['role'] == 'assistant' and (m['tool_calls'] is not defined or m['tool_calls'] is none) -%}
    {%- set content = m['content'] -%}
    {%- if '</think>' in content -%}{%- set content = content.split('</think>', 1)[1] -%}{%- endif -%}
    {{ content + '<end>' }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and ns.user -%}{{ '<A>' }}{%- if not thinking -%}{{ '</think>' }}{%- endif -%}{%- \
endif %}""",
    "Command R": """\
{{ bos_token }}{%- macro number_of(messages, id) %}
{%- set counter = namespace(value=0) %}{%- set seen = namespace(value=false) %}
{%- for m in messages %}{%- if m.tool_calls %}{%- for call in m.tool_calls %}
            {%- if call.id == id and not seen.value -%}
                {{ counter.value }}
                {%- set seen.value = true %}
            {%- endif %}
            {%- set counter.value = counter.value + 1 %}
{%- endfor %}{%- endif %}{%- endfor %}
{%- endmacro %}
{%- if messages and messages[0]['role']|lower == 'system' %}{%- set preamble = messages[0]['content'] %}{% endif %}
<|SYSTEM|># Preamble
{% if tools %}

## Tools
[
{% for tool in tools %}
    {"name": "{{ tool['function']['name'] }}", "parameters": {{ tool['function']['parameters']|tojson }}}\
{%- if not loop.last %},{% endif %}

{% endfor %}
]
{% endif %}
{%- if preamble %}

{{ preamble }}
{%- endif -%}
<|END|>
{%- for m in messages %}
    {%- if m.role|lower == 'user' %}
<|USER|>{{ m.content }}<|END|>
    {%- elif m.role|lower == 'assistant' or m.role|lower == 'chatbot' %}
<|CHATBOT|>{% if m.tool_calls %}{{ m.reasoning_content }}[
    {% for tc in m.tool_calls %}
    {"id": "{{ loop.index0 }}", "name": "{{ tc['function']['name'] }}"}{% if not loop.last %},{% endif %}

    {% endfor %}
]<|END|>{% else %}{{ m.content }}<|END|>{% endif %}
    {% elif m.role|lower == 'tool' %}
<|SYSTEM|>[{"id": "{{ number_of(messages, m.tool_call_id) }}", "results": {{ m.content|tojson }}}
    {%- for other in messages[loop.index0 + 1:] %}
        {%- if other.role|lower == 'tool' %},
{{ other.content }}
        {%- else %}
            {%- break %}
        {%- endif %}
    {%- endfor %}
]<|END|>
    {%- endif %}
{%- endfor %}{{ documents | length if documents }}<|CHATBOT|>""",
    "Granite": """\
{%- if messages[0]['role'] == 'system' %}
     {%- set system_message = messages[0]['content'] %}
     {%- set loop_messages = messages[1:] %}
{%- else %}
     {%- set system_message = "Cutoff: April.\\nToday's Date: " + strftime_now('%B %d, %Y') + "." %}
     {%- if tools and documents %}{%- set system_message = system_message + " Tools and documents." %}
     {%- elif tools %}{%- set system_message = system_message + " Tools." %}{%- endif %}
     {%- set loop_messages = messages %}
{%- endif %}
{{- '<|role|>system<|/role|>' + system_message + '<|end|>\\n' }}
{%- if tools %}
     {{- '<|role|>tools<|/role|>' }}
     {{- tools | map('tojson', indent=2) | join('\\n') }}
     {{- '<|end|>\\n' }}
{%- endif %}
{%- for message in loop_messages %}
     {{- '<|role|>' + message['role'] + '<|/role|>' }}
     {%- if message['content'] is string %}{{- message['content'] }}{%- else %}{{- message['tool_calls'] | \
tojson }}{%- endif %}
     {{- '<|end|>\\n' }}
     {%- if loop.last and add_generation_prompt %}
          {{- '<|role|>assistant' }}{%- if controls %}{{- ' ' + controls | tojson }}{%- endif %}{{- '<|/role|>' }}
     {%- endif %}
{%- endfor %}""",
    "Zephyr": """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + (message['content'] or '') + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "Falcon": """\
{% for m in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}{% if m['role'] == 'system' %}{{ m['content'] }}\
{% elif m['role'] == 'user' %}{{ '\nUser: ' + m['content'].replace('\r\n', '\n').replace('\n\n', '\n') | trim }}\
{% else %}{{ m['role'] | capitalize ~ ': ' ~ m['content'] }}{% endif %}{% endfor %}{{ '\nFalcon:' if \
add_generation_prompt }}""",
    "Vicuna": """\
{% if messages[0]['role'] == 'system' %}{% set talk = messages[1:] %}{{ messages[0]['content'].strip() + '\n\n' }}\
{% else %}{% set talk = messages %}{% endif %}{% for m in talk %}{% if m['role'] == 'user' %}\
{{ 'USER: ' + m['content'].strip() + '\n' }}{% elif m['role'] == 'assistant' and m['content'] %}\
{{ 'ASSISTANT: ' + m['content'].strip() + eos_token + '\n' }}{% endif %}{% if loop.last and m['role'] == 'user' and \
add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}{% endfor %}""",
    "SmolLM 3": """\
{%- if xml_tools is not defined %}{%- set xml_tools = tools or [] %}{%- endif -%}
{%- if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}
{%- set mode = "/think" if enable_thinking else "/no_think" %}
{%- set custom = messages[0].content.replace("/no_think", "").rstrip() if messages[0].role == "system" else "" -%}
{{- "<|im_start|>system\\n" -}}
## Today: {{ strftime_now("%d %B %Y") }}
{%- set ns = namespace(xml="<tools>\\n") -%}
{%- for tool in xml_tools[:] -%}{%- set ns.xml = ns.xml ~ (tool | string) ~ "\\n" -%}{%- endfor -%}
{{- "\\n" ~ mode ~ "\\n" ~ custom ~ "\\n" ~ ns.xml ~ "</tools><|im_end|>\\n" }}
{%- for m in messages -%}
    {%- set content = m.content if m.content is string else "" -%}
    {%- if m.role == "user" -%}
        {{ "<|im_start|>" + m.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif m.role == "assistant" -%}
        {% generation %}
        {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {% endgeneration %}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\\n" }}{%- endif -%}""",
    "GLM 4": """\
[gMASK]<sop>
{%- if tools -%}
<|system|>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- elif item is string -%}{{- \
item }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last = loop.index0 -%}{%- endif %}{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not \
visible_text(m.content).endswith("/nothink")) \
else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- if loop.index0 > ns.last %}<think></think>{%- endif -%}
{%- for tc in m.tool_calls or [] %}
{{ '\n<tool_call>' + tc.function.name }}
{% set _args = tc.function.arguments %}{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}</tool_call>{% endfor %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}
{{- '\n' ~ m.content -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}""",
    "gpt-oss": """\
{%- macro typed(spec, many=false) -%}
    {%- if spec.type == 'array' -%}
        {%- if spec['items'] -%}{{- typed(spec['items']) + '[]' }}{%- else -%}{{- 'any[]' }}{%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type[0] is \
defined -%}
        {{- spec.type | join(' | ') }}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum | join('" | "') + '"' -}}
    {%- else -%}{{- spec.type or 'any' }}{%- endif -%}
{%- endmacro -%}
{%- set model_identity = model_identity if model_identity is defined else 'You help.' -%}
{{- '<|s|>system<|m|>' + model_identity + '\\nCurrent date: ' + strftime_now('%Y-%m-%d') + '\\n\\n' }}
{%- for tool in tools or [] %}
    {{- '// ' + tool.function.description + '\\ntype ' + tool.function.name + ' = (_: {\\n' }}
    {%- for name, spec in tool.function.parameters.properties.items() %}
        {{- name }}{%- if name not in (tool.function.parameters.required or []) %}{{- '?' }}{%- endif %}
        {{- ': ' + typed(spec) }}{{- ',\\n' if not loop.last else '\\n' }}
    {%- endfor %}
    {{- '}) => any;\\n\\n' }}
{%- endfor %}
{%- set last = namespace(name=none) %}
{%- for m in messages -%}
    {%- if m.role == 'assistant' and 'tool_calls' in m -%}
        {%- set call = m.tool_calls[0].function %}
        {{- '<|s|>assistant to=functions.' + call.name + '<|m|>' + call.arguments | tojson + '<|call|>' }}
        {%- set last.name = call.name %}
    {%- elif m.role == 'tool' -%}
        {%- if last.name is none %}{{- raise_exception('a result without a call') }}{%- endif %}
        {{- '<|s|>functions.' + last.name + ' to=assistant<|m|>' + m.content | tojson + '<|e|>' }}
    {%- elif loop.last and not add_generation_prompt and m.role == 'assistant' %}
        {{- '<|s|>assistant<|final|><|m|>' + m.content + '<|return|>' }}
    {%- else -%}
        {{- '<|s|>' + m.role + '<|m|>' + m.content + '<|e|>' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|s|>assistant{%- endif -%}""",
}  # fmt: skip
