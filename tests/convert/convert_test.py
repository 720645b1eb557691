"""espalier convert with the real binary: the command, beginning a run with a folder, and both directions against
`transformers`, with random models and with a real pretrained one."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

import environment
from driving import ESPALIER, run

HERE = pathlib.Path(__file__).parent
PROBE = os.environ.get("PROBE", "build/bin/convert_probe")
LIMIT = 1e-4

RUN = """
[run]
dir = "{folder}/{name}"
threads = 2
[model]
{model}
[data]
train = "{folder}/text.txt"
[train]
steps = {steps}
global_batch = 4
lr = 1e-2
"""


class InFolder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="espalier-convert-")
        self.addCleanup(shutil.rmtree, self.folder)
        with open(self.path("text.txt"), "w") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 200)

    def path(self, name):
        return os.path.join(self.folder, name)

    def espalier(self, *arguments, code=0):
        answer = run(*arguments)
        self.assertEqual(answer.returncode, code, answer.stderr)
        return answer

    def train(self, model, *arguments, name="run", steps=5, code=0):
        with open(self.path(name + ".toml"), "w") as file:
            file.write(RUN.format(folder=self.folder, model=model, name=name, steps=steps))
        return self.espalier("train", self.path(name + ".toml"), *arguments, code=code)

    def trained(self):
        self.train('preset = "llama-tiny"\nvocab = 264')
        return self.path("run")

    def losses(self, name="run"):
        with open(self.path(name + "/metrics.jsonl")) as file:
            return [json.loads(line)["loss"] for line in file]


def read_safetensors(path):
    """Names and bytes, by the published layout alone."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), file.read()
    metadata = header.pop("__metadata__", {})
    return metadata, {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
                      for name, entry in header.items()}


class Commands(InFolder):
    def test_there_and_back(self):
        source = self.trained()
        there = self.espalier("convert", source, self.path("hf"))
        self.assertIn("vocabulary cut from 264 rows to the 257 ids", there.stderr)
        self.assertRegex(there.stderr, r"llama with \d+ parameters in fp32: .*\(espalier\) → .*\(hf\)")
        self.assertEqual(there.stdout, "")
        self.assertEqual(sorted(os.listdir(self.path("hf"))),
                         ["config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
                          "tokenizer_config.json"])
        metadata, tensors = read_safetensors(self.path("hf/model.safetensors"))
        self.assertEqual(metadata, {"format": "pt"})
        self.assertEqual(tensors["model.embed_tokens.weight"][:2], ("F32", [257, 32]))
        with open(self.path("hf/config.json")) as file:
            config = json.load(file)
        self.assertEqual((config["vocab_size"], config["num_key_value_heads"], config["eos_token_id"]), (257, 2, 256))
        self.espalier("convert", self.path("hf"), self.path("back"))
        self.espalier("convert", self.path("back"), self.path("again"))
        for name in ["config.json", "model.safetensors", "tokenizer.json"]:
            with open(self.path("hf/" + name), "rb") as one, open(self.path("again/" + name), "rb") as other:
                self.assertEqual(one.read(), other.read(), name)

    def test_every_layout_says_the_same(self):
        source = self.trained()
        self.espalier("convert", source, self.path("hf"))
        self.espalier("convert", self.path("hf"), self.path("back"))
        said, lost = set(), set()
        for folder in [self.path("hf"), self.path("back")]:
            said.add(self.espalier("generate", "--checkpoint", folder, "--prompt", "the ", "--tokens", "20",
                                   "--temperature", "0").stdout)
            lost.add(self.espalier("eval", "--checkpoint", folder, "--text", self.path("text.txt")).stdout)
        self.assertEqual((len(said), len(lost)), (1, 1))
        # The padding's logits count in the loss of the run, and go with the padding.
        own = self.espalier("generate", "--checkpoint", source, "--prompt", "the ", "--tokens", "20", "--temperature", "0")
        self.assertEqual({own.stdout}, said)

    def test_without_a_tokenizer_ids_will_do(self):
        self.espalier("convert", self.trained(), self.path("hf"))
        os.remove(self.path("hf/tokenizer.json"))
        answer = self.espalier("convert", self.path("hf"), self.path("back"))
        self.assertIn("has no tokenizer", answer.stderr)
        with open(self.path("ids"), "w") as file:
            file.write("116 104 101 32 113 117")
        for folder in [self.path("hf"), self.path("back")]:
            self.assertIn("no tokenizer", self.espalier("generate", "--checkpoint", folder, "--prompt", "x", code=2).stderr)
            self.assertIn("tokens 5", self.espalier("eval", "--checkpoint", folder, "--ids", self.path("ids")).stdout)

    def test_dtype_and_shards(self):
        source = self.trained()
        self.espalier("convert", source, self.path("half"), "--dtype", "bf16", "--shard-gib", "0.00001")
        with open(self.path("half/model.safetensors.index.json")) as file:
            index = json.load(file)
        stored = {}
        for name in set(index["weight_map"].values()):
            self.assertRegex(name, r"^model-\d{5}-of-\d{5}\.safetensors$")
            stored.update(read_safetensors(self.path("half/" + name))[1])
        self.assertEqual(set(stored), set(index["weight_map"]))
        self.assertEqual({dtype for dtype, _, _ in stored.values()}, {"BF16"})
        self.assertEqual(sum(len(data) for _, _, data in stored.values()), index["metadata"]["total_size"])
        self.espalier("convert", self.path("half"), self.path("same"), "--layout", "hf")
        self.assertEqual(read_safetensors(self.path("same/model.safetensors"))[1], stored)

    def test_wrong_input_is_answered_in_words(self):
        source = self.trained()
        os.makedirs(self.path("full/x"))
        for arguments, code, words in [
                ([source, self.path("full")], 2, "not empty"),
                ([source, self.path("new"), "--layout", "gguf"], 2, "hf, espalier"),
                ([source, self.path("new"), "--dtype", "fp64"], 2, "fp32, bf16"),
                ([self.path("nowhere"), self.path("new")], 4, "no complete checkpoint"),
                ([source], 2, "destination")]:
            self.assertIn(words, self.espalier("convert", *arguments, code=code).stderr)
        self.espalier("convert", source, self.path("hf"))
        config = json.loads(pathlib.Path(self.path("hf/config.json")).read_text())
        for key, value, words in [("model_type", "mamba", "mamba"), ("hidden_size", 1 << 60, "hidden_size"),
                                  ("num_hidden_layers", 1 << 40, "config.json"), ("hidden_size", "x", "hidden_size")]:
            pathlib.Path(self.path("hf/config.json")).write_text(json.dumps({**config, key: value}))
            self.assertIn(words, self.espalier("convert", self.path("hf"), self.path("new"), code=4).stderr, key)
        pathlib.Path(self.path("hf/config.json")).write_text("{")
        self.espalier("convert", self.path("hf"), self.path("new"), code=4)
        self.assertFalse(os.path.exists(self.path("new")))
        self.assertEqual([name for name in os.listdir(self.folder) if "partial" in name], [])


