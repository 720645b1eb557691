"""Silent data corruption: flipped bits in one replica's parameters or optimizer state, and wrong GEMM results, must be detected.
Without errors nothing may be reported. Prints its figures; ESPALIER_TEST_LONG=1 or TRIALS=n for the long form."""
import json
import random
import unittest

from fault_test_case import LONG, FaultTestCase, trials

ALGORITHMS = ("ring ring_bidirectional naive direct recursive_doubling halving_doubling tree double_tree hierarchical "
              "torus2d").split()


class SilentErrorTestCase(FaultTestCase):
    def ended(self, name, code, *words, ranks=3, steps=12, fault=None):
        process = self.begin(name, *words, ranks=ranks, steps=steps, fault=fault)
        self.assertEqual(self.wait_for_end(process), code, self.said(name)[-3000:])


class FlippedBits(SilentErrorTestCase):
    def test_flipped_bit_is_detected_with_its_rank(self):
        draw, late = random.Random(1), []
        count = trials(1, 40)
        for trial in range(count):
            rank, bit, name = draw.randrange(3), draw.randrange(1 << 40), f"run{trial}"
            self.ended(name, 3, "--set", "run.check_replicas_every=4", "--set", "run.check_products_every=0",
                       fault=f"flip:{rank}:{4 + trial % 4}:{bit}")
            event = self.events(name, "replica_differs")[0]
            self.assertEqual(event["ranks"], [rank], event)
            self.assertIn(f"rank {rank} differs from the 2 other replicas", self.said(name))
            late.append(event["step"] - 4 - trial % 4)
        self.assertLessEqual(max(late), 4)
        print(f"bit flips in one of 3 replicas: {count} of {count} detected with the right rank, at most {max(late)} steps later")

    def test_both_ranks_are_named_when_two_replicas_differ(self):
        self.ended("two", 3, "--set", "run.check_replicas_every=5", ranks=2, fault="flip:1:5:12345")
        self.assertIn("ranks 0 and 1 differ", self.said("two"))

    def test_corrupt_state_is_not_checkpointed(self):
        self.ended("kept", 3, "--set", "checkpoint.every=6", ranks=2, fault="flip:1:6:777")
        self.assertNotIn("checkpoints/step-6", self.said("kept"))


class WrongGemms(SilentErrorTestCase):
    def test_wrong_gemm_is_detected_with_its_rank(self):
        self.ended("run", 3, ranks=2, fault="product:1:7")
        event = self.events("run", "product_wrong")[0]
        self.assertEqual((event["ranks"], event["step"]), ([1], 7))
        self.assertIn("rank 1 computed a wrong GEMM result in step 7", self.said("run"))
        self.assertIn("run file, data files and binary are not the cause", self.said("run"))


class EqualReplicas(SilentErrorTestCase):
    def check(self, name, *words, ranks=3):
        self.ended(name, 0, "--set", "run.check_replicas_every=1", "--set", "run.check_products_every=1", *words,
                   ranks=ranks)

    def test_replicas_are_equal_after_every_step(self):
        self.check("plain")


@unittest.skipUnless(LONG, "long form")
class EqualReplicasLong(EqualReplicas):
    test_replicas_are_equal_after_every_step = None

    def test_replicas_are_equal_with_every_algorithm_and_method(self):
        for algorithm in ALGORITHMS:
            with self.subTest(algorithm):
                self.check(algorithm, "--set", f"comm.all_reduce={algorithm}", ranks=4)
        for method in ("zero1", "zero2", "zero3", "ps", "gossip", "local", "diloco"):
            with self.subTest(method):
                self.check(method, "--set", f"sync.method={method}", ranks=4)
        for words in (["train.precision=bf16"], ["sync.compress=topk:0.1", "sync.feedback=ef"], ["sync.wire=bf16"],
                      ["sync.buckets=observed"], ["sync.buckets=cycle"], ["parallel.tp=2"], ["parallel.pp=2"],
                      ["sync.compress=powersgd:2", "sync.feedback=ef"], ["train.optimizer=sgd"]):
            with self.subTest(" ".join(words)):
                self.check("-".join(w.replace("=", "_") for w in words), *[x for w in words for x in ("--set", w)],
                           ranks=4)


@unittest.skipUnless(LONG, "long form")
class CheckCost(SilentErrorTestCase):
    def test_prints_cost_of_checks(self):
        """Measures the time of the checks at the default intervals, from the flight recorders."""
        self.ended("run", 0, "--set", "model.dim=384", "--set", "model.layers=6", "--set", "model.heads=6", "--set",
                   "model.seq_len=128", "--set", "run.check_replicas_every=10", ranks=2, steps=40)
        took = {"compare": [], "product": [], "step": []}
        for record in self.flight("run")[0]:
            key = record["text"] if record["kind"] == "mark" else record["kind"]
            if key not in took:
                continue
            if key == "product":  # the "bytes" field holds nanoseconds
                took[key].append(record["bytes"] * 1e-6)
            elif record["state"] == "begun":
                begun = record["mono_ns"]
                if key == "step":
                    step_begun = begun
            elif record["state"] == "ended":
                took[key].append((record["mono_ns"] - (step_begun if key == "step" else begun)) * 1e-6)
        step = sorted(took["step"])[len(took["step"]) // 2]
        compare = sorted(took["compare"])[len(took["compare"]) // 2]
        product = sum(took["product"]) / len(took["product"])
        with open(self.path("run/summary.json")) as file:
            parameters = json.load(file)["parameters"]
        print(f"{parameters} parameters, step {step:.1f} ms: replica comparison {compare:.2f} ms ({compare / step:.2%} of a step; "
              f"{compare / step / 100:.4%} if done every 100 steps); GEMM check {product:.2f} ms "
              f"({product / step / 10:.4%} if done every 10 steps)")
        self.assertLess(compare / step / 100 + product / step / 10, 0.01)


if __name__ == "__main__":
    unittest.main()
