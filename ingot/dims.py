"""Dimensions: ints, named dims, and integer expressions of them in one normal form.

An expression is a polynomial with integer coefficients over *atoms*: named dims, floor divisions, minima and maxima.
The printed form of the normalised polynomial identifies it, so equal expressions compare and hash equal, and whatever
reduces to a constant is a plain int. `a % b` is kept as `a - b*(a // b)`. Divisors must be positive.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from reprlib import repr as brief
from typing import Any, ClassVar, NamedTuple, Union

from ingot.errors import DimError

Monomial = tuple["Expr", ...]  # atoms in printed order, with repeats; () is the constant
Dimension = Union[int, "Expr"]

MAX_TERMS = 256  # of one polynomial, and MAX_DEPTH of its JSON: bounds the work a hostile file can ask for
MAX_DEPTH = 32
MAX_LENGTH = 1 << 16  # characters of one: an expression that holds another twice, and that another twice, doubles
MAX_VALUE = 2**63 - 1
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")


class Expr:
    """An integer expression of named dims, normalised and immutable. Made by arithmetic on `Dim`s."""

    __slots__ = ("_hash", "_terms", "text")
    text: str

    def __init__(self, text: str, terms: tuple[tuple[Monomial, int], ...] | None) -> None:
        if len(text) > MAX_LENGTH:
            raise DimError(f"a dimension expression grew beyond {MAX_LENGTH:,} characters")
        self.text = text
        self._hash = hash(text)
        self._terms = terms

    @property
    def terms(self) -> tuple[tuple[Monomial, int], ...]:
        return self._terms if self._terms is not None else (((self,), 1),)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self.text == other.text)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        raise DimError(f"the value of {self} is known only at run time; compare shapes with ==, or use dims.bounds()")

    def __index__(self) -> int:
        raise DimError(f"{self} is not a number yet: it is known only at run time")

    def __add__(self, other: object) -> Dimension:
        return add(self, other) if isinstance(other, int | Expr) else NotImplemented

    def __mul__(self, other: object) -> Dimension:
        return mul(self, other) if isinstance(other, int | Expr) else NotImplemented

    def __sub__(self, other: object) -> Dimension:
        return add(self, mul(other, -1)) if isinstance(other, int | Expr) else NotImplemented

    def __rsub__(self, other: object) -> Dimension:
        return add(other, mul(self, -1)) if isinstance(other, int | Expr) else NotImplemented

    def __floordiv__(self, other: object) -> Dimension:
        return floordiv(self, other) if isinstance(other, int | Expr) else NotImplemented

    def __rfloordiv__(self, other: object) -> Dimension:
        return floordiv(other, self) if isinstance(other, int | Expr) else NotImplemented

    def __mod__(self, other: object) -> Dimension:
        return mod(self, other) if isinstance(other, int | Expr) else NotImplemented

    def __rmod__(self, other: object) -> Dimension:
        return mod(other, self) if isinstance(other, int | Expr) else NotImplemented

    def __neg__(self) -> Dimension:
        return mul(self, -1)

    __radd__ = __add__
    __rmul__ = __mul__

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number, given each name's value."""
        return sum(k * math.prod(a.evaluate(values) for a in atoms) for atoms, k in self.terms)

    def dims(self) -> dict[str, Dim]:
        """The named dims in it, by name."""
        found: dict[str, Dim] = {}
        for atoms, _ in self.terms:
            for atom in atoms:
                found |= atom.dims()
        return found

    def json(self) -> Any:
        """The JSON form: an int, a name, or [operator, …]."""
        terms = []
        for atoms, k in self.terms:
            factors = [a.json() for a in atoms]
            terms.append(k if not atoms else factors[0] if k == 1 and len(atoms) == 1
                         else ["*", *([k] if k != 1 else []), *factors])
        return terms[0] if len(terms) == 1 else ["+", *terms]


