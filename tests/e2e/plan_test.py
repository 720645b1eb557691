"""End-to-end tests of espalier plan: estimates as text, JSON and HTML, validation against published results, the examples
and numbers of the lectures, and error messages."""
import json
import os
import re
import tempfile
import unittest

from cli_runner import run

PUBLISHED = os.path.join(os.path.dirname(__file__), "..", "data", "planner", "published.csv")
LECTURE = ("--model", "llama3-70b", "--cluster", "selene", "--gpus", "512", "--tp", "8", "--pp", "4", "--dp", "16",
           "--micro-batch", "1", "--global-batch", "1024", "--sequence", "--recompute", "selective", "--zero", "1")


class PlanTestCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def run_plan(self, *arguments):
        answer = run("plan", *arguments)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return answer.stdout

    def estimate(self, *arguments):
        return json.loads(self.run_plan("estimate", *arguments, "--json", "-"))

    def plan_error(self, *arguments, code=2):
        answer = run("plan", *arguments)
        self.assertEqual(answer.returncode, code, answer.stdout + answer.stderr)
        self.assertEqual(len(answer.stderr.strip().splitlines()), 1, answer.stderr)
        return answer.stderr


class Estimates(PlanTestCase):
    def test_json_has_documented_keys(self):
        report = self.estimate(*LECTURE)
        for key in ("parameters", "memory_bytes", "flops_per_step", "step_s", "tflops_per_gpu", "mfu", "hfu", "bubble",
                    "comm", "fits", "reasons"):
            self.assertIn(key, report)
        for key in ("parameter", "gradient", "optimizer", "activation", "buffer", "total"):
            self.assertIn(key, report["memory_bytes"])
        for row in report["comm"]:
            for key in ("group", "op", "bytes", "time_s", "exposed_s"):
                self.assertIn(key, row)
        parts = report["time_s"]
        self.assertAlmostEqual(sum(parts.values()), report["step_s"], delta=0.01 * report["step_s"])

    def test_lecture_layout_of_llama3_70b_fits_and_is_explained(self):
        report = self.estimate(*LECTURE)
        self.assertTrue(report["fits"], report["reasons"])
        self.assertLess(report["memory_bytes"]["total"], 80e9)
        self.assertAlmostEqual(report["parameters"] / 1e9, 70.55, delta=0.01)
        self.assertEqual(report["layout"]["dp"], 16)
        self.assertTrue(0.2 < report["mfu"] < 0.65, report["mfu"])
        groups = {(row["group"], row["tier"]) for row in report["comm"]}
        self.assertIn(("tp", "inside"), groups)
        self.assertTrue({("pp", "across"), ("dp", "across")} <= groups, groups)
        text = self.run_plan("estimate", *LECTURE)
        for word in ("fits: ", "stage 0", "activations", "optimizer", "bubble", "tokens/s", "MFU", "inside a node",
                     "across nodes"):
            self.assertIn(word, text)

    def test_first_line_reports_fit_and_memory_total(self):
        """Line 1 says whether the policy fits; its memory total equals those of the table and the JSON. Line 2 names the software."""
        tight = ("--model", "llama2-7b", "--processor", "A100", "--gpus", "8", "--zero", "3", "--global-batch", "64")
        for arguments in (LECTURE, tight, LECTURE[:-2]):
            report = self.estimate(*arguments)
            lines = self.run_plan("estimate", *arguments).splitlines()
            verdict = re.match(r"(fits|does not fit): ([\d.]+ [GT]B) of ([\d.]+ GB) per device; step [\d.]+ m?s, "
                               r"([\d,]+) tokens/s, MFU ([\d.]+) %", lines[0])
            self.assertTrue(verdict, lines[0])
            self.assertEqual(verdict[1] == "fits", report["fits"])
            memory = report["memory_bytes"]
            total = memory["total"]
            self.assertAlmostEqual(sum(memory[key] for key in ("parameter", "gradient", "optimizer", "activation", "buffer",
                                                               "slack", "other")), total, delta=1e-6 * total)
            self.assertEqual(verdict[2], f"{total / 1e9:.2f} GB")
            self.assertEqual(report["fits"], total <= float(verdict[3].split()[0]) * 1e9)
            fullest = [line for line in lines if "(fullest)" in line]
            self.assertEqual(len(fullest), 1, lines)
            self.assertTrue(fullest[0].rstrip().endswith(verdict[2]), fullest)
            self.assertAlmostEqual(float(verdict[5]), 100 * report["mfu"], delta=0.051)
            self.assertRegex(lines[1], r"^assumes: software megatron-core \(default; --software changes it\): .*; cluster .*; "
                                       r"precision bf16")
            self.assertEqual(report["profile"]["software"], "megatron-core")
        named = self.run_plan("estimate", *LECTURE, "--software", "deepspeed", "--precision", "fp16").splitlines()[1]
        self.assertRegex(named, r"^assumes: software deepspeed: .*; cluster selene: 64 x 8 A100.*; precision fp16$")

    def test_warns_with_cost_when_tensor_group_spans_nodes(self):
        inside = self.estimate(*LECTURE)
        wide = [word for word in LECTURE]
        wide[wide.index("--tp") + 1] = "16"
        wide[wide.index("--dp") + 1] = "8"
        across = self.estimate(*wide)
        warning = [reason for reason in across["reasons"] if "tensor" in reason]
        self.assertEqual(len(warning), 1, across["reasons"])
        self.assertRegex(warning[0], r"\d+\.\d+ s")
        self.assertFalse([reason for reason in inside["reasons"] if "tensor" in reason])
        self.assertGreater(across["step_s"], inside["step_s"])

    def test_recomputation_and_zero_trade_time_for_memory(self):
        plain = self.estimate(*LECTURE)
        full = self.estimate(*[("full" if word == "selective" else word) for word in LECTURE])
        self.assertLess(full["memory_bytes"]["activation"], plain["memory_bytes"]["activation"])
        self.assertGreater(full["step_s"], plain["step_s"])
        none = self.estimate(*LECTURE[:-2])
        self.assertGreater(none["memory_bytes"]["optimizer"], 10 * plain["memory_bytes"]["optimizer"])

    def test_memory_table_shows_offloaded_bytes(self):
        small = ("estimate", "--model", "gpt2-124m", "--cluster", "dgx-a100", "--gpus", "1")
        self.assertRegex(self.run_plan(*small, "--offload", "host"), r"stage 0 .* GB on the host")
        self.assertRegex(self.run_plan(*small, "--offload", "file"), r"stage 0 .* GB on disk")

    def test_suggests_changes_when_policy_does_not_fit(self):
        report = self.estimate("--model", "llama2-7b", "--processor", "A100", "--gpus", "8", "--global-batch", "64")
        self.assertFalse(report["fits"])
        self.assertGreater(report["memory_bytes"]["total"], 85e9)
        would = [one for one in report["reasons"] if "would fit" in one]
        self.assertTrue(would, report["reasons"])
        self.assertTrue(any("zero" in one or "tp =" in one for one in would), would)

    def test_reads_policy_from_run_file(self):
        file = self.write("run.toml", '[model]\npreset = "gpt2-124m"\n[train]\nglobal_batch = 32\nmicro_batch = 2\n'
                          'precision = "bf16"\n[parallel]\ntp = 2\n[sync]\nmethod = "zero2"\n')
        report = self.estimate("--run", file, "--processor", "H100", "--gpus", "8")
        layout = report["layout"]
        self.assertEqual((layout["tp"], layout["dp"], layout["zero"], layout["micro_batch"], layout["software"]),
                         (2, 4, 2, 2, "espalier"))
        self.assertEqual(report["parameters"], 124439808)

    def test_reads_model_from_config_json_and_cluster_from_file(self):
        config = self.write("config.json", json.dumps({
            "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
            "num_experts_per_tok": 2, "max_position_embeddings": 32768}))
        cluster = self.write("mine.toml", '[cluster]\nname = "mine"\nprocessor = "H100"\nnodes = 4\n')
        report = self.estimate("--model", config, "--cluster", cluster, "--ep", "8", "--zero", "1", "--recompute", "full")
        self.assertAlmostEqual(report["parameters"] / 1e9, 46.703, delta=0.001)
        self.assertAlmostEqual(report["active_parameters"] / 1e9, 12.88, delta=0.01)
        self.assertIn("ep", {row["group"] for row in report["comm"]})
        self.assertTrue(any("4096" in one for one in report["assumed"]), report["assumed"])

    def test_cost_of_training_matches_tokens_and_step_time(self):
        report = self.estimate(*LECTURE, "--tokens", "15T")
        cost = report["cost"]
        steps = 15e12 / (1024 * 8192)
        self.assertAlmostEqual(cost["steps"], steps, delta=1)
        self.assertAlmostEqual(cost["gpu_hours"], 512 * cost["hours"], delta=1e-6 * cost["gpu_hours"])
        self.assertAlmostEqual(cost["hours"], cost["steps"] * report["step_s"] / 3600 / cost["goodput"],
                               delta=0.01 * cost["hours"])
        law = self.estimate(*LECTURE, "--tokens", "chinchilla")
        self.assertAlmostEqual(law["cost"]["tokens"], 20 * law["parameters"], delta=1)

    def test_html_page_has_no_external_references(self):
        page = self.path("plan.html")
        self.run_plan("estimate", *LECTURE, "--html", page)
        with open(page) as file:
            text = file.read()
        for word in ("<!doctype html>", "Memory", "Timeline", "Communication", "prefers-color-scheme", "<svg"):
            self.assertIn(word, text)
        outside = [one for one in re.findall(r'(?:src|href)="([^"]*)"', text)] + re.findall(r"url\(", text)
        self.assertEqual(outside, [])
        self.assertEqual(set(re.findall(r"https?://[^\s\"<]*", text)) - {"http://www.w3.org/2000/svg"}, set())

    def test_list_prints_catalog_names(self):
        text = self.run_plan("estimate", "--list")
        for word in ("selene", "nvl72", "B300-288GB", "P100-16GB-SXM2", "GH200-96GB", "megatron-core", "deepseek-v3",
                     "gpt3-175b"):
            self.assertIn(word, text)


