"""espalier train with values beyond the device: a model four times its budget, going on from a checkpoint, and budgets
that are too small."""
import json
import os
import re
import unittest

from ranks_test import OnRanks

LARGE = ("model.layers=16", "model.dim=64", "model.heads=4", "train.precision=bf16", "train.micro_batch=1",
         "train.recompute=full", "run.deterministic=true", "model.dropout=0")
HOST = ("sync.method=zero3", "sync.offload=host", "sync.offload_params=host")
FILE = ("sync.method=zero3", "sync.offload=file", "sync.offload_params=file")


class Beyond(OnRanks):
    def summary(self, name):
        with open(self.path(f"{name}/summary.json")) as file:
            return json.load(file)

    def test_a_model_of_four_times_the_budget_trains(self):
        for ranks in (1, 2):
            free = f"free{ranks}"
            self.train_ranks(ranks, free, "sync.method=zero3", *LARGE, steps=3)
            budget = self.summary(free)["parameters"] * 16 / 4 / 2**20
            for name, where in (("host", HOST), ("file", FILE)):
                name += str(ranks)
                self.train_ranks(ranks, name, f"run.device_memory_mb={budget:.6f}", *LARGE, *where, steps=3)
                self.assertEqual(self.losses(name), self.losses(free))
                self.assertLessEqual(self.summary(name)["peak_bytes"], budget * 2**20 + 1)
                self.assertGreater(self.summary(free)["peak_bytes"] * ranks, 2 * budget * 2**20)

    def test_going_on_equals_not_stopping(self):
        for name, where in (("host", HOST), ("file", FILE)):
            self.train_ranks(2, f"{name}-whole", *where, "train.precision=bf16", "train.schedule=constant", steps=6)
            self.train_ranks(2, f"{name}-two", *where, "train.precision=bf16", "train.schedule=constant", steps=3)
            self.train_ranks(2, f"{name}-two", *where, "train.precision=bf16", "train.schedule=constant", steps=6)
            self.same_checkpoint(6, f"{name}-whole", f"{name}-two")

    def test_going_on_equals_not_stopping_where_updates_are_early(self):
        where = ("sync.method=zero3", "sync.offload=file", "sync.offload_host_mb=0.2", "sync.update_early=true",
                 "train.clip=0", "train.precision=bf16", "train.schedule=constant", "sync.offload_tile=4096")
        self.train_ranks(2, "early-whole", *where, steps=6)
        self.train_ranks(2, "early-two", *where, steps=3)
        self.train_ranks(2, "early-two", *where, steps=6)
        self.same_checkpoint(6, "early-whole", "early-two")

    def test_what_crosses_is_in_the_summary_and_no_checkpoint_is_written_where_none_is_wanted(self):
        answer = self.train_ranks(1, "crossed", "sync.method=zero2", "sync.offload=file", "train.precision=bf16",
                                  "checkpoint.at_end=false", steps=3)
        crossed, summary = self.summary("crossed")["offloaded"], self.summary("crossed")
        self.assertEqual(crossed["down"]["bytes_per_step"], 2 * summary["parameters"])
        self.assertEqual(crossed["up"]["bytes_per_step"], 2 * summary["parameters"])
        self.assertEqual(crossed["file"]["bytes_read_per_step"], 12 * summary["parameters"])
        self.assertGreater(crossed["down"]["alone_gb_per_s"], 0)
        self.assertRegex(answer.stdout + answer.stderr, r"host link, a step: .* GB down at .* GB/s \(.* % of .* alone\)")
        self.assertFalse(os.path.exists(self.path("crossed/checkpoints")))

    def test_the_measured_window_is_in_the_log(self):
        answer = self.train_ranks(1, "auto", *HOST, "sync.prefetch=-1", steps=4)
        self.assertRegex(answer.stdout + answer.stderr, r"sync.prefetch = \d+ \(measured\): .* ms to fetch and .* ms to")

    def test_a_budget_that_is_too_small_ends_before_training_with_one_that_is_not(self):
        answer = self.train_ranks(1, "layer", "run.device_memory_mb=0.05", *LARGE, *HOST, steps=3, code=2)
        self.assertIn("the largest unit, blocks.0, has 0.1", answer.stderr)
        answer = self.train_ranks(1, "batch", "run.device_memory_mb=0.5", *LARGE, *HOST, steps=3, code=2)
        self.assertIn("of activations", answer.stderr)
        enough = re.search(r"set at least ([0-9.]+)", answer.stderr).group(1)
        answer = self.train_ranks(2, "batch2", "run.device_memory_mb=0.5", *LARGE, *HOST, steps=3, code=2)
        self.assertIn("run.device_memory_mb = 0.50", answer.stderr)
        self.train_ranks(1, "enough", f"run.device_memory_mb={enough}", *LARGE, *HOST, steps=3)

    def test_values_leave_with_the_optimizer_and_stage_3_only(self):
        answer = self.train_ranks(2, "none", "sync.method=zero2", "sync.offload=host", "sync.offload_params=host", code=2)
        self.assertIn("zero3", answer.stderr)


if __name__ == "__main__":
    unittest.main()
