"""Bytes of any length from one member to another, or from one to all: state on its way at a switch."""

import torch

from frostline_trainer.transport.collectives import Group, Message

CHUNK_BYTES = 32 * 1024 * 1024
"""Size limit of a single message in a state transfer."""


def send_bytes(group: Group, payload: torch.Tensor, to: int, tag: int) -> list[Message]:
    """Send the length of a flat uint8 tensor, then its bytes in chunks of bounded size. Returns messages to wait for."""
    sent = [group.send(torch.tensor([payload.numel()], dtype=torch.int64), to, tag)]
    sent += [group.send(piece, to, tag) for piece in payload.split(CHUNK_BYTES) if piece.numel()]
    return sent


def receive_bytes(group: Group, source: int, tag: int) -> torch.Tensor:
    """Receive a flat uint8 tensor that `send_bytes` sends."""
    length = torch.zeros(1, dtype=torch.int64)
    group.receive(length, source, tag)
    flat = torch.empty(int(length), dtype=torch.uint8)
    for piece in flat.split(CHUNK_BYTES):
        if piece.numel():
            group.receive(piece, source, tag)
    return flat


def broadcast_bytes(group: Group, payload: bytes, root: int) -> bytes:
    """Send the root's bytes to all members. Returns them."""
    if group.size == 1:
        return payload
    length = torch.tensor([len(payload)], dtype=torch.int64)
    group.broadcast(length, root)
    mine = group.index == root
    flat = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if mine else torch.empty(int(length), dtype=torch.uint8)
    group.broadcast(flat, root)
    return flat.numpy().tobytes()
