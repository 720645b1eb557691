"""End-to-end tests of espalier convert: the command, starting a run from a Hugging Face folder, and both directions
compared with `transformers`, for random models and a real pretrained model."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

import environment
from cli_runner import ESPALIER, run

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


class TempFolderTestCase(unittest.TestCase):
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
    """Tensor names and bytes, by an independent reader of the safetensors format."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), file.read()
    metadata = header.pop("__metadata__", {})
    return metadata, {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
                      for name, entry in header.items()}


class ConvertCommand(TempFolderTestCase):
    def test_round_trips_checkpoint(self):
        source = self.trained()
        there = self.espalier("convert", source, self.path("hf"))
        self.assertIn("embedding cut from 264 rows to the 257 ids", there.stderr)
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

    def test_every_layout_gives_same_loss(self):
        source = self.trained()
        self.espalier("convert", source, self.path("hf"))
        self.espalier("convert", self.path("hf"), self.path("back"))
        said, lost = set(), set()
        for folder in [self.path("hf"), self.path("back")]:
            said.add(self.espalier("generate", "--checkpoint", folder, "--prompt", "the ", "--tokens", "20",
                                   "--temperature", "0").stdout)
            lost.add(self.espalier("eval", "--checkpoint", folder, "--text", self.path("text.txt")).stdout)
        self.assertEqual((len(said), len(lost)), (1, 1))
        # The run's loss includes the logits of vocabulary padding, which conversion removes.
        own = self.espalier("generate", "--checkpoint", source, "--prompt", "the ", "--tokens", "20", "--temperature", "0")
        self.assertEqual({own.stdout}, said)

    def test_converts_without_tokenizer(self):
        self.espalier("convert", self.trained(), self.path("hf"))
        os.remove(self.path("hf/tokenizer.json"))
        answer = self.espalier("convert", self.path("hf"), self.path("back"))
        self.assertIn("has no tokenizer", answer.stderr)
        with open(self.path("ids"), "w") as file:
            file.write("116 104 101 32 113 117")
        for folder in [self.path("hf"), self.path("back")]:
            self.assertIn("no tokenizer", self.espalier("generate", "--checkpoint", folder, "--prompt", "x", code=2).stderr)
            self.assertIn("tokens 5", self.espalier("eval", "--checkpoint", folder, "--ids", self.path("ids")).stdout)

    def test_converts_to_dtype_and_number_of_shards(self):
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

    def test_rejects_invalid_input_with_reason(self):
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