class Validation(PlanTestCase):
    def test_predicts_published_results_within_bounds(self):
        file = self.path("out.json")
        text = self.run_plan("validate", "--rows", PUBLISHED, "--json", file)
        with open(file) as report:
            report = json.load(report)
        self.assertEqual(len(report["rows"]), 152)
        for row in report["rows"]:
            for key in ("row_id", "source", "predicted_s", "measured_s", "error", "predicted_mem_gb", "measured_mem_gb",
                        "fits", "interval_s", "assumed"):
                self.assertIn(key, row)
        sources = {one["source"]: one for one in report["sources"]}
        self.assertEqual(set(sources), {"megatron2021-t1", "zero-t1", "korthikanti2022", "mcore-h100-readme",
                                        "internevo-7b", "internevo-mem"})
        self.assertLess(sources["zero-t1"]["worst"], 0.03)
        for source, bound in (("megatron2021-t1", 0.04), ("korthikanti2022", 0.05), ("mcore-h100-readme", 0.06),
                              ("internevo-7b", 0.08)):
            self.assertLess(sources[source]["mean"], bound, source)
        self.assertLess(sources["megatron2021-t1"]["worst"], 0.08)
        # About 80 % of the rows are inside their 80 % prediction interval.
        timed = [row for row in report["rows"] if row["kind"] == "step" and row["interval_s"] and row["measured_s"]]
        inside = sum(row["interval_s"][0] <= row["measured_s"] <= row["interval_s"][1] for row in timed)
        self.assertGreater(inside, 0.75 * len(timed))
        self.assertLess(inside, 0.88 * len(timed))
        # Rows that ran are predicted to fit.
        self.assertEqual(sum(one["rejected"] for one in report["sources"]), 0)
        self.assertIn("korthikanti2022-001", text)

    def test_calibrate_fits_one_factor_per_source(self):
        report = json.loads(self.run_plan("validate", "--rows", PUBLISHED, "--calibrate", "3", "--json", "-"))
        for one in report["sources"]:
            if one["source"] == "zero-t1":
                self.assertEqual(one["scale"], 1)
            elif one["source"] == "megatron2021-t1":
                self.assertEqual(one["n"], 7)
                self.assertNotEqual(one["scale"], 1)
        self.assertEqual(sum(row.get("fitted_on", False) for row in report["rows"]), 12)

    def test_accepts_missing_columns_and_unknown_values(self):
        rows = self.write("rows.csv", "Source,layers,hidden,gpu,GPUs,step_time_s,schedule,experts,topk,recompute,kind,zero\n"
                          's,61,7168,H800,2048,5,"dualpipe, overlapped",256,8,"mla up, norm",step,\n'
                          "s,32,4096,nothing known,16,,zb-v,,,every 2nd layer,step,hsdp\n"
                          "s,80,8192,A100,8,,,,,,oom,0\n")
        report = json.loads(self.run_plan("validate", "--rows", rows, "--json", "-"))
        self.assertEqual(len(report["rows"]), 3)
        for row in report["rows"]:
            self.assertTrue(row["assumed"])
        self.assertGreater(report["rows"][0]["predicted_s"], 0)
        self.assertFalse(report["rows"][2]["fits"])
        self.assertEqual(report["sources"][0]["oom_right"], 1)

    def test_rejects_files_that_are_not_tables(self):
        self.assertIn("columns", self.plan_error("validate", "--rows", self.write("a.csv", "one,two\n1,2\n"), code=4))
        self.assertIn("closed", self.plan_error("validate", "--rows", self.write("b.csv", 'row_id,source\n"x'), code=4))
        answer = run("plan", "validate", "--rows", self.path("none.csv"))
        self.assertEqual(answer.returncode, 4)


