"""Functions, layers and ways of writing from torch's documentation, each with inputs: what `torch-functions` tries."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

Make = Callable[..., Any]


class Case(NamedTuple):
    """A function or a layer by its name in the documentation, and the tensors that it is given."""

    section: str
    name: str
    call: Any
    inputs: tuple[Any, ...]


torch.manual_seed(0)
X, Y = torch.randn(3, 4), torch.randn(3, 4)
P, Q = torch.rand(3, 4) * 0.8 + 0.1, torch.rand(3, 4) * 0.8 + 0.1  # within 0 … 1
V, W = torch.randn(6), torch.randn(6)
S, R = torch.randn(4, 4), torch.randn(4, 4)
SPD = S @ S.T + 4 * torch.eye(4)  # symmetric, positive definite
B3, C3 = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
K, J = torch.randint(0, 4, (3, 4)), torch.randint(1, 9, (3, 4))
L = torch.tensor([2, 0, 1])
MASK = torch.tensor([[True, False, True, False]] * 3)
SIGNAL, IMAGE, VOLUME = torch.randn(2, 4, 16), torch.randn(2, 4, 8, 8), torch.randn(1, 4, 6, 6, 6)
SEQUENCE = torch.randn(5, 2, 8)  # time, batch, features
SOURCE, MEMORY = torch.randn(2, 6, 16), torch.randn(2, 5, 16)  # batch, time, features
CODES = torch.randint(0, 10, (2, 6))
WITH_NAN = torch.where(X > 1, torch.nan, X)
COMPLEX = torch.complex(X, Y)
INFINITE = torch.tensor([1.0, torch.nan, torch.inf, -torch.inf, -2.0])
DISTINCT = torch.randperm(24).float().reshape(2, 3, 4)


class Called(nn.Module):  # type: ignore[misc]
    """What is no module by itself: a function of tensors, with parameters x0, x1, …"""

    def __init__(self, function: Make, count: int) -> None:
        super().__init__()
        names = ", ".join(f"x{i}" for i in range(count))
        self.function = function
        self.forward = eval(f"lambda self, {names}: self.function({names})").__get__(self)


def _found(name: str) -> Any:
    return functools.reduce(getattr, name.split(".")[1:], torch)


def _plain(section: str, rows: Sequence[tuple[Any, ...]]) -> list[Case]:
    """Rows (name, arguments, …, {named arguments}): a tensor, or a list of them, is an input; other arguments are
    fixed.
    """
    cases = []
    for name, *given in rows:
        named = given.pop() if given and isinstance(given[-1], dict) else {}
        flat, tree = torch.utils._pytree.tree_flatten((tuple(given), named))
        places = [i for i, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
        target = _found(f"{section}.{name}")

        def call(
            *tensors: Any, flat: Any = flat, tree: Any = tree, places: Any = places, target: Any = target
        ) -> Any:
            leaves = list(flat)
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            args, kwargs = torch.utils._pytree.tree_unflatten(leaves, tree)
            return target(*args, **kwargs)

        cases.append(Case(section, name, call, tuple(flat[i] for i in places)))
    return cases


def _called(section: str, rows: Sequence[tuple[Any, ...]]) -> list[Case]:
    """Rows (name, function or layer, inputs, …)."""
    return [Case(section, name, call, tuple(inputs)) for name, call, *inputs in rows]


# ------------------------------------------------------------------------------------- torch: the lists of its page

CREATION = [
    ("heaviside", X, Y), ("complex", X, Y), ("polar", P, Y), ("zeros_like", X), ("ones_like", X),
    ("full_like", X, 2.5), ("rand_like", X), ("randn_like", X), ("randint_like", X, 5),
    ("bernoulli", P), ("multinomial", P, 2), ("normal", X, P), ("poisson", P), ("as_strided", X, (2, 2), (1, 2)),
    ("tril_indices", 3, 4),
]  # fmt: skip
JOINING = [
    ("adjoint", B3), ("argwhere", X), ("cat", [X, Y], 1), ("concat", [X, Y]), ("chunk", X, 2, 1),
    ("dsplit", DISTINCT, 2), ("column_stack", [V, W]), ("dstack", [X, Y]), ("gather", X, 1, K), ("hsplit", X, 2),
    ("hstack", [X, Y]), ("index_add", X, 0, L, Y), ("index_copy", X, 0, L, Y), ("index_reduce", X, 0, L, Y, "prod"),
    ("index_select", X, 1, L), ("index_fill", X, 1, L, 2.0), ("masked_select", X, MASK), ("movedim", B3, 0, 2),
    ("moveaxis", B3, 1, 0), ("narrow", X, 1, 1, 2), ("narrow_copy", X, 1, 1, 2), ("nonzero", X),
    ("permute", B3, (2, 0, 1)), ("reshape", X, (2, 6)), ("row_stack", [X, Y]), ("select", X, 0, 1),
    ("scatter", X, 1, K, Y), ("diagonal_scatter", S, V[:4]), ("select_scatter", X, V[:4], 0, 1),
    ("slice_scatter", X, Y[:, :2], 1, 1, 3), ("scatter_add", X, 1, K, Y), ("scatter_reduce", X, 1, K, Y, "amax"),
    ("split", X, 2, 1), ("squeeze", X[:, :1]), ("stack", [X, Y], 1), ("swapaxes", B3, 0, 1), ("swapdims", B3, 0, 1),
    ("t", X), ("take", X, K), ("take_along_dim", X, K, 1), ("tensor_split", X, 3, 1), ("tile", X, (2, 1)),
    ("transpose", B3, 0, 2), ("unbind", B3), ("unravel_index", K, (3, 4)), ("unsqueeze", X, 0), ("vsplit", S, 2),
    ("vstack", [X, Y]), ("where", MASK, X, Y),
]  # fmt: skip
POINTWISE = [
    ("abs", X), ("acos", P), ("acosh", P + 1), ("add", X, Y, {"alpha": 2}), ("addcdiv", X, Y, P),
    ("addcmul", X, Y, P), ("angle", X), ("asin", P), ("asinh", X), ("atan", X), ("atanh", P), ("atan2", X, Y),
    ("bitwise_not", K), ("bitwise_and", K, J), ("bitwise_or", K, J), ("bitwise_xor", K, J),
    ("bitwise_left_shift", K, J), ("bitwise_right_shift", J, K), ("ceil", X), ("clamp", X, -0.5, 0.5),
    ("copysign", X, Y), ("cos", X), ("cosh", X), ("deg2rad", X), ("div", X, P, {"rounding_mode": "floor"}),
    ("digamma", P), ("erf", X), ("erfc", X), ("erfinv", P), ("exp", X), ("exp2", X), ("expm1", X),
    ("fake_quantize_per_tensor_affine", X, 0.1, 0, -128, 127),
    ("fake_quantize_per_channel_affine", X, P[:, 0], torch.zeros(3, dtype=torch.int32), 0, -128, 127),
    ("float_power", P, 2.0), ("floor", X), ("floor_divide", X, P), ("fmod", X, P), ("frac", X), ("frexp", X),
    ("gradient", V), ("ldexp", X, K), ("lerp", X, Y, 0.3), ("lgamma", P), ("log", P), ("log10", P), ("log1p", P),
    ("log2", P), ("logaddexp", X, Y), ("logaddexp2", X, Y), ("logical_and", MASK, ~MASK), ("logical_not", MASK),
    ("logical_or", MASK, ~MASK), ("logical_xor", MASK, ~MASK), ("logit", P), ("hypot", X, Y), ("i0", X),
    ("igamma", P, Q), ("igammac", P, Q), ("mul", X, Y), ("mvlgamma", P + 2, 2), ("nan_to_num", INFINITE), ("neg", X),
    ("nextafter", X, Y), ("polygamma", 1, P), ("positive", X), ("pow", P, Y), ("rad2deg", X), ("reciprocal", P),
    ("remainder", X, P), ("round", X, {"decimals": 1}), ("rsqrt", P), ("sigmoid", X), ("sign", X), ("sgn", X),
    ("signbit", X), ("sin", X), ("sinc", X), ("sinh", X), ("softmax", X, 1), ("sqrt", P), ("square", X),
    ("sub", X, Y), ("tan", X), ("tanh", X), ("trunc", X), ("xlogy", X, P),
]  # fmt: skip
REDUCTIONS = [
    ("argmax", X, 1), ("argmin", X, 0), ("amax", X, 1), ("amin", X, (0, 1)), ("aminmax", X, {"dim": 1}),
    ("all", MASK, 0), ("any", MASK, 1), ("max", X, 1), ("min", X, 0), ("dist", X, Y), ("logsumexp", X, 1),
    ("mean", X, 1), ("nanmean", WITH_NAN, 1), ("median", X, 1), ("nanmedian", WITH_NAN), ("mode", K, 1),
    ("norm", X, 2, 1), ("nansum", WITH_NAN), ("prod", X, 1), ("quantile", X, 0.3, 1), ("nanquantile", WITH_NAN, 0.3),
    ("std", X, 1), ("std_mean", X, 1), ("sum", X, (0, 1)), ("unique", K), ("unique_consecutive", K), ("var", X, 1),
    ("var_mean", X, 1), ("count_nonzero", K, 1),
]  # fmt: skip
COMPARISONS = [
    ("allclose", X, Y), ("argsort", X, 1), ("eq", K, J), ("equal", K, J), ("ge", X, Y), ("gt", X, Y),
    ("isclose", X, Y), ("isfinite", INFINITE), ("isin", K, L), ("isinf", INFINITE), ("isposinf", INFINITE),
    ("isneginf", INFINITE), ("isnan", INFINITE), ("isreal", X), ("kthvalue", X, 2, 1), ("le", X, Y), ("lt", X, Y),
    ("maximum", X, Y), ("minimum", X, Y), ("fmax", X, Y), ("fmin", X, Y), ("ne", K, J), ("sort", X, 1),
    ("topk", X, 2), ("msort", X),
]  # fmt: skip
OTHERS = [
    ("stft", V.repeat(8), 16, {"window": torch.ones(16), "return_complex": True}), ("atleast_3d", X), ("bincount", L),
    ("block_diag", X, Y), ("broadcast_tensors", X, V[:4]), ("broadcast_to", V[:4], (3, 4)),
    ("bucketize", X, V.sort()[0]), ("cartesian_prod", V, W), ("cdist", X, Y), ("clone", X), ("combinations", V),
    ("corrcoef", X), ("cov", X), ("cross", X[:, :3], Y[:, :3], {"dim": 1}), ("cummax", X, 1), ("cummin", X, 1),
    ("cumprod", X, 1), ("cumsum", X, 1), ("diag", S), ("diag_embed", X), ("diagflat", V), ("diagonal", S, 1),
    ("diff", X), ("einsum", "ij,kj->ik", X, Y), ("flatten", B3, 1), ("flip", X, (0, 1)), ("fliplr", X), ("flipud", X),
    ("kron", X, Y), ("rot90", X), ("gcd", K, J), ("histc", X, 5), ("histogram", V, 4),
    ("meshgrid", V, W, {"indexing": "ij"}), ("lcm", K, J), ("logcumsumexp", X, 1), ("ravel", X),
    ("renorm", X, 2, 0, 1.0), ("repeat_interleave", X, 2, 1), ("repeat_interleave", X, L, 0), ("roll", X, 1, 1),
    ("searchsorted", V.sort()[0], W), ("tensordot", B3, C3, {"dims": ([2, 0], [1, 0])}), ("trace", S), ("tril", X),
    ("triu", X, 1), ("unflatten", X, 1, (2, 2)), ("vander", V), ("view_as_real", COMPLEX),
    ("view_as_complex", torch.randn(3, 2)), ("real", COMPLEX), ("conj", COMPLEX),
]  # fmt: skip
PRODUCTS = [
    ("addbmm", torch.randn(3, 5), B3, C3), ("addmm", S, X.T, Y), ("addmv", V[:3], X, V[:4]),
    ("addr", X, V[:3], V[:4]), ("baddbmm", torch.randn(2, 3, 5), B3, C3), ("bmm", B3, C3), ("chain_matmul", X, S, R),
    ("cholesky", SPD), ("cholesky_inverse", SPD), ("cholesky_solve", S, SPD), ("dot", V, W), ("ger", V, W),
    ("inner", X, Y), ("inverse", SPD), ("det", S), ("logdet", SPD), ("slogdet", S),
    ("lu_solve", *(lambda f: (S, *f))(torch.linalg.lu_factor(SPD))), ("matmul", B3, C3), ("matrix_power", S, 3),
    ("matrix_exp", S), ("mm", X, Y.T), ("mv", X, V[:4]), ("outer", V, W), ("pinverse", X), ("qr", S), ("svd", X),
    ("trapezoid", X), ("cumulative_trapezoid", X), ("triangular_solve", S, SPD), ("vdot", V, W),
]  # fmt: skip

# ---------------------------------------------------------------------------------------------- the other namespaces

FUNCTIONAL = [
    ("conv1d", SIGNAL, torch.randn(6, 4, 3)), ("conv2d", IMAGE, torch.randn(6, 2, 3, 3), {"groups": 2}),
    ("conv3d", VOLUME, torch.randn(2, 4, 2, 2, 2)), ("conv_transpose1d", SIGNAL, torch.randn(4, 6, 3), {"stride": 2}),
    ("conv_transpose2d", IMAGE, torch.randn(4, 6, 3, 3), {"stride": 2}), ("unfold", IMAGE, 3, {"padding": 1}),
    ("fold", torch.randn(2, 12, 9), (4, 4), 2), ("avg_pool2d", IMAGE, 2), ("max_pool2d", IMAGE, 3, 2, 1),
    ("lp_pool2d", IMAGE, 2.0, 2),
    ("max_unpool2d", *(lambda f: (f[0], f[1]))(functional.max_pool2d(IMAGE, 2, return_indices=True)), 2),
    ("adaptive_avg_pool2d", IMAGE, 3), ("adaptive_max_pool2d", IMAGE, 3), ("adaptive_avg_pool1d", SIGNAL, 5),
    ("fractional_max_pool2d", IMAGE, 2, {"output_size": 3}),
    ("scaled_dot_product_attention", torch.randn(2, 2, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)),
    ("threshold", X, 0.1, 20), ("relu", X), ("hardtanh", X), ("hardswish", X), ("relu6", X), ("elu", X), ("selu", X),
    ("celu", X), ("leaky_relu", X), ("prelu", X, torch.tensor([0.2])), ("rrelu", X), ("glu", X), ("gelu", X),
    ("logsigmoid", X), ("hardshrink", X), ("tanhshrink", X), ("softsign", X), ("softplus", X), ("softmin", X, 1),
    ("softmax", X, 1), ("softshrink", X), ("gumbel_softmax", X), ("log_softmax", X, 1), ("hardsigmoid", X),
    ("silu", X), ("mish", X), ("batch_norm", IMAGE, torch.rand(4), torch.rand(4)), ("group_norm", IMAGE, 2),
    ("instance_norm", IMAGE), ("layer_norm", X, (4,)), ("local_response_norm", IMAGE, 2), ("rms_norm", X, (4,)),
    ("normalize", X), ("linear", X, torch.randn(5, 4)), ("bilinear", X, Y, torch.randn(5, 4, 4)),
    ("dropout", X, 0.5, False), ("embedding", CODES, torch.randn(10, 4)),
    ("embedding_bag", CODES, torch.randn(10, 4)), ("one_hot", L, 5), ("one_hot", L), ("pairwise_distance", X, Y),
    ("cosine_similarity", X, Y), ("pdist", X), ("binary_cross_entropy", P, Q),
    ("binary_cross_entropy_with_logits", X, P), ("poisson_nll_loss", X, P),
    ("cosine_embedding_loss", X, Y, torch.tensor([1, -1, 1])), ("cross_entropy", X, L),
    ("ctc_loss", torch.randn(6, 2, 4).log_softmax(2), torch.tensor([[1, 2], [2, 3]]), (6, 6), (2, 2)),
    ("gaussian_nll_loss", X, Y, P), ("hinge_embedding_loss", X, torch.sign(Y)), ("kl_div", P.log(), Q),
    ("l1_loss", X, Y), ("mse_loss", X, Y), ("margin_ranking_loss", X, Y, torch.sign(P)),
    ("multilabel_margin_loss", X, torch.tensor([[1, 0, -1, -1]] * 3)),
    ("multilabel_soft_margin_loss", X, MASK.float()), ("multi_margin_loss", X, L), ("nll_loss", X, L),
    ("huber_loss", X, Y), ("smooth_l1_loss", X, Y), ("soft_margin_loss", X, torch.sign(Y)),
    ("triplet_margin_loss", X, Y, P), ("pixel_shuffle", IMAGE, 2), ("pixel_unshuffle", IMAGE, 2),
    ("channel_shuffle", IMAGE, 2), ("pad", IMAGE, (1, 2, 0, 1), "reflect"),
    ("interpolate", IMAGE, None, 1.7, "bilinear"), ("grid_sample", IMAGE, torch.rand(2, 5, 5, 2) * 2 - 1),
    ("affine_grid", torch.randn(2, 2, 3), (2, 4, 5, 5)),
]  # fmt: skip
LINALG = [
    ("norm", X), ("vector_norm", X, 3), ("matrix_norm", X), ("matrix_norm", X, 2), ("diagonal", S), ("det", S),
    ("slogdet", S), ("cond", SPD), ("matrix_rank", SPD), ("cholesky", SPD), ("qr", S), ("lu", S), ("eigvals", S),
    ("eigh", SPD), ("eigvalsh", SPD), ("svd", X), ("svdvals", X), ("solve", SPD, S),
    ("solve_triangular", SPD.tril(), S, {"upper": False}), ("lstsq", S, R), ("inv", SPD), ("pinv", X),
    ("matrix_exp", S), ("matrix_power", S, 3), ("cross", X[:, :3], Y[:, :3]), ("matmul", X, S), ("vecdot", X, Y),
    ("multi_dot", [X, S, R]), ("householder_product", S, V[:4]), ("tensorinv", SPD.reshape(4, 2, 2), {"ind": 1}),
    ("vander", V),
]  # fmt: skip
FFT = [
    ("fft", V), ("ifft", COMPLEX), ("fft2", X), ("ifft2", COMPLEX), ("fftn", B3), ("ifftn", COMPLEX), ("rfft", V),
    ("irfft", COMPLEX), ("rfft2", X), ("irfft2", COMPLEX), ("rfftn", B3), ("irfftn", COMPLEX), ("hfft", COMPLEX),
    ("ihfft", V), ("hfft2", COMPLEX), ("fftfreq", 8), ("fftshift", X), ("ifftshift", X),
]  # fmt: skip
SPECIAL = [
    ("airy_ai", X), ("bessel_j0", X), ("bessel_j1", X), ("digamma", P), ("entr", P), ("erf", X), ("erfc", X),
    ("erfcx", X), ("erfinv", P), ("exp2", X), ("expit", X), ("expm1", X), ("gammainc", P, Q), ("gammaincc", P, Q),
    ("gammaln", P), ("i0", X), ("i0e", X), ("i1", X), ("i1e", X), ("log1p", P), ("log_ndtr", X),
    ("log_softmax", X, 1), ("logit", P), ("logsumexp", X, 1), ("multigammaln", P + 2, 2), ("ndtr", X), ("ndtri", P),
    ("polygamma", 1, P), ("psi", P), ("round", X), ("sinc", X), ("softmax", X, 1), ("xlog1py", X, P), ("xlogy", X, P),
    ("zeta", P + 1, Q),
]  # fmt: skip
TENSOR = [
    ("argsort", X, 1), ("baddbmm", torch.randn(2, 3, 5), B3, C3), ("contiguous", X.T), ("double", X), ("dim", X),
    ("element_size", X), ("expand", V, 2, 6), ("expand_as", V[:4], X), ("half", X), ("index_put", X, (L, L), V[:3]),
    ("int", X), ("item", torch.tensor(2.0)), ("long", X), ("masked_fill", X, MASK, 0.0),
    ("masked_scatter", X, MASK, Y), ("new_zeros", X, (2, 3)), ("new_tensor", X, [1.0, 2.0]),
    ("new_full", X, (2,), 3.0), ("numel", X), ("put", X, K[0], V[:4]), ("repeat", X, 2, 1), ("resize_as", X, Y),
    ("size", X), ("storage_offset", X), ("sum_to_size", X, 1, 4), ("tolist", L), ("to", X, torch.float64),
    ("type_as", X, K), ("unfold", V, 0, 3, 2), ("unique", K), ("view", X, 2, 6), ("view_as", X, Y), ("bool", K),
    ("softmax", X, 1), ("relu", X), ("cumsum", K, 1), ("index_select", X, 0, L), ("scatter", X, 1, K, 2.0),
    ("split", X, [1, 3], 1), ("stride", X), ("tensor_split", V, (1, 4)),
]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ layers


def _old(name: str, layer: Any) -> Any:
    """A layer after a function of torch.nn.utils that torch would rather not see any more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(nn.utils, name)(layer)


