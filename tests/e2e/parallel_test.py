"""End-to-end tests of model parallelism: a mesh of eight processes, resharded checkpoints, the trace of a pipeline,
rank failures, and errors for invalid layouts."""
import json
import os
import signal
import unittest

from cli_runner import ranks_of, run, running
from ranks_test import RankFailure, RankTestCase

MODEL = ("model.layers=5", "model.heads=4", "train.micro_batch=1", "run.deterministic=true")


class ParallelTestCase(RankTestCase):
    def train_parallel(self, ranks, name, *settings, steps=4, code=0):
        return self.train_ranks(ranks, name, *MODEL, *settings, steps=steps, code=code)

    def summary(self, name):
        with open(self.path(f"{name}/summary.json")) as file:
            return json.load(file)


class Mesh(ParallelTestCase):
    def test_eight_processes_reach_loss_of_one_process(self):
        self.train_parallel(1, "one")
        answer = self.train_parallel(8, "mesh", "parallel.tp=2", "parallel.pp=2", "sync.method=zero1")
        for one, many in zip(self.losses("one"), self.losses("mesh")):
            self.assertAlmostEqual(one[0], many[0], delta=1e-5)
            self.assertAlmostEqual(one[1], many[1], delta=1e-4)
        self.assertIn("8 ranks (zero1, dp=2 tp=2 pp=2 schedule=1f1b)", answer.stderr)
        summary = self.summary("mesh")
        self.assertEqual(summary["world"], 8)
        self.assertEqual(summary["parameters"], self.summary("one")["parameters"])
        self.assertEqual(summary["layout"], {"dp": 2, "tp": 2, "pp": 2, "cp": 1, "ep": 1, "sequence": False,
                                             "schedule": "1f1b", "interleave": 1})
        self.assertEqual(self.metrics("mesh")[0]["layout"], "tp 2 × cp 1 × dp 2 × pp 2")
        with open(self.path("mesh/run.toml")) as file:
            self.assertIn("dp = 2", file.read())
        # rank = i_tp + tp·(i_cp + cp·(i_dp + dp·i_pp))
        for rank in range(8):
            report = self.rank_file("mesh", rank)
            self.assertEqual(report["coords"],
                             {"tp": rank % 2, "cp": 0, "dp": rank // 2 % 2, "pp": rank // 4, "ep": 0})
            groups = {row["group"] for row in report["comm"]}
            self.assertLessEqual({"world", "tensor", "copies", "model"}, groups)
            self.assertTrue(any(group.startswith("pipe_") for group in groups), groups)
        # A rank holds a tensor-parallel part of one stage: far less than half of the parameters.
        whole = self.rank_file("one", 0)["memory"]["parameter"]["peak"]
        self.assertLess(max(self.rank_file("mesh", rank)["memory"]["parameter"]["peak"] for rank in range(8)),
                        0.45 * whole)

    def test_context_parallel_reaches_loss_of_one_process(self):
        self.train_parallel(1, "one")
        self.train_parallel(4, "ring", "parallel.cp=2", "sync.method=zero3")
        self.train_parallel(2, "ulysses", "parallel.cp=2", "parallel.context=ulysses")
        for name in ("ring", "ulysses"):
            for one, many in zip(self.losses("one"), self.losses(name)):
                self.assertAlmostEqual(one[0], many[0], delta=1e-5)

    def test_expert_parallel_reaches_loss_of_one_process(self):
        experts = ("model.moe.experts=4", "model.moe.every=2")
        self.train_parallel(1, "one", *experts)
        self.train_parallel(4, "experts", "parallel.ep=2", *experts)
        for one, many in zip(self.losses("one"), self.losses("experts")):
            self.assertAlmostEqual(one[0], many[0], delta=1e-5)
        self.assertEqual(self.rank_file("experts", 3)["coords"]["ep"], 1)


class Resharding(ParallelTestCase):
    def test_resumes_in_any_layout(self):
        self.train_parallel(1, "whole", steps=6)
        self.train_parallel(4, "first", "parallel.tp=2", "parallel.pp=2", "checkpoint.every=3", steps=3)
        resume = f"checkpoint.resume={self.path('first')}/checkpoints/step-3"
        for ranks, name, settings in ((4, "dp4", ()), (2, "cp2", ("parallel.cp=2",)), (3, "pp3", ("parallel.pp=3",)),
                                      (4, "tp4", ("parallel.tp=4",)), (1, "one", ())):
            self.train_parallel(ranks, name, resume, *settings, steps=6)
            self.assertEqual([m["step"] for m in self.metrics(name)], [4, 5, 6])
            self.assertAlmostEqual(self.metrics(name)[-1]["loss"], self.metrics("whole")[-1]["loss"], delta=1e-4)

    def test_loads_initial_weights_of_any_layout(self):
        self.train_parallel(2, "pretrained", "parallel.tp=2", steps=3)
        source = self.path("pretrained") + "/checkpoints/step-3"
        converted = run("convert", source, self.path("hf"))
        self.assertEqual(converted.returncode, 0, converted.stderr)
        losses = {}
        for kind, init in (("own", source), ("hf", self.path("hf"))):
            for ranks, method, settings in ((1, "allreduce", ()), (4, "allreduce", ("parallel.tp=2", "parallel.pp=2")),
                                            (4, "zero3", ("parallel.tp=2",)), (3, "zero3", ("parallel.pp=3",))):
                name = f"{kind}-{ranks}-{method}"
                self.train_parallel(ranks, name, f"model.init={init}", "data.tokenizer=byte", f"sync.method={method}", *settings,
                                    steps=3)
                losses[name] = [loss for loss, _ in self.losses(name)]
        for name in losses:
            for one, many in zip(losses["own-1-allreduce"], losses[name]):
                self.assertAlmostEqual(one, many, delta=1e-5, msg=name)
        self.train_parallel(1, "fresh", steps=3)
        self.assertGreater(self.losses("fresh")[0][0] - losses["own-1-allreduce"][0], 0.1)


class RankFailures(RankFailure):
    def test_signal_stops_all_ranks_and_writes_checkpoint(self):
        process = self.start_long("signalled", *MODEL, "parallel.pp=2")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, errors)
        steps = [int(name.split("-")[1]) for name in os.listdir(self.path("signalled/checkpoints"))
                 if name.startswith("step-")]
        self.assertEqual(steps, [self.metrics("signalled")[-1]["step"]])

    def test_names_lost_rank_and_exits_with_3(self):
        for name, layout in (("stage", "parallel.pp=2"), ("share", "parallel.tp=2"), ("tokens", "parallel.cp=2")):
            process = self.start_long(name, *MODEL, layout)
            ranks = ranks_of(process.pid)
            os.kill(ranks[1], signal.SIGKILL)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 3, errors)
            self.assertIn("rank 1 killed (SIGKILL)", errors)
            for pid in ranks.values():
                self.assertFalse(running(pid), "a rank process is still running")


