#!/usr/bin/env python3
"""Random blocks of each quantised type with the values that the `gguf` package decodes them to.

    make_quant_goldens.py OUT.bin        (needs: pip install gguf numpy)

OUT.bin: for each type its name in 8 bytes (zero-padded), two little-endian uint32 (bytes, values), the blocks, the
values as F32. All bits of a block are random, its F16 numbers apart, which are finite and of ordinary size.
"""
import struct
import sys

import gguf
import numpy as np

TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS".split()
# Where the F16 numbers of a block are.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
VALUES = 768


def main():
    rng = np.random.default_rng(6)
    with open(sys.argv[1], "wb") as out:
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            blocks = rng.integers(0, 256, (VALUES // block_values, block_bytes), dtype=np.uint8)
            for at in HALVES[name]:
                halves = rng.normal(0, 0.5, len(blocks)).astype(np.float16)
                blocks[:, at:at + 2] = halves.view(np.uint8).reshape(-1, 2)
            values = gguf.quants.dequantize(blocks.reshape(1, -1), kind).astype(np.float32).reshape(-1)
            assert values.size == VALUES, name
            out.write(name.encode().ljust(8, b"\0") + struct.pack("<II", blocks.size, VALUES))
            out.write(blocks.tobytes() + values.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
