#!/usr/bin/env python3
"""PyTorch baseline of GPU training: the same decoders, compiled, with bf16 autocast, fused AdamW, SDPA and gradient clipping.

    bench/cuda/torch_train.py gpt2-124m [gpt2-355m …] [--steps 20]

Models are compiled at the same time, because compilation takes minutes on a CPU core, and timed one after another. A process
that has compiled waits for its turn and keeps its GPU memory, so name only as many models as fit. Prints a line per model:
median step time, tokens/s, peak memory, time to the first step (which includes compilation in parallel with the others).
"""
import argparse
import fcntl
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

# layers, heads, key/value heads, width, MLP width, vocabulary, batch, sequence length
SIZES = {"gpt2-124m": (12, 12, 12, 768, 3072, 50304, 64, 1024), "gpt2-355m": (24, 16, 16, 1024, 4096, 50304, 32, 1024),
         "gpt2-774m": (36, 20, 20, 1280, 5120, 50304, 16, 1024), "gpt2-1558m": (48, 25, 25, 1600, 6400, 50304, 16, 1024),
         "llama-1.1b": (16, 32, 8, 2048, 8192, 32000, 4, 4096)}


def model_of(name):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    layers, heads, kv_heads, dim, ffn, vocab, _, length = SIZES[name]
    llama, size = "llama" in name, dim // heads

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(dim, (heads + 2 * kv_heads) * size, bias=not llama)
            self.out = nn.Linear(dim, dim, bias=not llama)

        def forward(self, x, turn):
            B, T, _ = x.shape
            q, k, v = self.qkv(x).split([heads * size, kv_heads * size, kv_heads * size], dim=2)
            q, k, v = (t.view(B, T, -1, size).transpose(1, 2) for t in (q, k, v))
            if turn is not None:
                cos, sin = turn

                def turned(t):
                    a, b = t.chunk(2, dim=-1)
                    return (t * cos + torch.cat((-b, a), dim=-1) * sin).to(t.dtype)
                q, k = turned(q), turned(k)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv_heads != heads)
            return self.out(y.transpose(1, 2).reshape(B, T, dim))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            norm = nn.RMSNorm if llama else nn.LayerNorm
            self.norm1, self.norm2, self.attention = norm(dim), norm(dim), Attention()
            self.up = nn.Linear(dim, 2 * ffn if llama else ffn, bias=not llama)
            self.down = nn.Linear(ffn, dim, bias=not llama)

        def forward(self, x, turn):
            x = x + self.attention(self.norm1(x), turn)
            y = self.up(self.norm2(x))
            if llama:
                gate, y = y.chunk(2, dim=-1)
                return x + self.down(F.silu(gate) * y)
            return x + self.down(F.gelu(y, approximate="tanh"))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocab, dim)
            self.positions = None if llama else nn.Embedding(length, dim)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = (nn.RMSNorm if llama else nn.LayerNorm)(dim)
            self.head = nn.Linear(dim, vocab, bias=False)
            for module in self.modules():
                if isinstance(module, (nn.Linear, nn.Embedding)):
                    nn.init.normal_(module.weight, std=0.02)
            if not llama:
                self.head.weight = self.tokens.weight
            angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
            self.register_buffer("angles", torch.cat((angles, angles), dim=-1), persistent=False)

        def forward(self, ids, targets):
            x = self.tokens(ids)
            if not llama:
                x = x + self.positions.weight
            turn = (self.angles.cos(), self.angles.sin()) if llama else None
            for block in self.blocks:
                x = block(x, turn)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())

    return Decoder()


def run(name, steps, lock_path):
    begun = time.time()
    import torch
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    batch, length = SIZES[name][6:]
    model = model_of(name).cuda()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  lr=1e-4, betas=(0.9, 0.95), fused=True)
    compiled = torch.compile(model)
    # Different windows of the same text at every step, as in Espalier.
    text = b"".join(page.read_bytes() for page in sorted((pathlib.Path(__file__).parents[2] / "docs").glob("*.md")))
    text = torch.frombuffer(bytearray(text), dtype=torch.uint8).cuda().long()

    def step():
        first = torch.randint(len(text) - length, (batch, 1), device="cuda")
        ids = text[first + torch.arange(length + 1, device="cuda")]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    while True:  # other processes compile at the same time, so GPU memory may be full for a while
        try:
            step()
            break
        except torch.cuda.OutOfMemoryError:
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            time.sleep(2)
    first = time.time() - begun
    torch.cuda.empty_cache()
    with open(lock_path, "w") as lock:
        print(f"ready {name}", flush=True)
        while not os.path.exists(lock_path + ".go"):
            time.sleep(0.1)
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(4):
            step()
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(steps):
            torch.cuda.synchronize()
            start = time.perf_counter()
            loss = step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        memory = torch.cuda.max_memory_allocated() / 2**30
        median = statistics.median(times)
        print(f"torch {name}: {median * 1e3:.1f} ms, {batch * length / median / 1e3:.1f} k tokens/s, {memory:.1f} GiB, "
              f"loss {loss:.3f}, first step after {first:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=SIZES)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--go", help="wait until this file exists before timing; default: do not wait")
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.lock:
        return run(options.models[0], options.steps, options.lock)
    lock = os.path.join(tempfile.mkdtemp(), "turn")
    # The largest model first: it compiles longest.
    order = sorted(options.models, key=lambda name: -math.prod(SIZES[name][:1]))
    running = [subprocess.Popen([sys.executable, __file__, name, "--lock", lock, "--steps", str(options.steps)],
                                stdout=subprocess.PIPE, text=True) for name in order]
    for process in running:  # waits until all have compiled
        while (line := process.stdout.readline()) and not line.startswith("ready"):
            print(line, end="", flush=True)
    print("compiled", flush=True)
    while options.go and not os.path.exists(options.go):
        time.sleep(0.1)
    open(lock + ".go", "w").close()
    for process in running:
        print(process.communicate()[0], end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
