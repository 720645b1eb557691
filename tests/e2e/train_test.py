"""End-to-end tests of espalier train, generate and eval on a small model: learning, bit-identical resume, signals, the
contents of the run folder, and error messages."""
import json
import math
import os
import pty
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

from cli_runner import ESPALIER, run, start, wait_until

RUN = """
[run]
name = "tiny"
dir = "{folder}/run"
seed = 3
threads = 2
[model]
arch = "gpt"
layers = 2
heads = 2
dim = 32
seq_len = 32
dropout = {dropout}
[data]
train = "{folder}/text.txt"
val_fraction = 0.1
[train]
steps = {steps}
global_batch = 8
lr = 1e-2
warmup = 2
"""


class TempFolderTestCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="espalier-train-")
        self.addCleanup(shutil.rmtree, self.folder)
        with open(self.path("text.txt"), "w") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 400)

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_file(self, steps=20, dropout=0.0):
        """Writes run.toml atomically, because a rank that is still running may read it."""
        with open(self.path("run.toml.new"), "w") as file:
            file.write(RUN.format(folder=self.folder, steps=steps, dropout=dropout))
        os.replace(self.path("run.toml.new"), self.path("run.toml"))
        return self.path("run.toml")

    def train(self, *arguments, steps=20, dropout=0.0, code=0):
        answer = run("train", self.run_file(steps, dropout), *arguments)
        self.assertEqual(answer.returncode, code, answer.stderr)
        return answer

    def metrics(self, run_dir="run"):
        with open(self.path(run_dir + "/metrics.jsonl")) as file:
            return [json.loads(line) for line in file]

    def logged_steps(self, run_dir):
        """Number of steps in metrics.jsonl of a running job; the last line may be incomplete."""
        try:
            with open(self.path(run_dir + "/metrics.jsonl"), "rb") as file:
                return file.read().count(b"\n")
        except FileNotFoundError:
            return 0

    def files(self, run_dir="run"):
        """All files of a run folder: relative path to content."""
        held = {}
        for folder, _, names in os.walk(self.path(run_dir)):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    held[os.path.relpath(file.name, self.path(run_dir))] = file.read()
        return held

    def checkpoints(self, run_dir="run"):
        return sorted(os.listdir(self.path(run_dir + "/checkpoints")))

    def manifest(self, step, run_dir="run"):
        with open(self.path(f"{run_dir}/checkpoints/step-{step}/manifest.json")) as file:
            return json.load(file)

    def assert_same_checkpoint(self, step, one, other):
        a, b = self.manifest(step, one), self.manifest(step, other)
        self.assertEqual(a["files"], b["files"])  # sizes and checksums of parameters and optimizer state
        self.assertEqual({k: v for k, v in a["state"].items() if k not in ("run", "restarts")},
                         {k: v for k, v in b["state"].items() if k not in ("run", "restarts")})


class Learning(TempFolderTestCase):
    def test_log_uses_singular_for_one_rank_and_step(self):
        answer = self.train("--set", "train.global_batch=1", "--set", "run.threads=1", "--set", "train.warmup=0", steps=1)
        self.assertIn("on 1 rank (allreduce, dp=1) of 1 thread; 1 step of 1 sequence × 32 tokens", answer.stderr)
        self.assertIn("done after 1 step,", answer.stdout)

    def test_loss_starts_at_ln_vocabulary_size_and_falls(self):
        self.train(steps=60)
        losses = [m["loss"] for m in self.metrics()]
        self.assertLess(abs(losses[0] - math.log(257)), 0.3)
        self.assertLess(losses[-1], losses[0] - 2)
        self.assertLess(self.metrics()[-1]["val_loss"], losses[0] - 2)

    def test_loss_is_independent_of_micro_batch(self):
        self.train("--run-dir", self.path("whole"), "--set", "train.precision=fp64")
        self.train("--run-dir", self.path("split"), "--set", "train.precision=fp64", "--set", "train.micro_batch=2")
        for a, b in zip(self.metrics("whole"), self.metrics("split")):
            self.assertLess(abs(a["loss"] - b["loss"]), 1e-11)
            self.assertLess(abs(a["grad_norm"] - b["grad_norm"]), 1e-10)

    def test_threads_and_recomputation_change_no_bit(self):
        self.train("--run-dir", self.path("a"), dropout=0.1)
        self.train("--run-dir", self.path("b"), "--set", "run.threads=1", dropout=0.1)
        self.train("--run-dir", self.path("c"), "--set", "train.recompute=full", dropout=0.1)
        self.train("--run-dir", self.path("d"), "--set", "train.recompute=selective", dropout=0.1)
        for other in "bcd":
            self.assert_same_checkpoint(20, "a", other)


