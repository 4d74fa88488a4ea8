"""Chat templates made to do harm, by name: each has to end in an error. Those of HARMLESS only look like it."""

_LIST = "{% set n = namespace(x=[1]) %}{% for i in range(23) %}{% set n.x = n.x + n.x %}{% endfor %}"
_NESTED = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
_DIGITS = "{% set n = namespace(x=99999999999) %}{% for i in range(21) %}{% set n.x = n.x * n.x %}{% endfor %}"

ESCAPES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "classes by filter": "{{ ''|attr('__class__') }}",
    "globals of a function": "{{ raise_exception.__globals__.os }}",
    "globals of a method": "{{ messages.append.__globals__.os }}",
    "code of a macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "environment": "{{ self.__init__.__globals__ }}",
    "loop internals": "{% for i in [1] %}{{ loop._iterator }}{{ loop.__init__.__globals__ }}{% endfor %}",
    "a number's methods": "{{ (1).to_bytes(1000000000, 'big') }}",
    "a number's denominator": "{{ (1).denominator.bit_length() }}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends '/etc/passwd' %}",
    "format string": "{{ '{0.__class__}'.format(1) }}",
    "format map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "changing a message": "{{ messages.append(1) }}",
    "clearing": "{{ messages[0].clear() }}",
    "refuses": "{{ raise_exception('never ' * 1000) }}",
    "undefined call": "{{ nothing() }}",
    "types": "{{ cycler.__init__.__globals__ }}",
    "lipsum": "{{ lipsum(100000) }}",
}

