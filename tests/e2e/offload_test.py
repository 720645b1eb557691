"""End-to-end tests of espalier train with weights and optimizer state offloaded to host memory or files: a model four times larger than
the device budget, resume from a checkpoint, and errors for budgets that are too small."""
import json
import os
import re
import unittest

from ranks_test import RankTestCase

LARGE = ("model.layers=16", "model.dim=64", "model.heads=4", "train.precision=bf16", "train.micro_batch=1",
         "train.recompute=full", "run.deterministic=true", "model.dropout=0")
HOST = ("sync.method=zero3", "sync.offload=host", "sync.offload_params=host")
FILE = ("sync.method=zero3", "sync.offload=file", "sync.offload_params=file")


class Offload(RankTestCase):
    def summary(self, name):
        with open(self.path(f"{name}/summary.json")) as file:
            return json.load(file)

    def test_trains_model_four_times_larger_than_device_budget(self):
        for ranks in (1, 2):
            free = f"free{ranks}"
            self.train_ranks(ranks, free, "sync.method=zero3", *LARGE, steps=3)
            budget = self.summary(free)["parameters"] * 16 / 4 / 2**20
            for name, overrides in (("host", HOST), ("file", FILE)):
                name += str(ranks)
                self.train_ranks(ranks, name, f"run.device_memory_mb={budget:.6f}", *LARGE, *overrides, steps=3)
                self.assertEqual(self.losses(name), self.losses(free))
                self.assertLessEqual(self.summary(name)["peak_bytes"], budget * 2**20 + 1)
                self.assertGreater(self.summary(free)["peak_bytes"] * ranks, 2 * budget * 2**20)

    def test_resumed_run_is_bit_identical_to_uninterrupted_run(self):
        for name, overrides in (("host", HOST), ("file", FILE)):
            self.train_ranks(2, f"{name}-whole", *overrides, "train.precision=bf16", "train.schedule=constant", steps=6)
            self.train_ranks(2, f"{name}-two", *overrides, "train.precision=bf16", "train.schedule=constant", steps=3)
            self.train_ranks(2, f"{name}-two", *overrides, "train.precision=bf16", "train.schedule=constant", steps=6)
            self.assert_same_checkpoint(6, f"{name}-whole", f"{name}-two")

    def test_resumed_run_with_early_update_is_bit_identical_to_uninterrupted_run(self):
        overrides = ("sync.method=zero3", "sync.offload=file", "sync.offload_host_mb=0.2", "sync.update_early=true",
                     "train.clip=0", "train.precision=bf16", "train.schedule=constant", "sync.offload_tile=4096")
        self.train_ranks(2, "early-whole", *overrides, steps=6)
        self.train_ranks(2, "early-two", *overrides, steps=3)
        self.train_ranks(2, "early-two", *overrides, steps=6)
        self.assert_same_checkpoint(6, "early-whole", "early-two")

    def test_summary_reports_link_traffic_and_at_end_false_skips_checkpoint(self):
        answer = self.train_ranks(1, "transferred", "sync.method=zero2", "sync.offload=file", "train.precision=bf16",
                                  "checkpoint.at_end=false", steps=3)
        transferred, summary = self.summary("transferred")["offloaded"], self.summary("transferred")
        self.assertEqual(transferred["down"]["bytes_per_step"], 2 * summary["parameters"])
        self.assertEqual(transferred["up"]["bytes_per_step"], 2 * summary["parameters"])
        self.assertEqual(transferred["file"]["bytes_read_per_step"], 12 * summary["parameters"])
        self.assertGreater(transferred["down"]["alone_gb_per_s"], 0)
        self.assertRegex(answer.stdout + answer.stderr, r"host link per step: .* GB down at .* GB/s \(.* % of .* GB/s alone\)")
        self.assertFalse(os.path.exists(self.path("transferred/checkpoints")))

    def test_log_reports_the_measured_prefetch_window(self):
        answer = self.train_ranks(1, "auto", *HOST, "sync.prefetch=-1", steps=4)
        self.assertRegex(answer.stdout + answer.stderr, r"sync.prefetch = \d+ \(measured\): .* ms to fetch and .* ms to")

    def test_too_small_budget_fails_before_training_and_suggests_sufficient_one(self):
        answer = self.train_ranks(1, "layer", "run.device_memory_mb=0.05", *LARGE, *HOST, steps=3, code=2)
        self.assertIn("the largest unit, blocks.0, has 0.1", answer.stderr)
        answer = self.train_ranks(1, "batch", "run.device_memory_mb=0.5", *LARGE, *HOST, steps=3, code=2)
        self.assertIn("of activations", answer.stderr)
        enough = re.search(r"set at least ([0-9.]+)", answer.stderr).group(1)
        answer = self.train_ranks(2, "batch2", "run.device_memory_mb=0.5", *LARGE, *HOST, steps=3, code=2)
        self.assertIn("run.device_memory_mb = 0.50", answer.stderr)
        self.train_ranks(1, "enough", f"run.device_memory_mb={enough}", *LARGE, *HOST, steps=3)

    def test_offload_params_requires_zero3(self):
        answer = self.train_ranks(2, "none", "sync.method=zero2", "sync.offload=host", "sync.offload_params=host",
                                  code=2)
        self.assertIn("zero3", answer.stderr)


if __name__ == "__main__":
    unittest.main()