class Resume(TempFolderTestCase):
    def test_resumed_run_equals_uninterrupted_run(self):
        self.train("--run-dir", self.path("whole"), dropout=0.1)
        # The run file still says 20 steps; removing later checkpoints simulates an interruption after step 8.
        self.train("--run-dir", self.path("cut"), "--set", "checkpoint.every=8", "--set", "checkpoint.keep=0", dropout=0.1)
        for step in (16, 20):
            shutil.rmtree(self.path(f"cut/checkpoints/step-{step}"))
        answer = self.train("--run-dir", self.path("cut"), dropout=0.1)
        self.assertIn("resumed from", answer.stderr)
        self.assert_same_checkpoint(20, "whole", "cut")
        steps = [m["step"] for m in self.metrics("cut")]
        self.assertEqual(steps, list(range(1, 21)))
        whole = {m["step"]: m["loss"] for m in self.metrics("whole")}
        self.assertEqual([m["loss"] for m in self.metrics("cut")], [whole[s] for s in steps])

    def test_async_checkpoints_equal_sync_checkpoints(self):
        self.train("--set", "checkpoint.every=5", "--run-dir", self.path("plain"))
        self.train("--set", "checkpoint.every=5", "--set", "checkpoint.async=true", "--run-dir", self.path("behind"))
        for step in (10, 15, 20):
            self.assert_same_checkpoint(step, "plain", "behind")

    def test_skips_incomplete_checkpoint(self):
        self.train("--set", "checkpoint.every=10")
        os.remove(self.path("run/checkpoints/step-20/manifest.json"))
        answer = self.train()
        self.assertIn("step-10", answer.stderr)
        self.assertIn("skipped checkpoint", answer.stderr)

    def test_rejects_damaged_checkpoint(self):
        self.train()
        path = self.path("run/checkpoints/step-20/model-00001-of-00001.safetensors")
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        answer = run("train", self.run_file(30))
        self.assertEqual(answer.returncode, 4)
        self.assertIn("damaged", answer.stderr)

    def test_rejects_resume_with_other_optimizer(self):
        self.train()
        answer = run("train", self.run_file(30), "--set", "train.optimizer=sgd")
        self.assertEqual(answer.returncode, 2)
        self.assertIn("adamw", answer.stderr)


