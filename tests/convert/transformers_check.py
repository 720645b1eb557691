"""Compares conversion with `transformers` in both directions: espalier reads folders saved by transformers, and transformers
reads folders converted by espalier.

    python3 tests/convert/transformers_check.py BINARY PROBE [WORK_FOLDER]

Prints one PASS or FAIL line per model and direction with the largest difference of logits (or hidden states), and exits
with 1 if any failed. Needs torch and transformers; BINARY is espalier, PROBE is convert_probe."""
import json
import os
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

LIMIT = 1e-4  # largest absolute difference in fp32
LIMIT_S = 120
VOCAB = 131


def gpt2(**other):
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=40, n_embd=48, n_layer=3, n_head=4,
                                     bos_token_id=None, eos_token_id=None, **other)
    return transformers.GPT2LMHeadModel(config)


def llama(**other):
    config = transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=48, intermediate_size=104, num_hidden_layers=3,
                                      num_attention_heads=6, max_position_embeddings=40, **other)
    return transformers.LlamaForCausalLM(config)


def bert(kind, **other):
    config = transformers.BertConfig(vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=3,
                                     num_attention_heads=4, max_position_embeddings=40, **other)
    return kind(config)


# Random models made by transformers. Biases and norms are random too, so that an ignored one is detected.
TRANSFORMERS_MODELS = {
    "gpt2": gpt2,
    "gpt2-untied": lambda: gpt2(tie_word_embeddings=False, n_inner=80, activation_function="relu"),
    "llama-grouped": lambda: llama(num_key_value_heads=2, rope_theta=50000.0),
    "llama-tied": lambda: llama(num_key_value_heads=6, tie_word_embeddings=True, rms_norm_eps=1e-5),
    "bert-masked": lambda: bert(transformers.BertForMaskedLM),
    "bert-classes": lambda: bert(transformers.BertForSequenceClassification, num_labels=5),
    "bert-hidden": lambda: bert(transformers.BertModel),
    "bert-untied": lambda: bert(transformers.BertForMaskedLM, tie_word_embeddings=False),
    "bert-regression": lambda: bert(transformers.BertForSequenceClassification, num_labels=1),
    "bert-labels": lambda: bert(transformers.BertForSequenceClassification, problem_type="multi_label_classification",
                                id2label={0: "cat", 1: "dog", 2: "tree"}, label2id={"cat": 0, "dog": 1, "tree": 2}),
}

# Models that Espalier trains for a few steps.
ESPALIER_MODELS = {
    "gpt2": 'preset = "gpt-tiny"\nvocab = 257',
    "llama-grouped": 'preset = "llama-tiny"\nvocab = 257',
    "llama-tied": 'preset = "llama-tiny"\nvocab = 257\nkv_heads = 4\ntie_embeddings = true',
    "bert-masked": 'preset = "bert-tiny"\nvocab = 257',
    "bert-classes": 'preset = "bert-tiny-classifier"\nvocab = 257',
}

RUN = """[run]
name = "{name}"
dir = "{folder}/run"
[model]
{model}
[data]
train = "{data}"
[train]
steps = 5
global_batch = 4
lr = 1e-2
"""


