"""ImageDecoder: files of images inside a model, decoded by Pillow; and files that are no images, or too large ones."""

from __future__ import annotations

import io
import re
import resource
import struct
import sys
import tracemalloc
import warnings
import zlib
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from PIL import Image  # noqa: E402

from ingot.builder.network import build_network as build_engine  # noqa: E402
from ingot.engine.session import Engine  # noqa: E402
from ingot.errors import UnsupportedError, UserError, ValueFault  # noqa: E402
from ingot.frontends.onnx import Model, build_network  # noqa: E402
from ingot.ops.pictures import MAX_PIXELS  # noqa: E402
from tools.conformance import onnx_nodes  # noqa: E402

Array = np.ndarray[Any, Any]
FORMATS = ("bmp", "jpeg", "jpeg2000", "png", "ppm", "tiff", "webp")
helper, UINT8, FLOAT = onnx.helper, onnx.TensorProto.UINT8, onnx.TensorProto.FLOAT
RNG = np.random.default_rng(0)


def engine(*behind: Any, output: Any = None, size: Any = "N", rank: int = 1, **attributes: Any) -> Engine:
    """An engine of a decoder, and of nodes that read its result `image`."""
    nodes = [helper.make_node("ImageDecoder", ["file"], ["image"], "decoder", **attributes), *behind]
    image = helper.make_tensor_value_info("image", UINT8, ["H", "W", "C"])
    given = helper.make_tensor_value_info("file", UINT8, [size] * rank)
    graph = helper.make_graph(nodes, "net", [given], [output or image])
    built = build_network(Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), "net")).imported
    return build_engine(built.network, built.weights)


@pytest.fixture(scope="module")
def decoder() -> Engine:
    return engine()


def encoded(image: Any, kind: str, **how: Any) -> Array:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return np.frombuffer(file.getvalue(), np.uint8)


def picture(mode: str = "RGB", height: int = 9, width: int = 13) -> Any:
    return Image.fromarray(RNG.integers(0, 256, (height, width, 3), np.uint8)).convert(mode)


def decoded(net: Engine, file: Array) -> Array:
    (found,) = net.run({"file": file}).values()
    return found  # type: ignore[no-any-return]


def test_node_tests_of_onnx() -> None:
    # Another file's tests may have loaded more of them.
    chosen = [case for case in onnx_nodes.cases(("image_decoder",)) if onnx_nodes.op_of(case) == "ImageDecoder"]
    found = onnx_nodes.results(chosen)
    assert len(found) == 9 and not [(r.name, r.why) for r in found if r.why]
    assert {r.host for r in found} == {("decode_image",)}  # which names itself, in inspect and in doctor


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_in_every_order_of_channels(kind: str, decoder: Engine) -> None:
    file = encoded(picture(), kind)
    wanted = np.asarray(Image.open(io.BytesIO(file.tobytes())))
    np.testing.assert_array_equal(decoded(decoder, file), wanted)
    np.testing.assert_array_equal(decoded(engine(pixel_format="BGR"), file), wanted[:, :, ::-1])
    grey = np.asarray(Image.fromarray(wanted).convert("L"))
    np.testing.assert_array_equal(decoded(engine(pixel_format="Grayscale"), file), grey[:, :, None])


@pytest.mark.parametrize(("mode", "kind"), [
    ("L", "png"), ("P", "png"), ("LA", "png"), ("RGBA", "png"), ("1", "bmp"), ("CMYK", "jpeg"), ("YCbCr", "tiff"),
    ("L", "ppm"), ("RGBA", "tiff"),
])  # fmt: skip
def test_other_channels_become_those_that_are_asked_for(mode: str, kind: str, decoder: Engine) -> None:
    """A picture of greys: the same in all modes, whatever their channels."""
    grey = Image.fromarray(np.repeat(np.repeat(np.uint8([[0, 255], [255, 0]]), 8, 0), 8, 1))
    whole = decoded(decoder, encoded(grey.convert("RGB").convert(mode), kind))
    assert whole.shape == (16, 16, 3)
    assert np.abs(whole.astype(int) - np.asarray(grey)[:, :, None]).max() <= 3
    assert decoded(engine(pixel_format="Grayscale"), encoded(grey, "png")).shape == (16, 16, 1)


def test_a_transparent_colour_of_a_palette_is_a_colour(decoder: Engine) -> None:
    image = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4)).convert("P")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain, clear = (decoded(decoder, encoded(image, "png", **how)) for how in ({}, {"transparency": bytes(16)}))
    np.testing.assert_array_equal(plain, clear)


def test_the_first_of_several_pictures(decoder: Engine) -> None:
    first, second = picture(), picture()
    for kind, how in (("tiff", {}), ("png", {}), ("webp", {"lossless": True})):
        file = encoded(first, kind, save_all=True, append_images=[second], **how)
        np.testing.assert_array_equal(decoded(decoder, file), np.asarray(first))


def test_one_engine_computes_with_pictures_of_any_size() -> None:
    """What follows runs natively, at the sizes that the file shows."""
    cast = helper.make_node("Cast", ["image"], ["numbers"], to=FLOAT)
    mean = helper.make_node("ReduceMean", ["numbers"], ["y"], keepdims=0)
    net = engine(cast, mean, output=helper.make_tensor_value_info("y", FLOAT, []))
    for height, width in ((3, 5), (40, 2), (1, 1)):
        image = picture(height=height, width=width)
        np.testing.assert_allclose(decoded(net, encoded(image, "png")), np.asarray(image).mean(), rtol=1e-5)
    assert onnx_nodes.host_calls(net) == ("decode_image",)


