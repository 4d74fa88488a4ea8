"""Every filter, test, global, method and statement that transformers gives templates: the same text, or a reason."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from ingot.text.chat_sandbox import _rendered, _Sandbox

utils: Any = pytest.importorskip("transformers.utils.chat_template_utils")

NAMES: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "You are <b>brief</b>."},
        {"role": "user", "content": "  Hello, wörld & you!\nsee www.example.org\t"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1.5}}}]},
    ],
    "n": [3, 1, 2, 2], "words": ["b", "A", "c", "a"], "deep": {"z": [1, {"ü": None}], "a": True, "B": -2.5e-7},
    "long": "the quick brown fox jumps over the lazy dog and a wordwhichislongerthanothers " * 2,
    "rows": [{"k": "x", "v": 2}, {"k": "y", "v": 1}, {"k": "X", "v": 3}], "none": None, "empty": [],
}  # fmt: skip

FILTERS: dict[str, list[str]] = {
    "abs": ["-3|abs"],
    "attr": ["'x'|attr('nothing')", "deep|attr('a')", "('a-b'|attr('split'))('-')", "''|attr('__class__')"],
    "batch": ["n|batch(3)|list", "n|batch(3, 'x')|list"],
    "capitalize": ["'hELLO wOrld'|capitalize"],
    "center": ["'x'|center(9)", "'x'|center|length"],
    "count": ["n|count"],
    "d": ["nothing|d('x')", "''|d('x', true)"],
    "default": ["nothing|default('x')", "none|default('x')", "none|default('x', true)", "nothing|default"],
    "dictsort": ["deep|dictsort", "deep|dictsort(true)", "deep|dictsort(false, 'key', reverse=true)"],
    "e": ["'<a href=\"x\">&'|e"],
    "escape": ["'<&>'|escape", "'<&>'|escape|escape"],
    "filesizeformat": ["123456789|filesizeformat", "123456789|filesizeformat(true)", "1|filesizeformat"],
    "first": ["n|first", "empty|first", "'xyz'|first"],
    "float": ["'1.5'|float", "'x'|float", "'x'|float(2.0)"],
    "forceescape": ["'<&>'|e|forceescape"],
    "format": ["'%s-%05.2f'|format('x', 3)", "'%(a)s'|format(a=1)", "'%r'|format('ü')"],
    "groupby": ["rows|groupby('k')", "rows|groupby('k', case_sensitive=true)|map('first')|join",
                "(rows|groupby('w', default='?'))[0].grouper"],
    "indent": ["'a\\nb\\n\\nc'|indent", "'a\\nb\\n\\nc'|indent(2, true)", "'a\\n\\nb'|indent('> ', blank=true)"],
    "int": ["'12'|int", "'x'|int(7)", "'ff'|int(base=16)", "3.9|int"],
    "items": ["deep|items|list", "nothing|items|list"],
    "join": ["n|join", "n|join(', ')", "rows|join('/', attribute='k')"],
    "last": ["n|last", "empty|last"],
    "length": ["messages|length", "'ü'|length"],
    "list": ["'abc'|list", "range(3)|list"],
    "lower": ["'ÄB'|lower"],
    "map": ["words|map('upper')|join", "rows|map(attribute='k')|list", "rows|map(attribute='w', default='?')|list"],
    "max": ["n|max", "words|max", "words|max(true)", "rows|max(attribute='v')", "empty|max"],
    "min": ["n|min", "words|min", "rows|min(attribute='v')"],
    "pprint": ["deep|pprint", "(messages * 5)|pprint"],
    "reject": ["n|reject('odd')|list", "n|reject|list"],
    "rejectattr": ["rows|rejectattr('k', 'equalto', 'x')|list", "rows|rejectattr('v')|list"],
    "replace": ["'aaa'|replace('a', 'b', 2)", "'<'|replace('<', '&')"],
    "reverse": ["n|reverse|list", "'abc'|reverse"],
    "round": ["2.5|round", "42.55|round(1, 'floor')", "1234|round(-2)", "2.123|round(2, 'ceil')"],
    "safe": ["'<'|safe", "'<'|safe|escape"],
    "select": ["n|select('gt', 1)|list", "[0, 1, '']|select|list"],
    "selectattr": ["rows|selectattr('v', 'ge', 2)|map(attribute='k')|list", "messages|selectattr('tool_calls')|list"],
    "slice": ["n|slice(3)|list", "n|slice(3, 'x')|list"],
    "sort": ["n|sort", "words|sort", "words|sort(case_sensitive=true)", "rows|sort(attribute='k,v', reverse=true)"],
    "string": ["12|string + 'x'", "none|string", "'<'|e|string"],
    "striptags": ["messages[0].content|striptags", "'a <!-- b --> c'|striptags"],
    "sum": ["n|sum", "rows|sum(attribute='v', start=10)"],
    "title": ["\"they're bill's friends (and more)\"|title"],
    "tojson": [
        "deep|tojson", "deep|tojson(indent=2)", "deep|tojson(separators=(',', ':'))", "deep|tojson(sort_keys=true)",
        "deep|tojson(ensure_ascii=true)", "deep|tojson(true)", "deep|tojson(indent='\\t', separators=(';', '='))",
        "messages|tojson(false, 4, (', ', ': '), true)", "'</script>'|tojson", "1.0|tojson", "none|tojson",
    ],
    "trim": ["messages[1].content|trim", "'xxaxx'|trim('x')"],
    "truncate": ["long|truncate(20)", "long|truncate(20, true)", "long|truncate(20, false, '', 0)", "'short'|truncate"],
    "unique": ["words|unique|list", "words|unique(true)|list", "rows|unique(attribute='k')|list"],
    "upper": ["'straße'|upper"],
    "urlencode": ["'a b&c/ü'|urlencode", "{'a': 'b c', 'd': 1}|urlencode"],
    "urlize": ["messages[1].content|urlize", "'https://a.example/x?y'|urlize(20, true, target='_blank')"],
    "wordcount": ["long|wordcount"],
    "wordwrap": ["long|wordwrap(30)", "long|wordwrap(10, false)", "long|wordwrap(20, wrapstring='|')"],
    "xmlattr": ["{'class': 'a b', 'x': none, 'id': 'l<'}|xmlattr", "{'a': 1}|xmlattr(false)"],
}  # fmt: skip

TESTS: dict[str, list[str]] = {
    "odd": ["3 is odd"], "even": ["3 is even"], "divisibleby": ["9 is divisibleby 3", "9 is divisibleby(2)"],
    "defined": ["nothing is defined", "deep.a is defined", "none is defined"], "undefined": ["nothing is undefined"],
    "filter": ["'tojson' is filter", "'random' is filter", "'x' is filter"],
    "test": ["'odd' is test", "'x' is test"],
    "none": ["none is none", "messages[2].content is not none"], "boolean": ["true is boolean", "1 is boolean"],
    "false": ["false is false", "0 is false"], "true": ["true is true", "1 is true"],
    "integer": ["1 is integer", "true is integer"], "float": ["1.0 is float", "1 is float"],
    "lower": ["'a' is lower"], "upper": ["'A' is upper"], "string": ["'x' is string", "'<'|e is string", "1 is string"],
    "mapping": ["deep is mapping", "n is mapping"], "number": ["1 is number", "true is number", "'1' is number"],
    "sequence": ["n is sequence", "'x' is sequence", "deep is sequence", "1 is sequence"],
    "iterable": ["'x' is iterable", "1 is iterable", "messages[0].content is iterable"],
    "callable": ["namespace is callable", "'x'.format is callable", "1 is callable", "raise_exception is callable"],
    "sameas": ["none is sameas none", "n is sameas n"], "escaped": ["'x' is escaped", "'x'|e is escaped"],
    "in": ["1 is in n", "'z' is in deep"], "==": ["[1, 2] | select('==', 2) | list"], "eq": ["1 is eq 1"],
    "equalto": ["1 is equalto 2"], "!=": ["[1, 2] | select('!=', 2) | list"], "ne": ["1 is ne 2"],
    ">": ["[1, 2] | select('>', 1) | list"], "gt": ["2 is gt 1"], "greaterthan": ["2 is greaterthan 1"],
    "ge": ["2 is ge 2"], ">=": ["[1, 2] | select('>=', 1) | list"], "<": ["[1, 2] | select('<', 2) | list"],
    "lt": ["1 is lt 1"], "lessthan": ["1 is lessthan 2"], "<=": ["[1, 2] | select('<=', 1) | list"],
    "le": ["1 is le 1"],
}  # fmt: skip

GLOBALS: dict[str, list[str]] = {
    "range": ["range(5)|list", "range(10, 0, -3)|list", "range(3)|sum", "range(5).stop", "range(5).index(2)"],
    "dict": ["dict(a=1, b=2)", "dict([('a', 1)], c=3).items()|list", "dict.fromkeys('ab')"],
    "cycler": ["[cycler('a', 'b').next(), cycler('a', 'b').current]"],
    "joiner": ["joiner('|')() ~ 'x'", "joiner().sep"],
    "namespace": ["namespace(a=1).a", "namespace({'a': 2}, b=3).b"],
    "raise_exception": ["raise_exception is defined"],
    "strftime_now": ["strftime_now('%Y-%m-%d')", "strftime_now('%d %b %Y') | length", "strftime_now('%%')",
                     "strftime_now('%f') | length", "strftime_now('')", "strftime_now is defined"],
}  # fmt: skip

# of the types that templates compute with: what is public and changes nothing
METHODS: dict[str, list[str]] = {
    "str": [
        "'aBc'.capitalize()", "'ẞ'.casefold()", "'x'.center(5, '-')", "'aXbX'.count('X')", "'ü'.encode()",
        "'ab'.endswith(('b', 'c'))", "'a\\tb'.expandtabs(4)", "'abc'.find('c')",
        "'{} {x:>4} {!r}'.format('a', 'b', x=2)",
        "'{0.role} {0[content]} {1[0]}'.format(messages[0], n)", "'{a[0]}'.format_map({'a': 'x'})", "'abc'.index('b')",
        "'a1'.isalnum()", "'a'.isalpha()", "'a'.isascii()", "'1'.isdecimal()", "'²'.isdigit()", "'a b'.isidentifier()",
        "'a'.islower()", "'½'.isnumeric()", "'\\n'.isprintable()", "' '.isspace()", "'Ab'.istitle()", "'A'.isupper()",
        "'-'.join(words)", "'x'.ljust(3, '.')", "'AB'.lower()", "'xxa'.lstrip('x')",
        "'abc'.translate('x'.maketrans('ab', 'cd'))", "'a=b=c'.partition('=')", "'prefix'.removeprefix('pre')",
        "'x.py'.removesuffix('.py')", "'aaa'.replace('a', 'b', 1)", "'abab'.rfind('b')", "'abab'.rindex('b')",
        "'x'.rjust(3)", "'a.b.c'.rpartition('.')", "'a.b.c'.rsplit('.', 1)", "'axx'.rstrip('x')",
        "' a  b '.split()", "'a</think>b'.split('</think>')[-1]", "'a\\nb\\r\\nc'.splitlines()",
        "'abc'.startswith('ab')", "' a '.strip()", "'aB'.swapcase()", "'ab cd'.title()", "'ß'.upper()",
        "'-7'.zfill(4)",
    ],
    "dict": ["deep.copy()", "deep.get('a')", "deep.get('q', 5)", "deep.items()|list", "deep.keys()|list",
             "deep.values()|list", "deep.fromkeys('ab', 1)"],
    "list": ["n.copy()", "n.count(2)", "n.index(2)"],
    "tuple": ["(1, 2, 1).count(1)", "(1, 2).index(2)"],
    "int": ["(10).bit_length()", "(10).bit_count()", "(10).real", "(10).imag", "(10).numerator", "(10).denominator",
            "(10).conjugate()", "(10).to_bytes(2, 'big')", "(0).from_bytes('ab'.encode(), 'big')",
            "(10).as_integer_ratio()"],
    "float": ["(2.5).is_integer()", "(2.5).hex()", "(2.5).as_integer_ratio()", "(2.5).real", "(2.5).imag",
              "(2.5).conjugate()", "(2.5).fromhex('0x1.4p1')"],
    "bytes": ["'ü'.encode('latin-1').decode('latin-1')", "'ab'.encode().hex()"],
}  # fmt: skip
for kind, name, row in ((int, "is_integer", "(10).is_integer()"), (float, "from_number", "(2.5).from_number(2)")):
    if hasattr(kind, name):  # from Python 3.12 on, and from 3.14 on
        METHODS[kind.__name__].append(row)

STATEMENTS = {
    "if": "{% if n|length > 3 and not empty %}a{% elif n %}b{% else %}c{% endif %}{{ 'x' if none }}{{ 1 if n else 2 }}",
    "for": "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}"
           "{{ loop.length }}{{ loop.cycle('a', 'b') }}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}"
           "{{ loop.changed(m.role) }}{{ loop.depth }}|{% else %}none{% endfor %}"
           "{% for i in empty %}{% else %}-{% endfor %}",
    "for of pairs": "{% for k, v in deep.items() if k != 'z' %}{{ k }}={{ v }};{% endfor %}",
    "recursive": "{% for r in [[1, [2, [3]]]] recursive %}({{ loop.depth }}{{ loop(r) if r is iterable else r }})"
                 "{% endfor %}",
    "break and continue": "{% for i in n %}{% if i == 1 %}{% continue %}{% endif %}{% if loop.index > 3 %}{% break %}"
                          "{% endif %}{{ i }}{% endfor %}",
    "set": "{% set a, b = 1, [2] %}{% set c %}x{{ a }}{% endset %}{% set d | upper %}y{% endset %}"
           "{{ a }}{{ b }}{{ c }}{{ d }}",
    "scope": "{% set a = 1 %}{% for i in n %}{% set a = i %}{% endfor %}{{ a }}"
             "{% if true %}{% set a = 5 %}{% endif %}{{ a }}",
    "namespace": "{% set ns = namespace(x=0, f=none) %}{% for i in n %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}"
                 "{{ ns.f }}{{ ns.nothing }}",
    "macro": "{% macro m(a, b='B', c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{{ caller is defined }}"
             "{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, 4, x=5) }}{{ m.name }}{{ m.arguments }}",
    "call": "{% macro m(a) %}<{{ caller(a, 2) }}>{% endmacro %}{% call(x, y) m('z') %}{{ x }}{{ y }}{% endcall %}",
    "recursive macro": "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "filter": "{% filter upper | replace('A', 'b') %}a{{ 'x' }}{% endfilter %}",
    "with": "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}",
    "raw": "{% raw %}{{ x }}{% endraw %}{# a remark #}{{ '{{' }}",
    "block": "{% block a %}x{{ self.b() }}{% endblock %}{% block b scoped %}y{% endblock %}",
    "autoescape": "{% autoescape true %}{{ '<' }}{{ '<'|safe }}{% endautoescape %}{{ '<' }}",
    "space": "  {% if true %}\n  a\n  {%- endif %}\n\n  {%+ if true +%}\n b \n{% endif -%}\n  c\n{{- 'd' -}}\n e\n\n",
    "lines": "a\r\nb\n{% for i in n %}\n{{ i }}\n{% endfor %}\nend\n",
    "arithmetic": "{{ 7 // 2 }}{{ 7 % 3 }}{{ 2 ** 10 }}{{ 7 / 2 }}{{ -n[0] }}{{ 1 ~ 2 }}{{ 'a' * 3 }}{{ '%d%%' % 5 }}"
                  "{{ 1 < 2 < 3 }}{{ 1 in n and 9 not in n }}{{ n + [5] }}{{ not none }}{{ 1e3 }}{{ 1_000 }}",
    "slices": "{{ n[1:] }}{{ n[::-1] }}{{ n[-1] }}{{ 'abc'[1:] }}{{ messages[1:][0]['role'] }}"
              "{{ messages[-1].tool_calls }}",
    "what is not there": "{{ nothing }}{{ deep.q }}{{ deep['q'] }}{{ messages[9] }}{{ ''.__class__ }}{{ n.append }}"
                         "{{ raise_exception.__globals__ }}{{ 'x'.q }}",
    "generation": "{% for m in messages %}{% if m.role == 'user' %}  {% generation %}\n{{ loop.index }}{{ m.content }}"
                  "{% set a = 1 %}\n{% endgeneration %}\n{{ a }}{% endif %}{% endfor %}"
                  "{%- generation -%} x {%- endgeneration %}",
    "text": "{{ 'ü🦆\\u0000\\x41' }}{{ \"it's\" }}{{ 'a' 'b' }}\u2028",
    "printed": "{{ none }}{{ true }}{{ 1.0 }}{{ [none, 'x', 1.5] }}{{ deep }}{{ (1,) }}{{ range(3) }}",
}  # fmt: skip

FAULTS = {
    "a name that is none": "{{ nothing() }}", "a field of nothing": "{{ nothing.x }}", "of none": "{{ none + 1 }}",
    "changing": "{{ n.append(1) }}", "a long range": "{{ range(1000000)|sum }}", "an import": "{% import 'x' as x %}",
    "an unknown filter": "{{ 1|frobnicate }}", "an unknown test": "{{ 1 is frobnicated }}", "do": "{% do n %}",
    "an include": "{% include 'x' %}", "an unknown tag": "{% trans %}x{% endtrans %}", "debug": "{% debug %}",
    "a refusal": "{{ raise_exception('no') }}", "a field of a class": "{{ ''.__class__.__mro__ }}",
    "what is no JSON": "{{ nothing|tojson }}", "generation without end": "{% generation %}",
    "a word that tojson has not": "{{ 1|tojson(nonsense=1) }}",
}  # fmt: skip


def ours(source: str) -> str:
    return _rendered(_Sandbox().from_string(source), dict(NAMES), 1 << 20)


def theirs(source: str) -> str:
    return str(utils._compile_jinja_template(source).render(**NAMES))


def environment() -> jinja2.Environment:
    found: jinja2.Environment = utils._compile_jinja_template("").environment
    return found


ROWS = [
    pytest.param(expressions, id=f"{kind} {name}")
    for kind, rows in (("filter", FILTERS), ("test", TESTS), ("global", GLOBALS), ("method", METHODS))
    for name, expressions in rows.items()
]


@pytest.mark.parametrize("expressions", ROWS)
def test_the_same_text(expressions: list[str]) -> None:
    sources = ["{{ " + expression + " }}" for expression in expressions]
    assert [ours(source) for source in sources] == [theirs(source) for source in sources]


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_give_the_same_text(name: str) -> None:
    assert ours(STATEMENTS[name]) == theirs(STATEMENTS[name])


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_faults_of_both(name: str) -> None:
    for render in (ours, theirs):
        with pytest.raises(Exception, match=".") as caught:
            render(FAULTS[name])
        assert not isinstance(caught.value, AssertionError)


@pytest.mark.parametrize(("source", "why"), [
    ("{{ n | random }}", "random is not taken"), ("{{ lipsum() }}", "lipsum is not taken"),
    ("{{ (n | map('abs')).send }}", "the attribute 'send' of 'generator' is not for templates"),
    ("{{ namespace.a }}{{ cycler.next }}", "the attribute 'next' of 'Cycler' is not for templates"),
])  # fmt: skip
def test_what_is_refused_says_so(source: str, why: str) -> None:
    with pytest.raises(jinja2.TemplateRuntimeError, match=why):
        ours(source)


def test_nothing_is_left_out() -> None:
    found: Any = environment()
    assert FILTERS.keys() | {"random"} == found.filters.keys()
    assert TESTS.keys() == found.tests.keys()
    assert GLOBALS.keys() | {"lipsum"} == found.globals.keys()
    for value in ("", {}, [], (), 0, 0.0):
        kind = type(value).__name__
        public = [name for name in dir(value) if found.is_safe_attribute(value, name, None)]
        rows = " ".join(METHODS[kind])
        missing = [name for name in public if f".{name}" not in rows and hasattr(value, name)]
        assert not missing, (kind, missing)
    for mine in (_Sandbox(), found):
        assert {tag for one in mine.extensions.values() for tag in one.tags} == {"generation", "break", "continue"}