LAYERS = [
    ("Conv1d", nn.Conv1d(4, 6, 3, padding="same"), SIGNAL),
    ("Conv2d", nn.Conv2d(4, 6, 3, stride=2, padding=1, padding_mode="circular"), IMAGE),
    ("Conv3d", nn.Conv3d(4, 2, 3), VOLUME), ("ConvTranspose1d", nn.ConvTranspose1d(4, 6, 3, 2), SIGNAL),
    ("ConvTranspose2d", nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), IMAGE),
    ("ConvTranspose3d", nn.ConvTranspose3d(4, 2, 3), VOLUME), ("Unfold", nn.Unfold(3, 1, 1, 2), IMAGE),
    ("Fold", nn.Fold((4, 4), 2), torch.randn(2, 12, 9)), ("MaxPool1d", nn.MaxPool1d(3, 2), SIGNAL),
    ("MaxPool3d", nn.MaxPool3d(2), VOLUME),
    ("MaxUnpool2d", nn.MaxUnpool2d(2), *functional.max_pool2d(IMAGE, 2, return_indices=True)),
    ("AvgPool1d", nn.AvgPool1d(3, 2, 1), SIGNAL), ("AvgPool3d", nn.AvgPool3d(2), VOLUME),
    ("LPPool1d", nn.LPPool1d(2, 3), SIGNAL), ("AdaptiveMaxPool1d", nn.AdaptiveMaxPool1d(5), SIGNAL),
    ("AdaptiveAvgPool3d", nn.AdaptiveAvgPool3d((2, 3, None)), VOLUME),
    ("ReflectionPad1d", nn.ReflectionPad1d(2), SIGNAL),
    ("ReplicationPad2d", nn.ReplicationPad2d((1, 2, 3, 0)), IMAGE), ("ZeroPad2d", nn.ZeroPad2d(1), IMAGE),
    ("ConstantPad3d", nn.ConstantPad3d(1, 2.0), VOLUME), ("CircularPad1d", nn.CircularPad1d(2), SIGNAL),
    ("ELU", nn.ELU(), X), ("Hardshrink", nn.Hardshrink(), X), ("Hardsigmoid", nn.Hardsigmoid(), X),
    ("Hardtanh", nn.Hardtanh(), X), ("Hardswish", nn.Hardswish(), X),
    ("LeakyReLU", nn.LeakyReLU(0.1, inplace=True), X), ("LogSigmoid", nn.LogSigmoid(), X), ("PReLU", nn.PReLU(4), X),
    ("ReLU", nn.ReLU(inplace=True), X), ("RReLU", nn.RReLU(), X), ("SELU", nn.SELU(), X), ("CELU", nn.CELU(), X),
    ("GELU", nn.GELU("tanh"), X), ("SiLU", nn.SiLU(), X), ("Mish", nn.Mish(), X), ("Softplus", nn.Softplus(), X),
    ("Softshrink", nn.Softshrink(), X), ("Softsign", nn.Softsign(), X), ("Tanhshrink", nn.Tanhshrink(), X),
    ("Threshold", nn.Threshold(0.1, 2), X), ("GLU", nn.GLU(), X), ("Softmin", nn.Softmin(1), X),
    ("Softmax2d", nn.Softmax2d(), IMAGE), ("LogSoftmax", nn.LogSoftmax(1), X),
    ("MultiheadAttention", nn.MultiheadAttention(16, 4, batch_first=True), SOURCE, MEMORY, MEMORY),
    (
        "AdaptiveLogSoftmaxWithLoss", nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 10]), SOURCE[0],
        torch.tensor([1, 7, 12, 3, 9, 19]),
    ),
    ("BatchNorm1d", nn.BatchNorm1d(4), SIGNAL), ("BatchNorm3d", nn.BatchNorm3d(4), VOLUME),
    ("GroupNorm", nn.GroupNorm(2, 4), IMAGE), ("SyncBatchNorm", nn.SyncBatchNorm(4), IMAGE),
    ("InstanceNorm2d", nn.InstanceNorm2d(4, affine=True), IMAGE), ("LayerNorm", nn.LayerNorm(4), X),
    ("LocalResponseNorm", nn.LocalResponseNorm(2), IMAGE), ("RMSNorm", nn.RMSNorm(4), X),
    ("RNN", nn.RNN(8, 6, 2), SEQUENCE), ("LSTM", nn.LSTM(8, 6, bidirectional=True), SEQUENCE),
    ("GRU", nn.GRU(8, 6, batch_first=True), SEQUENCE), ("RNNCell", nn.RNNCell(8, 6), SEQUENCE[0]),
    ("LSTMCell", nn.LSTMCell(8, 6), SEQUENCE[0]), ("GRUCell", nn.GRUCell(8, 6), SEQUENCE[0], torch.randn(2, 6)),
    ("LSTM with a projection", nn.LSTM(8, 6, proj_size=3), SEQUENCE),
    ("Transformer", nn.Transformer(16, 2, 1, 1, 32, batch_first=True), SOURCE, MEMORY),
    ("TransformerEncoderLayer", nn.TransformerEncoderLayer(16, 2, 32, norm_first=True), SOURCE),
    (
        "TransformerDecoderLayer", nn.TransformerDecoderLayer(16, 2, 32), SOURCE.transpose(0, 1),
        MEMORY.transpose(0, 1),
    ),
    ("Identity", nn.Identity(), X), ("Linear", nn.Linear(4, 5), X), ("Bilinear", nn.Bilinear(4, 4, 5), X, Y),
    ("Dropout2d", nn.Dropout2d(), IMAGE), ("AlphaDropout", nn.AlphaDropout(), X),
    ("Embedding", nn.Embedding(10, 4, padding_idx=0), CODES),
    ("Embedding of max_norm", nn.Embedding(10, 4, max_norm=1.0), CODES),
    ("EmbeddingBag", nn.EmbeddingBag(10, 4, mode="max"), CODES), ("CosineSimilarity", nn.CosineSimilarity(), X, Y),
    ("PairwiseDistance", nn.PairwiseDistance(), X, Y),
    ("CrossEntropyLoss", nn.CrossEntropyLoss(label_smoothing=0.1), X, L),
    ("PixelUnshuffle", nn.PixelUnshuffle(2), IMAGE), ("Upsample", nn.Upsample(scale_factor=2, mode="bicubic"), IMAGE),
    ("UpsamplingNearest2d", nn.UpsamplingNearest2d(size=5), IMAGE), ("ChannelShuffle", nn.ChannelShuffle(2), IMAGE),
    ("Flatten", nn.Flatten(), IMAGE), ("Unflatten", nn.Unflatten(1, (2, 2)), IMAGE),
    ("utils.weight_norm", _old("weight_norm", nn.Conv1d(4, 6, 3)), SIGNAL),
    ("utils.parametrizations.weight_norm", nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), X),
    ("utils.spectral_norm", _old("spectral_norm", nn.Linear(4, 5)), X),
    ("utils.parametrizations.spectral_norm", nn.utils.parametrizations.spectral_norm(nn.Linear(4, 5)), X),
    ("utils.parametrizations.orthogonal", nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), X),
    ("utils.prune.l1_unstructured", prune.l1_unstructured(nn.Linear(4, 5), "weight", 0.5), X),
    ("ParameterList", nn.Sequential(nn.Linear(4, 4), nn.ReLU()), X),
]  # fmt: skip


