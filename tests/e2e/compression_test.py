"""End-to-end tests of compressed gradients and updates: training learns, sends the bytes that the formats define,
resumes bit for bit, and rejects unsupported settings."""
import json
import unittest

from ranks_test import RankTestCase

CONFIGURATIONS = {
    "topk": ("sync.compress=topk:0.05", "sync.feedback=ef"),
    "squeeze": ("sync.compress=sign", "sync.feedback=doublesqueeze"),
    "ef21": ("sync.compress=topk:0.1", "sync.feedback=ef21"),
    "powersgd": ("sync.compress=powersgd:2",),
    "onebit": ("sync.compress=sign", "sync.feedback=onebit_adam", "sync.onebit_warmup=2"),
    "zero1": ("sync.method=zero1", "sync.compress=int8", "sync.feedback=ef"),
    "zero2": ("sync.method=zero2", "sync.compress=topk:0.1", "sync.feedback=ef21"),
    "ps": ("sync.method=ps", "sync.compress=topk:0.1", "sync.feedback=ef"),
    "ps-both": ("sync.method=ps", "sync.update=worker", "sync.compress=sign", "sync.feedback=doublesqueeze"),
    "gossip": ("sync.method=gossip", "sync.compress=int8", "sync.feedback=ef21"),
    "local": ("sync.method=local", "sync.tau=2", "sync.compress=topk:0.1", "sync.feedback=ef"),
    "diloco": ("sync.method=diloco", "sync.period=2", "sync.compress=sign", "sync.feedback=doublesqueeze"),
}


class Compressors(RankTestCase):
    def check_resume(self, name, *settings, steps=6):
        """Checks that a run resumed after 3 steps is bit-identical to an uninterrupted run."""
        settings += ("run.deterministic=true",)
        self.train_ranks(2, name, *settings, steps=steps)
        self.train_ranks(2, name + "-again", *settings, "checkpoint.every=3", steps=steps)
        self.assertEqual(self.losses(name), self.losses(name + "-again"), name)
        words = ["--resume", self.path(f"{name}-again/checkpoints/step-3")]
        answer = self.train("--nproc", "2", "--run-dir", self.path(name + "-on"), *words,
                            *(word for one in ("run.threads=1",) + settings for word in ("--set", one)), steps=steps,
                            dropout=0.1)
        self.assertNotIn("error feedback starts at 0", answer.stderr)
        self.assertEqual(self.losses(name)[3:], self.losses(name + "-on"), name)

    def test_resumed_run_is_bit_identical_to_uninterrupted_run(self):
        for name, settings in CONFIGURATIONS.items():
            with self.subTest(name):
                self.check_resume(name, *settings)

    def test_resets_feedback_state_when_exchange_changes(self):
        self.train_ranks(2, "first", "sync.compress=topk:0.1", "sync.feedback=ef", steps=3)
        resume = f"checkpoint.resume={self.path('first')}/checkpoints/step-3"
        answer = self.train_ranks(2, "other", "sync.compress=topk:0.1", "sync.feedback=ef21", resume)
        self.assertIn("error feedback starts at 0", answer.stderr)

    def test_training_with_compression_reduces_loss(self):
        for name, settings in CONFIGURATIONS.items():
            with self.subTest(name):
                self.train_ranks(2, "learn-" + name, *settings, steps=40)
                self.assertLess(self.metrics("learn-" + name)[-1]["loss"], 3.5, name)

    def test_int8_sends_quarter_of_bytes_and_keeps_validation_loss(self):
        same = ("train.optimizer=sgd", "train.lr=0.1", "train.eval_every=100", "run.deterministic=true")
        self.train_ranks(2, "whole", *same, steps=100)
        self.train_ranks(2, "eight", *same, "sync.compress=int8:256", "sync.feedback=doublesqueeze", steps=100)
        whole, eight = (self.metrics(name)[-1]["val_loss"] for name in ("whole", "eight"))
        self.assertLess(whole, 3)  # the initial loss is ln 257 = 5.5
        self.assertLess(abs(eight / whole - 1), 0.02)
        for long, short in zip(self.sent("whole"), self.sent("eight")):
            self.assertGreater(long / short, 3.8)

    def sent(self, name, op=None):
        return [sum(row["bytes_sent"] for row in self.rank_file(name, rank)["comm"] if op in (None, row["op"]))
                for rank in (0, 1)]

    def test_onebit_adam_sends_one_32nd_of_gradient_bytes(self):
        for warmup in (2, 6):
            self.train_ranks(2, f"warm-{warmup}", "sync.compress=sign", "sync.feedback=onebit_adam",
                             f"sync.onebit_warmup={warmup}", steps=6)
        with open(self.path("warm-2/summary.json")) as file:
            count = json.load(file)["parameters"]
        short, long = self.sent("warm-2"), self.sent("warm-6")
        for rank in (0, 1):
            saved = long[rank] - short[rank]
            # Each step sends count/8 bytes instead of 4·count, plus a few bytes per unit.
            self.assertLess(abs(saved / 4 - (4 - 1 / 8) * count), 400)


class InvalidOptions(RankTestCase):
    def assert_rejected(self, message, *settings):
        answer = self.train_ranks(2, "refused", *settings, code=2)
        self.assertIn(message, answer.stderr)

    def test_rejects_combinations_that_diverge(self):
        for compress in ("topk:0.01", "sign"):
            self.assert_rejected("without error feedback may diverge", f"sync.compress={compress}")
        self.assert_rejected("its residual would grow", "sync.compress=randomk:0.01", "sync.feedback=ef")
        words = [word for one in ("run.threads=1", "sync.compress=topk:0.05") for word in ("--set", one)]
        answer = self.train("--nproc", "2", "--force", "--run-dir", self.path("forced"), *words, steps=2)
        self.assertIn("warning: sync.compress = \"topk:0.05\" with sync.feedback = \"none\"", answer.stderr)

    def test_rejects_unsupported_settings(self):
        self.assert_rejected("the length of the vector", "sync.compress=topk:100000000", "sync.feedback=ef")
        self.assert_rejected("sync.quantise", "sync.method=zero3", "sync.compress=int8")
        self.assert_rejected("must send changes of the weights", "sync.method=gossip", "sync.compress=topk:0.1", "sync.feedback=ef")
        self.assert_rejected("needs a fixed graph", "sync.method=gossip", "sync.topology=one_peer", "sync.compress=int8",
                             "sync.feedback=ef21")
        self.assert_rejected("keep the sum of a chunk uncompressed", "sync.method=zero1", "sync.compress=sign",
                             "sync.feedback=doublesqueeze")
        self.assert_rejected("these servers send weights", "sync.method=ps", "sync.compress=sign",
                             "sync.feedback=doublesqueeze")
        self.assert_rejected("train.optimizer = adamw or adam", "sync.compress=sign", "sync.feedback=onebit_adam",
                             "train.optimizer=sgd")
        self.assert_rejected("sync.onebit_warmup: got 0", "sync.compress=sign", "sync.feedback=onebit_adam", "sync.onebit_warmup=0")
        self.assert_rejected("rescale the error feedback", "sync.compress=sign", "sync.feedback=ef", "train.precision=fp16")


if __name__ == "__main__":
    unittest.main()
