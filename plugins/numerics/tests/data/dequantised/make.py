#!/usr/bin/env python3
"""Writes NAME.blocks and NAME.weights for every weight format into this script's folder: random blocks, and the f32 weights
that the Python package `gguf` (written by llama.cpp's authors; the files here are of version 0.19.0) makes of them.

    python3 -m venv venv && venv/bin/pip install gguf==0.19.0 && venv/bin/python make.py

The bytes of a block are random but for its scales, which are finite: common, subnormal, zero or the largest, of either sign.
The first block has all other bits set, the second has none. The seed is fixed, so that running it again changes nothing.
"""

import pathlib

import gguf
import numpy as np

# Where the f16 numbers of a block lie.
HALVES = {
    "F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}
FORMATS = list(HALVES) + ["F32", "BF16", "MXFP4"]
BLOCKS = {1: 64, 32: 12, 256: 6}


def half(random):
    """The bits of a finite f16."""
    kind = random.integers(8)
    magnitude = [0, int(random.integers(0x400)), 0x7BFF, 1][kind] if kind < 4 else int(random.integers(0x0800, 0x4800))
    return magnitude | int(random.integers(2)) << 15


def blocks_of(name, random):
    length, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = random.integers(256, size=(BLOCKS[length], size), dtype=np.uint8)
    blocks[0], blocks[1] = 255, 0
    if name in ("F32", "BF16"):
        blocks[:, -1] &= 0xBF  # the exponent's top bit clear: finite
    if name == "MXFP4":
        # The smallest two are subnormal; with 252 the largest weight is just below infinity.
        blocks[:, 0] = [0, 252, 1, 2, 3, 127, 128, 129, *random.integers(253, size=BLOCKS[length] - 8)]
    for at in HALVES.get(name, []):
        for block in blocks:
            block[at : at + 2] = np.frombuffer(half(random).to_bytes(2, "little"), np.uint8)
    if name == "Q8_0":
        blocks[:, 2:][blocks[:, 2:] == 0x80] = 0x81  # no quantiser writes -128
    return blocks


def main():
    folder = pathlib.Path(__file__).parent
    for seed, name in enumerate(FORMATS):
        blocks = blocks_of(name, np.random.default_rng(seed))
        kind = gguf.GGMLQuantizationType[name]
        if name == "F32":
            weights = blocks.view(np.float32)
        else:
            data = blocks.view(np.float16) if name == "F16" else blocks
            weights = gguf.quants.dequantize(data.reshape(1, -1), kind)
        weights = weights.astype("<f4").reshape(-1)
        assert np.isfinite(weights).all(), name
        (folder / f"{name}.blocks").write_bytes(blocks.tobytes())
        (folder / f"{name}.weights").write_bytes(weights.tobytes())


if __name__ == "__main__":
    main()