class ReportText(PlanTestCase):
    def test_groups_digits_of_large_numbers(self):
        text = self.run_plan("estimate", "--model", "llama3-70b", "--cluster", "selene", "--gpus", "512", "--tp", "8", "--pp", "4",
                         "--global-batch", "1024", "--tokens", "15T", "--html", self.path("plan.html"))
        self.assertRegex(text, r"[\d,]+,\d{3},\d{3} device-hours, \$[\d,]+,\d{3},\d{3}")
        with open(self.path("plan.html")) as file:
            self.assertIn("Step time, s<", file.read())
        text = self.run_plan("estimate", "--model", "gpt-tiny", "--cluster", "selene", "--gpus", "8", "--global-batch", "8")
        self.assertRegex(text, r"(?m)^gpt-tiny: \d+,\d{3} parameters")

    def test_needed_memory_equals_sum_of_its_parts(self):
        text = self.run_plan("estimate", "--model", "llama3-70b", "--cluster", "selene", "--gpus", "512", "--tp", "8", "--pp", "4",
                         "--global-batch", "1024")
        line = next(line for line in text.splitlines() if "needs" in line)
        whole = float(re.search(r"needs ([\d.]+) GB", line)[1])
        parts = [float(part) for part in re.findall(r"(?:states|activations|buffers|context|fragmentation) ([\d.]+)", line)]
        self.assertEqual(len(parts), 5)
        self.assertAlmostEqual(whole, sum(parts), delta=0.3)
        self.assertRegex(text, r"\n *stage 0 .* 3\.00 GB ")  # the same context as in the reason line
        self.assertIn("context 3.0,", line)

    def test_error_lists_each_model_name_once(self):
        text = self.plan_error("estimate", "--model", "foo", "--cluster", "selene")
        self.assertEqual(text.count("mixtral-8x7b"), 1, text)


