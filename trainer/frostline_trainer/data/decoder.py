"""`python -m frostline_trainer.data.decoder`: a process that decodes images for a worker, one after the other, without torch.

A request is a line of JSON on standard input (`Wanted`'s fields). The answer on standard output is a header (kind and number of
bytes), then the pixels or the reason for a failure. The process ends when its standard input is closed.
"""

import json
import struct
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

PIXELS, REASON = b"P", b"R"
HEAD = struct.Struct("<cI")
"""The header of an answer: kind (PIXELS or REASON) and number of bytes."""
BYTES_MAX = 3 * (1 << 14) ** 2
"""Limit of one image's bytes: the largest `data.image_size`, in colour."""
UNREADABLE = (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError)
"""What Pillow raises for a file that is no image, is broken, or has more pixels than it decodes (179 million)."""


@dataclass(frozen=True)
class Wanted:
    """A request: an image file, to be scaled to size x size pixels.

    Attributes:
        file: path of the file.
        size: pixels a side.
        channels: 1 (grey) or 3 (colour).
    """

    file: str
    size: int
    channels: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the decoded pixels: (size, size), with a last axis of 3 for colour."""
        return (self.size, self.size) if self.channels == 1 else (self.size, self.size, self.channels)


def decode(wanted: Wanted) -> np.ndarray:
    """Decode an image: uint8 [size, size] for grey, [size, size, 3] for colour. Raises ValueError if it is not readable."""
    try:
        with Image.open(wanted.file) as image:
            deep = depth_refusal(image)
            small = image.convert("L" if wanted.channels == 1 else "RGB")
            small = small.resize((wanted.size, wanted.size), Image.Resampling.BILINEAR)
    except UNREADABLE as error:
        raise unreadable(wanted.file, type(error).__name__) from error
    if deep:
        raise unreadable(wanted.file, deep)
    return np.asarray(small)


def depth_refusal(image: Image.Image) -> str | None:
    """Why an image of more than 8 bits a channel is not decoded: Pillow would clip its values to white. None for others."""
    return f"mode {image.mode}: 8 bits a channel are needed" if image.mode[0] in "IF" else None


def as_pixels(decoded: np.ndarray) -> np.ndarray:
    """A decoded image in the format of records: float32 [channels, size, size] with values in 0..1."""
    pixels = np.asarray(decoded, dtype=np.float32) / 255
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def unreadable(file: str | Path, why: str) -> ValueError:
    """The error for an unreadable image file, with a remedy."""
    return ValueError(f"{file}: no readable image ({why}); replace or remove the file")


def request_of(wanted: Wanted) -> bytes:
    """The request as one line of JSON."""
    return json.dumps(asdict(wanted)).encode() + b"\n"


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        try:
            kind, payload = PIXELS, decode(Wanted(**json.loads(line))).tobytes()
        except ValueError as mistake:
            kind, payload = REASON, str(mistake).encode()
        answers.write(HEAD.pack(kind, len(payload)) + payload)
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
