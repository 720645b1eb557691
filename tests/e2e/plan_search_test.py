"""End-to-end tests of espalier plan search: all methods find the same optimum; Pareto front, explanation, HTML page and run
files; parallel.layout = auto trains the layout that the search found."""
import json
import os
import re
import subprocess
import unittest

from cli_runner import ESPALIER, free_port, run
from ranks_test import RankTestCase

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TWO_CORES = os.path.join(ROOT, "tests", "data", "planner", "two_cores.toml")  # calibrated on a machine with two cores
SMALL = ("--model", "gpt3-1.3b", "--cluster", "selene", "--gpus", "16", "--global-batch", "64",
         "--axis", "micro_batch=1,2,4", "--axis", "schedule=1f1b,interleaved:2,zb-h1", "--axis", "cp=1,2")


class Search(RankTestCase):
    def search(self, *words, code=0):
        answer = run("plan", "search", *words)
        self.assertEqual(answer.returncode, code, answer.stderr)
        return answer

    def found(self, *words):
        self.search(*words, "--json", self.path("out.json"))
        with open(self.path("out.json")) as file:
            return json.load(file)

    def test_all_methods_find_same_optimum_and_report_counts(self):
        found = self.found(*SMALL, "--method", "all")
        names = [one["method"] for one in found["methods"]]
        self.assertEqual(names, ["exhaustive", "dynamic", "integer", "evolution", "annealing", "gradient"])
        values = [one["best"]["value"] for one in found["methods"]]
        for name, value in zip(names, values):
            self.assertAlmostEqual(value, values[0], delta=1e-9 * values[0], msg=name)
        by_name = {one["method"]: one for one in found["methods"]}
        self.assertGreater(by_name["exhaustive"]["considered"], 1000)
        self.assertLess(by_name["integer"]["evaluated"], by_name["exhaustive"]["considered"] / 5)
        for one in found["methods"]:
            self.assertGreater(one["evaluated"], 0)
            self.assertLessEqual(one["evaluated"], one["considered"])
        self.assertLessEqual({"layout", "memory_bytes", "step_s", "fits"}, set(found["best"]))
        self.assertTrue(found["best"]["fits"])
        layout = found["best"]["layout"]
        self.assertEqual(layout["tp"] * layout["pp"] * layout["dp"] * layout["cp"], 16)

    def test_layouts_within_prediction_error_of_best_are_ties(self):
        found = self.found(*SMALL, "--top", "40")
        report = json.loads(run("plan", "estimate", "--model", "gpt3-1.3b", "--cluster", "selene", "--gpus", "16",
                                "--global-batch", "64", "--json", "-").stdout)
        low, high = found["best"]["interval_s"]
        self.assertAlmostEqual(found["tie_error"], (high - low) / 2 / found["best"]["step_s"], places=9)
        self.assertAlmostEqual(report["interval_s"][1] / report["step_s"] - 1, 0.12, places=9)
        best = found["best"]["value"]
        for one in found["top"]:
            self.assertEqual(one["tie"], one["value"] <= best * (1 + found["tie_error"]), one)
        self.assertTrue(found["best"]["tie"])
        ties = sum(one["tie"] for one in found["top"])
        text = self.search(*SMALL, "--top", "40").stdout
        self.assertEqual(len(re.findall(r"B +tie$", text, re.M)), ties)
        self.assertRegex(text, rf"ties: {ties} of the 40 listed layouts are within the planner's error of [\d.]+ % of the best; "
                               r"ordered by predicted value, then less memory")
        alone = self.found(*SMALL, "--axis", "tp=16", "--axis", "micro_batch=4", "--axis", "schedule=1f1b", "--axis", "cp=1",
                           "--axis", "recompute=none", "--axis", "zero=0", "--axis", "offload=none", "--axis", "sequence=true")
        self.assertEqual([one["tie"] for one in alone["top"]], [False] * len(alone["top"]))

    def test_pareto_front_trades_time_for_memory(self):
        front = self.found(*SMALL, "--pareto")["pareto"]
        self.assertGreater(len(front), 2)
        for a, b in zip(front, front[1:]):
            self.assertLess(a["step_s"], b["step_s"])
            self.assertGreater(a["memory_bytes"], b["memory_bytes"])

    def test_objectives_give_different_optima(self):
        fast, small = self.found(*SMALL), self.found(*SMALL, "--objective", "memory")
        self.assertLess(small["best"]["memory_bytes"]["total"], fast["best"]["memory_bytes"]["total"])
        self.assertLess(fast["best"]["step_s"], small["best"]["step_s"])

    def test_explain_and_html_show_limits_and_landscape(self):
        answer = self.search(*SMALL, "--explain", "--html", self.path("page.html"))
        for words in ("What limits it", "Best other value of each axis", "arithmetic rate", "Memory of the fullest"):
            self.assertIn(words, answer.stdout)
        with open(self.path("page.html")) as file:
            page = file.read()
        self.assertGreater(page.count("<circle"), 20)
        self.assertIn("<polyline", page)
        self.assertIn("<title>dp=", page)
        self.assertEqual(page.count("<td>tie</td>"), sum(one["tie"] for one in self.found(*SMALL)["top"]))
        self.assertIn("the planner's error of", page)
        for axis in ("step time", "memory of the fullest device"):
            self.assertIn(axis, page)

    def test_out_restricts_search_to_trainable_layouts(self):
        words = ("--model", "gpt3-1.3b", "--cluster", "selene", "--gpus", "16", "--global-batch", "64",
                 "--axis", "pp=4", "--axis", "micro_batch=1", "--axis", "offload=none")
        best = self.found(*words)["best"]["layout"]["schedule"]
        self.assertIn(best, ("zb-2p", "zb-v", "dualpipe"))  # not supported by the trainer
        answer = self.search(*words, "--out", self.path("best.toml"))
        self.assertIn("only layouts that the trainer supports", answer.stdout)
        with open(self.path("best.toml")) as file:
            self.assertRegex(file.read(), r"(?m)^schedule = .(1f1b|interleaved|zb-h1).$")
        self.assertIn("--axis schedule: got dualpipe; expected", self.search(*words, "--axis", "schedule=dualpipe", "--out", self.path("no.toml"),
                                                   code=2).stderr)

    def test_written_run_file_is_read_back(self):
        words = ("--model", "gpt-tiny", "--cluster", TWO_CORES, "--gpus", "2", "--global-batch", "8", "--software",
                 "espalier", "--precision", "fp32")
        found = self.found(*words, "--axis", "offload=none", "--out", self.path("best.toml"))
        answer = run("plan", "estimate", "--run", self.path("best.toml"), "--cluster", TWO_CORES, "--gpus", "2", "--json",
                     self.path("estimate.json"))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        with open(self.path("best.toml")) as file:
            text = file.read()
        for key in ("tp", "pp", "dp", "cp"):
            self.assertRegex(text, rf"(?m)^{key} = {found['best']['layout'][key]}$")

    def test_mixed_pipeline_uses_both_gpu_types(self):
        found = self.found("--model", "gpt3-1.3b", "--cluster", "dgx-a100", "--gpus", "4", "--also", "dgx-1:4",
                           "--global-batch", "64", "--precision", "fp16")
        self.assertEqual(sum(stage["layers"] for stage in found["stages"]), 24)
        self.assertEqual(len({stage["processor"] for stage in found["stages"]}), 2)
        self.assertGreater(found["step_s"], found["ideal_s"])

    def test_searches_trillion_parameter_model_on_3072_gpus(self):
        found = self.found("--model", "gpt-1t", "--cluster", "selene", "--gpus", "3072", "--global-batch", "3072")
        self.assertTrue(found["exact"])
        self.assertEqual(found["best"]["layout"]["tp"] * found["best"]["layout"]["pp"] * found["best"]["layout"]["dp"] *
                         found["best"]["layout"]["cp"], 3072)