class Weights(TempFolderTestCase):
    """Weights that do not belong to the model are reported or rejected, never used silently."""

    def setUp(self):
        super().setUp()
        self.espalier("convert", self.trained(), self.path("hf"))

    def stderr_of(self, *words, code=0):
        """Returns stderr. stdout of an untrained model may not be UTF-8."""
        answer = subprocess.run([ESPALIER, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(answer.returncode, code, answer.stderr)
        return answer.stderr

    def test_names_layers_missing_in_config(self):
        config = json.loads(pathlib.Path(self.path("hf/config.json")).read_text())
        pathlib.Path(self.path("hf/config.json")).write_text(json.dumps({**config, "num_hidden_layers": 1}))
        for words in (["generate", "--checkpoint", self.path("hf"), "--prompt", "the", "--tokens", "2"],
                      ["eval", "--checkpoint", self.path("hf"), "--text", self.path("text.txt")]):
            self.assertRegex(self.stderr_of(*words), r"hf: ignored \d+ tensors that a llama model does not use: .*model.layers.1.")
        answer = self.train(f'init = "{self.path("hf")}"', name="next")
        self.assertRegex(answer.stderr, r"hf: ignored \d+ tensors that a llama model does not use: .*model.layers.1.")

    def test_rejects_non_finite_weights(self):
        at = self.path("hf/model.safetensors")
        size = os.path.getsize(at)
        with open(at, "r+b") as file:
            file.seek(size - 400)
            file.write(struct.pack("<f", float("nan")) * 100)
        for words in (["generate", "--checkpoint", self.path("hf"), "--prompt", "the", "--tokens", "2"],
                      ["eval", "--checkpoint", self.path("hf"), "--text", self.path("text.txt")]):
            self.assertIn("that are not finite", self.stderr_of(*words, code=4))

    def test_rejects_one_nan_in_unused_embedding_row(self):
        at = self.path("hf/model.safetensors")
        with open(at, "r+b") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            name, entry = next((n, e) for n, e in json.loads(file.read(length)).items() if "embed_tokens" in n)
            file.seek(8 + length + entry["data_offsets"][1] - 4)
            file.write(struct.pack("<f", float("nan")))
        for words in (["generate", "--checkpoint", self.path("hf"), "--prompt", "the", "--tokens", "2"],
                      ["eval", "--checkpoint", self.path("hf"), "--text", self.path("text.txt")],
                      ["convert", self.path("hf"), self.path("copied")]):
            self.assertIn(f"{name}: got values that are not finite", self.stderr_of(*words, code=4))
        self.assertFalse(os.path.exists(self.path("copied")))


class PreservedSettings(TempFolderTestCase):
    """Settings of a folder beside weights and tokenizer survive conversion through a checkpoint and through a run."""
    GENERATION = {"eos_token_id": [46, 111], "bos_token_id": 1, "pad_token_id": 2, "temperature": 0.7, "do_sample": True}
    FIELDS = {"eos_token_id": [46, 111], "bos_token_id": 1, "pad_token_id": 2, "max_position_embeddings": 4096,
              "use_cache": False, "_name_or_path": "here"}

    def make_folder(self):
        self.espalier("convert", self.trained(), self.path("hf"))
        self.change(self.FIELDS)
        self.write("hf/generation_config.json", json.dumps(self.GENERATION))
        self.write("hf/chat_template.jinja", "{{ messages }}")
        self.write("hf/tokenizer_config.json", json.dumps({"eos_token": "<|endoftext|>", "model_max_length": 99}))
        return self.path("hf")

    def write(self, name, text):
        pathlib.Path(self.path(name)).write_text(text)

    def read(self, name):
        return pathlib.Path(self.path(name)).read_text()

    def change(self, fields):
        self.write("hf/config.json", json.dumps({**json.loads(self.read("hf/config.json")), **fields}))

    def check(self, folder):
        for name in ["generation_config.json", "chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"]:
            self.assertEqual(self.read(f"{folder}/{name}"), self.read(f"hf/{name}"), name)
        config = json.loads(self.read(f"{folder}/config.json"))
        self.assertEqual({key: config.get(key) for key in self.FIELDS}, self.FIELDS)
        self.assertFalse(os.path.exists(self.path(f"{folder}/hf_config.json")))

    def test_survive_checkpoint_round_trip(self):
        self.make_folder()
        self.espalier("convert", self.path("hf"), self.path("checkpoint"))
        self.espalier("convert", self.path("checkpoint"), self.path("back"))
        self.check("back")
        self.assertEqual(json.loads(self.read("back/config.json")), json.loads(self.read("hf/config.json")))
        self.espalier("convert", self.path("hf"), self.path("half"), "--layout", "hf", "--dtype", "bf16")
        self.check("half")

    def test_fine_tuning_rejects_several_dropout_rates(self):
        folder = self.make_folder()
        self.change({"attention_dropout": 0.25})
        answer = self.train(f'init = "{folder}"\nseq_len = 16', name="rates", code=2)
        self.assertIn("attention_dropout = 0.25 in config.json; expected one dropout rate", answer.stderr)
        self.train(f'init = "{folder}"\nseq_len = 16\ndropout = 0.25', name="rates")

    def test_survive_run_round_trip(self):
        self.train(f'init = "{self.make_folder()}"\nseq_len = 16', name="tuned")
        self.espalier("convert", self.path("tuned"), self.path("back"))
        self.check("back")
        self.train(f'init = "{self.path("hf")}"\nseq_len = 16', "--set",
                   f"data.tokenizer={self.path('hf/tokenizer.json')}", name="named")
        self.espalier("convert", self.path("named"), self.path("back1"))
        self.check("back1")
        self.train(f'init = "{self.path("tuned")}"', name="again")  # a run started from the previous run
        self.espalier("convert", self.path("again"), self.path("back2"))
        self.check("back2")

    def generated(self, folder):
        answer = subprocess.run([ESPALIER, "generate", "--checkpoint", folder, "--prompt", "q", "--tokens", "20",
                                 "--temperature", "0"], capture_output=True, timeout=60, check=True)
        return answer.stdout[1:-1]

    def test_generation_stops_at_any_eos_id(self):
        folder = self.make_folder()
        self.write("hf/generation_config.json", json.dumps({"eos_token_id": 256}))
        whole = self.generated(folder)
        self.assertGreater(len(whole), 10)
        last = whole[5]  # an id of the byte tokenizer is a byte value
        for name, ids in [("generation_config.json", [256, last]), ("config.json", last)]:
            os.remove(self.path("hf/generation_config.json"))
            self.change({"eos_token_id": 256})
            self.write("hf/" + name, json.dumps({**(json.loads(self.read("hf/" + name)) if name == "config.json" else {}),
                                                 "eos_token_id": ids}))
            shutil.rmtree(self.path("checkpoint"), ignore_errors=True)
            self.espalier("convert", folder, self.path("checkpoint"))
            for where in [folder, self.path("checkpoint")]:
                self.assertEqual(self.generated(where), whole[:whole.index(last)])
            self.write("hf/generation_config.json", "{}")
        self.write("hf/generation_config.json", json.dumps({"eos_token_id": "x"}))
        answer = self.espalier("generate", "--checkpoint", folder, "--prompt", "q", code=4)
        self.assertIn('generation_config.json: eos_token_id = "x": expected an id or a list of ids', answer.stderr)

    def test_error_names_unknown_field(self):
        self.make_folder()
        before = self.read("hf/config.json")
        for fields in [{"is_causal": False}, {"sliding_window": 8}, {"logit_scale": 0.5}, {"quantization_config": {"bits": 4}},
                       {"tie_word_embeddings": None}, {"architectures": ["LlamaForTokenClassification"]}]:
            self.write("hf/config.json", before)
            self.change(fields)
            answer = self.espalier("convert", self.path("hf"), self.path("never"), code=4)
            self.assertIn(f"config.json: {next(iter(fields))} = ", answer.stderr)
            self.assertFalse(os.path.exists(self.path("never")))

    def test_rejects_tied_head_with_other_values(self):
        self.make_folder()
        self.change({"tie_word_embeddings": True})
        answer = self.espalier("convert", self.path("hf"), self.path("never"), code=4)
        self.assertIn("lm_head.weight differs from model.embed_tokens.weight, but config.json has tie_word_embeddings = true",
                      answer.stderr)

    def test_does_not_train_head_of_other_objective(self):
        self.write("items.jsonl", "".join(json.dumps({"text": "abc"[i % 3] * 9, "label": i % 2}) + "\n" for i in range(40)))
        self.write("run.toml", RUN.format(folder=self.folder, model='preset = "bert-tiny-classifier"\nvocab = 257\nclasses = 2',
                                          name="run", steps=1).replace("text.txt", "items.jsonl"))
        self.espalier("train", self.path("run.toml"))
        self.espalier("convert", self.path("run"), self.path("hf"))
        self.change({"problem_type": "multi_label_classification", "id2label": {"0": "no", "1": "yes"}})
        self.espalier("convert", self.path("hf"), self.path("checkpoint"))
        self.espalier("convert", self.path("checkpoint"), self.path("back"))
        back = json.loads(self.read("back/config.json"))
        self.assertEqual((back["problem_type"], back["id2label"]), ("multi_label_classification", {"0": "no", "1": "yes"}))
        for start in ["hf", "checkpoint"]:
            self.write("on.toml", RUN.format(folder=self.folder, model=f'init = "{self.path(start)}"', name="on", steps=1)
                       .replace("text.txt", "items.jsonl"))
            answer = self.espalier("train", self.path("on.toml"), code=2)
            self.assertIn('problem_type = "multi_label_classification"; expected "single_label_classification"', answer.stderr)


class ParameterCounts(TempFolderTestCase):
    """`plan` counts the parameters of a config.json as `transformers` does, or names an unsupported model."""
    CLUSTER = ["--processor", "H100", "--gpus", "1"]

    def plan(self, config, code=0):
        os.makedirs(self.path("model"), exist_ok=True)
        pathlib.Path(self.path("model/config.json")).write_text(json.dumps(config))
        return self.espalier("plan", "estimate", "--model", self.path("model"), *self.CLUSTER, "--json", "-", code=code)

    def test_parameter_counts_equal_transformers(self):
        rows = json.loads((HERE.parent / "data/hf_counts.json").read_text())
        families = {row["config"]["model_type"] for row in rows}
        self.assertGreaterEqual(len(families), 30)
        for row in rows:
            with self.subTest(config=row["config"]):
                self.assertEqual(self.parameters(row["config"]), row["parameters"])

    def parameters(self, config):
        return json.loads(self.plan(config).stdout)["parameters"]

    def test_error_names_field_of_unsupported_model(self):
        sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 64}
        for change, words in [({"model_type": "albert"}, 'model_type = "albert": expected one of gpt2, bert, llama'),
                              ({}, 'model_type = ""'),
                              ({"model_type": "mistral", "architectures": ["MistralForTokenClassification"]}, "counted as MistralForCausalLM"),
                              ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm = true"),
                              ({"model_type": "llama", "num_local_experts": 8}, "num_local_experts = 8: unknown field"),
                              ({"model_type": "qwen2", "num_key_value_heads": None}, "num_key_value_heads"),
                              ({"model_type": "mistral", "hidden_size": "64"}, 'hidden_size = "64"'),
                              ({"model_type": "t5", "num_layers": 2, "d_model": 64, "num_heads": 2, "d_ff": 8, "num_decoder_layers": 3},
                               "num_decoder_layers = 3")]:
            answer = self.plan({**sizes, **change}, code=2)
            self.assertIn(words, answer.stderr)


class FineTuning(TempFolderTestCase):
    def test_starts_run_from_folder(self):
        self.train('preset = "gpt-tiny"\nvocab = 257', steps=40)
        self.espalier("convert", self.path("run"), self.path("hf"))
        answer = self.train(f'init = "{self.path("hf")}"', name="tuned", steps=3)
        self.assertIn("parameters from " + self.path("hf"), answer.stderr)
        self.train('preset = "gpt-tiny"\nvocab = 257', name="cold", steps=3)
        self.assertLess(self.losses("tuned")[0], self.losses("cold")[0] - 1)
        # The fine-tuned run no longer needs the original folder.
        shutil.rmtree(self.path("hf"))
        self.espalier("generate", "--checkpoint", self.path("tuned"), "--prompt", "the ", "--tokens", "4")

    def test_resumes_converted_checkpoint(self):
        self.train('preset = "gpt-tiny"\nvocab = 257', steps=40)
        self.espalier("convert", self.path("run"), self.path("hf"))
        self.espalier("convert", self.path("hf"), self.path("start"))
        self.train('preset = "gpt-tiny"\nvocab = 257', "--resume", self.path("start"), name="on", steps=3)
        self.assertLess(self.losses("on")[0], self.losses("run")[0] - 1)
        self.assertEqual(len(self.losses("on")), 3)

    def test_rejects_folder_as_resume_checkpoint(self):
        self.train('preset = "gpt-tiny"\nvocab = 257')
        self.espalier("convert", self.path("run"), self.path("hf"))
        answer = self.train('preset = "gpt-tiny"\nvocab = 257', "--resume", self.path("hf"), name="on", code=2)
        self.assertIn("model.init", answer.stderr)


class TransformersFolders(TempFolderTestCase):
    def test_logits_equal_transformers_in_both_directions(self):
        answer = subprocess.run([environment.python(), str(HERE / "transformers_check.py"), ESPALIER, PROBE],
                                capture_output=True, text=True, timeout=250)
        print(answer.stdout)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)


