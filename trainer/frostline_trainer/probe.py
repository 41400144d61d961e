"""The start-up probe: the digest of a small fixed computation at the job's shapes (docs/protocols.md 1.9).

Two workers whose probes agree compute the same bits; `numerics: exact` admits no other. It covers what differs between CPU
models, GPU models and torch versions: matmul, attention, normalisation, activation, an optimizer step.
"""

import hashlib
import platform

import torch
from torch import nn
from torch.nn import functional

from frostline_contract.seeds import seed_of
from frostline_trainer.kernels import kernel_settings


def run_probe(width: int, tokens: int, micro_batch_size: int, dtype: torch.dtype, device: torch.device) -> tuple[str, str]:
    """Returns (digest as hex, a line for people that says what it ran on). Leaves torch's generator as it was."""
    heads = max(heads for heads in (1, 2, 4) if width % heads == 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("probe"))
        x = torch.randn(micro_batch_size, tokens, width).to(device, dtype).requires_grad_()
        layers = nn.ModuleDict({"norm": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width)})
    layers.to(device, dtype)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-3, fused=True)
    q, k, v = layers["qkv"](layers["norm"](x)).view(micro_batch_size, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
    functional.gelu(layers["out"](attended)).float().square().mean().backward()
    optimizer.step()
    settings = kernel_settings()
    digest = hashlib.sha256(f"{torch.__version__.split('+')[0]}|{torch.get_num_threads()}|{settings}".encode())
    for tensor in [attended, x.grad, *layers.parameters()]:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    cpu = f"{torch.get_num_threads()} thread(s), {torch.backends.cpu.get_cpu_capability()}, {settings}"
    return digest.hexdigest(), f"torch {torch.__version__}, {where}, {cpu}"