class Signals(TempFolderTestCase):
    def test_closed_terminal_writes_checkpoint(self):
        for words in ([], ["--nproc", "2"]):
            parent_end, child_end = pty.openpty()
            process = subprocess.Popen(["setsid", "--ctty", "--wait", ESPALIER, "train", self.run_file(100000), *words, "--run-dir",
                                        self.path("closed")], stdin=child_end, stdout=child_end, stderr=child_end)
            os.close(child_end)
            self.assertTrue(wait_until(lambda: self.logged_steps("closed") >= 3))
            os.close(parent_end)
            self.assertEqual(process.wait(60), 75)
            self.assertEqual(len(self.checkpoints("closed")), 1)
            shutil.rmtree(self.path("closed"))

    def test_keeps_sighup_ignored_under_nohup(self):
        process = subprocess.Popen(["nohup", ESPALIER, "train", self.run_file(100000)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertTrue(wait_until(lambda: self.logged_steps("run") >= 3))
        process.send_signal(signal.SIGHUP)
        at = self.logged_steps("run")
        self.assertTrue(wait_until(lambda: self.logged_steps("run") >= at + 20))
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 75)

    def stop_with(self, number):
        process = start("train", self.run_file(100000))
        self.assertTrue(wait_until(lambda: self.logged_steps("run") >= 3 or process.poll() is not None))
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors

    def test_sigterm_writes_checkpoint_and_exits_with_75(self):
        code, errors = self.stop_with(signal.SIGTERM)
        self.assertEqual(code, 75, errors)
        steps = os.listdir(self.path("run/checkpoints"))
        self.assertEqual(len(steps), 1)
        at = int(steps[0].split("-")[1])
        answer = run("train", self.path("run.toml"), "--set", f"train.steps={at + 2}")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn(f"at step {at}", answer.stderr)

    def test_sigint_exits_with_75(self):
        self.assertEqual(self.stop_with(signal.SIGINT)[0], 75)

    def test_resume_ignores_partial_checkpoint_of_killed_run(self):
        process = start("train", self.run_file(100000), "--set", "checkpoint.every=1", "--set", "log.every=1000000")
        folder = self.path("run/checkpoints")
        self.assertTrue(wait_until(lambda: os.path.isdir(folder) and
                                   any(name.startswith("step-") for name in os.listdir(folder))))
        process.kill()
        process.communicate(timeout=60)
        answer = run("train", self.path("run.toml"), "--set", "train.max_minutes=0.001")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn("resumed from", answer.stderr)
        self.assertFalse([n for n in os.listdir(folder) if n.startswith(".partial")])


class RunFolder(TempFolderTestCase):
    def test_contains_documented_files_and_fields(self):
        self.train("--set", "log.trace=true", "--set", "train.eval_every=10")
        for line in self.metrics():
            for key in "step loss grad_norm lr tokens tokens_per_s step_ms mfu".split():
                self.assertIn(key, line)
        self.assertIn("val_loss", self.metrics()[9])
        with open(self.path("run/summary.json")) as file:
            summary = json.load(file)
        self.assertEqual(set("world steps final_loss parameters tokens_per_s peak_bytes restarts periodic_saves wall_s method "
                             "compress feedback bytes_sent_per_step max_bytes_sent_per_step val_loss hardware "
                             "exposed_ms_per_step waited_ms_per_step layout".split()), set(summary))
        # V·h + s·h + L(12h² + 13h) + 2h
        self.assertEqual(summary["parameters"], 257 * 32 + 32 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32)
        with open(self.path("run/ranks/rank-0.json")) as file:
            rank = json.load(file)
        memory = rank["memory"]
        self.assertEqual(memory["parameter"]["peak"], 4 * summary["parameters"])
        self.assertEqual(memory["gradient"]["peak"], 4 * summary["parameters"])
        self.assertEqual(memory["optimizer"]["peak"], 8 * summary["parameters"])
        self.assertGreater(memory["activation"]["peak"], 0)
        with open(self.path("run/trace.json")) as file:
            names = {event.get("name") for event in json.load(file)["traceEvents"]}
        self.assertTrue({"forward", "backward", "optimizer"} <= names)
        answer = run("train", self.path("run/run.toml"), "--resume", "none", "--run-dir", self.path("again"))
        self.assertEqual(answer.returncode, 0, answer.stderr)  # the resolved run.toml is itself a valid run file
        self.assert_same_checkpoint(20, "run", "again")

    def test_run_file_md_matches_output_of_train_keys_option(self):
        page = os.path.join(os.path.dirname(__file__), "../../docs/run_file.md")
        with open(page) as file:
            self.assertEqual(run("train", "--keys").stdout, file.read(), "espalier train --keys > docs/run_file.md")

    def test_tensorboard_events_are_well_formed(self):
        self.train()
        name, = os.listdir(self.path("run/events"))
        with open(self.path("run/events/" + name), "rb") as file:
            data = file.read()
        table = []
        for i in range(256):
            for _ in range(8):
                i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
            table.append(i)

        def masked_crc(chunk):
            crc = 0xFFFFFFFF
            for byte in chunk:
                crc = table[(crc ^ byte) & 255] ^ (crc >> 8)
            crc ^= 0xFFFFFFFF
            return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

        at = records = 0
        while at < len(data):
            length, crc = struct.unpack_from("<QI", data, at)
            self.assertEqual(crc, masked_crc(data[at:at + 8]))
            event = data[at + 12:at + 12 + length]
            self.assertEqual(struct.unpack_from("<I", data, at + 12 + length)[0], masked_crc(event))
            at += 16 + length
            records += 1
        self.assertGreater(records, 20 * 5)


class Errors(TempFolderTestCase):
    def assert_rejected(self, code, *words, arguments=()):
        answer = run("train", self.path("run.toml"), *arguments)
        self.assertEqual(answer.returncode, code, answer.stderr)
        for word in words:
            self.assertIn(word, answer.stderr)

    def test_suggests_nearest_key(self):
        self.run_file()
        self.assert_rejected(2, "steps", arguments=["--set", "train.setps=5"])
        self.assert_rejected(2, "train", arguments=["--set", "trian.steps=5"])
        with open(self.path("run.toml"), "a") as file:
            file.write("weight_dacay = 1.0\n")
        self.assert_rejected(2, "weight_decay", "run.toml:")

    def test_invalid_values_name_valid_values(self):
        self.run_file()
        self.assert_rejected(2, "divide", arguments=["--set", "train.micro_batch=3"])
        self.assert_rejected(2, "expected an integer", arguments=["--set", "train.steps=many"])
        self.assert_rejected(2, "cosine", arguments=["--set", "train.schedule=cosinus"])
        self.assert_rejected(2, "heads", arguments=["--set", "model.heads=5"])
        self.assert_rejected(2, "gpt2-124m", arguments=["--set", "model.preset=gpt2-124"])

    def test_reports_invalid_value_once_for_all_ranks(self):
        for method, setting in (("local", "sync.tau=0"), ("diloco", "sync.outer_lr=-1"), ("diloco", "sync.period=-1")):
            answer = self.train("--nproc", "2", "--set", "sync.method=" + method, "--set", setting, code=2)
            self.assertEqual(answer.stderr.count("\n"), 1, answer.stderr)
            self.assertIn(setting.replace("=", ": got "), answer.stderr)

    def test_warns_when_decay_exceeds_run(self):
        answer = self.train("--set", "train.schedule=wsd", "--set", "train.decay_steps=100", steps=4)
        self.assertIn("train.decay_steps = 100: longer than the run; clamped to train.steps = 4", answer.stderr)

    def test_rejects_non_finite_numbers(self):
        self.run_file()
        for value in ("inf", "-inf", "nan"):
            self.assert_rejected(2, "train.lr", "finite", value, arguments=["--set", "train.lr=" + value])
        self.assert_rejected(2, "sync.bucket_mb", "finite", arguments=["--set", "sync.bucket_mb=inf"])
        with open(self.path("run.toml"), "a") as file:
            file.write("clip = nan\n")
        self.assert_rejected(2, "run.toml:", "train.clip", "finite")

    def test_rejects_run_name_with_path(self):
        self.run_file()
        for name in ("../../out", "a/b", "..", "."):
            self.assert_rejected(2, "run.name = " + name, "run.dir", arguments=["--set", f'run.name="{name}"'])

    def test_rejects_empty_resume_and_run_dir(self):
        self.run_file()
        for words in (["--resume", ""], ["--set", "checkpoint.resume="]):
            self.assert_rejected(2, "auto, none", arguments=words)
        self.assert_rejected(2, "--run-dir", arguments=["--run-dir", ""])
        self.assertFalse(os.path.exists(self.path("run")))

    def test_names_vocab_key_when_vocabulary_is_too_small(self):
        self.run_file()
        self.assert_rejected(2, "model.vocab = 10: the text has token id 122; set at least 123", arguments=["--set", "model.vocab=10"])
        self.train("--set", "model.vocab=123", steps=2)

    def test_rejects_nproc_other_than_world_size(self):
        environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        answer = subprocess.run([ESPALIER, "train", self.run_file(), "--nproc", "4"], env=environment, text=True,
                                capture_output=True, timeout=60)
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertIn("--nproc: got 4", answer.stderr)
        self.assertIn("has already started 2 ranks", answer.stderr)

    def test_reports_out_of_memory(self):
        def little():
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

        if subprocess.run([ESPALIER, "--version"], capture_output=True, preexec_fn=little).returncode != 0:
            self.skipTest("this build does not start within 2 GiB of address space")
        answer = subprocess.run([ESPALIER, "train", self.run_file(), "--set", "train.global_batch=67108864", "--set",
                                 "train.micro_batch=1"], capture_output=True, text=True, timeout=120, preexec_fn=little)
        self.assertEqual(answer.returncode, 1, answer.stderr)
        self.assertIn("out of memory: ", answer.stderr)
        self.assertNotIn("bad_alloc", answer.stderr)

    def test_rejects_layout_that_does_not_match_world_size(self):
        self.run_file()
        self.assert_rejected(2, "2 ranks", "has 1", arguments=["--set", "parallel.tp=2"])
        self.assert_rejected(2, "allreduce", arguments=["--set", "sync.method=zero9"])

    def test_names_missing_files(self):
        self.run_file()
        self.assert_rejected(4, "nowhere.txt", arguments=["--set", "data.train=" + self.path("nowhere.txt")])
        answer = run("train", self.path("absent.toml"))
        self.assertEqual(answer.returncode, 4)
        self.assertIn("absent.toml", answer.stderr)

    def test_rejects_text_shorter_than_sequence(self):
        self.run_file()
        with open(self.path("short.txt"), "w") as file:
            file.write("short")
        answer = run("train", self.path("run.toml"), "--set", "data.train=" + self.path("short.txt"),
                     "--set", "data.val_fraction=0")
        self.assertEqual(answer.returncode, 2, answer.stderr)

    def test_toml_errors_name_line_and_column(self):
        with open(self.path("run.toml"), "w") as file:
            file.write("[run\n")
        self.assert_rejected(2, "run.toml:1:")


class Generation(TempFolderTestCase):
    def test_generates_learned_text(self):
        self.train(steps=150)
        answer = run("generate", "--checkpoint", self.path("run"), "--prompt", "the quick ", "--tokens", "20",
                     "--temperature", "0")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn("the quick brown fox", answer.stdout)

    def test_encoder_decoder_answers_trained_pairs(self):
        pairs = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}
        with open(self.path("pairs.jsonl"), "w") as file:
            for source, target in pairs.items():
                file.write(json.dumps({"source": source, "target": target}) + "\n")
        with open(self.path("pairs.toml"), "w") as file:
            file.write(f"""
[model]
preset = "t5-tiny"
vocab = 0
[data]
train = "{self.path('pairs.jsonl')}"
objective = "pairs"
val_fraction = 0
[train]
steps = 150
global_batch = 8
lr = 5e-3
warmup = 5
weight_decay = 0
eval_every = 0
""")
        done = run("train", self.path("pairs.toml"), "--run-dir", self.path("pairs"))
        self.assertEqual(done.returncode, 0, done.stderr)
        for source, target in pairs.items():
            answer = run("generate", "--checkpoint", self.path("pairs"), "--prompt", source, "--temperature", "0")
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertEqual(answer.stdout, f"{source}\n{target}\n")

    def test_sampling_depends_only_on_seed(self):
        self.train(steps=5)
        texts = [subprocess.run([ESPALIER, "generate", "--checkpoint", self.path("run"), "--tokens", "100", "--seed", seed,
                                "--top-k", "50", "--threads", threads], capture_output=True, timeout=60, check=True).stdout
                for seed, threads in (("1", "1"), ("1", "2"), ("2", "1"))]  # bytes: untrained output is not UTF-8
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_eval_reports_every_token(self):
        self.train(steps=30)
        answer = run("eval", "--checkpoint", self.path("run"), "--text", self.path("text.txt"), "--json",
                     self.path("eval.json"))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        with open(self.path("eval.json")) as file:
            result = json.load(file)
        self.assertEqual(result["tokens"], len(result["token_losses"]))
        self.assertEqual(result["tokens"], os.path.getsize(self.path("text.txt")) - 1)
        self.assertAlmostEqual(result["perplexity"], math.exp(result["loss"]))
        self.assertLess(result["loss"], math.log(257))

    def test_eval_errors_name_the_file(self):
        self.train(steps=2)
        for flag, text, says in (("--text", "", ": got 0 tokens"), ("--ids", "1 999", ", line 1: got the token id 999"),
                                 ("--ids", "1 2\n1 -4", ", line 2: got the token id -4")):
            with open(self.path("given"), "w") as file:
                file.write(text)
            answer = run("eval", "--checkpoint", self.path("run"), flag, self.path("given"))
            self.assertEqual(answer.returncode, 4, answer.stderr)
            self.assertIn(self.path("given") + says, answer.stderr)
        answer = run("eval", "--checkpoint", self.path("run"), "--text", self.path("text.txt"), "--json", "-")
        self.assertIn("loss", json.loads(answer.stdout))

    def test_eval_uses_the_training_objective_of_encoders(self):
        for arch, objective in (("bert", "masked_token"), ("t5", "span_corruption")):
            self.train("--set", "model.arch=" + arch, "--run-dir", self.path(arch), steps=3)
            answer = run("eval", "--checkpoint", self.path(arch), "--text", self.path("text.txt"), "--json",
                         self.path("eval.json"))
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertIn("objective " + objective, answer.stdout)
            with open(self.path("eval.json")) as file:
                result = json.load(file)
            self.assertEqual(result["tokens"], len(result["token_losses"]))
            self.assertLess(0.1, result["tokens"] / os.path.getsize(self.path("text.txt")))
            self.assertLess(result["tokens"] / os.path.getsize(self.path("text.txt")), 0.3)
            self.assertAlmostEqual(result["loss"], math.log(257), delta=1.5)

    def test_rejects_folder_without_checkpoint(self):
        answer = run("generate", "--checkpoint", self.folder)
        self.assertEqual(answer.returncode, 4)
        self.assertIn("no complete checkpoint", answer.stderr)


