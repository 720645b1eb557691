"""Our models against PyTorch's: same weights and batch; logits, loss, every gradient, and the losses of 20 AdamW steps.

fp32 agrees to 1e-4 (relative L2 per tensor); fp64, which tells a fault from rounding, to 1e-9.
"""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

try:
    import numpy as np
    import torch
    import torch.nn.functional as F

    import torch_models
except ImportError as missing:
    torch = None
    why = f"parity with PyTorch not checked: {missing} (Debian: apt-get install python3-torch)"

STEPS, LR, DECAY = 20, 1e-3, 0.01
B, T = 3, 21


def apart(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    size = np.linalg.norm(b)
    return np.linalg.norm(a - b) / (size if size > 0 else 1)


class Case(unittest.TestCase):
    """A subclass says which model and shape."""
    config, module = None, None

    @classmethod
    def setUpClass(cls):
        if torch is None:
            raise unittest.SkipTest(why)
        torch.set_num_threads(2)

    def make_batch(self, c):
        random = np.random.default_rng(3)
        ids = lambda *shape: random.integers(0, c["vocab"], shape, dtype=np.int32)
        batch = {"inputs": ids(B, T), "targets": ids(B, T)}
        batch["targets"][0, 4:9] = -1
        if c["arch"] in ("bert", "t5"):
            batch["lengths"] = np.array([T, T - 6, T - 1], np.int32)
        if c.get("type_vocab"):
            batch["segments"] = random.integers(0, c["type_vocab"], (B, T), dtype=np.int32)
        if c.get("num_classes"):
            batch["targets"] = np.array([2, 0, 1], np.int32) % c["num_classes"]
        if c["arch"] == "t5":
            batch["decoder_inputs"], batch["targets"] = ids(B, T - 4), ids(B, T - 4)
            batch["targets"][1, 10:] = -1
        return batch

    def make_module(self, dtype):
        torch.manual_seed(1)
        model = getattr(torch_models, self.module)(self.config).to(dtype)
        with torch.no_grad():  # away from the beginning: every bias and norm counts
            for p in model.parameters():
                spread = torch.randn(p.shape, dtype=torch.float64) * (0.08 if p.dim() > 1 else 0.1)
                p.copy_(spread + (1 if p.dim() == 1 and p.mean() > 0.5 else 0))
        return model

    def loss(self, model, batch):
        logits = model(batch)
        return F.cross_entropy(logits.flatten(0, -2), batch["targets"].flatten().long(), ignore_index=-1), logits

    def run_ours(self, folder, names, batch, dtype):
        spec = {"dtype": dtype, "model": self.config, "steps": STEPS, "lr": LR, "weight_decay": DECAY,
                "tensors": {name: list(x.shape) for name, x in batch.items()}}
        (folder / "case.json").write_text(json.dumps(spec))
        for name, x in batch.items():
            x.tofile(folder / name)
        for name in names:
            names.tensor(name).numpy().copy(order="C").tofile(folder / f"weight.{name}")
        subprocess.run([os.environ["PARITY_MODEL"], str(folder)], check=True, timeout=120)
        return json.loads((folder / "result.json").read_text())

    def compare(self, dtype, tolerance):
        kind = np.float64 if dtype == "f64" else np.float32
        model = self.make_module(torch.float64 if dtype == "f64" else torch.float32)
        names, arrays = model.ours(), self.make_batch(self.config)
        batch = {name: torch.from_numpy(x).long() for name, x in arrays.items()}
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            result = self.run_ours(folder, names, arrays, dtype)
            read = lambda name, like: np.fromfile(folder / name, kind).reshape(like.shape)
            self.assertEqual(result["parameters"], sum(p.numel() for p in model.parameters()))
            loss, logits = self.loss(model, batch)
            loss.backward()
            worst = {"logits": apart(read("logits", logits), logits.detach().numpy()),
                     "loss": abs(result["loss"] / loss.item() - 1)}
            for name in names:
                gradient = names.tensor(name, gradient=True)
                worst["grad." + name] = apart(read(f"grad.{name}", gradient), gradient.numpy())
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)
        curve, kinks = [], []
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch_models.Kink.nearest = float("inf")
            loss, _ = self.loss(model, batch)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
            kinks.append(torch_models.Kink.nearest)
        # A gradient taken with an argument of ReLU within rounding of 0 may be either side's; losses count until then.
        known = 1 + next((i for i, kink in enumerate(kinks) if kink < 8 * np.finfo(kind).eps), STEPS)
        self.assertLess(curve[-1], 0.9 * curve[0])  # it learns, so the curve says something
        apart_by = [abs(a / b - 1) for a, b in zip(result["curve"], curve, strict=True)]
        worst["curve"] = max(apart_by[:known])
        most = max(worst, key=worst.get)
        print(f"{self.module} {dtype}: worst {worst[most]:.1e} ({most}), curve {worst['curve']:.1e} of {min(known, STEPS)} steps")
        for what, distance in worst.items():
            self.assertLess(distance, tolerance, what)

    def test_fp64(self):
        self.compare("f64", 1e-9)

    def test_fp32(self):
        self.compare("f32", 1e-4)


class Gpt(Case):
    module = "Gpt"
    config = {"arch": "gpt", "layers": 3, "heads": 4, "dim": 48, "vocab": 97, "seq_len": 32}


class Llama(Case):
    module = "Llama"
    config = {"arch": "llama", "layers": 3, "heads": 6, "kv_heads": 2, "dim": 48, "ffn": 100, "vocab": 97, "seq_len": 32}


class LlamaLinear(Case):
    module = "Llama"
    config = dict(Llama.config, heads=4, kv_heads=2, rope_scaling="linear", rope_factor=2.5)


# Heads of 24, so that some of their 12 pairs lie before, on and behind the ramp.
class LlamaYarn(Case):
    module = "Llama"
    config = dict(Llama.config, heads=2, kv_heads=1, rope_scaling="yarn", rope_factor=4.0, rope_original_seq_len=512)


class LlamaLlama3(Case):
    module = "Llama"
    config = dict(Llama.config, heads=2, kv_heads=1, rope_theta=500.0, rope_scaling="llama3", rope_factor=8.0,
                  rope_original_seq_len=64)


class Bert(Case):
    module = "Bert"
    config = {"arch": "bert", "layers": 3, "heads": 4, "dim": 48, "ffn": 192, "vocab": 97, "seq_len": 32,
              "norm_eps": 1e-12, "activation": "gelu_erf", "type_vocab": 2, "embedding_norm": True}


class BertClassifier(Case):
    module = "Bert"
    config = dict(Bert.config, num_classes=3, pooler=True)


class BertLecture(Case):
    module = "Bert"
    config = {"arch": "bert", "layers": 2, "heads": 4, "dim": 48, "ffn": 384, "vocab": 97, "seq_len": 32,
              "norm_eps": 1e-5, "activation": "relu", "type_vocab": 0, "embedding_norm": False, "num_classes": 2}


class EncoderDecoder(Case):
    module = "EncoderDecoder"
    config = {"arch": "t5", "layers": 2, "heads": 4, "dim": 48, "ffn": 192, "vocab": 97, "seq_len": 32}


class EncoderDecoderSmooth(Case):
    """With no slope that jumps: all steps of the curve count."""
    module = "EncoderDecoder"
    config = dict(EncoderDecoder.config, activation="gelu_erf")


del Case  # or unittest would run it, too

if __name__ == "__main__":
    unittest.main()