def randomised(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def sequences(seed, padded, vocab=VOCAB):
    random = numpy.random.default_rng(seed)
    lengths = [21, 33, 8] if padded else [33, 33, 33]
    return [random.integers(0, vocab, length).tolist() for length in lengths]


def write_ids(path, rows):
    with open(path, "w") as file:
        file.writelines(" ".join(map(str, row)) + "\n" for row in rows)


def expected(model, rows):
    """Logits or last hidden states in fp32; zero at padding positions."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask)
    values = (out.logits if "logits" in out else out.last_hidden_state).float()
    if values.dim() == 3:
        values = values * mask[..., None]
    return values.numpy()


class Programs:
    def __init__(self, binary, probe):
        self.binary, self.probe = binary, probe

    def run(self, *arguments):
        answer = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S)
        if answer.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)}: exit {answer.returncode}: {answer.stderr.strip()}")
        return answer.stdout

    def espalier(self, *arguments):
        return self.run(self.binary, *arguments)

    def probed(self, folder, ids, hidden):
        out = ids + ".npy"
        self.run(self.probe, folder, ids, out, *(["hidden"] if hidden else []))
        return numpy.load(out)


def difference(ours, theirs):
    if ours.shape != theirs.shape:
        raise RuntimeError(f"shapes {ours.shape} and {theirs.shape} differ")
    return float(numpy.abs(ours - theirs).max())


def load(folder):
    """Loads the model as a user would: config.json selects the class."""
    with open(os.path.join(folder, "config.json")) as file:
        kind = json.load(file)["architectures"][0]
    loader = {"BertForMaskedLM": transformers.AutoModelForMaskedLM, "BertModel": transformers.AutoModel,
              "BertForSequenceClassification": transformers.AutoModelForSequenceClassification}
    model, info = loader.get(kind, transformers.AutoModelForCausalLM).from_pretrained(folder, output_loading_info=True)
    # A tied embedding table is not stored as a separate tensor. transformers would initialise any other missing tensor
    # with random values.
    missing = [name for name in info["missing_keys"] if not name.endswith(("lm_head.weight", "decoder.weight", "decoder.bias"))]
    if missing or info["unexpected_keys"] or info["mismatched_keys"]:
        raise RuntimeError(f"missing {missing}, unexpected {info['unexpected_keys']}")
    return model.eval()


def settings(folder):
    """Generation settings and configuration fields, without the storage dtype."""
    config = transformers.AutoConfig.from_pretrained(folder).to_dict()
    for key in ["_name_or_path", "transformers_version", "torch_dtype", "dtype"]:
        config.pop(key, None)
    generation = {}
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        generation = transformers.GenerationConfig.from_pretrained(folder).to_dict()
    return config, generation


def differing(one, other):
    """Names of the fields of `one` that have another value in `other`."""
    return [f"{key} = {b.get(key)}, not {a[key]}" for a, b in zip(one, other) for key in a if a[key] != b.get(key)]


def check_import(name, work, programs, shard=None):
    """Espalier reads a folder saved by transformers, directly and through a checkpoint."""
    folder, ids = os.path.join(work, name), os.path.join(work, name + ".ids")
    model = randomised(TRANSFORMERS_MODELS[name](), seed=len(name))
    if getattr(model, "generation_config", None):
        model.generation_config.eos_token_id = model.config.eos_token_id = [7, 9]
        model.generation_config.bos_token_id = model.config.bos_token_id = 5
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    rows = sequences(7, padded=name.startswith("bert"))
    write_ids(ids, rows)
    want = expected(model, rows)
    hidden = name == "bert-hidden"
    direct = difference(programs.probed(folder, ids, hidden), want)
    programs.espalier("convert", folder, folder + ".checkpoint")
    through_checkpoint = difference(programs.probed(folder + ".checkpoint", ids, hidden), want)
    programs.espalier("convert", folder + ".checkpoint", folder + ".back")
    back = difference(expected(load(folder + ".back"), rows), want)
    if lost := differing(settings(folder), settings(folder + ".back")):
        raise RuntimeError("settings differ: " + ", ".join(lost))
    return max(direct, through_checkpoint, back)


def check_export(name, work, programs, dtype=None):
    """transformers reads a model that Espalier trained and converted."""
    folder = os.path.join(work, "our-" + name + (dtype or ""))
    os.makedirs(folder)
    if name == "bert-classes":
        data = os.path.join(folder, "items.jsonl")
        with open(data, "w") as file:
            file.writelines(json.dumps({"text": "abcde"[i % 5] * 9, "label": i % 3}) + "\n" for i in range(60))
    else:
        data = os.path.join(folder, "text.txt")
        with open(data, "w") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 200)
    with open(os.path.join(folder, "run.toml"), "w") as file:
        file.write(RUN.format(name=name, folder=folder, model=ESPALIER_MODELS[name], data=data))
    programs.espalier("train", os.path.join(folder, "run.toml"))
    converted = os.path.join(folder, "hf")
    programs.espalier("convert", os.path.join(folder, "run"), converted, *(["--dtype", dtype] if dtype else []))
    rows = [row[:30] for row in sequences(8, padded=name.startswith("bert"), vocab=257)]
    ids = os.path.join(folder, "ids")
    write_ids(ids, rows)
    model = load(converted)
    if dtype:
        model = model.float()  # weights are bf16; compute in fp32 so that arithmetic does not differ
        programs.espalier("convert", converted, converted + "32", "--dtype", "fp32", "--layout", "hf")
    ours = programs.probed(converted + "32" if dtype else os.path.join(folder, "run"), ids, False)
    found = difference(ours, expected(model, rows))
    tokenizer = transformers.AutoTokenizer.from_pretrained(converted)
    text = "the quick brown fox, 1 żółw"
    if tokenizer(text, add_special_tokens=False)["input_ids"] != list(text.encode()):
        raise RuntimeError(f"logits differ by {found:.2e} at most, but the tokenizer's ids differ")
    return found


def main(arguments):
    programs = Programs(*arguments[:2])
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    cases = [(f"transformers → espalier: {name}", check_import, {"name": name}) for name in TRANSFORMERS_MODELS]
    cases += [(f"espalier → transformers: {name}", check_export, {"name": name}) for name in ESPALIER_MODELS]
    cases.append(("espalier → transformers: gpt2 in bf16", check_export, {"name": "gpt2", "dtype": "bf16"}))
    failed = 0
    with tempfile.TemporaryDirectory() as own:
        work = arguments[2] if len(arguments) > 2 else own
        cases.append(("transformers → espalier: llama-grouped in shards", check_import,
                      {"name": "llama-grouped", "work": os.path.join(work, "shards"), "shard": "40KB"}))
        for title, check, options in cases:
            try:
                found = check(**{"work": work, "programs": programs, **options})
                good, text = found <= LIMIT, f"max difference {found:.2e}"
            except Exception as error:  # report this model as failed and continue with the next
                good, text = False, str(error)
            failed += not good
            print(f"{'PASS' if good else 'FAIL'}  {title}: {text}", flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
