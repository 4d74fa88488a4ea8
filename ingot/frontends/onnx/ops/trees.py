"""Ensembles of decision trees (ai.onnx.ml): all trees go down level by level, by rows out of tables of their nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.frontends.onnx.ops.common import cast, number, wide
from ingot.frontends.onnx.table import MAX_MADE, MaybeNDArray, NDArray, onnx
from ingot.frontends.table import Floats, Ints, MaybeFloats, MaybeInts, Result, Strs, Tensor, Unsupported
from ingot.ir import F

DOMAIN = "ai.onnx.ml"
MAX_DEPTH = 128
Array = np.ndarray[Any, Any]

_COMPARED: tuple[Callable[[Any, Any], Any], ...] = (
    F.less_equal, F.less, F.greater_equal, F.greater, F.equal, F.not_equal,
)  # fmt: skip
_MEMBER = 6
_MODES = {"BRANCH_LEQ": 0, "BRANCH_LT": 1, "BRANCH_GTE": 2, "BRANCH_GT": 3, "BRANCH_EQ": 4, "BRANCH_NEQ": 5}
_SUMS = {"AVERAGE": 0, "SUM": 1, "MIN": 2, "MAX": 3}
_TRANSFORMS = {"NONE": 0, "SOFTMAX": 1, "LOGISTIC": 2, "SOFTMAX_ZERO": 3, "PROBIT": 4}


class Forest(NamedTuple):
    """Trees as tables over all their nodes: branches first, then leaves, which lead to themselves."""

    roots: Array
    feature: Array
    split: Array
    mode: Array
    missing: Array  # whether what is NaN goes the way of what is true
    then: Array
    other: Array
    members: Array | None  # of the sets of branches that ask for one, [nodes, most]; NaN behind them
    branches: int
    weights: Array  # [leaves, targets]
    given: Array  # which of them a leaf has


def _checked(forest: Forest) -> Forest:
    """Raises Unsupported for tables that do not fit together."""
    count = forest.branches + len(forest.weights)
    for ids in (forest.roots, forest.then, forest.other):
        if ids.size and (ids.min() < 0 or ids.max() >= count):
            raise Unsupported("a node of its trees leads to one that is not there")
    if not forest.roots.size or {len(a) for a in forest[1:7]} != {count}:
        raise Unsupported("it has no trees, or lists of its nodes differ in length")
    if forest.feature.min() < 0 or not np.isin(forest.mode, range(_MEMBER + 1)).all():
        raise Unsupported("a node of its trees has a negative feature, or a mode that is not known")
    return forest


def _depth(forest: Forest) -> int:
    """The branches on the longest way down. Raises Unsupported for a way without an end."""
    at = np.unique(forest.roots)
    for depth in range(MAX_DEPTH + 1):
        at = at[at < forest.branches]
        if not at.size:
            return depth
        at = np.unique(np.concatenate([forest.then[at], forest.other[at]]))
    raise Unsupported(f"its trees have a cycle, or are deeper than {MAX_DEPTH}")


def _compared(forest: Forest, x: Any, at: Any) -> Any:
    """Whether each tree's node says yes to its row of x [N, features]; at: [N, trees]."""
    def of(table: Array) -> Any:
        return F.take(x.network.constant(table), at, axis=0)

    value, split = F.gather(x, of(forest.feature), axis=1), of(forest.split.astype(x.dtype.numpy))
    used = np.unique(forest.mode[: forest.branches])
    mode, yes = of(forest.mode.astype(np.int32)) if used.size > 1 else None, None
    for kind in used:
        one = _among(forest, x, value, at) if kind == _MEMBER else _COMPARED[kind](value, split)
        yes = one if yes is None else F.where(F.equal(mode, np.int32(kind)), one, yes)
    if forest.missing.any():
        yes = F.logical_or(yes, F.logical_and(of(forest.missing), F.not_equal(value, value)))
    return yes