class FineTuning(InFolder):
    def test_a_run_goes_on_from_a_folder(self):
        self.train('preset = "gpt-tiny"\nvocab = 257', steps=40)
        self.espalier("convert", self.path("run"), self.path("hf"))
        answer = self.train(f'init = "{self.path("hf")}"', name="tuned", steps=3)
        self.assertIn("parameters from " + self.path("hf"), answer.stderr)
        self.train('preset = "gpt-tiny"\nvocab = 257', name="cold", steps=3)
        self.assertLess(self.losses("tuned")[0], self.losses("cold")[0] - 1)
        # What was tuned needs the folder no more.
        shutil.rmtree(self.path("hf"))
        self.espalier("generate", "--checkpoint", self.path("tuned"), "--prompt", "the ", "--tokens", "4")

    def test_a_converted_checkpoint_is_resumed(self):
        self.train('preset = "gpt-tiny"\nvocab = 257', steps=40)
        self.espalier("convert", self.path("run"), self.path("hf"))
        self.espalier("convert", self.path("hf"), self.path("start"))
        self.train('preset = "gpt-tiny"\nvocab = 257', "--resume", self.path("start"), name="on", steps=3)
        self.assertLess(self.losses("on")[0], self.losses("run")[0] - 1)
        self.assertEqual(len(self.losses("on")), 3)

    def test_a_folder_is_not_resumed_but_begun_with(self):
        self.train('preset = "gpt-tiny"\nvocab = 257')
        self.espalier("convert", self.path("run"), self.path("hf"))
        answer = self.train('preset = "gpt-tiny"\nvocab = 257', "--resume", self.path("hf"), name="on", code=2)
        self.assertIn("model.init", answer.stderr)


class Folders(InFolder):
    def test_both_directions_against_transformers(self):
        answer = subprocess.run([environment.python(), str(HERE / "transformers_check.py"), ESPALIER, PROBE],
                                capture_output=True, text=True, timeout=250)
        print(answer.stdout)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)


class Pretrained(InFolder):
    TEXTS = ["A man is eating food.", "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.", "?",
             "The espalier is a tree trained along a frame; the frame is decided early, and every branch then knows where to go. " * 6]

    def check(self, *arguments):
        answer = subprocess.run([environment.python(), str(HERE / "pretrained_check.py"), *arguments], timeout=120,
                                capture_output=True, text=True)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return answer.stdout

    def states(self, model):
        with open(self.path("texts.json"), "w") as file:
            json.dump(self.TEXTS, file)
        self.check("states", model, self.path("texts.json"), self.path("ids"), self.path("theirs.npy"))

    def test_hidden_states_are_those_of_transformers(self):
        model = environment.pretrained()
        self.states(model)
        self.espalier("convert", model, self.path("checkpoint"))
        self.espalier("convert", self.path("checkpoint"), self.path("hf"))
        for folder in [self.path("checkpoint"), self.path("hf"), model]:
            subprocess.run([PROBE, folder, self.path("ids"), self.path("ours.npy"), "hidden"], check=True, timeout=60)
            worst = float(self.check("difference", self.path("ours.npy"), self.path("theirs.npy")))
            print(f"{folder}: largest difference of hidden states {worst:.2e}")
            self.assertLessEqual(worst, LIMIT)
        # Every tensor of the folder comes back; all it carried beside them is a list of positions.
        before = read_safetensors(os.path.join(model, "model.safetensors"))[1]
        after = read_safetensors(self.path("hf/model.safetensors"))[1]
        self.assertEqual(set(before) - set(after) - {"embeddings.position_ids"}, set())
        self.assertEqual({name: before[name] for name in after}, after)

    def test_its_tokenizer_gives_the_same_ids(self):
        model = environment.pretrained()
        self.states(model)
        theirs = [line.split()[1:-1] for line in pathlib.Path(self.path("ids")).read_text().splitlines()]
        self.espalier("convert", model, self.path("checkpoint"))
        with open(self.path("lines"), "w") as file:
            file.writelines(text + "\n" for text in self.TEXTS)
        ours = self.espalier("tokenizer", "encode", "-t", self.path("checkpoint"), "--lines", self.path("lines"))
        self.assertEqual([line.split() for line in ours.stdout.splitlines()], theirs)


if __name__ == "__main__":
    unittest.main()
