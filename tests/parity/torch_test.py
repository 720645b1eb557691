"""Compares Espalier models with PyTorch models that have the same weights and batch: logits, loss, all gradients, and the
losses of 20 AdamW steps.

Tolerance (relative L2 per tensor): 1e-4 in fp32; 1e-9 in fp64, which separates errors from rounding.
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


def relative_error(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    size = np.linalg.norm(b)
    return np.linalg.norm(a - b) / (size if size > 0 else 1)


class Case(unittest.TestCase):
    """Base class: a subclass sets the model and its shape."""
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
        with torch.no_grad():  # random values, so that an error in any bias or norm is detected
            for p in model.parameters():
                spread = torch.randn(p.shape, dtype=torch.float64) * (0.08 if p.dim() > 1 else 0.1)
                p.copy_(spread + (1 if p.dim() == 1 and p.mean() > 0.5 else 0))
        return model

    def loss(self, model, batch):
        logits = model(batch)
        return F.cross_entropy(logits.flatten(0, -2), batch["targets"].flatten().long(), ignore_index=-1), logits

    def run_espalier(self, folder, names, batch, dtype):
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
        names, arrays = model.espalier_parameters(), self.make_batch(self.config)
        batch = {name: torch.from_numpy(x).long() for name, x in arrays.items()}
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            result = self.run_espalier(folder, names, arrays, dtype)
            read = lambda name, like: np.fromfile(folder / name, kind).reshape(like.shape)
            self.assertEqual(result["parameters"], sum(p.numel() for p in model.parameters()))
            loss, logits = self.loss(model, batch)
            loss.backward()
            worst = {"logits": relative_error(read("logits", logits), logits.detach().numpy()),
                     "loss": abs(result["loss"] / loss.item() - 1)}
            for name in names:
                gradient = names.tensor(name, gradient=True)
                worst["grad." + name] = relative_error(read(f"grad.{name}", gradient), gradient.numpy())
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
        # Near the kink of ReLU the gradient is ambiguous within rounding, so losses are compared up to that step only.
        known = 1 + next((i for i, kink in enumerate(kinks) if kink < 8 * np.finfo(kind).eps), STEPS)
        self.assertLess(curve[-1], 0.9 * curve[0])  # the loss falls, so the comparison of the curves is meaningful
        curve_errors = [abs(a / b - 1) for a, b in zip(result["curve"], curve, strict=True)]
        worst["curve"] = max(curve_errors[:known])
        most = max(worst, key=worst.get)
        print(f"{self.module} {dtype}: largest error {worst[most]:.1e} ({most}), losses {worst['curve']:.1e} over {min(known, STEPS)} steps")
        for what, distance in worst.items():
            self.assertLess(distance, tolerance, what)

    def test_fp64_equals_pytorch(self):
        self.compare("f64", 1e-9)

    def test_fp32_equals_pytorch(self):
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


# Head dimension 24: some of the 12 rotary pairs lie below the YaRN ramp, some on it, and some above it.
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
    """Uses an activation without kinks, so that the losses of all steps can be compared."""
    module = "EncoderDecoder"
    config = dict(EncoderDecoder.config, activation="gelu_erf")


del Case  # otherwise unittest would run the base class too

if __name__ == "__main__":
    unittest.main()
