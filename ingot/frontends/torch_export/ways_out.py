"""What to do about an op that the table lacks: one sentence for each kind of op."""

from __future__ import annotations

_RANDOM = {
    "bernoulli", "bernoulli_", "exponential", "exponential_", "fractional_max_pool2d", "fractional_max_pool3d",
    "geometric_", "log_normal_", "cauchy_", "multinomial", "native_dropout", "normal", "normal_", "poisson", "rand",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "random_", "randperm", "rrelu_with_noise", "uniform",
    "uniform_",
}  # fmt: skip
_SOLVERS = {
    "cholesky", "cholesky_inverse", "cholesky_solve", "geqrf", "inverse", "logdet", "det", "slogdet", "lu_solve",
    "lu_unpack", "matrix_exp", "ormqr", "pinverse", "qr", "svd", "triangular_solve",
}  # fmt: skip
_UPDATES = {"embedding_renorm_", "set_", "resize_", "resize_as_"}


def way_out(op: str) -> str:
    """How to do without an op: `aten.randn.default`."""
    name = (op.split(".") + [""])[1]
    if name in _RANDOM:
        return "an engine draws no random numbers: give them as an input"
    if name in _SOLVERS or name.startswith(("linalg_", "_linalg_")):
        return (
            "compute it outside of the module and give the result as an input, or keep it as a buffer where it depends "
            "on no input"
        )
    if op.startswith(("quantized_decomposed.", "torchao.")):
        return (
            "quantise with scales of tensors or channels, or build the float net with weights='int8', "
            "activations='int8', which gives rows scales of their own"
        )
    if "fake_quant" in name:
        return "export what convert_pt2e makes of the prepared module"
    if name in _UPDATES:
        return "do it once to the tensor before the export"
    return (
        "write it in other ops, compute it outside of the module and give the result as an input, or save "
        "exported.run_decompositions(), which takes some ops apart"
    )
