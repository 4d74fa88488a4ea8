"""Which values of recipes stored tensors show, how they are recovered, and what recipes of strangers are stopped at."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import ingot.ops  # noqa: F401  (registers the steps of panels)
from ingot import dtypes
from ingot.backends import stored
from ingot.backends.stored import MAX_WAY, Operands, Reader, Shown
from ingot.errors import RecipeError
from ingot.ir.evaluation import evaluate
from ingot.ir.numbering import Numbering
from ingot.ir.recipe import MAX_CASTS, MAX_STEPS, Known, Recipe, StepCall, casts_at, combine, source

Array = np.ndarray[Any, Any]

VECTOR = (dtypes.float32, (3,))
W = np.arange(24, dtype=np.float32).reshape(4, 6)
OF_W = {"w": (dtypes.float32, (4, 6))}


def shown(
    recipes: Mapping[str, Recipe], values: Mapping[str, Array], known: Mapping[str, Known] | None = None
) -> Shown:
    """What tensors show that are made of these values of parameters."""
    tensors = {name: evaluate(recipe, values) for name, recipe in recipes.items()}
    return Shown(recipes, tensors.__getitem__, known or {n: (dtypes.get(a.dtype), a.shape) for n, a in values.items()})


def parameter(found: Shown, name: str) -> Array:
    number = found.form(name)
    assert number is not None
    return Reader(found).value(number)


def made(found: Shown, recipe: Recipe, given: Mapping[str, Array] | None = None) -> Array:
    derivation = found.derivation(recipe, given or {})
    assert not derivation.lacking
    ((dtype, shape),) = found.check([derivation], None, 0)
    array = evaluate(derivation.recipe, Operands(Reader(found), [derivation], given))
    assert (array.dtype, array.shape) == (dtype.numpy, shape)
    return array


def cast(name: str, dtype: str) -> Recipe:
    return source(name).then("cast", dtype=dtype)


# ----------------------------------------------------------------------------------------------------- ways back


def test_parts_make_up_a_whole() -> None:
    """Two axes, taken one after the other; a part that is missing, and a value that is too large to be there."""
    recipe = cast("w", "float32")
    parts = {
        f"{i}{j}": recipe.then("take", axis=0, indices=rows).then("take", axis=1, indices=columns)
        for i, rows in enumerate([(0, 3), (1, 2)])
        for j, columns in enumerate([(4, 0, 2), (5, 1, 3)])
    }
    np.testing.assert_array_equal(parameter(shown(parts, {"w": W}), "w"), W)
    part = parts.pop("10")
    assert shown(parts, {"w": W}).names() == []
    odd = {**parts, "10": part, "wide": recipe.then("take", axis=1, indices=(0, 0, 5))}
    np.testing.assert_array_equal(parameter(shown(odd, {"w": W}), "w"), W)
    huge = {"w": (dtypes.float32, (10**9, 10**9))}
    tensors = {"00": evaluate(parts["00"], {"w": W})}
    assert Shown({"00": parts["00"]}, tensors.__getitem__, huge).names() == []


def test_parts_of_rows_that_are_not_whole() -> None:
    """Of the rows themselves only some columns are there; the other columns are stored in one piece for all rows."""
    recipe = cast("w", "float32")
    rows = {
        str(i): recipe.then("take", axis=0, indices=taken).then("take", axis=1, indices=(4, 0, 2))
        for i, taken in enumerate([(0, 3), (1, 2)])
    }
    found = shown({**rows, "rest": recipe.then("take", axis=1, indices=(5, 1, 3))}, {"w": W})
    np.testing.assert_array_equal(parameter(found, "w"), W)
    assert shown(rows, {"w": W}).names() == []


def test_parts_of_parts_behind_layouts() -> None:
    """The rows of the whole are stored transposed and cut once more; one of them as it is."""
    taken = [cast("w", "float32").then("take", axis=0, indices=i) for i in ((0, 2), (1, 3))]
    rows = [recipe.then("transpose", axes=(1, 0)) for recipe in taken]
    halves = [rows[0].then("take", axis=0, indices=i).then("reshape", shape=(6,)) for i in ((5, 3, 1), (0, 2, 4))]
    recipes = {"a": halves[0], "b": halves[1], "c": rows[1]}
    found = shown(recipes, {"w": W})
    np.testing.assert_array_equal(parameter(found, "w"), W)
    np.testing.assert_array_equal(made(found, rows[0]), W[[0, 2]].T)


def test_the_shortest_way_is_taken() -> None:
    long = cast("w", "float32")
    for _ in range(5):
        long = long.then("transpose", axes=(1, 0))
    found = shown({"long": long, "short": cast("w", "float32").then("reshape", shape=(24,))}, {"w": W})
    number = found.form("w")
    assert number is not None and found.ways[number].steps == 1
    np.testing.assert_array_equal(parameter(found, "w"), W)


@pytest.mark.parametrize("name", ["norm_scale", "scale"])
def test_what_loses_bits_is_not_undone(name: str) -> None:
    args: dict[str, Any] = {"eps": 1e-5} if name == "norm_scale" else {"axis": 0}
    recipe = combine(name, [source("v"), source("v")], **args)
    found = shown({"t": recipe}, {"v": np.ones(3, np.float32)})
    assert found.names() == [] and found.derivation(source("v")).lacking == {"v": ""}
    assert found.derivation_anew(combine("concat", [source("v"), source("u")], axis=0), ["u"]).lacking == {"v": ""}


def test_steps_that_are_left_are_done_on_what_is_shown() -> None:
    """A value in the middle is stored, of parameters that nobody has."""
    scaled = combine("scale", [cast("w", "float32"), cast("v", "float32")], axis=1)
    values = {"w": W, "v": np.arange(6, dtype=np.float32)}
    found = shown({"t": scaled.then("transpose", axes=(1, 0))}, values)
    wanted = combine("concat", [scaled, scaled.then("reshape", shape=(4, 6))], axis=0)
    np.testing.assert_array_equal(made(found, wanted), evaluate(wanted, values))
    other = combine("scale", [cast("w", "float32"), cast("v", "float32")], axis=1).then("cast", dtype="bfloat16")
    assert made(found, other).tobytes() == evaluate(other, values).tobytes()
    assert found.derivation(cast("w", "float32")).lacking == {"w": ""}
    scaled = combine("scale", [cast("v", "float32"), cast("v", "float32")], axis=0)
    assert set(found.derivation(scaled).lacking) == {"v"}
    np.testing.assert_array_equal(made(found, cast("w", "float32"), values), W)


# ------------------------------------------------------------------------------------------- parameters and casts


def test_the_form_with_most_bits_is_taken() -> None:
    """Whatever comes last, and however wide it is stored; integers are no form of floats."""
    third = np.full((2, 2), 1 / 3, np.float32)
    wide, narrow = cast("w", "float32"), cast("w", "bfloat16")
    widened = narrow.then("cast", dtype="float32")
    whole = cast("w", "int64")
    for order in ([wide, narrow, widened, whole], [whole, widened, narrow, wide]):
        found = shown({str(i): r.then("transpose", axes=(1, 0)) for i, r in enumerate(order)}, {"w": third})
        np.testing.assert_array_equal(parameter(found, "w"), third)
        assert made(found, widened)[0, 0] == np.float32(third.astype(dtypes.bfloat16.numpy)[0, 0])
    rounded = shown({"t": widened}, {"w": third})
    assert made(rounded, narrow).dtype == dtypes.bfloat16.numpy
    assert made(rounded, wide)[0, 0] == made(rounded, widened)[0, 0] != third[0, 0]
    assert shown({"t": whole}, {"w": third}).names() == []
    assert shown({"t": cast("i", "int64")}, {"i": np.arange(3)}).names() == ["i"]


def test_a_refit_takes_no_rounded_form() -> None:
    found = shown({"t": cast("w", "bfloat16")}, {"w": W})
    joined = combine("concat", [cast("w", "float32"), cast("v", "float32")], axis=0)
    assert found.derivation_anew(joined, ["v"]).lacking == {"w": ""}
    assert not found.derivation(joined, ["v"]).lacking


def test_an_adapter_is_a_part_of_its_parameter() -> None:
    """For the network; a refit tells the weight before from the one after."""
    pair = {"lora.x.A": np.ones((1, 6), np.float32), "lora.x.B": np.ones((4, 1), np.float32)}
    adapted = combine("lora_merge", [cast("w", "bfloat16"), *map(source, pair)], scale=1.0, transposed=False)
    adapted = adapted.then("cast", dtype="bfloat16")
    scaled = combine("scale", [adapted, cast("v", "bfloat16")], axis=1)
    values = {"w": W, "v": np.arange(6, dtype=np.float32), **pair}
    found = shown({"t": scaled, "p": adapted.then("pack_panels")}, values, {**OF_W, "v": (dtypes.float32, (6,))})
    np.testing.assert_array_equal(made(found, cast("w", "bfloat16")).astype(np.float32), W + 1)
    plain = combine("scale", [cast("w", "bfloat16"), cast("v", "bfloat16")], axis=1)
    assert made(found, plain).tobytes() == evaluate(scaled, values).tobytes()
    assert found.derivation_anew(adapted, ["lora.x.A"]).lacking == {"w": "lora_merge", "lora.x.B": "lora_merge"}
    assert found.derivation_anew(adapted.then("cast", dtype="float32"), []).shown


def test_casts_of_a_parameter() -> None:
    recipe = cast("w", "float32").then("cast", dtype="float32").then("cast", dtype="bfloat16")
    assert casts_at(recipe.then("reshape", shape=(24,))) == [
        ("w", ()), ("w", ("float32",)), ("w", ("float32",)), ("w", ("float32", "bfloat16")), None,
    ]  # fmt: skip
    twice = cast("w", "bfloat16").then("cast", dtype="float16").then("cast", dtype="float16")
    assert casts_at(twice)[-1] == ("w", ("bfloat16", "float16"))
    for i in range(MAX_CASTS + 1):
        recipe = recipe.then("cast", dtype=("float16", "float32")[i % 2])
    assert casts_at(recipe)[-1] is None and casts_at(source("lora.a.A")) == [None]


# ------------------------------------------------------------------------------------------------ recipes of strangers


def chain(name: str, count: int, args: Mapping[str, Any], first: str = "w") -> Recipe:
    pairs = tuple(sorted(args.items()))
    return Recipe((first,), tuple(StepCall(name, (i,), pairs) for i in range(count)))


def test_recipes_that_double_and_that_go_deep() -> None:
    """A value is known by a number, so that 1,000 steps that each take the last result twice are 1,000 values."""
    doubled = Recipe(("w",), tuple(StepCall("norm_scale", (i, i), (("eps", 1e-5),)) for i in range(1000)))
    turned = chain("reshape", MAX_WAY + 1, {"shape": (3,)}, "v")
    near = chain("reshape", MAX_WAY, {"shape": (3,)}, "u")
    mirrored, far = (chain("take", n, {"axis": 0, "indices": (2, 1, 0)}, name) for n, name in ((6, "t"), (99, "s")))
    recipes = {"doubled": doubled, "turned": turned, "near": near, "mirrored": mirrored, "far": far}
    number = np.arange(3, dtype=np.float32)
    found = Shown(recipes, lambda name: number, dict.fromkeys("wvuts", VECTOR))
    assert found.names() == ["u", "t"] and MAX_WAY < 99
    assert found.has(found.seen(doubled)[-1]) and not found.has(found.seen(source("v"))[-1])
    np.testing.assert_array_equal(parameter(found, "u"), number)


def test_long_chains_take_time_by_their_length() -> None:
    """Casts and takes, which are followed from every value, in many recipes: 41,000 steps. Measured: 0.4 s of CPU."""
    vector = np.arange(3, dtype=np.float32)
    recipes = {}
    for i in range(5):
        recipes[f"cast {i}"] = chain("cast", MAX_STEPS, {"dtype": "float32"}, f"c{i}")
        recipes[f"take {i}"] = chain("take", MAX_STEPS, {"axis": 0, "indices": (0, 1, 2)}, f"t{i}")
    known = {name[0] + name.split()[1]: VECTOR for name in recipes}
    begin = time.process_time()
    found = Shown(recipes, lambda name: vector, known)
    assert time.process_time() - begin < 2.5
    assert found.names() == [f"c{i}" for i in range(5)]


def tree(depth: int) -> tuple[dict[str, Recipe], Array]:
    """2^depth parameters in one tensor: packed in pairs, and these again."""
    level = [source(f"w{i}") for i in range(1 << depth)]
    n = 32
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [combine("pack_panels", pair).then("reshape", shape=(2 * n, 32)) for pair in pairs]
        n *= 2
    return {"t": level[0]}, np.zeros((n, 32), np.float32)


def test_work_is_counted_against_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parameter needs the whole tensor: whoever asks for all of them one by one makes many times its bytes."""
    recipes, tensor = tree(6)
    known = dict.fromkeys(recipes["t"].sources, (dtypes.float32, (32, 32)))
    monkeypatch.setattr(stored, "SMALL", 0)
    found = Shown(recipes, lambda name: tensor, known)
    reader = Reader(found)
    numbers = [found.seen(source(name))[-1] for name in found.names()]
    assert len([reader.value(number) for number in numbers]) == 64  # one after the other they share most of the way
    found = Shown(recipes, lambda name: tensor, known)

    def all_apart() -> None:
        for name in found.names():
            parameter(found, name)

    with pytest.raises(RecipeError, match="many times the bytes that are stored: the file is damaged"):
        all_apart()


