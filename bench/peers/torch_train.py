#!/usr/bin/env python3
"""PyTorch baseline of `bench train`: the same decoder, data, batch size and optimizer, written for the installed version.

Several ranks use DistributedDataParallel over gloo, each with its part of the batch, with its fastest settings: gradients are
views of the buckets, and unused parameters are not searched. With --power-rank, powerSGD_hook compresses the gradients.

Receives requests over a socket, like the other baselines (serve.h): `run steps=N` is answered with
`done ns=t1,t2,… loss=L`, one time per step. Between requests it blocks in recv and uses no core.
"""
import argparse
import math
import os
import socket
import time

import torch
import torch.distributed
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook


class Attention(nn.Module):
    def __init__(self, dim, heads, positions):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        # Not a buffer: DDP broadcasts buffers, and gloo cannot broadcast bool.
        self.above = torch.ones(positions, positions, dtype=torch.bool).triu(1)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.heads, C // self.heads).transpose(1, 2) for part in self.qkv(x).split(C, dim=2))
        # Fused attention exists from torch 2.0 on.
        fused = getattr(F, "scaled_dot_product_attention", None)
        if fused:
            y = fused(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.shape[-1]))
            y = F.softmax(scores.masked_fill(self.above[:T, :T], float("-inf")), dim=-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, dim, heads, positions):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, positions)
        self.norm2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.gelu = nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.tokens = nn.Embedding(o.vocab, o.dim)
        self.positions = nn.Embedding(o.seq, o.dim)
        self.blocks = nn.ModuleList([Block(o.dim, o.heads, o.seq) for _ in range(o.layers)])
        self.norm = nn.LayerNorm(o.dim)
        self.head = nn.Linear(o.dim, o.vocab, bias=False)
        self.apply(self.initialise)
        self.head.weight = self.tokens.weight

    @staticmethod
    def initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class Run:
    def __init__(self, o):
        torch.manual_seed(1)
        torch.set_num_threads(o.threads)
        self.options = o
        # u16 tokens, read on demand so that the file adds little to the resident memory.
        self.tokens = torch.from_file(o.tokens, dtype=torch.int16, size=os.path.getsize(o.tokens) // 2)
        self.model = Gpt(o)
        if o.ranks > 1:
            torch.distributed.init_process_group("gloo", init_method="file://" + o.meet, rank=o.rank, world_size=o.ranks)
            self.model = nn.parallel.DistributedDataParallel(
                self.model, find_unused_parameters=False, gradient_as_bucket_view=True)
            if o.power_rank:
                # PowerSGD defaults: matrices that shrink by half or more, error feedback, warm start. It needs two
                # uncompressed steps first; the warm-up provides them.
                self.model.register_comm_hook(
                    powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=o.power_rank, start_powerSGD_iter=2),
                    powerSGD_hook.powerSGD_hook)
            torch.manual_seed(1 + o.rank)  # the same model, different samples
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        rest = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8)

    def batch(self):
        B, T = self.options.batch // self.options.ranks, self.options.seq
        starts = torch.randint(len(self.tokens) - T - 1, (B,))
        rows = torch.stack([self.tokens[s:s + T + 1] for s in starts.tolist()]).long() & 0xFFFF
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def step(self):
        ids, targets = self.batch()
        loss = self.model(ids, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def blas_in_use():
    """File of the BLAS that the loader found."""
    with open("/proc/self/maps") as maps:
        files = {line.split()[-1] for line in maps if "blas" in line or "mkl" in line}
    # libblas.so.3 is often a wrapper; the library it loads is more informative.
    behind = sorted(f for f in files if "openblas" in os.path.basename(f) or "mkl" in f) or sorted(files)
    return behind[0] if behind else "unknown"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--tokens", required=True)
    for name in ("layers", "heads", "dim", "vocab", "seq", "batch", "threads", "ranks"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--power-rank", type=int, default=0, help="rank of PowerSGD; 0: gradients are not compressed")
    parser.add_argument("--meet", help="path of a rendezvous file that does not exist yet")
    o = parser.parse_args()
    o.rank = int(os.environ.get("RANK", "0")) if o.ranks > 1 else 0

    run = Run(o)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect("\0" + o.socket)
    lines = channel.makefile("rw", newline="\n")

    def send_line(text):
        lines.write(text + "\n")
        lines.flush()

    parameters = sum(p.numel() for p in run.model.parameters())
    send_line(f"hello label={o.label} rank={o.rank} size={o.ranks} parameters={parameters} version={torch.__version__} "
        f"threads={torch.get_num_threads()} blas={blas_in_use()}")
    for line in lines:
        words = line.split()
        if not words or words[0] == "quit":
            break
        steps = int(dict(word.split("=", 1) for word in words[1:])["steps"])
        times, loss = [], float("nan")
        for _ in range(steps):
            begin = time.perf_counter_ns()
            loss = run.step()
            times.append(time.perf_counter_ns() - begin)
        send_line(f"done ns={','.join(map(str, times))} loss={loss:.6f}")


if __name__ == "__main__":
    main()
