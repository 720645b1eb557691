"""Copies that go their own ways, with the real binary: they learn, stop and go on with the same bits, leave a model that
others take up, say how far apart they are, and refuse graphs that could not work."""
import json
import subprocess
import unittest

from driving import ESPALIER
from ranks_test import OnRanks

WAYS = {
    "gossip": ("sync.method=gossip", "sync.topology=one_peer"),
    "tracking": ("sync.method=gossip", "sync.tracking=true", "train.optimizer=sgd", "train.lr=0.1"),
    "local": ("sync.method=local", "sync.tau=4"),
    "diloco": ("sync.method=diloco", "sync.period=4"),
}


class Apart(OnRanks):
    def test_stopping_and_going_on_changes_no_bit(self):
        for name, way in WAYS.items():
            self.train_ranks(4, name, *way, "run.deterministic=true")
            self.train_ranks(4, name + "-again", *way, "run.deterministic=true", "checkpoint.every=3")
            self.assertEqual(self.losses(name), self.losses(name + "-again"), name)
            words = ["--resume", self.path(f"{name}-again/checkpoints/step-3")]
            self.train("--nproc", "4", "--run-dir", self.path(name + "-on"), *words,
                       *(word for one in ("run.threads=1", "run.deterministic=true") + way for word in ("--set", one)),
                       steps=6, dropout=0.1)
            self.assertEqual(self.losses(name)[3:], self.losses(name + "-on"), name)

    def test_the_model_is_the_mean_and_anybody_takes_it_up(self):
        self.train_ranks(4, "gossip", "sync.method=gossip", "sync.consensus_every=2")
        told = [m for m in self.metrics("gossip") if "consensus" in m]
        self.assertGreaterEqual(len(told), 3)
        self.assertTrue(all(m["consensus"] > 0 for m in told))
        self.assertAlmostEqual(told[0]["spectral_gap"], 2 / 3, delta=1e-9)
        checkpoint = self.path("gossip/checkpoints/step-6")
        answer = subprocess.run([ESPALIER, "generate", "--checkpoint", checkpoint, "--prompt", "a", "--tokens", "4"],
                                capture_output=True, timeout=100)  # tokens are bytes, not always text
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.train("--nproc", "2", "--run-dir", self.path("on"), "--resume", checkpoint, "--set", "run.threads=1", steps=8,
                   dropout=0.1)
        self.assertEqual([m["step"] for m in self.metrics("on")], [7, 8])

    def test_one_peer_sends_less_and_ends_where_parallel_sgd_ends(self):
        same = ("train.optimizer=sgd", "train.lr=0.1", "train.eval_every=100", "run.deterministic=true")
        for name, way in (("psgd", ()), ("dsgd", WAYS["gossip"])):
            self.train_ranks(4, name, *same, *way, steps=100)
        psgd, dsgd = (self.metrics(name)[-1]["val_loss"] for name in ("psgd", "dsgd"))
        self.assertLess(psgd, 3)  # of ln 257 = 5.5
        self.assertLess(dsgd, 1.02 * psgd)
        sent = [sum(row["bytes_sent"] for row in self.rank_file(name, 0)["comm"]) for name in ("psgd", "dsgd")]
        self.assertLess(sent[1], 0.75 * sent[0])

    def test_a_rank_sends_its_values_to_those_that_hear_it(self):
        self.train_ranks(4, "ring", "sync.method=gossip")
        with open(self.path("ring/summary.json")) as file:
            count = json.load(file)["parameters"]
        for rank in range(4):
            sent = sum(row["bytes_sent"] for row in self.rank_file("ring", rank)["comm"] if row["op"] == "send")
            self.assertEqual(sent, 2 * 4 * count * 6)

    def test_graphs_that_could_not_work_are_refused(self):
        for text, why in (("nodes 4\n0 1\n2 3\n", "node 2 is not reachable from node 0"),
                          ("nodes 4\n0 1\n1 9\n", "line 3: node: got 9; expected 0 to 3"),
                          ("nodes 3\n0 1\n1 2\n", "the graph has 3 nodes; expected 4"),
                          ("nodes 4\n0 0 1\n1 1 1\n2 2 1\n3 3 0.5\n3 0 0.5\n", "expected 1,")):
            with open(self.path("graph.txt"), "w") as file:
                file.write(text)
            answer = self.train_ranks(4, "bad", "sync.method=gossip", f"sync.topology={self.path('graph.txt')}", code=2)
            self.assertIn(why, answer.stderr)


if __name__ == "__main__":
    unittest.main()