def _among(forest: Forest, x: Any, value: Any, at: Any) -> Any:
    """Whether values are among the members of their nodes' sets."""
    if forest.members is None:
        raise Unsupported("membership_values are missing")
    sets = F.take(x.network.constant(forest.members.astype(x.dtype.numpy)), at, axis=0)
    hits = cast(F.equal(sets, F.reshape(value, (*value.shape, 1))), dtypes.int32)
    return F.greater(F.reduce_max(hits, axes=(2,), keepdims=False), np.int32(0))


def _leaves(forest: Forest, x: Any) -> Any:
    """Which leaf each row of x gets to in each tree, int64 [N, trees]."""
    if len(x.shape) != 2:
        raise Unsupported(f"x {x.spec} is not [N, features]")
    features = x.shape[1]
    if isinstance(features, int) and forest.feature.max() >= features:
        raise Unsupported(f"its trees ask for feature {forest.feature.max()} of {features}")
    children = x.network.constant(np.stack([forest.other, forest.then], 1).reshape(-1))
    roots = x.network.constant(forest.roots[None].astype(np.int64))
    at: Any = F.expand(roots, (x.shape[0], len(forest.roots)))
    for _ in range(_depth(forest)):
        way = cast(_compared(forest, x, at), dtypes.int64)
        at = F.take(children, F.add(F.mul(at, np.int64(2)), way), axis=0)
    return F.sub(at, np.int64(forest.branches))


def scores(forest: Forest, x: Any, aggregate: int, kind: DType) -> Any:
    """What the trees say of each row together, [N, targets]."""
    if forest.weights.size > MAX_MADE:
        raise Unsupported(f"its leaves have {forest.weights.size:,} weights; they may have {MAX_MADE:,}")
    forest = _checked(forest)
    x = wide(x) if x.dtype.is_float else cast(x, dtypes.float32)
    at = _leaves(forest, x)
    if aggregate in (0, 1):
        found = F.take(x.network.constant(forest.weights.astype(kind.numpy)), at, axis=0)
        total = F.reduce_sum(found, axes=(1,), keepdims=False)
        return F.div(total, float(len(forest.roots))) if aggregate == 0 else total
    if aggregate not in (2, 3):
        raise Unsupported(f"there is no aggregate function {aggregate}")
    far = np.inf if aggregate == 2 else -np.inf
    table = np.where(forest.given, forest.weights, far).astype(kind.numpy)
    best = F.reduce_min if aggregate == 2 else F.reduce_max
    found = best(F.take(x.network.constant(table), at, axis=0), axes=(1,), keepdims=False)
    return F.where(F.equal(found, number(found, far)), number(found, 0), found)


def transformed(y: Any, how: int) -> Any:
    """Scores after their last step."""
    if how == 0:
        return y
    if how == 1:
        return F.softmax(y, axis=1)
    if how == 2:
        return F.sigmoid(y)
    if how == 3:  # what is 0 stays it
        zero = F.equal(y, number(y, 0))
        hidden = F.where(zero, number(y, -np.inf), y)
        return F.where(zero, number(y, 0), F.softmax(hidden, axis=1))
    raise Unsupported(f"the post_transform {how} is not supported")


@onnx("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(
    x: Tensor, *, aggregate_function: int = 1, leaf_targetids: Ints, leaf_weights: NDArray,
    membership_values: MaybeNDArray = None, n_targets: int, nodes_falseleafs: Ints, nodes_falsenodeids: Ints,
    nodes_featureids: Ints, nodes_hitrates: MaybeNDArray = None, nodes_missing_value_tracks_true: MaybeInts = None,
    nodes_modes: NDArray, nodes_splits: NDArray, nodes_trueleafs: Ints, nodes_truenodeids: Ints,
    post_transform: int = 0, tree_roots: Ints,
) -> Result:  # fmt: skip
    branches, leaves = len(nodes_featureids), len(leaf_targetids)
    own = np.arange(branches, branches + leaves)

    def leads(ids: Ints, are_leaves: Ints) -> Array:
        if len(ids) != branches or len(are_leaves) != branches:
            raise Unsupported("lists of its nodes differ in length")
        return np.concatenate([np.array(ids, np.int64) + branches * np.array(are_leaves, np.int64), own])

    def each(values: Any, kind: Any) -> Array:
        return np.concatenate([np.asarray(values, kind).reshape(-1), np.zeros(leaves, kind)])

    weights, given = _dense(np.arange(leaves), np.array(leaf_targetids, np.int64), leaf_weights, leaves, n_targets)
    modes = each(nodes_modes, np.int64)
    forest = Forest(
        np.array(tree_roots, np.int64), each(nodes_featureids, np.int64), each(nodes_splits, np.float64), modes,
        each(nodes_missing_value_tracks_true or (0,) * branches, bool), leads(nodes_truenodeids, nodes_trueleafs),
        leads(nodes_falsenodeids, nodes_falseleafs), _sets(modes, membership_values), branches, weights, given,
    )  # fmt: skip
    return transformed(scores(forest, x, aggregate_function, x.dtype), post_transform)


