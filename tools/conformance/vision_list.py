"""The nets of timm and torchvision that are imported, as small as their code allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Net:
    """A net: the function that makes it (`torchvision.NAME` or one of timm's), and arguments that make it small.

    sizes: of its input. `dynamic` names those that stay free, "32*H" for a multiple; `others` are sizes that the same
    engine then runs at. part: which part of a detector is taken, `heads` or `regions`; empty: the whole net.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[int, ...] = (1, 3, 64, 64)
    dynamic: Mapping[int, str] = field(default_factory=dict)
    others: tuple[tuple[int, ...], ...] = ()
    part: str = ""


def _sized(name: str, size: int, **options: Any) -> Net:
    return Net(name, options, (1, 3, size, size))


def _batch(name: str, size: int = 64, **options: Any) -> Net:
    """With a dynamic batch."""
    return Net(name, options, (2, 3, size, size), {0: "N"}, ((5, 3, size, size), (1, 3, size, size)))


def _free(name: str, **options: Any) -> Net:
    """With a dynamic batch, height and width."""
    return Net(name, options, (2, 3, 96, 64), {0: "N", 2: "H", 3: "W"}, ((3, 3, 64, 128), (1, 3, 112, 80)))


def _multiples(name: str, **options: Any) -> Net:
    """With a dynamic batch, and a height and width whose halves are halves of each other."""
    return Net(name, options, (2, 3, 96, 64), {0: "N", 2: "32*H", 3: "32*W"}, ((3, 3, 64, 128), (1, 3, 160, 96)))


NETS = (
    _free("resnet10t"),
    _free("resnext50_32x4d", layers=(1, 1, 1, 1)),
    _free("seresnet18"),
    _free("skresnet18"),
    _free("resnest14d"),
    _free("res2net50_14w_8s", layers=(1, 1, 1, 1)),
    _free("densenet121", growth_rate=8, block_config=(2, 2, 2, 2)),
    _free("test_efficientnet"),
    _free("mobilenetv3_small_050"),
    _free("mobilenetv4_conv_small_035"),
    _free("regnetx_002"),
    _free("test_convnext"),
    _free("inception_next_atto"),
    _multiples("dla46x_c"),
    _free("repvgg_a0"),
    _free("ghostnet_050"),
    _free("rexnet_100"),
    _free("ese_vovnet19b_dw"),
    _free("starnet_s1"),
    _free("test_nfnet"),
    _free("nf_regnet_b0"),
    _free("edgenext_xx_small"),
    _free("efficientvit_b0"),
    _free("test_mambaout"),
    _free("xception41"),
    _multiples("hrnet_w18_small"),
    _free("poolformer_s12"),
    _free("fastvit_t8"),
    _free("pvt_v2_b0"),
    _batch("test_vit", img_size=64),
    _batch("deit_tiny_distilled_patch16_224", img_size=64, depth=2),
    _batch("swin_tiny_patch4_window7_224", 56, img_size=56, embed_dim=24, depths=(2, 2), num_heads=(2, 4)),
    _batch("swinv2_tiny_window8_256", img_size=64, embed_dim=24, depths=(2, 2), num_heads=(2, 4)),
    _batch("mixer_s32_224", img_size=64),
    _batch("gmlp_ti16_224", img_size=64),
    _batch("resmlp_12_224", img_size=64),
    _batch("cait_xxs24_224", img_size=64, depth=2),
    _batch("beit_base_patch16_224", img_size=64, depth=2, embed_dim=48, num_heads=3),
    _batch("eva02_tiny_patch14_224", 56, img_size=56, depth=2),
    _batch("xcit_nano_12_p16_224", img_size=64, depth=2),
    _batch("sequencer2d_s", layers=(1, 1, 1, 1)),
    _batch("vit_relpos_small_patch16_224", img_size=64, depth=2),
    _batch("tnt_s_patch16_224", img_size=64, depth=2),
    _batch("convit_tiny", img_size=64, embed_dim=24),
    _batch("davit_tiny", depths=(1, 1), embed_dims=(24, 48), num_heads=(2, 4)),
    _batch("mobilevit_xxs"),
    _batch("mobilevitv2_050"),
    _sized("levit_128s", 224),
    _sized("pit_ti_224", 224),
    _sized("twins_svt_small", 224, embed_dims=(16, 32, 64, 128), depths=(2, 2, 2, 2)),
    _sized("efficientformer_l1", 224, depths=(1, 1, 1, 2), embed_dims=(16, 32, 48, 64)),
    _sized("efficientformerv2_s0", 224),
    _sized("maxvit_pico_rw_256", 256),
    _sized("coatnet_pico_rw_224", 224),
    _sized("crossvit_9_240", 240),
    _sized("coat_tiny", 224),
    _sized("gcvit_xxtiny", 224),
    _sized("hiera_tiny_224", 224, embed_dim=24),
    _sized("visformer_tiny", 224),
    _sized("volo_d1_224", 224),
    _sized("samvit_base_patch16_224", 224, depth=2, embed_dim=48, num_heads=3),
    _free("torchvision.shufflenet_v2_x0_5"),
    _free("torchvision.squeezenet1_1"),
    _free("torchvision.mnasnet0_5"),
    _free("torchvision.googlenet", aux_logits=False, init_weights=False),
    _sized("torchvision.inception_v3", 96, aux_logits=False, init_weights=False),
    _free("torchvision.deeplabv3_mobilenet_v3_large", weights_backbone=None),
    _free("torchvision.lraspp_mobilenet_v3_large", weights_backbone=None),
    _sized("torchvision.fcn_resnet50", 64, weights_backbone=None),
    Net("torchvision.r3d_18", {}, (2, 3, 16, 32, 32), {0: "N", 2: "T"}, ((1, 3, 24, 32, 32),)),
    Net("torchvision.raft_small", {}, (1, 3, 128, 128)),
    Net("torchvision.ssdlite320_mobilenet_v3_large", {"weights_backbone": None}, part="heads"),
    Net("torchvision.retinanet_resnet50_fpn", {"weights_backbone": None}, part="heads"),
    Net("torchvision.fasterrcnn_mobilenet_v3_large_320_fpn", {"weights_backbone": None}, part="regions"),
    Net("torchvision.ssdlite320_mobilenet_v3_large", {"weights_backbone": None}, (3, 64, 64)),
    Net("torchvision.retinanet_resnet50_fpn", {"weights_backbone": None}, (3, 64, 64)),
    Net("torchvision.fasterrcnn_mobilenet_v3_large_320_fpn", {"weights_backbone": None}, (3, 64, 64)),
)
