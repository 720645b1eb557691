"""Gradients and moves that travel as codes, with the real binary: they learn, send the bytes that the formats say, stop
and go on with the same bits, and refuse what could not work."""
import json
import unittest

from ranks_test import OnRanks

WAYS = {
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


class Codes(OnRanks):
    def go_on(self, name, *settings, steps=6):
        """Without stopping, and stopped after 3 steps and gone on, to the bit."""
        settings += ("run.deterministic=true",)
        self.train_ranks(2, name, *settings, steps=steps)
        self.train_ranks(2, name + "-again", *settings, "checkpoint.every=3", steps=steps)
        self.assertEqual(self.losses(name), self.losses(name + "-again"), name)
        words = ["--resume", self.path(f"{name}-again/checkpoints/step-3")]
        answer = self.train("--nproc", "2", "--run-dir", self.path(name + "-on"), *words,
                            *(word for one in ("run.threads=1",) + settings for word in ("--set", one)), steps=steps,
                            dropout=0.1)
        self.assertNotIn("begin at 0", answer.stderr)
        self.assertEqual(self.losses(name)[3:], self.losses(name + "-on"), name)

    def test_stopping_and_going_on_changes_no_bit(self):
        for name, way in WAYS.items():
            with self.subTest(name):
                self.go_on(name, *way)

    def test_other_exchanges_begin_at_0_and_say_so(self):
        self.train_ranks(2, "first", "sync.compress=topk:0.1", "sync.feedback=ef", steps=3)
        resume = f"checkpoint.resume={self.path('first')}/checkpoints/step-3"
        answer = self.train_ranks(2, "other", "sync.compress=topk:0.1", "sync.feedback=ef21", resume)
        self.assertIn("they begin at 0", answer.stderr)

    def test_they_learn(self):
        for name, way in WAYS.items():
            with self.subTest(name):
                self.train_ranks(2, "learn-" + name, *way, steps=40)
                self.assertLess(self.metrics("learn-" + name)[-1]["loss"], 3.5, name)

    def test_eight_bits_send_a_quarter_and_lose_little(self):
        same = ("train.optimizer=sgd", "train.lr=0.1", "train.eval_every=100", "run.deterministic=true")
        self.train_ranks(2, "whole", *same, steps=100)
        self.train_ranks(2, "eight", *same, "sync.compress=int8:256", "sync.feedback=doublesqueeze", steps=100)
        whole, eight = (self.metrics(name)[-1]["val_loss"] for name in ("whole", "eight"))
        self.assertLess(whole, 3)  # of ln 257 = 5.5
        self.assertLess(abs(eight / whole - 1), 0.02)
        for long, short in zip(self.sent("whole"), self.sent("eight")):
            self.assertGreater(long / short, 3.8)

    def sent(self, name, op=None):
        return [sum(row["bytes_sent"] for row in self.rank_file(name, rank)["comm"] if op in (None, row["op"]))
                for rank in (0, 1)]

    def test_signs_of_the_momentum_are_a_32nd_of_the_gradients(self):
        for warmup in (2, 6):
            self.train_ranks(2, f"warm-{warmup}", "sync.compress=sign", "sync.feedback=onebit_adam",
                             f"sync.onebit_warmup={warmup}", steps=6)
        with open(self.path("warm-2/summary.json")) as file:
            count = json.load(file)["parameters"]
        short, long = self.sent("warm-2"), self.sent("warm-6")
        for rank in (0, 1):
            saved = long[rank] - short[rank]
            # Four steps of 4·count bytes are four of count/8, with a few bytes per unit.
            self.assertLess(abs(saved / 4 - (4 - 1 / 8) * count), 400)


class Refused(OnRanks):
    def refused(self, why, *settings):
        answer = self.train_ranks(2, "refused", *settings, code=2)
        self.assertIn(why, answer.stderr)

    def test_what_diverges_by_theory(self):
        for compress in ("topk:0.01", "sign"):
            self.refused("without error feedback may diverge", f"sync.compress={compress}")
        self.refused("its residual would grow", "sync.compress=randomk:0.01", "sync.feedback=ef")
        words = [word for one in ("run.threads=1", "sync.compress=topk:0.05") for word in ("--set", one)]
        answer = self.train("--nproc", "2", "--force", "--run-dir", self.path("forced"), *words, steps=2)
        self.assertIn("warning: sync.compress = \"topk:0.05\" with sync.feedback = \"none\"", answer.stderr)

    def test_what_cannot_be(self):
        self.refused("exceeds the", "sync.compress=topk:100000000", "sync.feedback=ef")
        self.refused("sync.quantise", "sync.method=zero3", "sync.compress=int8")
        self.refused("must send changes of the weights", "sync.method=gossip", "sync.compress=topk:0.1", "sync.feedback=ef")
        self.refused("needs a fixed graph", "sync.method=gossip", "sync.topology=one_peer", "sync.compress=int8",
                     "sync.feedback=ef21")
        self.refused("keep the sum of a chunk uncompressed", "sync.method=zero1", "sync.compress=sign",
                     "sync.feedback=doublesqueeze")
        self.refused("these servers send weights", "sync.method=ps", "sync.compress=sign",
                     "sync.feedback=doublesqueeze")
        self.refused("train.optimizer = adamw or adam", "sync.compress=sign", "sync.feedback=onebit_adam",
                     "train.optimizer=sgd")
        self.refused("sync.onebit_warmup: got 0", "sync.compress=sign", "sync.feedback=onebit_adam", "sync.onebit_warmup=0")
        self.refused("rescale the error feedback", "sync.compress=sign", "sync.feedback=ef", "train.precision=fp16")


if __name__ == "__main__":
    unittest.main()