# ---------------------------------------------------------------------------------- what people write, and control flow


def _written(change: Make) -> Make:
    """A function that changes a copy of its first tensor, and returns it."""

    def run(x: Any, *others: Any) -> Any:
        y = x.clone()
        change(y, *others)
        return y

    return run


def _column(y: Any) -> None:
    y[:, 0] = 0


def _block(y: Any, x: Any) -> None:
    y[:, :2] = x


def _masked(y: Any) -> None:
    y[y < 0] = 0


def _every_other(y: Any) -> None:
    y[:, ::2] = 1


def _by_indices(y: Any, rows: Any) -> None:
    y[rows, rows] = 7


def _added_by_indices(y: Any, rows: Any) -> None:
    y[rows] += 1


def _transposed(y: Any) -> None:
    y.t()[0] = 5


def _viewed(y: Any) -> None:
    y.view(-1)[3:7] = 2


def _through_a_view(x: Any) -> Any:
    y = x.clone()
    first = y[0]
    y *= 2
    return first + 1, y


def _diagonal(y: Any) -> None:
    y.diagonal().fill_(1)


def _swapped(y: Any) -> None:
    y[0], y[1] = y[1].clone(), y[0].clone()


def _filled_by_rows(x: Any) -> Any:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * i
    return out


def _collected(x: Any) -> Any:
    out = torch.empty(x.shape[0], 2)
    out[:, 0] = x.sum(1)
    out[:, 1] = x.amax(1)
    return out


