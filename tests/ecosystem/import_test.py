"""Tests espalier import deepspeed, and trains with its output."""
import json
import os
import unittest

from cli_runner import run
from train_test import TempFolderTestCase

CONFIG = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": 12,
                                                      "warmup_max_lr": 0.01}},
    "zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True},
    "activation_checkpointing": {"partition_activations": True}, "gradient_cliping": 3,
}


class DeepSpeed(TempFolderTestCase):
    def config(self):
        with open(self.path("ds.json"), "w") as file:
            json.dump(CONFIG, file)
        return self.path("ds.json")

    def test_imported_run_with_base_trains(self):
        answer = run("import", "deepspeed", self.config(), "--ranks", "2", "--base", self.run_file(), "--out",
                     self.path("imported.toml"))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn("not imported: activation_checkpointing: ", answer.stderr)
        self.assertIn("gradient_cliping: unknown DeepSpeed key; did you mean gradient_clipping?", answer.stderr)
        self.assertNotIn("missing: ", answer.stderr)
        trained = run("train", self.path("imported.toml"), "--nproc", "2", "--set", "run.threads=1")
        self.assertEqual(trained.returncode, 0, trained.stderr)
        with open(self.path("run/summary.json")) as file:
            summary = json.load(file)
        self.assertEqual((summary["method"], summary["steps"], summary["world"]), ("zero2", 12, 2))
        rates = [line["lr"] for line in self.metrics()]
        self.assertAlmostEqual(max(rates), 0.01)
        self.assertLess(rates[-1], 0.002)
        self.assertEqual(self.metrics()[0]["tokens"], 8 * 32)  # micro-batch 2 × accumulation 2 × 2 ranks, sequences of 32 tokens

    def test_lists_missing_keys_without_base(self):
        answer = run("import", "deepspeed", self.config())
        self.assertEqual(answer.returncode, 0, answer.stderr)
        for words in ("# Not imported:", "# Still needed:", "#   data.train", "--ranks sets that number",
                      'method = "zero2"'):
            self.assertIn(words, answer.stdout)

    def test_errors_have_documented_exit_codes(self):
        with open(self.path("bad.json"), "w") as file:
            file.write('{"zero_optimization": {"stage": 7}}')
        answer = run("import", "deepspeed", self.path("bad.json"))
        self.assertEqual(answer.returncode, 2)
        self.assertIn("zero_optimization.stage: got 7; expected 0 to 3", answer.stderr)
        answer = run("import", "deepspeed", self.path("none.json"))
        self.assertEqual(answer.returncode, 4)
        self.assertFalse(os.path.exists(self.path("none.json")))


if __name__ == "__main__":
    unittest.main()