def _dense(leaf: Array, target: Array, values: Any, leaves: int, targets: int) -> tuple[Array, Array]:
    """Weights [leaves, targets] of a list of them, and which there are."""
    values = np.asarray(values, np.float64).reshape(-1)
    if len(target) != len(values) or not 1 <= targets <= MAX_MADE or not 1 <= leaves * targets <= MAX_MADE:
        raise Unsupported(f"{len(values):,} weights of {leaves:,} leaves and {targets:,} targets are not supported")
    if target.size and (target.min() < 0 or target.max() >= targets):
        raise Unsupported(f"a leaf has a target beyond the {targets} that there are")
    weights, given = np.zeros((leaves, targets)), np.zeros((leaves, targets), bool)
    np.add.at(weights, (leaf, target), values)
    given[leaf, target] = True
    return weights, given


def _sets(modes: Array, values: Any) -> Array | None:
    """The sets of the nodes that ask for one, in the order of these nodes, NaN between them."""
    nodes = np.flatnonzero(modes == _MEMBER)
    if not nodes.size:
        return None
    values = np.zeros(0) if values is None else np.asarray(values, np.float64).reshape(-1)
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) < len(nodes):
        ends = np.append(ends, len(values))
    starts = np.concatenate([[0], ends[:-1] + 1])
    most = int((ends - starts).max(initial=0))
    if len(ends) != len(nodes) or len(modes) * most > MAX_MADE:
        raise Unsupported(f"{len(ends)} sets of at most {most} members for {len(nodes)} nodes that ask for one")
    places = starts[:, None] + np.arange(most)
    rows = np.where(places < ends[:, None], values[np.minimum(places, len(values) - 1)], np.nan)
    found = np.full((len(modes), most), np.nan)
    found[nodes] = rows
    return found


# -------------------------------------------------------------------------------- as it was said before version 5


class Keys:
    """Where the nodes that trees number for themselves are in the tables: branches first, then leaves."""

    def __init__(self, trees: Ints, nodes: Ints, modes: Strs) -> None:
        self.tree, self.node = np.array(trees, np.int64), np.array(nodes, np.int64)
        if not len(trees) == len(nodes) == len(modes) or not len(trees):
            raise Unsupported("it has no nodes, or lists of its nodes differ in length")
        if self.tree.min() < 0 or self.node.min() < 0 or max(self.tree.max(), self.node.max()) >= 1 << 31:
            raise Unsupported("numbers of trees and nodes must be 0 or more, and below 2³¹")
        if unknown := set(modes) - _MODES.keys() - {"LEAF"}:
            raise Unsupported(f"the mode {sorted(unknown)[0]:.40} is not known")
        self.leaf = np.array([mode == "LEAF" for mode in modes])
        self.order = np.argsort(self.leaf, kind="stable")  # of the tables: which node of the lists
        keys = (self.tree << 32 | self.node)[self.order]
        self.sorted = np.argsort(keys, kind="stable")
        self.keys = keys[self.sorted]
        if (np.diff(self.keys) == 0).any():
            raise Unsupported("two nodes of a tree have one number")

    def find(self, trees: Any, nodes: Any) -> Array:
        """The places in the tables. Raises Unsupported for a node that is not there."""
        wanted = np.asarray(trees, np.int64) << 32 | np.asarray(nodes, np.int64)
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        if (self.keys[at] != wanted).any():
            raise Unsupported("a node of its trees leads to one that is not there")
        return self.sorted[at]