class InvalidOptions(RankTestCase):
    def search_error(self, *words):
        answer = run("plan", "search", *words)
        self.assertEqual(answer.returncode, 2, answer.stderr)
        return answer.stderr

    def test_unknown_names_suggest_the_nearest(self):
        self.assertIn('"exhaustive"', self.search_error(*SMALL, "--method", "exhaustve"))
        self.assertIn('"goodput"', self.search_error(*SMALL, "--objective", "godput"))
        self.assertIn('"tp"', self.search_error(*SMALL, "--axis", "tpp=2"))
        self.assertIn("1, 2, 4, 8, 16", self.search_error(*SMALL, "--axis", "tp=3"))
        self.assertIn("dgx-1:16", self.search_error(*SMALL[:8], "--also", "dgx-1"))
        self.assertIn("--top: got 0", self.search_error(*SMALL, "--top", "0"))
        self.assertIn("--evaluations: got -5", self.search_error(*SMALL, "--method", "evolution", "--evaluations", "-5"))

    def test_mixed_pipeline_rejects_options_without_effect(self):
        words = ("--model", "gpt2-124m", "--cluster", "dgx-a100", "--gpus", "4", "--also", "dgx-1:4", "--precision", "fp16")
        for more in (("--out", self.path("x.toml")), ("--html", self.path("x.html")), ("--explain",), ("--top", "3"),
                     ("--objective", "memory"), ("--axis", "tp=2")):
            self.assertIn(f"{more[0]}: has no effect with --also", self.search_error(*words, *more))

    def test_reports_least_memory_when_nothing_fits(self):
        words = self.search_error("--model", "gpt-1t", "--cluster", "dgx-a100", "--gpus", "8", "--global-batch", "8")
        self.assertRegex(words, r"does not fit on 8 devices .*: the layout that needs least memory, .*, needs [\d.]+ GB")


