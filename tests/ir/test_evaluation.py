"""Recipes evaluated together: no step twice, nothing longer than it is needed, and the arrays of each alone."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ingot.errors import RecipeError
from ingot.ir.evaluation import Together, alike, evaluate
from ingot.ir.recipe import STEPS, Recipe, StepCall, combine, source

W = np.arange(24, dtype=np.float32).reshape(4, 6)


def phases(name: str = "w") -> list[Recipe]:
    """The columns and rows of a weight by their parity."""
    turned = source(name).then("cast", dtype="bfloat16").then("transpose", axes=(1, 0))
    return [turned.then("take", axis=0, indices=(i, i + 2, i + 4)).then("take", axis=1, indices=(j, j + 2))
            for i in range(2) for j in range(2)]  # fmt: skip


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each kind of step was done."""
    count: Counter[str] = Counter()
    for name, step in list(STEPS.items()):

        def apply(arrays: Any, *, _step: Any = step, **args: Any) -> Any:
            count[_step.name] += 1
            return _step.apply(arrays, **args)

        monkeypatch.setitem(STEPS, name, replace(step, apply=apply))
    return count


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 2, 1]])
def test_what_is_common_is_made_once(order: list[int], applied: Counter[str]) -> None:
    recipes = phases()
    wanted = [evaluate(recipe, {"w": W}) for recipe in recipes]
    applied.clear()
    together = Together(recipes, {"w": W})
    for i in order:
        np.testing.assert_array_equal(together.evaluate(recipes[i]), wanted[i])
    assert applied == {"cast": 1, "transpose": 1, "take": 6}
    assert not together._values, "and nothing is left"


def test_a_step_that_no_result_needs_is_not_done(applied: Counter[str]) -> None:
    steps = (StepCall("reciprocal", (0,)), StepCall("cast", (0,), (("dtype", "float16"),)))
    np.testing.assert_array_equal(
        evaluate(
            Recipe(
                ("w", "nobody"), tuple(StepCall(c.name, tuple(i and i + 1 for i in c.inputs), c.args) for c in steps)
            ),
            {"w": W},
        ),
        W.astype(np.float16),
    )
    assert applied == {"cast": 1}


def test_results_that_others_go_on_from_and_equal_recipes() -> None:
    first = source("w").then("cast", dtype="float16")
    more = combine("concat", [first, first], axis=0)
    together = Together([more, first, first, source("w")], {"w": W})
    np.testing.assert_array_equal(together.evaluate(more), np.concatenate([W, W]).astype(np.float16))
    np.testing.assert_array_equal(together.evaluate(first), W.astype(np.float16))
    np.testing.assert_array_equal(together.evaluate(first), W.astype(np.float16))
    assert together.evaluate(source("w")) is W and not together._values


def test_what_was_used_last_goes() -> None:
    """Before the next recipe is begun, however many hold the same sources."""

    class Weights(dict[str, Any]):
        read = 0

        def __getitem__(self, name: str) -> Any:
            self.read += 1
            array = np.ones((8, 8), np.float32)
            seen.append(weakref.ref(array))
            return array

    seen: list[Any] = []
    weights, recipes = Weights(), [source(n).then("cast", dtype="float16") for n in "vw"]
    together = Together([*recipes, recipes[0].then("transpose", axes=(1, 0))], weights)
    together.evaluate(recipes[0])
    gc.collect()
    assert weights.read == 1 and seen[0]() is None, "its cast is kept, and nothing else"
    together.evaluate(recipes[1])
    together.evaluate(recipes[0].then("transpose", axes=(1, 0)))
    assert weights.read == 2 and not together._values


def test_a_step_that_fails_leaves_the_others() -> None:
    good = source("w").then("cast", dtype="float16")
    bad = good.then("take", axis=0, indices=(0,))
    lacking = combine("concat", [good, source("nobody")], axis=0)
    together = Together([lacking, bad, good], {"w": W})
    with pytest.raises(RecipeError, match="parameter 'nobody' has no value"):
        together.evaluate(lacking)
    np.testing.assert_array_equal(together.evaluate(bad), W[:1].astype(np.float16))
    np.testing.assert_array_equal(together.evaluate(good), W.astype(np.float16))


def test_names_of_one_source_the_longest_recipe_first() -> None:
    short, long = source("w"), source("w").then("cast", dtype="float16")
    assert alike([("a", short), ("b", source("v")), ("c", long)]) == [["c", "a"], ["b"]]


def test_steps_that_a_recipe_holds_twice_are_done_once(applied: Counter[str]) -> None:
    """As a file may have them: what is made of the second one is what was made of the first."""
    cast, turn = ("cast", (("dtype", "float32"),)), ("transpose", (("axes", (1, 0)),))
    calls = [(cast, 0), (turn, 1), (turn, 2), (turn, 1), (turn, 4)]
    steps = (*(StepCall(name, (i,), args) for (name, args), i in calls), StepCall("concat", (3, 5), (("axis", 0),)))
    np.testing.assert_array_equal(evaluate(Recipe(("w",), steps), {"w": W}), np.concatenate([W, W]))
    assert applied == {"cast": 1, "transpose": 2, "concat": 1}