class Dim(Expr):
    """A named dim. `min`..`max` bound it, `opt` is the size to tune for; `unbacked`: an op binds it at run time.

    Two dims of one name are the same dim; bounds left at their defaults claim nothing (see `merge`).
    """

    __slots__ = ("max", "min", "name", "opt", "unbacked")

    def __init__(self, name: str, min: int = 0, opt: int | None = None, max: int | None = None, *,
                 unbacked: bool = False) -> None:
        if not _NAME.match(name) or len(name) > 100 or name in ("min", "max"):
            raise DimError(f"{brief(name)} cannot name a dim: use letters, digits, _ and ., not starting with a digit")
        for label, value in (("min", min), ("opt", opt), ("max", max)):
            if value is not None and (type(value) is not int or not 0 <= value <= MAX_VALUE):
                raise DimError(f"dim {name}: {label} must be an int from 0 to 2^63-1, not {value!r}")
        if max is not None and min > max or opt is not None and (opt < min or max is not None and opt > max):
            raise DimError(f"dim {name}: need min <= opt <= max, got min={min}, opt={opt}, max={max}")
        super().__init__(name, None)
        self.name, self.min, self.opt, self.max, self.unbacked = name, min, opt, max, unbacked

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake_dim, (self.name, self.min, self.opt, self.max, self.unbacked)

    def evaluate(self, values: Mapping[str, int]) -> int:
        try:
            return values[self.name]
        except KeyError:
            raise DimError(f"dim {self.name} has no value yet; known are {sorted(values)}") from None

    def dims(self) -> dict[str, Dim]:
        return {self.name: self}

    def json(self) -> Any:
        return self.name

    def claims(self) -> str:
        """Its bounds as text: `T in 1..2048 opt 8`; `unbacked` when an op binds it."""
        bound = f" in {self.min}..{'' if self.max is None else self.max}" if self.min or self.max is not None else ""
        opt = "" if self.opt is None else f" opt {self.opt}"
        return f"{self.name}{bound}{opt}{' unbacked' if self.unbacked else ''}"


def _remake_dim(name: str, min: int, opt: int | None, max: int | None, unbacked: bool) -> Dim:
    return Dim(name, min, opt, max, unbacked=unbacked)


class Call(Expr):
    """An atom that is not a name: floor division, minimum or maximum of two or more normalised arguments."""

    __slots__ = ("args", "kind")
    evaluators: ClassVar[dict[str, Callable[..., int]]] = {"min": min, "max": max}

    def __init__(self, kind: str, args: tuple[Dimension, ...]) -> None:
        shown = [str(a) if isinstance(a, int | Dim) else f"({a})" for a in args]
        super().__init__(f"{shown[0]} // {shown[1]}" if kind == "//" else f"{kind}({', '.join(map(str, args))})", None)
        self.kind, self.args = kind, args

    def evaluate(self, values: Mapping[str, int]) -> int:
        args = [a if isinstance(a, int) else a.evaluate(values) for a in self.args]
        if self.kind != "//":
            return self.evaluators[self.kind](*args)
        if args[1] <= 0:
            raise DimError(f"{self}: the divisor is {args[1]}; divisors must be positive")
        return args[0] // args[1]

    def dims(self) -> dict[str, Dim]:
        return dims_of(self.args)

    def json(self) -> Any:
        *rest, last = map(to_json, self.args)
        for arg in reversed(rest):
            last = [self.kind, arg, last]
        return last


# ------------------------------------------------------------------------------------------------ the normal form
def _terms(x: Dimension) -> tuple[tuple[Monomial, int], ...]:
    return x.terms if isinstance(x, Expr) else (((), x),) if x else ()


def _show(atoms: Monomial, k: int) -> str:
    factors = [f"({a})" if isinstance(a, Call) and a.kind == "//" else a.text for a in atoms]
    return "*".join(([] if k == 1 and atoms else [str(k)]) + factors)