@pytest.mark.parametrize(("attributes", "why"), [
    ({"pixel_format": "RGBA"}, "pixels must be RGB, BGR or Grayscale"), ({"pixel_format": 3}, "pixel_format"),
    ({"pixels": "RGB"}, "attribute pixels"), ({"rank": 2}, r"must be uint8 \[bytes\]"),
])  # fmt: skip
def test_what_the_importer_refuses(attributes: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedError, match=f"(?s)ImageDecoder.*decoder.*{why}"):
        engine(**attributes)


def test_without_pillow_the_error_says_what_to_install(monkeypatch: Any, decoder: Engine) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    wanted = r"decode_image: decoding images needs the package 'PIL': pip install 'ingot\[images\]'"
    with pytest.raises(UserError, match=wanted) as e:
        decoded(decoder, encoded_once())
    assert e.value.code == "usage"


def encoded_once() -> Array:
    return np.frombuffer(b"P6 1 1 255\nabc", np.uint8)


# ------------------------------------------------------------------------------------------------ hostile files


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes = b"", *more: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def bmp(width: int, height: int) -> bytes:
    return struct.pack("<2sIIIIiiHHIIiiII", b"BM", 54, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


def webp(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    frames = struct.pack("<4sI4s6s", b"ANIM", 6, bytes(4), b"")
    header = struct.pack("<4s4sI4s", b"WEBP", b"VP8X", 10, b"\x02") + size
    return b"RIFF" + struct.pack("<I", len(header) + len(frames)) + header + frames


def jpeg2000(width: int, height: int) -> bytes:
    file = bytearray(encoded(picture(), "jpeg2000"))
    at = file.index(b"ihdr") + 4
    file[at : at + 8] = struct.pack(">II", height, width)
    return bytes(file)


def jpeg(width: int, height: int) -> bytes:
    file = bytearray(encoded(picture(), "jpeg"))
    at = file.index(b"\xff\xc0") + 5
    file[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(file)


def tiff(width: int, height: int) -> bytes:
    tags = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1),
            (278, 4, height), (279, 4, min(width * height, 2**32 - 1))]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4)


SIDE = 60_000
BOMBS = {"png": png(SIDE, SIDE, bytes(1000)), "bmp": bmp(SIDE, SIDE), "tiff": tiff(SIDE, SIDE),
         "webp": webp(SIDE, SIDE), "webp that Pillow takes": webp(10_000, 10_000),
         "jpeg": jpeg(SIDE, SIDE), "jpeg2000": jpeg2000(SIDE, SIDE),
         "ppm": b"P6 60000 60000 255\n" + bytes(64), "a line": png(2**31 - 1, 1, bytes(1000)),
         "just above": png(MAX_PIXELS // 4096 + 1, 4096, bytes(1000)),
         "more than Pillow warns of": b"P5 10000 10000 255\n"}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_they_are_decoded(name: str, decoder: Engine) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(ValueFault, match="decode_image: .*(pixels|no image that can be decoded)"):
                decoded(decoder, np.frombuffer(BOMBS[name], np.uint8))
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


@pytest.mark.parametrize("data", [
    b"", b"\0", b"GIF89a" + bytes(40), b"%PDF-1.4", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", bytes(4096),
    b"\xff\xd8\xff", png(0, 0), png(7, 7), png(3, 3, b"\xff" * 9), bmp(-5, 5), bmp(5, -2**31),
    b"P6 -1 4 255\n", b"P6 4 4 0\n" + bytes(48), b"P6 4 4 99999\n" + bytes(48), b"P6 9 9 255\nabc", b"P3 9 9 255\n1 x",
    png(3, 3, bytes(30), chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 26)))),
], ids=range(18))  # fmt: skip
def test_what_is_no_image_is_a_fault(data: bytes, decoder: Engine) -> None:
    with pytest.raises(ValueFault, match=r"host call decode_image: these [0-9,]+ bytes are no image (?!.*0x)"):
        decoded(decoder, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize(("mode", "kind"), [("I;16", "png"), ("F", "tiff"), ("I", "tiff")])
def test_wide_channels_are_a_fault(mode: str, kind: str, decoder: Engine) -> None:
    dtype = {"I;16": np.uint16, "F": np.float32, "I": np.int32}[mode]
    with pytest.raises(ValueFault, match=f"pixels of the kind '{re.escape(mode)}'.*convert it first"):
        decoded(decoder, encoded(Image.fromarray(np.zeros((4, 4), dtype)), kind))


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_are_images_or_faults(kind: str, decoder: Engine) -> None:
    """Cut anywhere, and with bytes changed: never another error, and nothing large."""
    file = encoded(picture(height=32, width=32), kind)
    for at in range(0, len(file), max(1, len(file) // 40)):
        cut, changed = file[:at], file.copy()
        changed[at : at + 4] = RNG.integers(0, 256, len(changed[at : at + 4]))
        for one in (cut, changed):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found = decoded(decoder, one)
                except ValueFault:
                    continue
            assert found.ndim == 3 and found.shape[2] == 3 and found.nbytes <= 3 * MAX_PIXELS