class InvalidOptions(PlanTestCase):
    def test_unknown_names_suggest_the_nearest(self):
        self.assertIn("H100-80GB-SXM", self.plan_error("estimate", "--model", "llama-7b", "--processor", "H10O"))
        self.assertIn("selene", self.plan_error("estimate", "--model", "llama-7b", "--cluster", "selen"))
        self.assertIn("llama-7b", self.plan_error("estimate", "--model", "llama-7", "--cluster", "selene"))
        self.assertIn("selective", self.plan_error("estimate", "--model", "llama-7b", "--processor", "A100", "--recompute", "selctive"))
        self.assertIn("topk", self.plan_error("estimate", "--model", "llama-7b", "--processor", "A100", "--compress", "topkk"))
        self.assertIn("zb-v", self.plan_error("estimate", "--model", "llama-7b", "--processor", "A100", "--schedule", "zbv"))

    def test_missing_options_and_fields_are_named(self):
        self.assertIn("--model", self.plan_error("estimate", "--cluster", "selene"))
        self.assertIn("--cluster", self.plan_error("estimate", "--model", "llama-7b"))
        config = self.write("config.json", '{"model_type": "llama", "hidden_size": 64}')
        self.assertIn("num_hidden_layers", self.plan_error("estimate", "--model", config, "--processor", "A100"))

    def test_impossible_layouts_suggest_valid_values(self):
        some = ("estimate", "--model", "llama-7b", "--processor", "A100", "--gpus", "8")
        self.assertIn("Try tp 4", self.plan_error(*some, "--tp", "7"))
        self.assertIn("Try tp 2", self.plan_error(*some, "--tp", "3"))
        self.assertIn("--dp 4", self.plan_error(*some, "--tp", "2", "--dp", "8"))
        self.assertIn("8", self.plan_error(*some, "--pp", "8", "--global-batch", "8", "--micro-batch", "3"))
        self.assertIn("32", self.plan_error(*some, "--pp", "4", "--schedule", "interleaved", "--interleave", "16",
                                         "--global-batch", "16"))
        self.assertIn("fp8", self.plan_error(*some, "--precision", "fp8"))

    def test_out_of_range_sizes_are_rejected(self):
        some = ("estimate", "--model", "llama-7b", "--processor", "A100")
        self.assertTrue(self.plan_error(*some, "--gpus", "100000000"))
        self.assertTrue(self.plan_error(*some, "--gpus", "8", "--tp", "0"))
        self.assertTrue(self.plan_error(*some, "--gpus", "8", "--seq", "-5"))
        self.assertTrue(self.plan_error(*some, "--gpus", "8", "--tokens", "many", "--global-batch", "8"))
        cluster = self.write("c.toml", '[cluster]\nname = "x"\nprocessor = "H100"\nnodes = 0\n')
        self.assertIn("at least 1", self.plan_error("estimate", "--model", "llama-7b", "--cluster", cluster))

    def test_options_without_effect_name_what_they_need(self):
        some = ("estimate", "--model", "gpt2-124m", "--processor", "A100", "--gpus", "8")
        for words, need in ((("--set", "train.steps=3"), "--run RUN.toml"), (("--recompute-layers", "5"), "--recompute full"),
                            (("--threads", "4"), "a cluster of CPUs"), (("--shard-group", "4"), "--zero 1, 2 or 3"),
                            (("--keep-gathered",), "--zero 3"), (("--quantised", "--zero", "2"), "--zero 3"),
                            (("--expert-nodes", "2"), "a model with experts"), (("--expert-tp", "2"), "a model with experts")):
            text = self.plan_error(*some, *words)
            self.assertIn(f"{words[0]}: has no effect without {need}", text)
        self.assertIn("no experts", self.plan_error(*some, "--ep", "2"))
        self.assertIn("shard_group = 3: must divide the 8", self.plan_error(*some, "--zero", "3", "--shard-group", "3"))
        self.assertIn("--net-gbps: got nan", self.plan_error(*some, "--net-gbps", "nan"))
        self.assertIn("--gpus: got 0; expected 1 to", self.plan_error(*some[:-1], "0"))

    def test_invalid_failure_and_straggler_options_are_rejected(self):
        some = ("simulate", "--model", "gpt2-124m", "--processor", "A100", "--gpus", "8")
        for words, text in ((("--mtbf", "-5"), "--mtbf: got -5"), (("--mtbf", "nan"), "--mtbf: got nan"),
                            (("--interval-s", "-3"), "--interval-s: got -3"), (("--mtbf", "9", "--days", "0"), "--days: got 0"),
                            (("--straggler", ":2"), "--straggler: got :2"),
                            (("--straggler", "0:1.5", "--straggler", "0:2"), "got rank 0 twice")):
            self.assertIn(text, self.plan_error(*some, *words))

    def test_unwritable_output_is_rejected_before_the_work(self):
        some = ("simulate", "--model", "gpt2-124m", "--processor", "A100", "--gpus", "8")
        for words in (("--json", self.path("none/x.json")), ("--trace", self.path("none/x.json")), ("--json", self.folder.name)):
            answer = run("plan", *some, *words)
            self.assertEqual((answer.returncode, answer.stdout), (4, ""))
            self.assertIn(f"{words[0]}: got {words[1]}", answer.stderr)
        answer = run("plan", "calibrate", "--seconds", "1", "--out", self.path("none/c.toml"))
        self.assertEqual((answer.returncode, answer.stdout), (4, ""))
        self.assertIn("--out: got", answer.stderr)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_misspelt_key_in_cluster_file_suggests_the_nearest(self):
        cluster = self.write("c.toml", '[cluster]\nname = "x"\nprocessor = "H100"\nnodse = 4\n')
        self.assertIn("nodes", self.plan_error("estimate", "--model", "llama-7b", "--cluster", cluster))