class AutoLayout(RankTestCase):
    def auto(self, ranks, name, *settings, steps=4):
        words = ["--nproc", str(ranks), "--run-dir", self.path(name), "--cluster", TWO_CORES,
                 "--set", "parallel.layout=auto"]
        for setting in settings:
            words += ["--set", setting]
        return self.train(*words, steps=steps)

    def test_trains_chosen_layout_and_compares_prediction(self):
        answer = self.auto(4, "auto")
        chosen = re.search(r"parallel\.layout = auto: (.*?), predicted", answer.stderr)
        self.assertTrue(chosen, answer.stderr)
        with open(self.path("auto/summary.json")) as file:
            summary = json.load(file)
        layout = summary["layout"]
        self.assertEqual(layout["dp"] * layout["tp"] * layout["pp"] * layout["cp"], 4)
        self.assertIn(f"dp={layout['dp']}", chosen.group(1))
        self.assertGreater(summary["predicted_step_s"], 0)
        self.assertGreater(summary["measured_step_s"], 0)
        self.assertAlmostEqual(summary["prediction_error"],
                               summary["predicted_step_s"] / summary["measured_step_s"] - 1, places=6)
        with open(self.path("auto/run.toml")) as file:
            text = file.read()
        self.assertRegex(text, rf"(?m)^tp = {layout['tp']}$")
        self.assertRegex(text, r"(?m)^layout = ''$")
        # The resolved run file gives the same losses without a search.
        again = run("train", self.path("auto/run.toml"), "--nproc", "4", "--run-dir", self.path("again"))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertNotIn("auto", again.stderr)
        self.assertEqual([m["loss"] for m in self.metrics("again")], [m["loss"] for m in self.metrics("auto")])

    def test_reports_why_machine_cannot_be_measured(self):
        answer = run("train", self.run_file(2), "--nproc", "2", "--run-dir", self.path("none"), "--set", "parallel.layout=auto",
                     env={"XDG_CACHE_HOME": self.path("cache"), "TMPDIR": "/nonexistent"})
        self.assertEqual(answer.returncode, 4, answer.stderr)
        for words in ("plan calibrate", "TMPDIR", "--cluster"):
            self.assertIn(words, answer.stderr)

    def test_keeps_settings_of_the_run_file(self):
        self.auto(2, "zero", "sync.method=zero2", "train.micro_batch=2", "train.recompute=full")
        with open(self.path("zero/run.toml")) as file:
            text = file.read()
        self.assertRegex(text, r"(?m)^method = 'zero2'$")
        self.assertRegex(text, r"(?m)^micro_batch = 2$")

    def test_divergent_replicas_get_no_context_parallelism(self):
        self.auto(2, "gossip", "sync.method=local")
        with open(self.path("gossip/summary.json")) as file:
            layout = json.load(file)["layout"]
        self.assertEqual(layout["cp"], 1)

    def test_ranks_of_another_launcher_use_choice_of_rank_0(self):
        port = free_port()
        secret = self.path("secret")
        with open(secret, "w") as file:
            file.write("0123456789abcdef0123456789abcdef")
        os.chmod(secret, 0o600)
        command = [ESPALIER, "train", self.run_file(3), "--run-dir", self.path("joined"), "--cluster", TWO_CORES, "--set",
                   "parallel.layout=auto"]
        processes = []
        for rank in (0, 1):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ESPALIER_SECRET_FILE=secret)
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                              text=True))
        num_reports = 0
        for process in processes:
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
            num_reports += errors.count("parallel.layout = auto:")
        self.assertEqual(num_reports, 1)
        with open(self.path("joined/summary.json")) as file:
            self.assertGreater(json.load(file)["predicted_step_s"], 0)

    def test_invalid_layout_value_is_rejected(self):
        answer = self.train("--set", "parallel.layout=best", code=2)
        self.assertIn("auto", answer.stderr)


if __name__ == "__main__":
    unittest.main()