@pytest.mark.parametrize("recipe", [
    Recipe(("w",), tuple(StepCall("concat", (i, i), (("axis", 0),)) for i in range(24))).then(
        "slice", starts=(0, 0), sizes=(4, 6)
    ),
    source("w").then("pad", after=(1 << 24, 0)).then("slice", starts=(0, 0), sizes=(4, 6)),
    combine("concat", [source("w").then("pad", after=(1 << 20, i)).then("slice", starts=(0, 0), sizes=(1, 6))
                       for i in range(4)], axis=0),
], ids=["doubled", "padded", "several"])  # fmt: skip
def test_steps_that_make_much_of_little(recipe: Recipe) -> None:
    found = Shown({"t": recipe}, lambda name: W, OF_W)
    derivation = found.derivation_anew(recipe, ["w"])
    with pytest.raises(RecipeError, match="makes .* bytes of 96: the file is damaged"):
        found.check([derivation], {}, W.nbytes)


def test_what_several_recipes_make_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte: one wide value that all begin with; what each makes of it, and where each has its own, counts."""
    monkeypatch.setattr(stored, "SMALL", 0)
    wide, cut = 4 * 4 * 1000, 4 * 4 * 6

    def made_bytes(recipes: dict[str, Recipe], there: int) -> int:
        found = Shown(recipes, lambda name: np.zeros((4, 6), np.float32), OF_W)
        found.allow([(dtypes.float32, (1 << 20,))])
        assert found.check([found.derivation_anew(r, ["w"]) for r in recipes.values()], {}, there) == [OF_W["w"]] * 4
        return stored.GROWTH * (W.nbytes + there)

    def parts(common: bool) -> dict[str, Recipe]:
        each = [source("w").then("pad", after=(0, 994 if common else 994 + i)) for i in range(4)]
        return {str(i): r.then("slice", starts=(0, i), sizes=(4, 6)) for i, r in enumerate(each)}

    there = -(-(wide + 4 * cut) // stored.GROWTH) - W.nbytes
    assert made_bytes(parts(True), there) >= wide + 4 * cut
    with pytest.raises(RecipeError, match="makes 16,384 bytes of 96: the file is damaged"):
        made_bytes(parts(True), there - 1)
    with pytest.raises(RecipeError, match="makes 64,480 bytes of 96: the file is damaged"):
        made_bytes(parts(False), there)


def test_a_tensor_may_be_made_again_as_large_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe may make some times the bytes of its sources and of the tensor that it replaces, to the byte."""
    monkeypatch.setattr(stored, "SMALL", 0)
    recipe = source("w").then("pad", after=(0, 10_000))
    made_bytes = 4 * 4 * (6 + 10_000)
    there = -(-made_bytes // stored.GROWTH) - W.nbytes
    found = Shown({"t": recipe}, lambda name: np.zeros((4, 10_006), np.float32), OF_W)
    assert found.check([found.derivation_anew(recipe, ["w"])], {}, there) == [(dtypes.float32, (4, 10_006))]
    with pytest.raises(RecipeError, match="the file is damaged"):
        found.check([found.derivation_anew(recipe, ["w"])], {}, there - 1)


def test_arrays_that_are_there_allow_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "SMALL", 0)
    found = Shown({"t": source("w")}, lambda name: W, OF_W)
    found.allow([(dtypes.float32, (1000,))])
    found.spend(stored.GROWTH * 4000)
    with pytest.raises(RecipeError, match="the file is damaged"):
        found.spend(stored.GROWTH * 2 * W.nbytes)