def _ellipsis(y: Any) -> None:
    y[..., -1] = y[..., 0]


def _input_changed(x: Any) -> Any:
    x += 1
    return x * 2


def _chunked(y: Any) -> None:
    a, b = y.chunk(2, 1)
    a.mul_(b)


def _unbound(y: Any) -> None:
    for i, row in enumerate(y.unbind(0)):
        row.add_(i)


def _masked_source(y: Any, mask: Any) -> None:
    y[mask] = y[mask] * 2


def _broadcast(y: Any, x: Any) -> None:
    y[1:] = x


def _step_and_index(y: Any, rows: Any, x: Any) -> None:
    y[:, rows] = x


def _none_index(y: Any, x: Any) -> None:
    y[None, :, 1] = x


def _out(x: Any) -> Any:
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    return y


def _augmented(y: Any) -> None:
    y += 1
    y -= 2
    y *= 3
    y /= 4
    y //= 1
    y **= 2


WRITES = [
    ("y[:, 0] = 0", _written(_column), X), ("y[:, :2] = x", _written(_block), X, Y[:, :2]),
    ("y[y < 0] = 0", _written(_masked), X), ("y[:, ::2] = 1", _written(_every_other), X),
    ("y[rows, rows] = 7", _written(_by_indices), X, L), ("y[rows] += 1", _written(_added_by_indices), X, L),
    ("y[:, rows] = x", _written(_step_and_index), X, L, Y[:, :3]),
    ("y[mask] = y[mask] * 2", _written(_masked_source), X, MASK),
    ("y[1:] = x (broadcast)", _written(_broadcast), X, V[:4]), ("y[..., -1] = y[..., 0]", _written(_ellipsis), B3),
    ("y[None, :, 1] = x", _written(_none_index), X, V[:3]), ("y.t()[0] = 5", _written(_transposed), X),
    ("y.view(-1)[3:7] = 2", _written(_viewed), X), ("y.diagonal().fill_(1)", _written(_diagonal), S),
    ("a view read after its tensor changed", _through_a_view, X), ("y[0], y[1] = y[1], y[0]", _written(_swapped), X),
    ("out[i] = x[i] * i in a loop", _filled_by_rows, X), ("out = torch.empty(…); out[:, 0] = …", _collected, X),
    ("a, b = y.chunk(2, 1); a.mul_(b)", _written(_chunked), X),
    ("for row in y.unbind(0): row.add_(i)", _written(_unbound), X), ("x += 1 of an argument", _input_changed, X),
    ("torch.empty_like(x).fill_(2)", lambda x: torch.empty_like(x).fill_(2), X), ("torch.add(x, 1, out=y)", _out, X),
    ("+=, -=, *=, /=, //=, **=", _written(_augmented), X),
    ("copy_", _written(lambda y, x: y.copy_(x)), X, Y), ("fill_", _written(lambda y: y.fill_(2)), X),
    ("zero_", _written(lambda y: y.zero_()), X),
    ("masked_fill_", _written(lambda y, m: y.masked_fill_(m, -1.0)), X, MASK),
    ("index_put_", _written(lambda y, i, v: y.index_put_((i,), v, accumulate=True)), X, L, Y),
    ("index_fill_", _written(lambda y, i: y.index_fill_(1, i, 3.0)), X, L),
    ("index_copy_", _written(lambda y, i, x: y.index_copy_(0, i, x)), X, L, Y),
    ("index_add_", _written(lambda y, i, x: y.index_add_(0, i, x)), X, L, Y),
    ("scatter_", _written(lambda y, i, x: y.scatter_(1, i, x)), X, K, Y),
    ("scatter_add_", _written(lambda y, i, x: y.scatter_add_(1, i, x)), X, K, Y),
    ("scatter_reduce_", _written(lambda y, i, x: y.scatter_reduce_(1, i, x, "amin")), X, K, Y),
    ("masked_scatter_", _written(lambda y, m, x: y.masked_scatter_(m, x)), X, MASK, Y),
    ("clamp_", _written(lambda y: y.clamp_(0, 1)), X), ("fill_diagonal_", _written(lambda y: y.fill_diagonal_(0)), S),
    ("transpose_", _written(lambda y: y.transpose_(0, 1)), X), ("unsqueeze_", _written(lambda y: y.unsqueeze_(0)), X),
    ("squeeze_", _written(lambda y: y.squeeze_(1)), X[:, :1]), ("t_", _written(lambda y: y.t_()), X),
    ("normal_", _written(lambda y: y.normal_()), X), ("uniform_", _written(lambda y: y.uniform_()), X),
    ("clamp_min_", _written(lambda y: y.clamp_min_(0)), X),
    ("addcmul_", _written(lambda y, a, b: y.addcmul_(a, b)), X, Y, P),
    ("lerp_", _written(lambda y, x: y.lerp_(x, 0.5)), X, Y),
    ("sub_, neg_, exp_, sqrt_", _written(lambda y: y.sub_(1).neg_().exp_().sqrt_()), X),
    ("relu_", _written(functional.relu_), X), ("put_", _written(lambda y, i, x: y.put_(i, x)), X, L, V[:3]),
    ("tril_", _written(lambda y: y.tril_()), S), ("cumsum_", _written(lambda y: y.cumsum_(1)), X),
    ("logical_not_", _written(lambda y: y.logical_not_()), MASK),
]  # fmt: skip