TOO_MUCH = {
    "percent format": "{{ '%1000000000d' % 1 }}",
    "percent format by star": "{{ '%*d' % (1000000000, 1) }}",
    "percent precision": "{{ '%.1000000000f' % 1 }}",
    "long text": "{{ 'x' * 1000000000 }}",
    "long text folded": "{% set a = 'x' * 99999999 %}{% set b = 'y' * 99999999 %}{{ a ~ b ~ a ~ b }}",
    "long list": "{{ [0] * 1000000000 }}",
    "doubling": "{% set n = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling by plus": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}",
    "doubling by join": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}"
    "{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
    "doubling by escape": "{% set n = namespace(x='&&&&') %}{% for i in range(60) %}"
    "{% set n.x = n.x|escape|string ~ n.x %}{% endfor %}",
    "replace": "{% set a = 'x' * 100000 %}{{ a.replace('', a) }}",
    "replace by filter": "{% set a = 'x' * 100000 %}{{ a | replace('', a) }}",
    "join by a long text": "{% set a = 'x' * 100000 %}{{ a.join(a) }}",
    "split into many": "{{ ('x ' * 40000000).split() }}",
    "lines": "{{ ('\n' * 90000000).splitlines() | length }}",
    "pad": "{{ 'x'.ljust(1000000000) }}",
    "centre": "{{ 'x'|center(1000000000) }}",
    "indent": "{{ 'x'|indent(1000000000) }}",
    "power": "{{ 10 ** 10000000 }}",
    "tower": "{{ 9 ** (9 ** (9 ** 9)) }}",
    "power of one": "{{ (3 ** 30000000) % 7 }}",
    "shifted by powers": "{{ 2 ** 40000000000 }}",
    "big products": "{% set ns = namespace(x=99999999999) %}{% for i in range(9000) %}{% set ns.x = ns.x * ns.x %}"
    "{% endfor %}{{ ns.x }}",
    "digits": _DIGITS + "{{ n.x }}",
    "digits divided": _DIGITS
    + "{% for i in range(99) %}{{ (n.x // (n.x - 1)) }}{{ (n.x * n.x) % (n.x - 7) }}{% endfor %}",
    "round": "{{ 5|round(-1000000000) }}",
    "round a big number": _DIGITS + "{{ n.x|round(-5) }}",
    "integer of hex": "{{ ('f' * 50000000)|int(base=16) + 1 }}",
    "endless": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "endless with output": "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}",
    "long range": "{% for i in range(1000000000) %}{% endfor %}",
    "list of a range": "{{ range(1000000000) | list }}",
    "sum of a range": "{{ range(1000000000000) | sum }}",
    "max of a range": "{{ range(1000000000000) | max }}",
    "unique of a range": "{{ range(1000000000000) | unique | list | length }}",
    "selected from a range": "{{ range(1000000000000) | select('equalto', -1) | list }}",
    "mapped range": "{{ range(1000000000000) | map('string') | join }}",
    "sorted range": "{{ range(1000000000000) | sort }}",
    "reversed range": "{{ range(1000000000000) | reverse | reject | list }}",
    "length of a loop": "{% for i in range(1000000000000) | select %}{{ loop.length }}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "nested as JSON": _NESTED + "{{ n.x | tojson }}",
    "nested as text": _NESTED + "{{ n.x | string }}",
    "nested printed": _NESTED + "{{ n.x }}",
    "nested compared": _NESTED + _NESTED.replace("namespace(", "namespace(y=n.x, ") + "{{ n.x == n.y }}",
    "nested maximum": _NESTED + _NESTED.replace("namespace(", "namespace(y=n.x, ") + "{{ [n.x, n.y] | max }}",
    "nested unique": _NESTED + "{{ [n.x, n.x] | unique | list }}",
    "nested sorted": _NESTED + "{{ [n.x, [n.x]] | sort }}",
    "nested in": _NESTED + _NESTED.replace("namespace(", "namespace(y=n.x, ") + "{{ n.x in [n.y] }}",
    "nested selected": _NESTED + _NESTED.replace("namespace(", "namespace(y=n.x, ")
    + "{{ [n.x] | select('equalto', n.y) | list }}",
    "nested escaped": _NESTED + "{{ n.x | escape }}",
    "nested title": _NESTED + "{{ n.x | title }}",
    "sum of lists": _LIST + "{{ [n.x, n.x, n.x, n.x, n.x, n.x, n.x, n.x] | sum(start=[]) | length }}",
    "slices": _LIST + "{% for i in range(99) %}{{ n.x[::-1] | length }}{% endfor %}",
    "lists as text": _LIST + "{{ n.x }}",
    "lists as JSON": _LIST + "{{ n.x | tojson(indent=8) }}",
    "lists sorted": _LIST + "{% for i in range(99) %}{{ n.x | sort(reverse=true) | length }}{% endfor %}",
    "lists compared": _LIST + "{% for i in range(999) %}{{ n.x == n.x[:] }}{% endfor %}",
    "list count": _LIST + "{% for i in range(999) %}{{ n.x.count(2) }}{% endfor %}",
    "find": "{% set a = 'a' * 3000000 %}{% for i in range(99) %}{{ a.find('a' * 1000000 ~ 'b') }}{{ a.count('ab') }}"
    "{% endfor %}{{ a * 9 }}",
    "wide JSON": "{{ messages | tojson(indent=1000000000) }}",
    "long date": "{{ strftime_now('%c' * 10000000) }}",
    "upper": "{{ ('ß' * 100000000).upper() }}",
    "dictionary": "{{ dict(range(1000000000)) }}",
    "attributes": "{{ messages | map(attribute=('role.' * 1000000)) | list }}",
}

UNREADABLE = {
    "parentheses": "{{" + "(" * 9000,
    "lists": "{{" + "[" * 50000,
    "operators": "{{" + "-" * 200000 + "1 }}",
    "folded power": "{{ 9 ** 9 ** 9 }}{% if 1 %}",
    "blocks": "{% if 1 %}" * 20000,
    "filters": "{{ 1" + "|abs" * 50000 + "}}",
    "attributes": "{{ a" + ".b" * 100000 + "}}",
    "conditions": "{{ " + "1 if 1 else " * 15000 + "1 }}",
    "sums": "{{ " + "1+" * 100000 + "1 }}",
}

HARMLESS = {
    "a small power": "{{ 9 ** 9 ** 9 ** 9 }}",
    "integer of a text": "{{ ('9' * 50000000)|int }}",
    "float of a text": "{{ ('9' * 200000000)|float }}",
    "last of a range": "{{ range(1000000000000) | select | first }}",
    "wide date": "{{ strftime_now('%1000000000Y') }}",
}
