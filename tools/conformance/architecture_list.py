"""The architectures of transformers that are built small: their configs, and what their forward takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ingot import _lazy

# What a config of any architecture gets where it has such a field.
TINY: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "emb_dim": 32, "dim": 32, "embed_dim": 32, "encoder_hidden_dim": 32,
    "intermediate_size": 64, "d_ff": 64, "d_inner": 64, "hidden_dim": 64, "ffn_dim": 64, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "dff": 64, "moe_intermediate_size": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_head": 8, "d_kv": 8,
    "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4, "encoder_num_key_value_heads": 4,
    "decoder_num_key_value_heads": 4,
    "vocab_size": 100, "max_position_embeddings": 64, "n_positions": 64, "type_vocab_size": 2,
    "embedding_size": 32, "image_size": 32, "patch_size": 8, "projection_dim": 16, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
SIZES = {"N": (2, 3), "T": (12, 7)}  # what letters stand for while exporting, and in a second run


class Port(NamedTuple):
    """An input: what its elements are (floats, tokens, a mask of 0 and 1), its shape, and the range of its tokens.

    Letters in the shape are sizes that may change.
    """

    kind: str
    shape: tuple[int | str, ...]
    low: int = 3
    high: int = 100


@dataclass(frozen=True)
class Architecture:
    """A model_type, what its config has beside TINY, and its inputs by name.

    sizes: what letters stand for, beside SIZES. model: the class of transformers that is made of the config.
    """

    name: str
    category: str
    inputs: Mapping[str, Port]
    config: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    model: str = "AutoModel"

    def size(self, word: str, run: int) -> int:
        factor, letter = factor_and_letter(word)
        return factor * {**SIZES, **self.sizes}[letter][run]

    def letters(self) -> list[str]:
        """The letters of all inputs, as they come."""
        words = [d for port in self.inputs.values() for d in port.shape if isinstance(d, str)]
        return list(dict.fromkeys(factor_and_letter(d)[1] for d in words))


def factor_and_letter(word: str) -> tuple[int, str]:
    """The factor and the letter of a size: T, or 8T."""
    return int(word[:-1] or 1), word[-1]


def tiny(config_class: Any, given: Mapping[str, Any]) -> Any:
    """A config with TINY in all its parts, and what is given."""
    below = {
        name: part if not isinstance(part, Mapping) else tiny(part_class(config_class, name, part), part)
        for name, part in {**{n: {} for n in config_class.sub_configs}, **given}.items()
        if name in config_class.sub_configs and not optional(config_class, name, part)
    }
    fields = config_class().to_dict()
    found = {key: value for key, value in TINY.items() if key in fields and not isinstance(fields[key], list | tuple)}
    return config_class(**{**found, **given, **below})


def optional(config_class: Any, name: str, part: Mapping[str, Any]) -> bool:
    """A part that may be any config, and is left to the default unless it is given."""
    return not part and config_class.sub_configs[name].__name__ == "AutoConfig"


def part_class(config_class: Any, name: str, part: Mapping[str, Any]) -> Any:
    if "model_type" in part:
        return _lazy.load("transformers:CONFIG_MAPPING")[part["model_type"]]
    return config_class.sub_configs[name]


def tokens(*shape: int | str, low: int = 3, high: int = 100) -> Port:
    return Port("tokens", shape, low, high)


def floats(*shape: int | str) -> Port:
    return Port("floats", shape)


def mask(*shape: int | str) -> Port:
    return Port("mask", shape)


TEXT = {"input_ids": tokens("N", "T"), "attention_mask": mask("N", "T")}
PLAIN = {"input_ids": tokens("N", "T")}
BOTH = {"input_ids": tokens("N", "T"), "decoder_input_ids": tokens("N", "U")}
IMAGE = {"pixel_values": floats("N", 3, 32, 32)}
ANY_IMAGE = {"pixel_values": floats("N", 3, "H", "W")}
VIDEO = {"pixel_values": floats("N", 4, 3, 32, 32)}
WAVE = {"input_values": floats("N", "T")}
PAIR = {**TEXT, **IMAGE}
PAST = {
    "past_values": floats("N", 14), "past_time_features": floats("N", 14, 1), "past_observed_mask": mask("N", 14),
    "future_values": floats("N", 8), "future_time_features": floats("N", 8, 1),
}  # fmt: skip

U = {"U": (6, 9)}
SIDES = {"H": (64, 96), "W": (96, 64)}
SAMPLES = {"T": (1600, 2405)}
HIDDEN = {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "embedding_size": 16}
STAGES = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]}
WINDOWS = {"patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
SPEECH = {
    "conv_dim": [16, 16, 32], "conv_stride": [5, 4, 2], "conv_kernel": [10, 4, 3], "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0, "layerdrop": 0.0, "num_feat_extract_layers": 3,
}  # fmt: skip
SOUND = {
    "window_size": 4, "num_mel_bins": 16, "spec_size": 32, "patch_size": 2, "patch_stride": [2, 2], "depths": [1, 1],
    "num_attention_heads": [2, 4], "hidden_size": 16, "patch_embeds_hidden_size": 8, "num_hidden_layers": 2,
}  # fmt: skip
SPECTRUM = {"input_features": floats("N", 1, 64, 16)}
RESNET = {"model_type": "resnet", **HIDDEN, "out_features": ["stage4"]}
SERIES = {"prediction_length": 8, "context_length": 12, "lags_sequence": [1, 2], "num_time_features": 1}
FUTURE = {"patch_length": 8, "context_length": 32, "horizon_length": 8}

Configs = Mapping[str, Mapping[str, Any]]


def named(names: str) -> Configs:
    """Model types whose configs are TINY alone."""
    return dict.fromkeys(names.split(), {})


def several(category: str, inputs: Mapping[str, Port], configs: Configs, sizes: Any = None) -> list[Architecture]:
    """Architectures that take the same inputs."""
    return [Architecture(name, category, inputs, config, sizes or {}) for name, config in configs.items()]


ENCODERS: Configs = {
    **named("albert bert camembert data2vec-text deberta distilbert electra ernie ibert layoutlm megatron-bert "
            "modernbert mpnet roberta roc_bert roformer squeezebert xlm-roberta convbert xlm flaubert splinter "
            "markuplm mra xlnet yoso"),
    "big_bird": {"attention_type": "original_full"},
    "canine": {},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8,
                   "norm_rel_ebd": "layer_norm"},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 8},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 3},
    "mobilebert": {"intra_bottleneck_size": 32, "true_hidden_size": 32, "num_feedforward_networks": 2},
    "nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 4, "conv_kernel_size": 5},
    "reformer": {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16], "attn_layers": ["local", "local"],
                 "local_attn_chunk_length": 4},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 32},
}  # fmt: skip
LATENT = {
    "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1, "n_shared_experts": 1, "num_key_value_heads": 4,
}  # fmt: skip
DECODERS: Configs = {
    **named("gpt2 gpt_bigcode gpt_neox bloom biogpt xglm llama mistral mixtral qwen2 qwen3 gemma gemma2 gemma3_text "
            "phi phi3 stablelm starcoder2 olmo olmo2 cohere granite persimmon nemotron helium glm smollm3 exaone4 "
            "olmo3 flex_olmo olmoe qwen2_moe qwen3_moe granitemoe phimoe glm4 glm4_moe ernie4_5 arcee apertus seed_oss "
            "hunyuan_v1_dense bitnet diffllama minimax recurrent_gemma"),
    "codegen": {"rotary_dim": 4},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "falcon": {"new_decoder_architecture": False},
    "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
              "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mpt": {"max_seq_len": 64},
    "opt": {"word_embed_proj_dim": 32},
}  # fmt: skip
STATES: Configs = {
    "falcon_mamba": {"state_size": 4, "time_step_rank": 4},
    "mamba": {"state_size": 4, "time_step_rank": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 4},
}  # fmt: skip
TRANSLATORS: Configs = {
    **named("t5 mt5 bart mbart pegasus marian m2m_100 blenderbot blenderbot-small plbart mvp nllb-moe pegasus_x "
            "prophetnet"),
    "bigbird_pegasus": {"attention_type": "original_full"},
}  # fmt: skip
IMAGES: Configs = {
    **named("vit deit dinov2 dinov2_with_registers dinov3_vit vit_msn ijepa clip_vision_model siglip_vision_model "
            "mlcd_vision_model aimv2_vision_model pixio"),
    "beit": {"use_relative_position_bias": True},
    "data2vec-vision": {"use_relative_position_bias": True},
    "detr": {"backbone_config": RESNET, "num_queries": 5},
    "conditional_detr": {"backbone_config": RESNET, "num_queries": 5},
    "dpt": {"backbone_out_indices": [0, 0, 1, 1], "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16},
    "hiera": {"image_size": [32, 32], "patch_size": [3, 3], "patch_stride": [2, 2], "patch_padding": [1, 1],
              "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "query_stride": [2, 2],
              "masked_unit_size": [2, 2], "num_query_pool": 1, "embed_dim_multiplier": 2.0},
    "pvt": {**STAGES, "sequence_reduction_ratios": [4, 2, 1, 1]},
    "swin": WINDOWS,
    "swin2sr": {**WINDOWS, "depths": [1, 1], "num_heads": [2, 2], "patch_size": 1},
    "swinv2": {**WINDOWS, "pretrained_window_sizes": [0, 0]},
    "table-transformer": {"backbone_config": RESNET, "num_queries": 5},
    "vitdet": {"pretrain_image_size": 32, "window_size": 2, "window_block_indices": [0], "residual_block_indices": [1]},
    "yolos": {"image_size": [32, 32], "num_detection_tokens": 5},
}  # fmt: skip
ANY_IMAGES: Configs = {
    "bit": {**HIDDEN, "num_groups": 4},
    "convnext": {**HIDDEN, "layer_scale_init_value": 0.1},
    "convnextv2": HIDDEN,
    "dinov3_convnext": {**HIDDEN, "layer_scale_init_value": 0.1},
    "focalnet": {"embed_dim": 8, "depths": [1, 1, 1, 1], "patch_size": 4},
    "glpn": STAGES,
    "hgnet_v2": {"embedding_size": 16, "depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32],
                 "stem_channels": [3, 8, 16], "stage_in_channels": [16, 16, 16, 32],
                 "stage_mid_channels": [8, 8, 16, 16], "stage_out_channels": [16, 16, 32, 32],
                 "stage_num_blocks": [1, 1, 1, 1], "stage_numb_of_layers": [2, 2, 2, 2]},
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "poolformer": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "layer_scale_init_value": 0.1},
    "pvt_v2": {**STAGES, "image_size": 64},
    "regnet": {**HIDDEN, "groups_width": 8},
    "resnet": HIDDEN,
    "segformer": STAGES,
    "swiftformer": {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 16, 32], "layer_scale_init_value": 0.1},
    "textnet": {"stem_out_channels": 16, "hidden_sizes": [16, 16, 16, 32, 32]},
}  # fmt: skip
VIDEOS: Configs = {
    "timesformer": {"num_frames": 4},
    "videomae": {"num_frames": 4, "tubelet_size": 2},
    "vivit": {"num_frames": 4, "tubelet_size": [2, 8, 8]},
}  # fmt: skip
WAVES: Configs = {
    **dict.fromkeys(["wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "wav2vec2-conformer"], SPEECH),
    "data2vec-audio": {**SPEECH, "conv_pos_kernel_size": 5},
    "sew": {**SPEECH, "squeeze_factor": 2},
    "sew-d": {**SPEECH, "squeeze_factor": 2, "position_buckets": 8, "max_position_embeddings": 64},
}  # fmt: skip
PAIRS: Configs = {
    **named("chinese_clip clip clipseg flava git groupvit metaclip_2 owlvit owlv2 siglip vilt aimv2"),
    "altclip": {"text_config": {"project_dim": 16}},
    "blip": {"image_text_hidden_size": 16},
}  # fmt: skip

ARCHITECTURES: tuple[Architecture, ...] = (
    *several("text", TEXT, {**ENCODERS, **DECODERS}),
    *several("text", PLAIN, {"fnet": {}, **STATES}),
    *several("text", BOTH, TRANSLATORS, U),
    # Without a mask the decoder of transformers 5.17 looks ahead, and only when it is exported it does not.
    *several("text", {**BOTH, "decoder_attention_mask": mask("N", "U")}, named("umt5"), U),
    *several("vision", IMAGE, IMAGES),
    *several("vision", ANY_IMAGE, ANY_IMAGES, SIDES),
    *several("vision", {"pixel_values": floats("N", 3, 64, 64)},
             {"mobilevit": {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 16, 24, 32],
                            "image_size": 64}}),
    *several("vision", {**IMAGE, "noise": floats("N", 16)}, named("vit_mae")),  # what it would draw is an input
    *several("vision", VIDEO, VIDEOS),
    *several("vision", PLAIN, named("imagegpt")),
    *several("audio", WAVE, WAVES, SAMPLES),
    Architecture("audio-spectrogram-transformer", "audio", {"input_values": floats("N", 64, 16)},
                 {"max_length": 64, "num_mel_bins": 16, "frequency_stride": 4, "time_stride": 4}),
    Architecture("clap_audio_model", "audio", SPECTRUM, SOUND, model="ClapAudioModel"),
    Architecture("dac", "audio", {"input_values": floats("N", 1, "8T")},
                 {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_hidden_size": 32,
                  "upsampling_ratios": [4, 2], "n_codebooks": 2, "codebook_size": 16, "codebook_dim": 4},
                 {"T": (80, 121)}),
    Architecture("encodec", "audio", {"input_values": floats("N", 1, "8T")},
                 {"num_filters": 4, "upsampling_ratios": [4, 2], "codebook_size": 16, "codebook_dim": 32,
                  "target_bandwidths": [48.0]}, {"T": (80, 121)}),
    Architecture("moonshine", "audio", {**WAVE, "decoder_input_ids": tokens("N", "U")}, {}, {**U, "T": (3200, 4800)}),
    Architecture("musicgen_decoder", "audio", {**PLAIN, "encoder_hidden_states": floats("N", 5, 32)},
                 {"num_codebooks": 1, "vocab_size": 101}, model="MusicgenForCausalLM"),
    Architecture("parakeet_encoder", "audio", {"input_features": floats("N", "T", 16)},
                 {"num_mel_bins": 16, "subsampling_conv_channels": 8}, {"T": (64, 88)}),
    Architecture("speech_to_text", "audio",
                 {"input_features": floats("N", "T", 8), "decoder_input_ids": tokens("N", "U")},
                 {"input_feat_per_channel": 8, "conv_channels": 16, "max_source_positions": 64,
                  "max_target_positions": 16}, {**U, "T": (40, 57)}),
    Architecture("univnet", "audio", {"input_features": floats("N", "T", 16), "noise_sequence": floats("N", "T", 64)},
                 {"model_hidden_channels": 8, "num_mel_bins": 16}),
    Architecture("wav2vec2-bert", "audio", {"input_features": floats("N", "T", 16)},
                 {"feature_projection_input_dim": 16, "conv_depthwise_kernel_size": 5}, {"T": (40, 57)}),
    Architecture("whisper", "audio", {"input_features": floats("N", 8, 40), "decoder_input_ids": tokens("N", "U")},
                 {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16}, U),
    *several("multimodal", PAIR, PAIRS),
    Architecture("clap", "multimodal", {**SPECTRUM, **TEXT}, {"audio_config": SOUND}),
    Architecture("lxmert", "multimodal",
                 {**TEXT, "visual_feats": floats("N", 4, 16), "visual_pos": floats("N", 4, 4)},
                 {"visual_feat_dim": 16, "l_layers": 1, "x_layers": 1, "r_layers": 1}),
    Architecture("visual_bert", "multimodal", {**TEXT, "visual_embeds": floats("N", 4, 16)},
                 {"visual_embedding_dim": 16}),
    Architecture("informer", "time series", PAST, {**SERIES, "distil": False, "attention_type": "full"}),
    Architecture("time_series_transformer", "time series", PAST, SERIES),
    Architecture("patchtst", "time series", {"past_values": floats("N", 32, 3)},
                 {"num_input_channels": 3, "patch_length": 4, "patch_stride": 4}),
    Architecture("patchtsmixer", "time series", {"past_values": floats("N", 32, 3)}, {"num_input_channels": 3}),
    Architecture("timesfm", "time series",
                 {"past_values": floats("N", 32), "past_values_padding": tokens("N", 32, low=0, high=1),
                  "freq": tokens("N", 1, low=0, high=3)}, FUTURE),
    Architecture("timesfm2_5", "time series", {"past_values": floats("N", 32)}, FUTURE),
)  # fmt: skip