def _build(terms: dict[Monomial, int]) -> Dimension:
    """The normalised expression of a sum of coefficient × product of atoms."""
    kept = sorted(((m, k) for m, k in terms.items() if k), key=lambda t: (not t[0], [a.text for a in t[0]]))
    if not kept:
        return 0
    if len(kept) > MAX_TERMS or any(abs(k) > MAX_VALUE for _, k in kept):
        raise DimError(f"a dimension expression grew beyond {MAX_TERMS} terms or 64-bit coefficients")
    if len(kept) == 1:
        atoms, k = kept[0]
        if not atoms:
            return k
        if k == 1 and len(atoms) == 1:
            return atoms[0]
    text = _show(*kept[0])
    for atoms, k in kept[1:]:
        text += f" + {_show(atoms, k)}" if k > 0 else f" - {_show(atoms, -k)}"
    return Expr(text, tuple(kept))


def add(*args: Dimension) -> Dimension:
    """Their sum, normalised."""
    total: dict[Monomial, int] = {}
    for x in args:
        for atoms, k in _terms(x):
            total[atoms] = total.get(atoms, 0) + k
    return _build(total)


def mul(*args: Dimension) -> Dimension:
    """Their product, normalised."""
    product: dict[Monomial, int] = {(): 1}
    for x in args:
        terms = _terms(x)
        wider: dict[Monomial, int] = {}
        if len(terms) * len(product) > MAX_TERMS * 16:
            raise DimError(f"a dimension expression grew beyond {MAX_TERMS} terms")
        for atoms, k in product.items():
            for more, j in terms:
                key = tuple(sorted(atoms + more, key=str)) if atoms and more else atoms or more
                if len(key) > MAX_DEPTH:
                    raise DimError(f"a dimension expression multiplies more than {MAX_DEPTH} factors")
                wider[key] = wider.get(key, 0) + k * j
        product = wider
    return _build(product)


def floordiv(a: Dimension, b: Dimension) -> Dimension:
    """⌊a / b⌋. Divides what is divisible, term by term, and keeps an atom for the rest."""
    if isinstance(b, int):
        if b <= 0:
            raise DimError(f"({a}) // {b}: divisors must be positive")
        return _divide_by_int(a, b)
    if a == b:
        return 1
    divisor = _terms(b)
    if len(divisor) > 1 and (whole := _exact_quotient(a, b)) is not None:
        return whole
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for atoms, k in _terms(a):
        done = _divide_monomial(atoms, k, *divisor[0]) if len(divisor) == 1 else None
        if done is None:
            rest[atoms] = k
        else:
            quotient[done[0]] = quotient.get(done[0], 0) + done[1]
    left = _build(rest)
    return add(_build(quotient), _call("//", (left, b)) if left != 0 else 0)