def _forest(
    trees: Ints, nodes: Ints, features: Ints, values: Any, modes: Strs, then: Ints, other: Ints, missing: Any,
    weights: tuple[Ints, Ints, Ints, Any], targets: int,
) -> Forest:  # fmt: skip
    keys = Keys(trees, nodes, modes)
    values = np.asarray(values, np.float64).reshape(-1)
    if {len(features), len(values), len(then), len(other)} != {len(trees)} or len(missing or trees) != len(trees):
        raise Unsupported("lists of its nodes differ in length")
    order, branches = keys.order, int((~keys.leaf).sum())
    own, tree = np.arange(len(order)), keys.tree[order]
    leaf = own >= branches
    ways = []
    for ids in (then, other):
        way = own.copy()
        way[:branches] = keys.find(tree[:branches], np.array(ids, np.int64)[order][:branches])
        ways.append(way)
    _, first = np.unique(keys.tree, return_index=True)  # a tree's first node is its root
    weight_trees, weight_nodes, ids, numbers = weights
    if not len(weight_trees) == len(weight_nodes) == len(ids):
        raise Unsupported("lists of its weights differ in length")
    at = keys.find(weight_trees, weight_nodes) - branches
    if at.size and at.min() < 0:
        raise Unsupported("a node that is no leaf has weights")
    dense, given = _dense(at, np.array(ids, np.int64), numbers, len(order) - branches, targets)
    words = np.array([_MODES.get(mode, 0) for mode in modes])
    roots = keys.find(keys.tree[first], keys.node[first])
    lost = np.array(missing, bool)[order] & ~leaf if missing else np.zeros(len(order), bool)
    return Forest(roots, np.array(features, np.int64)[order], values[order], words[order], lost, ways[0], ways[1],
                  None, branches, dense, given)  # fmt: skip


def _word(table: dict[str, int], word: str) -> int:
    if word not in table:
        raise Unsupported(f"{word:.40} is none of {', '.join(table)}")
    return table[word]


@onnx("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(
    x: Tensor, *, aggregate_function: str = "SUM", base_values: MaybeFloats = None,
    base_values_as_tensor: MaybeNDArray = None, n_targets: int, nodes_falsenodeids: Ints, nodes_featureids: Ints,
    nodes_hitrates: MaybeFloats = None, nodes_hitrates_as_tensor: MaybeNDArray = None,
    nodes_missing_value_tracks_true: MaybeInts = None, nodes_modes: Strs, nodes_nodeids: Ints, nodes_treeids: Ints,
    nodes_truenodeids: Ints, nodes_values: Floats = (), nodes_values_as_tensor: MaybeNDArray = None,
    post_transform: str = "NONE", target_ids: Ints, target_nodeids: Ints, target_treeids: Ints,
    target_weights: Floats = (), target_weights_as_tensor: MaybeNDArray = None,
) -> Result:  # fmt: skip
    """Of floats of 32 bits, whatever x is."""
    forest = _forest(
        nodes_treeids, nodes_nodeids, nodes_featureids, _either(nodes_values, nodes_values_as_tensor), nodes_modes,
        nodes_truenodeids, nodes_falsenodeids, nodes_missing_value_tracks_true,
        (target_treeids, target_nodeids, target_ids, _either(target_weights, target_weights_as_tensor)), n_targets,
    )  # fmt: skip
    found = scores(forest, x, _word(_SUMS, aggregate_function), dtypes.float32)
    base = np.asarray(_either(base_values or (), base_values_as_tensor), np.float32).reshape(-1)
    if base.size:
        found = F.add(found, found.network.constant(base))
    return transformed(found, _word(_TRANSFORMS, post_transform))


def _either(numbers: Any, tensor: Any) -> Any:
    return numbers if tensor is None else tensor
