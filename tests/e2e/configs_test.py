"""End-to-end test of every run file in configs/: its data are in the repository, and two training steps from the repository
root give a finite loss."""
import glob
import json
import math
import os
import subprocess
import tempfile
import tomllib
import unittest

from cli_runner import run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHORT = ["train.steps=2", "train.warmup=0", "train.global_batch=2", "train.micro_batch=0", "train.eval_every=0",
         "train.eval_batches=1", "train.max_minutes=0", "checkpoint.every=0", "checkpoint.resume=none",
         "log.every=1"]
# Overrides make slow or large configurations small; all keys of the run file are still parsed.
NARROW = {"gpt2_124m": ["model.layers=1", "model.dim=96", "model.seq_len=64"],
          "long_context": ["model.seq_len=2048"]}
PARAMETERS = {"bert_lecture": 10_477_058}


def name_of(path):
    return os.path.splitext(os.path.basename(path))[0]


def data_paths(path):
    with open(path, "rb") as file:
        data = tomllib.load(file).get("data", {})
    values = [data.get(key, []) for key in ("train", "val")]
    return [one for value in values for one in ([value] if isinstance(value, str) else value)]


class Configs(unittest.TestCase):
    def setUp(self):
        before = os.getcwd()
        os.chdir(ROOT)
        self.addCleanup(os.chdir, before)

    def test_every_config_trains(self):
        paths = sorted(glob.glob("configs/*.toml"))
        self.assertGreaterEqual(len(paths), 7)
        for path in paths:
            with self.subTest(path), tempfile.TemporaryDirectory(prefix="espalier-configs-") as folder:
                self.two_steps(path, folder)

    def test_data_of_every_config_is_in_the_repository(self):
        paths = {one for path in glob.glob("configs/*.toml") for one in data_paths(path)}
        self.assertIn("data/tinyshakespeare.txt", paths)
        for path in paths:
            self.assertTrue(os.path.exists(path), path)
        if not os.path.exists(".git"):
            self.skipTest("not a git checkout: the data exist, but may not be tracked")
        listed = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "--error-unmatch", "--", *paths],
                                capture_output=True, text=True)
        self.assertEqual(listed.returncode, 0, listed.stderr)

    def two_steps(self, path, folder):
        name = name_of(path)
        arguments = [word for one in SHORT + NARROW.get(name, []) for word in ("--set", one)]
        answer = run("train", path, "--run-dir", folder + "/run", *arguments)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        with open(folder + "/run/metrics.jsonl") as file:
            losses = [json.loads(line)["loss"] for line in file]
        self.assertEqual(len(losses), 2)
        for loss in losses:
            self.assertTrue(math.isfinite(loss) and loss > 0, losses)
        with open(folder + "/run/summary.json") as file:
            parameters = json.load(file)["parameters"]
        self.assertEqual(parameters, PARAMETERS.get(name, parameters))


if __name__ == "__main__":
    unittest.main()