def test_what_is_not_needed_allows_nothing() -> None:
    """A large parameter among the sources that no step takes."""
    known = {**OF_W, "huge": (dtypes.float32, (1 << 20, 1 << 20))}
    padded = source("w").then("pad", after=(1 << 24, 0)).then("slice", starts=(0, 0), sizes=(4, 6))
    steps = tuple(StepCall(c.name, tuple(i + (i > 0) for i in c.inputs), c.args) for c in padded.steps)
    found = Shown({"t": Recipe(("w", "huge"), steps)}, lambda name: W, known)
    with pytest.raises(RecipeError, match="the file is damaged"):
        found.check([found.derivation_anew(found.recipes["t"], ["w"])], {}, W.nbytes)


@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        ("pad", {"after": [2**63, 2**63]}, "larger than any memory"),
        ("reshape", {"shape": [1] * 65}, "shape = .* is not a legal value"),
        ("reshape", {"shape": [2**63] * 100_000}, "is not a legal value"),
        ("transpose", {"axes": list(range(65))}, "is not a legal value"),
        ("slice", {"starts": [0] * 10**5, "sizes": [1, 1]}, "is not a legal value"),
        ("take", {"axis": 0, "indices": [4] * 10**5}, "do not lie along axis 0"),
        ("take", {"axis": 2, "indices": []}, "do not lie along axis 2"),
        ("scales", {"group": 0, "limit": 0}, "scales for integers up to 0"),
    ],
)
def test_arguments_that_no_array_has(name: str, args: Any, why: str) -> None:
    recipe = {"sources": ["w"], "steps": [[name, 1, {**args, "in": [0]}]]}
    with pytest.raises(RecipeError, match=why) as caught:
        Shown({"t": Recipe.from_json(recipe)}, lambda name: W, OF_W)
    assert len(str(caught.value)) < 400


