"""Runs a pretrained encoder with `transformers`, inside the virtual environment:
    pretrained_check.py states MODEL_FOLDER TEXTS.json IDS OUT.npy
        writes the ids and the hidden states of each text; padding positions are zero
    pretrained_check.py difference A.npy B.npy
        prints the largest absolute difference"""
import json
import sys

import numpy


def states(folder, texts, ids, out):
    import torch
    import transformers
    with open(texts) as file:
        lines = json.load(file)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(lines, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    numpy.save(out, (hidden * batch["attention_mask"][..., None]).numpy())
    with open(ids, "w") as file:
        for text in lines:
            file.write(" ".join(map(str, tokenizer(text)["input_ids"])) + "\n")


def difference(one, other):
    a, b = numpy.load(one), numpy.load(other)
    assert a.shape == b.shape and a.shape[-1] == 384, (a.shape, b.shape)
    assert numpy.abs(b).max() > 0.1, "the hidden states are all zero"
    print(float(numpy.abs(a - b).max()))


{"states": states, "difference": difference}[sys.argv[1]](*sys.argv[2:])