class Trace(ParallelTestCase):
    def test_trace_shows_four_stage_schedule(self):
        self.train_parallel(4, "traced", "parallel.pp=4", "log.trace=true", "train.micro_batch=2", "train.eval_every=0", steps=2)
        with open(self.path("traced/trace.json")) as file:
            events = json.load(file)["traceEvents"]
        for stage in range(4):
            mine = [e for e in events if e.get("ph") == "X" and e["pid"] == stage]
            actions = [e["name"] for e in sorted(mine, key=lambda e: e["ts"]) if e["name"][0] in "FB" and
                       e["name"][1:].isdigit()]
            warm = min(3 - stage, 4)
            expected = [f"F{i}" for i in range(warm)]
            for i in range(4 - warm):
                expected += [f"F{warm + i}", f"B{i}"]
            expected += [f"B{i}" for i in range(4 - warm, 4)]
            self.assertEqual(actions[:8], expected, f"stage {stage}")


class InvalidLayouts(ParallelTestCase):
    def assert_rejected(self, ranks, *settings, says):
        answer = self.train_parallel(ranks, "refused", *settings, code=2)
        for words in says:
            self.assertIn(words, answer.stderr)

    def test_rejects_invalid_layouts(self):
        near = f"layouts of"
        self.assert_rejected(3, "parallel.tp=3", says=["parallel.tp = 3", "4 attention heads", near, "pp=3"])
        self.assert_rejected(6, "parallel.pp=6", says=["parallel.pp = 6", "got 5", near])
        self.assert_rejected(4, "parallel.tp=3", says=["multiply to 3 ranks", "this run has 4"])
        self.assert_rejected(2, "parallel.cp=2", "model.seq_len=3", says=["parallel.cp = 2", "got 3", near])
        self.assert_rejected(2, "parallel.ep=2", says=["parallel.ep = 2", "no experts"])
        self.assert_rejected(2, "parallel.pp=2", "parallel.schedule=2f2b", says=["2f2b", "1f1b", "zb-h1"])
        self.assert_rejected(2, "parallel.pp=2", "sync.method=zero2", "sync.accumulate=reduced", says=["sync.accumulate", "local"])
        self.assert_rejected(2, "parallel.sequence=true", says=["parallel.sequence", "tp = 1"])
        self.assertFalse(os.path.exists(self.path("refused/metrics.jsonl")))


if __name__ == "__main__":
    unittest.main()