def test_indices_of_an_empty_axis() -> None:
    empty = source("w").then("slice", starts=(0, 0), sizes=(0, 6))
    with pytest.raises(RecipeError, match="do not lie along axis 0"):
        empty.then("take", axis=0, indices=(0,)).infer(OF_W)
    assert empty.then("take", axis=0, indices=()).infer(OF_W) == (dtypes.float32, (0, 6))


def test_integers_wider_than_a_weight() -> None:
    scales = source("w").then("scales", group=0, limit=300)
    with pytest.raises(RecipeError, match="at most 8 bits, not as int16"):
        combine("quantize", [source("w"), scales], dtype="int16", group=0, limit=300).infer(OF_W)


def test_a_source_is_called_like_a_value() -> None:
    names = ("value 2", "value 2'", "w")
    recipe = combine("concat", [combine("concat", list(map(source, names[:2])), axis=0), source("w")], axis=0)
    values = dict.fromkeys(names, W)
    found = shown({"t": combine("concat", [source(n) for n in names[:2]], axis=0)}, dict.fromkeys(names[:2], W),
                  dict.fromkeys(names, OF_W["w"]))  # fmt: skip
    np.testing.assert_array_equal(made(found, recipe, {"w": W}), evaluate(recipe, values))


def test_a_recipe_that_gives_an_adapters_tensor() -> None:
    with pytest.raises(RecipeError, match="tensor t is stored as .*, and its recipe gives an adapter's tensor"):
        Shown({"t": source("lora.x.A")}, lambda name: W, OF_W)
    with pytest.raises(RecipeError, match="tensor t: parameter 'nobody' has no value"):
        Shown({"t": source("nobody")}, lambda name: W, OF_W)


# ---------------------------------------------------------------------------------------------------------- numbering


def test_equal_steps_on_equal_values_are_one() -> None:
    numbers = Numbering()
    one, other = cast("w", "bfloat16"), combine("concat", [cast("w", "bfloat16"), cast("v", "bfloat16")], axis=0)
    assert numbers.of(one) == [0, 1]
    assert numbers.of(other) == [0, 2, 1, 3, 4]
    assert numbers.of(one.then("cast", dtype="bfloat16"), {0: 2}) == [2, 3, 5]
    assert numbers.recipe(4) == other and numbers.recipe(0) == source("w")
    assert numbers.of(cast("w", "float16")) == [0, 6]