def _divide_by_int(a: Dimension, b: int) -> Dimension:
    if isinstance(a, int):
        return a // b
    quotient = {m: k // b for m, k in a.terms}
    rest = {m: k % b for m, k in a.terms if m and k % b}
    constant = sum(k % b for m, k in a.terms if not m)
    if not rest:  # every other term is a multiple of b, and 0 <= constant < b
        return _build(quotient)
    shared = math.gcd(b, *rest.values())  # ⌊(g·x + c) / (g·d)⌋ = ⌊(x + ⌊c/g⌋) / d⌋
    left = _build({m: k // shared for m, k in rest.items()} | {(): constant // shared})
    return add(_build(quotient), _divided(left, b // shared))


def _divided(a: Dimension, b: int) -> Dimension:
    """The atom ⌊a / b⌋, where a division inside joins the outer one: ⌊(⌊x / c⌋ + y) / b⌋ = ⌊(x + c·y) / (b·c)⌋.

    Factors are between 0 and b. Of x and b·s − x, where s has every product of x once, the one whose first factor is
    below b / 2 is divided, as ⌊(x + c) / b⌋ = s − ⌊(b·s − x + b − 1 − c) / b⌋: 7·T // 8 is T − (T + 7) // 8.
    """
    alone = [(m, k) for m, k in _terms(a) if len(m) == 1]
    match [(m, k) for m, k in alone if any(isinstance(atom, Call) and atom.kind == "//" for atom in m)]:
        case [((Call(args=(x, int() as c)) as atom,), 1)] if b * c <= MAX_VALUE:
            return floordiv(add(x, mul(add(a, mul(atom, -1)), c)), b * c)
    if next((2 * k > b for m, k in _terms(a) if m and 2 * k != b), False):
        once = _build({m: 1 for m, _ in _terms(a) if m})
        rest = _build({m: b - k if m else b - 1 - k for m, k in (((), 0), *_terms(a))})
        return add(once, mul(_divided(rest, b), -1))
    return _call("//", (a, b))


def _call(kind: str, args: tuple[Dimension, ...]) -> Dimension:
    """The atom, or the number that it always is."""
    atom = Call(kind, args)
    low, high = bounds(atom)
    return int(low) if low == high else atom


def _divide_monomial(atoms: Monomial, k: int, by: Monomial, j: int) -> tuple[Monomial, int] | None:
    left = list(atoms)
    for atom in by:
        if atom not in left:
            return None
        left.remove(atom)
    return (tuple(left), k // j) if j > 0 and k % j == 0 else None


def _exact_quotient(a: Dimension, b: Expr) -> Dimension | None:
    """q with a = q·b for polynomials over the same atoms, or None: 32·x·n − 32·n over x − 1 is 32·n."""
    atoms = sorted({atom for x in (a, b) for product, _ in _terms(x) for atom in product}, key=str)
    places = {atom: i for i, atom in enumerate(atoms)}

    def order(term: tuple[Monomial, int]) -> tuple[int, ...]:  # a product is as far ahead as its factors are
        powers = [0] * len(places)
        for atom in term[0]:
            powers[places[atom]] += 1
        return len(term[0]), *powers

    lead = max(b.terms, key=order)
    quotient: list[Dimension] = []
    while a != 0:
        done = _divide_monomial(*max(_terms(a), key=order), *lead) if len(quotient) < MAX_TERMS else None
        if done is None:
            return None
        quotient.append(_build({done[0]: done[1]}))
        a = add(a, mul(mul(b, quotient[-1]), -1))
    return add(*quotient)


def mod(a: Dimension, b: Dimension) -> Dimension:
    """a − b·⌊a / b⌋, of the divisor's sign: not negative."""
    return add(a, mul(mul(b, -1), floordiv(a, b)))


def ceil_div(a: Dimension, b: Dimension) -> Dimension:
    """⌈a / b⌉."""
    return floordiv(add(a, b, -1), b)


def minimum(*args: Dimension) -> Dimension:
    """The smallest of them."""
    return _extreme("min", args)


def maximum(*args: Dimension) -> Dimension:
    """The largest of them."""
    return _extreme("max", args)


def _extreme(kind: str, args: Sequence[Dimension]) -> Dimension:
    flat: dict[Dimension, int] = {}  # and which of args it comes of
    for i, x in enumerate(args):
        for part in x.args if isinstance(x, Call) and x.kind == kind else (x,):
            flat.setdefault(part, i)
    kept = sorted(flat, key=lambda x: (-len(str(x)), str(x)))
    for x in list(kept):  # what another is never behind goes, longer ones first
        others = (y for y in kept if y is not x and (flat[y] != flat[x] or not isinstance(args[flat[x]], Call)))
        if any(_wins(kind, y, x) for y in others):
            kept.remove(x)
    kept.sort(key=str)
    if len(kept) > MAX_DEPTH:
        raise DimError(f"{kind} of more than {MAX_DEPTH} expressions")
    return kept[0] if len(kept) == 1 else _call(kind, tuple(kept))


def _wins(kind: str, x: Dimension, y: Dimension) -> bool:
    low, high = bounds(add(x, mul(y, -1)))
    return low >= 0 if kind == "max" else high <= 0


OPERATORS: dict[str, Callable[..., Dimension]] = {  # by what JSON and text call them
    "+": add, "*": mul, "-": lambda a, b: add(a, mul(b, -1)), "//": floordiv, "%": mod, "min": minimum, "max": maximum}


# ------------------------------------------------------------------------------------------------ bounds and names
_OPEN = (math.inf, -math.inf)
_RELAXED = 32  # terms and steps of an expression that is bounded by inequalities, beside intervals


def bounds(x: Dimension, known: Mapping[str, Dim] | None = None) -> tuple[float, float]:
    """The interval that x certainly lies in (±inf when open). `known` gives each name's bounds, else the dims' own."""
    return _bounds(x, known, {})


Found = dict[Expr, tuple[float, float]]  # bounds of what stands in an expression, often more than once


def _bounds(x: Dimension, known: Mapping[str, Dim] | None, found: Found) -> tuple[float, float]:
    if isinstance(x, int):
        return x, x
    if isinstance(x, Dim):
        x = (known or {}).get(x.name, x)
        return x.min, math.inf if x.max is None else x.max
    if x not in found:
        found[x] = _bounds_of(x, known, found)
    return found[x]


def _bounds_of(x: Expr, known: Mapping[str, Dim] | None, found: Found) -> tuple[float, float]:
    if isinstance(x, Call):
        parts = [_bounds(a, known, found) for a in x.args]
        if x.kind == "//":
            (low, high), (least, most) = parts
            ends = [_floor(v, w) for v in (low, high) for w in (max(least, 1), max(most, 1))]
            return min(ends), max(ends)
        pick = min if x.kind == "min" else max
        return pick(p[0] for p in parts), pick(p[1] for p in parts)
    low, high = _interval(x.terms, known, found)
    if len(x.terms) > 1 and any(_linear(m) for m, _ in x.terms):
        low = max(low, _least({m: Fraction(k) for m, k in x.terms}, known, found, [_RELAXED]))
        high = min(high, -_least({m: Fraction(-k) for m, k in x.terms}, known, found, [_RELAXED]))
    return low, high


def _interval(
    terms: Iterable[tuple[Monomial, int | Fraction]], known: Mapping[str, Dim] | None, found: Found
) -> tuple[Any, Any]:
    low: Any = 0
    high: Any = 0
    for atoms, k in terms:
        a: Any = k
        b: Any = k
        for atom in atoms:
            ends = [_times(v, w) for v in (a, b) for w in _bounds(atom, known, found)]
            a, b = min(ends), max(ends)
        low, high = _plus(low, a), _plus(high, b)
    return low, high


def _linear(atoms: Monomial) -> bool:
    """A product of one atom that inequalities bound: ⌊a / b⌋ lies in (a − b + 1) / b … a / b."""
    if len(atoms) != 1 or not isinstance(atoms[0], Call):
        return False
    return atoms[0].kind != "//" or isinstance(atoms[0].args[1], int)


def _least(
    terms: dict[Monomial, Fraction], known: Mapping[str, Dim] | None, found: Found, left: list[int]
) -> float:
    """A whole number, or −inf, that the sum is never below: T − T // 2 is at least T − T / 2, so 0. left: steps."""
    bounded = [m for m, k in terms.items() if k and _linear(m)]
    if not bounded or len(terms) > _RELAXED:
        low, _ = _interval(((m, k) for m, k in terms.items() if k), known, found)
        return -math.inf if low in _OPEN else math.ceil(low)
    if not left[0]:
        return -math.inf
    left[0] -= 1
    outer = max(bounded, key=lambda m: (len(m[0].text), m[0].text))  # before what stands in it
    call, k = outer[0], terms[outer]
    assert isinstance(call, Call)

    def put(x: Dimension, over: int = 1, more: int = 0) -> float:
        """With k · (x + more) / over in the atom's place."""
        total = {m: v for m, v in terms.items() if m != outer}
        for m, v in (*_terms(x), ((), more)):
            total[m] = total.get(m, Fraction(0)) + k * v / over
        return _least(total, known, found, left)

    if call.kind == "//":
        a, b = call.args
        assert isinstance(b, int)
        return put(a, b, 1 - b if k > 0 else 0)
    pick = max if (call.kind == "max") == (k > 0) else min  # it is not below any of them, or one of them
    return pick([put(a) for a in call.args])


def _times(a: Any, b: Any) -> Any:
    if a == 0 or b == 0:
        return 0
    if a in _OPEN or b in _OPEN:
        return math.inf if (a > 0) == (b > 0) else -math.inf
    return a * b


def _plus(a: Any, b: Any) -> Any:
    return a if a in _OPEN else b if b in _OPEN else a + b


def _floor(a: float, b: float) -> float:
    if a in _OPEN:
        return a
    return (0 if a >= 0 else -1) if b in _OPEN else a // b


def all_fixed(sizes: Iterable[Dimension]) -> bool:
    """Whether all of them are ints, the same in every run."""
    return all(isinstance(d, int) for d in sizes)


def dims_of(shape: Iterable[Dimension]) -> dict[str, Dim]:
    """The named dims in a shape, by name."""
    found: dict[str, Dim] = {}
    for d in shape:
        if isinstance(d, Expr):
            found |= d.dims()
    return found


class Affine(NamedTuple):
    """The size factor · dim + offset, with a factor of at least 1: an input that has it gives the dim its value."""

    dim: Dim
    factor: int
    offset: int

    def value(self, size: int) -> int | None:
        """The dim's value where the size is this; None where there is none."""
        value, rest = divmod(size - self.offset, self.factor)
        return None if rest or value < 0 else value

    def rule(self) -> str:
        """What sizes have to be: `a multiple of 8`."""
        if not self.offset:
            return f"a multiple of {self.factor}" if self.factor > 1 else "0 or more"
        return f"{add(mul(self.factor, self.dim), self.offset)} for a whole number {self.dim} of 0 or more"


def affine(x: Dimension) -> Affine | None:
    """A dim itself (factor 1, offset 0) or factor · dim + offset; None for every other size."""
    if isinstance(x, Dim):
        return Affine(x, 1, 0)
    if isinstance(x, int) or len(x.terms) > 2:
        return None
    (atoms, factor), *rest = x.terms  # the constant stands last
    if len(atoms) != 1 or not isinstance(atoms[0], Dim) or factor < 1 or any(m for m, _ in rest):
        return None
    return Affine(atoms[0], factor, rest[0][1] if rest else 0)


def values_of(sizes: Iterable[tuple[Dimension, int]]) -> dict[str, int]:
    """What sizes say about dims, the first word counting: {"T": 8} of [(2*T, 16), (5, 5)]."""
    values: dict[str, int] = {}
    for x, size in sizes:
        found = affine(x)
        if found is not None and (value := found.value(size)) is not None:
            values.setdefault(found.dim.name, value)
    return values


def substitute(x: Dimension, values: Mapping[str, Dimension]) -> Dimension:
    """x with the named dims replaced."""
    if isinstance(x, int):
        return x
    if isinstance(x, Dim):
        return values.get(x.name, x)
    if isinstance(x, Call):
        return OPERATORS[x.kind](*(substitute(a, values) for a in x.args))
    return add(*(mul(k, *(substitute(a, values) for a in atoms)) for atoms, k in x.terms))


def merge(a: Dim, b: Dim) -> Dim:
    """The one dim that two of the same name mean. Defaults claim nothing; two different claims are an error."""
    if a is b:
        return a
    if a.name != b.name:
        raise DimError(f"{a.name} and {b.name} are different dims")
    low = a.min or b.min
    if a.min and b.min and a.min != b.min or a.max is not None and b.max is not None and a.max != b.max:
        raise DimError(f"dim {a.name} is declared twice with different bounds: {a.claims()} and {b.claims()}; "
                       "use one Dim object, or another name")
    return Dim(a.name, low, b.opt if a.opt is None else a.opt, b.max if a.max is None else a.max,
               unbacked=a.unbacked or b.unbacked)


def as_dim(d: object) -> Dimension:
    """A dimension from what users write in shapes: an int, a name, or an expression."""
    if type(d) is int or isinstance(d, Expr):
        return d
    if isinstance(d, str):
        return Dim(d)
    if not isinstance(d, bool) and hasattr(d, "__index__"):
        return int(d.__index__())
    raise DimError(f"{brief(d)} is not a dimension: give an int, a name, or an expression of ingot.Dim")


def to_json(d: Dimension) -> Any:
    """int | name | [operator, …]."""
    return d if isinstance(d, int) else d.json()
