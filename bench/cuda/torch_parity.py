#!/usr/bin/env python3
"""Trains GPT-2 and LLaMA models of `transformers` for some steps with PyTorch and with Espalier, on the GPU in fp32.

    bench/cuda/torch_parity.py [--espalier build-cuda/bin/espalier] [--device cuda]

Both start from the same weights and read the same tokens in the same order, with the same AdamW, clipping and weight decay.
Prints a PASS or FAIL line per model, with the largest relative difference of the losses.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

VOCAB, LENGTH, BATCH, STEPS, LIMIT = 256, 128, 8, 20, 2e-5


def models():
    gpt2 = transformers.GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, n_embd=256, n_layer=4, n_head=4, resid_pdrop=0,
                                   embd_pdrop=0, attn_pdrop=0, bos_token_id=None, eos_token_id=None)
    llama = transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
                                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH)
    yield "gpt2", transformers.GPT2LMHeadModel(gpt2)
    yield "llama", transformers.LlamaForCausalLM(llama)


def by_torch(model, tokens, device):
    model = model.to(device).train()
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    ids = torch.from_numpy(tokens.astype(numpy.int64)).to(device)
    losses = []
    for step in range(STEPS):
        rows = [ids[(step * BATCH + i) * LENGTH:(step * BATCH + i) * LENGTH + LENGTH + 1] for i in range(BATCH)]
        batch = torch.stack(rows)
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_espalier(espalier, folder, device):
    settings = {"model.init": folder + "/model", "model.seq_len": LENGTH, "model.dropout": 0,
                "data.train": folder + "/tokens.bin", "data.bin_type": "u16", "data.tokenizer": "byte", "data.order": "sequential", "train.steps": STEPS,
                "train.global_batch": BATCH, "train.lr": 1e-3, "train.schedule": "constant", "train.warmup": 0,
                "train.weight_decay": 0.1, "train.precision": "fp32", "run.device": device, "log.every": 1,
                "checkpoint.every": 0, "train.eval_every": 0}
    with open(folder + "/run.toml", "w") as file:
        file.write('[run]\nname = "parity"\n')
    command = [espalier, "train", folder + "/run.toml", "--run-dir", folder + "/run", "--resume", "none"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if done.returncode != 0:
        raise SystemExit(f"FAIL {folder}: {done.stderr[-800:]}")
    rows = [json.loads(line) for line in open(folder + "/run/metrics.jsonl")]
    return [row["loss"] for row in rows if "loss" in row][:STEPS]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--espalier", default="build-cuda/bin/espalier")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    torch.manual_seed(3)
    good = True
    # Learnable tokens: each depends on the previous one.
    random = numpy.random.default_rng(3)
    tokens = numpy.cumsum(random.integers(0, 5, BATCH * STEPS * LENGTH + 1)) % VOCAB
    for name, model in models():
        with tempfile.TemporaryDirectory() as folder:
            tokens.astype(numpy.uint16).tofile(folder + "/tokens.bin")
            model.save_pretrained(folder + "/model")
            ours = by_espalier(os.path.abspath(options.espalier), folder, options.device)
            theirs = by_torch(model, tokens, options.device)
        apart = max(abs(a / b - 1) for a, b in zip(ours, theirs))
        good = good and apart < LIMIT and len(ours) == STEPS
        print(f"{'PASS' if apart < LIMIT and len(ours) == STEPS else 'FAIL'} {name}: losses of {len(ours)} steps, largest relative "
              f"difference from PyTorch {apart:.1e}; from {theirs[0]:.4f} to {ours[-1]:.4f} (Espalier) and {theirs[-1]:.4f} (PyTorch)", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