def _cond(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos() * 2, (x,))


def _cond_of_two(x: Any, y: Any) -> Any:
    return torch.cond((x > y).any(), lambda a, b: (a + b, a), lambda a, b: (a - b, b), (x, y))


def _while(x: Any) -> Any:
    loop = torch._higher_order_ops.while_loop
    return loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.5), (torch.tensor(0), x))


def _scan(x: Any) -> Any:
    return torch._higher_order_ops.scan(lambda carry, row: (carry + row, carry * row), torch.zeros(4), x)


def _map(x: Any) -> Any:
    return torch._higher_order_ops.map(lambda row: row.cumsum(0), x)


def _branch(x: Any) -> Any:
    return x.sin() if x.sum() > 0 else x.cos()


def _numpy(x: Any) -> Any:
    return torch.from_numpy(x.numpy() * 2)


def _autocast(x: Any, y: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ y.T


def _no_grad(x: Any) -> Any:
    with torch.no_grad():
        return x * 2


CONTROL = [
    ("cond", _cond, X), ("cond, two results", _cond_of_two, X, Y), ("while_loop", _while, X), ("scan", _scan, X),
    ("map", _map, X), ("vmap", lambda x, y: torch.vmap(torch.dot)(x, y), X, Y), ("if on a value", _branch, X),
    ("numpy inside of forward", _numpy, X), ("autocast inside of forward", _autocast, X, Y),
    ("no_grad inside of forward", _no_grad, X),
    ("utils.checkpoint", lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False), X),
    (
        "func.functional_call", lambda x,
        w: torch.func.functional_call(nn.Linear(4, 5, bias=False), {"weight": w}, (x,)), X, torch.randn(5, 4),
    ),

    ("func.grad", lambda x: torch.func.grad(lambda a: (a * a).sum())(x), X),
]  # fmt: skip

CASES = [
    *_plain("torch", [*CREATION, *JOINING, *POINTWISE, *REDUCTIONS, *COMPARISONS, *OTHERS, *PRODUCTS]),
    *_plain("torch.nn.functional", FUNCTIONAL), *_plain("torch.linalg", LINALG), *_plain("torch.fft", FFT),
    *_plain("torch.special", SPECIAL), *_plain("torch.Tensor", TENSOR), *_called("torch.nn", LAYERS),
    *_called("in place", WRITES), *_called("control", CONTROL),
]  # fmt: skip
