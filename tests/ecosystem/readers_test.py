"""Tests that TensorBoard and Prometheus can read run folders."""
import json
import math
import os
import unittest

from cli_runner import run
from packages import ask
from train_test import TempFolderTestCase

# TensorBoard's server reads folders with this multiplexer, which stops at a damaged record.
TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
runs = EventMultiplexer(tensor_size_guidance={"tensors": 0}).AddRunsFromDirectory(sys.argv[1]).Reload()
import tensorboard.util.tensor_util as util
found = {}
for name, tags in runs.Runs().items():
    for tag in tags["tensors"]:
        found[tag] = [[e.step, float(util.make_ndarray(e.tensor_proto))] for e in runs.Tensors(name, tag)]
print(json.dumps(found))
"""

PROMETHEUS = """
import json, sys
from prometheus_client.parser import text_string_to_metric_families
print(json.dumps([[f.name, f.type, f.documentation, [[s.name, s.labels, s.value] for s in f.samples]]
                  for f in text_string_to_metric_families(open(sys.argv[1]).read())]))
"""


class TensorBoard(TempFolderTestCase):
    def test_tensorboard_reads_event_files_of_run(self):
        self.train("--set", "train.eval_every=10")
        found = json.loads(ask(TENSORBOARD, self.path("run")))
        metrics = self.metrics()
        for tag, key in (("loss_metrics/global_avg_loss", "loss"), ("grad_norm", "grad_norm"), ("lr", "lr"),
                         ("throughput(tps)", "tokens_per_s")):
            self.assertEqual([step for step, _ in found[tag]], [line["step"] for line in metrics], tag)
            for (_, value), line in zip(found[tag], metrics):
                self.assertTrue(math.isclose(value, line[key], rel_tol=1e-6), (tag, value, line))
        self.assertEqual([step for step, _ in found["validation_metrics/loss"]], [10, 20])

    def test_discards_steps_repeated_after_resume(self):
        self.train("--set", "checkpoint.every=8", "--set", "train.schedule=constant")
        first = json.loads(ask(TENSORBOARD, self.path("run")))["loss_metrics/global_avg_loss"]
        self.train("--resume", self.path("run/checkpoints/step-8"), "--set", "train.schedule=constant")
        again = json.loads(ask(TENSORBOARD, self.path("run")))["loss_metrics/global_avg_loss"]
        self.assertEqual(len(os.listdir(self.path("run/events"))), 2)
        self.assertEqual([step for step, _ in again], list(range(1, 21)))
        self.assertEqual(again, first)


class Prometheus(TempFolderTestCase):
    def parsed(self, path):
        return {name: (kind, samples) for name, kind, _, samples in json.loads(ask(PROMETHEUS, path))}

    def test_parses_metrics_of_run(self):
        self.train("--nproc", "2", "--set", "run.threads=1")
        answer = run("metrics", self.path("run"), "--out", self.path("espalier.prom"))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        found = self.parsed(self.path("espalier.prom"))
        last = self.metrics()[-1]
        for name, kind, key, factor in (("espalier_step", "gauge", "step", 1), ("espalier_loss", "gauge", "loss", 1),
                                        ("espalier_tokens", "counter", "tokens", 1),
                                        ("espalier_step_seconds", "gauge", "step_ms", 1e-3)):
            (got, [[_, labels, value]]) = found[name]
            self.assertEqual((got, labels), (kind, {"run": "run"}))
            self.assertTrue(math.isclose(value, last[key] * factor, rel_tol=1e-12), (name, value))
        kind, samples = found["espalier_collective_sent_bytes"]
        self.assertEqual(kind, "counter")
        self.assertEqual({labels["rank"] for _, labels, _ in samples}, {"0", "1"})
        with open(self.path("run/ranks/rank-1.json")) as file:
            rows = json.load(file)["comm"]
        self.assertEqual(sum(value for _, labels, value in samples if labels["rank"] == "1"),
                         sum(row["bytes_sent"] for row in rows))

    def test_accepts_nan_loss_and_special_characters_in_name(self):
        odd = 'a "quoted" \\ name\nof two lines {x="y"} 1'
        os.mkdir(self.path(odd))
        with open(self.path(odd + "/metrics.jsonl"), "w") as file:
            file.write('{"step":1,"loss":2.5}\n{"step":2,"loss":null}\n{"step":3,"lo')
        answer = run("metrics", self.path(odd), "--out", self.path("espalier.prom"))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        found = self.parsed(self.path("espalier.prom"))
        self.assertEqual(found["espalier_step"], ("gauge", [["espalier_step", {"run": odd}, 2.0]]))
        (_, [[_, _, loss]]) = found["espalier_loss"]
        self.assertTrue(math.isnan(loss))

    def test_reports_folder_without_run(self):
        os.mkdir(self.path("empty"))
        for name in ("nowhere", "empty"):
            answer = run("metrics", self.path(name))
            self.assertEqual(answer.returncode, 4, answer.stderr)
            self.assertIn(name, answer.stderr)

    def test_adds_parent_folder_to_equal_run_names(self):
        for folder in ("a", "b"):
            os.makedirs(self.path(f"{folder}/base"))
            with open(self.path(f"{folder}/base/metrics.jsonl"), "w") as file:
                file.write('{"step": 1}\n')
        answer = run("metrics", self.path("a/base"), self.path("b/base"), self.path("a/../a/base/"))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual([line for line in answer.stdout.splitlines() if line.startswith("espalier_step{")],
                         ['espalier_step{run="a/base"} 1', 'espalier_step{run="b/base"} 1'])


if __name__ == "__main__":
    unittest.main()