class ConfigFields(TempFolderTestCase):
    def test_each_field_gives_same_logits_or_is_rejected(self):
        answer = subprocess.run([environment.python(), str(HERE / "fields_check.py"), PROBE], capture_output=True, text=True,
                                timeout=580)
        print(answer.stdout)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)


class PretrainedModel(TempFolderTestCase):
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

    def test_hidden_states_equal_transformers(self):
        model = environment.pretrained()
        self.states(model)
        self.espalier("convert", model, self.path("checkpoint"))
        self.espalier("convert", self.path("checkpoint"), self.path("hf"))
        for folder in [self.path("checkpoint"), self.path("hf"), model]:
            subprocess.run([PROBE, folder, self.path("ids"), self.path("ours.npy"), "hidden"], check=True, timeout=60)
            worst = float(self.check("difference", self.path("ours.npy"), self.path("theirs.npy")))
            print(f"{folder}: largest difference of hidden states {worst:.2e}")
            self.assertLessEqual(worst, LIMIT)
        # Every tensor of the folder is preserved, except the position_ids buffer.
        before = read_safetensors(os.path.join(model, "model.safetensors"))[1]
        after = read_safetensors(self.path("hf/model.safetensors"))[1]
        self.assertEqual(set(before) - set(after) - {"embeddings.position_ids"}, set())
        self.assertEqual({name: before[name] for name in after}, after)

    def test_tokenizer_gives_same_ids(self):
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
