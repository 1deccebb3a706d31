"""A mask as a picture: shares of allowed pairs on a small raster, and a PNG of it from the standard library alone."""

from __future__ import annotations

import struct
import zlib
from typing import Callable

import numpy as np

ALLOWED, EMPTY = np.array([20, 83, 136]), np.array([255, 255, 255])
ROWS_SEEN = 8  # rows that are looked at for one row of the picture, when there are more


def shares(q_len: int, kv_len: int, row: Callable[[int], np.ndarray], size: int) -> np.ndarray:
    """[height, width] share of allowed pairs in each cell; height and width are at most `size`.

    Columns are counted exactly; of the rows of a cell at most ROWS_SEEN, evenly spread, are looked at.
    """
    height, width = min(size, q_len), min(size, kv_len)
    edges = np.arange(width + 1) * kv_len // width
    picture = np.empty((height, width))
    for y in range(height):
        first, last = y * q_len // height, (y + 1) * q_len // height
        seen = np.unique(np.linspace(first, last - 1, min(ROWS_SEEN, last - first)).round().astype(np.int64))
        total = np.zeros(width)
        for i in seen.tolist():
            total += np.add.reduceat(row(i).astype(np.int64), edges[:-1]) / np.diff(edges)
        picture[y] = total / len(seen)
    return picture


def png(picture: np.ndarray) -> bytes:
    """PNG bytes of shares from 0 (white) to 1 (blue). A share above 0 shows, however small."""
    scale = max(1, 256 // max(picture.shape))
    shown = np.where(picture > 0, 0.15 + 0.85 * picture, 0.0)
    shown = np.repeat(np.repeat(shown, scale, axis=0), scale, axis=1)
    pixels = (EMPTY + shown[..., None] * (ALLOWED - EMPTY)).round().astype(np.uint8)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