class Precision(TempFolderTestCase):
    def test_bf16_and_fp16_losses_stay_close_to_fp32(self):
        sgd = ["--set", "train.optimizer=sgd", "--set", "train.clip=0"]  # equivalence is defined for ten SGD steps
        self.train("--run-dir", self.path("fp32"), *sgd, steps=10)
        for precision in ("bf16", "fp16"):
            self.train("--run-dir", self.path("sgd" + precision), "--set", "train.precision=" + precision, *sgd, steps=10)
            a, b = self.metrics("fp32")[-1]["loss"], self.metrics("sgd" + precision)[-1]["loss"]
            self.assertLess(abs(a - b) / a, 0.02, precision)
            self.train("--run-dir", self.path(precision), "--set", "train.precision=" + precision, steps=40)
            self.assertLess(self.metrics(precision)[-1]["loss"], self.metrics(precision)[0]["loss"] - 1.5)
            with open(self.path(precision + "/ranks/rank-0.json")) as file:
                memory = json.load(file)["memory"]
            with open(self.path(precision + "/summary.json")) as file:
                parameters = json.load(file)["parameters"]
            self.assertEqual([memory[k]["peak"] for k in ("parameter", "gradient", "optimizer")],
                             [2 * parameters, 2 * parameters, 12 * parameters])


if __name__ == "__main__":
    unittest.main()