class ReferenceNumbers(PlanTestCase):
    def test_lab_numbers_match_lecture_figures(self):
        file = self.path("numbers.json")
        answer = run("lab", "numbers", "--json", file)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        with open(file) as report:
            report = json.load(report)
        shown = {(one["item"], one["shown"]) for one in report}
        for one in (("GPT-3, all parameters", "174604259328"), ("A100s for GPT-3 in 30 days at 160 TFLOP/s, 6TP", "759.5"),
                    ("activations of GPT-3, 3.2 M tokens, nothing recomputed", "430.3"),
                    ("7.5 B parameters on 64 ranks, ZeRO 3", "1.88"),
                    ("Chinchilla's tokens for 70 B parameters", "1.4"),
                    ("processor-hours of GPT-3 on 1024 A100 in 35 days", "860160"), ("… in dollars", "2.15")):
            self.assertIn(one, shown)
        held = {one["item"]: one["held"] for one in report}
        self.assertEqual(held["70 B, ZeRO 3 on 80 ranks"], "convention")
        self.assertEqual(held["utilisation of LLaMA-65B on 2048 A100 in 21 days, 8TP"], "differs")
        self.assertEqual(held["GPT-3, all parameters"], "agrees")
        self.assertRegex(answer.stdout, r"70 B, ZeRO 3 on 80 ranks +3.5 GB +14 GB +✓ convention  convention: the slide counts 4 bytes")


if __name__ == "__main__":
    unittest.main()
