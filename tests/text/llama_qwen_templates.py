"""Chat templates as those of family_templates.py: the Llamas, ChatML and the Qwens."""

LLAMA_AND_QWEN = {
    "Llama 2": """\
{%- if messages[0]['role'] == 'system' -%}{%- set talk = messages[1:] -%}{%- set first = messages[0]['content'] -%}
{%- else -%}{%- set talk = messages -%}{%- set first = false -%}{%- endif -%}
{%- for m in talk -%}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{%- endif %}\
{%- if loop.index0 == 0 and first != false -%}{%- set said = '<<S>>\\n' + first + '\\n<</S>>\\n\\n' + m['content'] -%}
{%- else -%}{%- set said = m['content'] -%}{%- endif -%}
{%- if m.role == 'user' -%}{{ bos_token + '[I] ' + said.strip() + ' [/I]' }}
{%- elif m.role == 'assistant' -%}{{ ' ' + said.strip() + ' ' + eos_token }}{%- endif -%}
{%- endfor -%}""",
    "Llama 3": """\
{% set loop_messages = messages %}{% for m in loop_messages %}{% set content = '<|start|>' + m['role'] + \
'<|end|>\n\n' + \
(m['content'] or '') | trim + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}\
{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}""",
    "Llama 3.1": """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not where is defined %}
    {%- set where = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = '26 Jul 2024' %}
{%- endif %}

{#- the first turn of the system goes to the front #}
{%- if messages[0]['role'] == 'system' %}
    {%- set first = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set first = '' %}
{%- endif %}
{{- '<|start|>system<|end|>\\n\\n' }}
{%- if builtin_tools is defined or tools is not none %}
    {{- 'Environment: ipython\\n' }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- 'Tools: ' + builtin_tools | reject('equalto', 'code_interpreter') | join(', ') + '\\n\\n' }}
{%- endif %}
{{- 'Today: ' + date_string + '\\n\\n' }}
{{- first }}
{{- '<|eot|>' }}
{%- if where and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set asked = messages[0]['content'] | trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception('tools need a first turn of the user') }}
    {%- endif %}
    {{- '<|start|>user<|end|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- '\\n\\n' }}
    {%- endfor %}
    {{- asked + '<|eot|>' }}
{%- endif %}
{%- for m in messages %}
    {%- if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}
        {{- '<|start|>' + m['role'] + '<|end|>\\n\\n' + m['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in m %}
        {%- if not m.tool_calls | length == 1 %}
            {{- raise_exception('one call at once') }}
        {%- endif %}
        {%- set call = m.tool_calls[0].function %}
        {%- if builtin_tools is defined and call.name in builtin_tools %}
            {{- '<|python|>' + call.name + '.call(' }}
            {%- for name, value in call.arguments | items %}
                {{- name + '="' + value + '"' }}
                {%- if not loop.last %}
                    {{- ', ' }}
                {%- endif %}
            {%- endfor %}
            {{- ')' }}
        {%- else %}
            {{- '<|start|>assistant<|end|>\\n\\n' -}}
            {{- '{"name": "' + call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- call.arguments | tojson }}
            {{- '}' }}
        {%- endif %}
        {{- '<|eot|>' }}
    {%- elif m.role == 'tool' or m.role == 'ipython' %}
        {{- '<|start|>ipython<|end|>\\n\\n' }}
        {%- if m.content is mapping or m.content is iterable %}
            {{- m.content | tojson }}
        {%- else %}
            {{- m.content }}
        {%- endif %}
        {{- '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
""",
    "Llama 3.2": """\
{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now('%d %b %Y') %}
{%- else %}{%- set date_string = 'once' %}{%- endif %}{%- endif %}
{{- bos_token }}Today: {{ date_string }}
{% for m in messages %}{{ m.role }}: {{ (m.content or '') | trim }}
{% endfor %}""",
    "Llama 4": """\
{{- bos_token }}
{%- for m in messages %}
    {{- '<|h|>' + m.role + '<|/h|>\\n\\n' }}
    {%- if m.content is string %}
        {{- m.content }}
    {%- else %}
        {%- for part in m.content or [] %}
            {%- if part['type'] == 'image' %}
                {{- '<|image|>' }}
            {%- elif part['type'] == 'text' %}
                {{- part['text'] }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {%- if m.tool_calls is defined and m.tool_calls | length > 0 %}
        {{- '[' }}
        {%- for call in m.tool_calls %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- call.name + '(' }}
            {%- for k, v in call.arguments.items() %}{{- k + '=' + v | tojson }}{%- if not loop.last %}, {% \
endif %}{%- endfor %}
            {{- ')' ~ (', ' if not loop.last else '') }}
        {%- endfor %}
        {{- ']' }}
    {%- endif %}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|h|>assistant<|/h|>\\n\\n' }}{%- endif %}
""",
    "ChatML": """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + \
(message['content'] or '') + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}\
{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "Qwen 2.5": """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You help.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nSignatures are in <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\n<tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <args>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" \
and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "Qwen 3": """\
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not \
(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and thought)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
            {{- content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {%- if call.function.arguments is string %}{{- call.function.arguments }}
            {%- else %}{{- call.function.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
}  # fmt: skip
