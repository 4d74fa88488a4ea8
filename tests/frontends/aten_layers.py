"""Cases of the table of ATen ops: products, convolutions, pooling, norms and attention."""

from __future__ import annotations

import torch

from tests.frontends.aten_cases import Cases, b, f, positive

case = Cases()

# ------------------------------------------------------------------------------------------------------- layers
case("linear.default", f(2, 3, 4), f(5, 4), f(5))
case("linear.default", f(3, 4), f(5, 4))
case("matmul.default", f(2, 3, 4), f(4, 5))
case("matmul.default", f(4), f(4))
case("matmul.default", f(4), f(2, 4, 5))
case("matmul.default", f(2, 3, 4), f(4))
case("mm.default", f(3, 4), f(4, 5))
case("bmm.default", f(2, 3, 4), f(2, 4, 5))
case("mv.default", f(3, 4), f(4))
case("dot.default", f(4), f(4))
case("addmm.default", f(5), f(3, 4), f(4, 5))
case("addmm.default", f(3, 5), f(3, 4), f(4, 5), beta=0.5, alpha=2)
case("addmm.default", f(3, 5), f(3, 4), f(4, 5), beta=0)
case("baddbmm.default", f(2, 3, 5), f(2, 3, 4), f(2, 4, 5), beta=2)
case("einsum.default", "nkctv,kvw->nctw", [f(2, 3, 4, 2, 5), f(3, 5, 6)])
case("outer.default ger.default", f(3), f(4))
for rank in (1, 2, 3):
    size = (7, 6, 5)[:rank]
    case(f"conv{rank}d.default", f(2, 4, *size), f(6, 2, *[3] * rank), f(6), [2], [1], [1], 2)
    case(f"conv{rank}d.default", f(4, *size), f(6, 4, *[2] * rank))
    case(f"conv{rank}d.padding", f(2, 4, *size), f(6, 4, *[2] * rank), None, [1], "same", [2])
    case(f"conv{rank}d.padding", f(2, 4, *size), f(6, 4, *[2] * rank), None, [2], "valid")
    transposed = f"conv_transpose{rank}d.{'default' if rank == 1 else 'input'}"
    case(transposed, f(2, 4, *size), f(4, 3, *[3] * rank), f(6), [2], [1], [1], 2)
    case("convolution.default", f(2, 4, *size), f(6, 4, *[3] * rank), f(6), [2], [1], [1], False, [0], 1)
    case("convolution.default", f(2, 4, *size), f(4, 6, *[3] * rank), None, [3], [1], [2], True, [2], 1)
    case(f"max_pool{rank}d.default", f(2, 3, *size), [3], [2], [1], [1], True)
    case(f"max_pool{rank}d.default", f(3, *size), [2])
    case(f"max_pool{rank}d_with_indices.default", f(2, 3, *size), [2])
    case(f"avg_pool{rank}d.default", f(2, 3, *size), [3], [2], [1], True, False)
    case(f"adaptive_avg_pool{rank}d.default", f(2, 3, *size), [1] * rank)
    case(f"adaptive_avg_pool{rank}d.default", f(2, 3, *size), [3] * rank)
    case(f"adaptive_max_pool{rank}d.default", f(2, 3, *size), [2] * rank)
    if rank > 1:
        case(f"_adaptive_avg_pool{rank}d.default", f(2, 3, *size), [1] * rank)
        case(f"avg_pool{rank}d.default", f(2, 3, *size), [2], [1], [0], False, True, 3)
for mode, beyond, corners in ((0, 0, False), (1, 1, True), (2, 2, False)):
    for word in ("grid_sampler", "grid_sampler_2d"):
        case(f"{word}.default", f(2, 3, 5, 6), f(2, 4, 3, 2), mode, beyond, corners)
case("grid_sampler_3d.default", f(2, 3, 4, 5, 6), f(2, 2, 4, 3, 3), 0, 2, True)
case("batch_norm.default", f(2, 3, 4), f(3), f(3), f(3), positive(3), False, 0.1, 1e-3, False)
case("batch_norm.default", f(2, 3, 4), None, None, f(3), positive(3), False, 0.1, 1e-5, False)
case("_native_batch_norm_legit_no_training.default", f(2, 3, 4), f(3), f(3), f(3), positive(3), 0.1, 1e-5)
case("layer_norm.default", f(2, 3, 4), [3, 4], f(3, 4), f(3, 4))
case("layer_norm.default", f(2, 3, 4), [4], None, f(4))
case("native_layer_norm.default", f(2, 3, 4), [4], f(4), f(4), 1e-5)
case("rms_norm.default", f(2, 3, 4), [4], f(4))
case("rms_norm.default", f(2, 3, 4), [4], None, 1e-3)
case("group_norm.default", f(2, 6, 4), 3, f(6), f(6))
case("group_norm.default", f(2, 6, 4), 2)
case("native_group_norm.default", f(2, 6, 4), f(6), f(6), 2, 6, 4, 3, 1e-5)
case("instance_norm.default", f(2, 3, 4), f(3), f(3), None, None, True, 0.1, 1e-5, False)
case("instance_norm.default", f(2, 3, 4), None, None, f(3), positive(3), False, 0.1, 1e-5, False)
heads = (f(2, 3, 5, 8), f(2, 3, 6, 8), f(2, 3, 6, 8))
case("scaled_dot_product_attention.default", *heads)
case("scaled_dot_product_attention.default", *heads, b(2, 1, 5, 6) | torch.eye(5, 6).bool(), scale=0.5)
case("scaled_dot_product_attention.default", *heads, f(5, 6))
case("scaled_dot_product_attention.default", *heads, is_causal=True)
case("scaled_dot_product_attention.default", f(2, 4, 5, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), enable_gqa=True)
case("_scaled_dot_product_flash_attention_for_cpu.default", *heads)
