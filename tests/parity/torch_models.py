"""The Espalier models, implemented with PyTorch operations and layers.

Each model is a torch.nn.Module. `espalier_parameters()` maps Espalier parameter names to functions that return a tensor
in the Espalier layout (a view, possibly transposed). The functions apply to values and to gradients.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def value(p):
    return p


def transposed(p):
    return p.t()


class Names(dict):
    """Espalier name -> (parameter, layout function, slice of its rows; None: all rows)."""

    def linear(self, name, layer):
        self[name + ".weight"] = (layer.weight, transposed, None)
        if layer.bias is not None:
            self[name + ".bias"] = (layer.bias, value, None)

    def table(self, name, layer):
        self[name + ".weight"] = (layer.weight, value, None)

    def norm(self, name, layer):
        self[name + ".weight"] = (layer.weight, value, None)
        if getattr(layer, "bias", None) is not None:
            self[name + ".bias"] = (layer.bias, value, None)

    def packed(self, name, weight, bias, rows=None):
        self[name + ".weight"] = (weight, transposed, rows)
        self[name + ".bias"] = (bias, value, rows)

    def tensor(self, name, gradient=False):
        parameter, layout, rows = self[name]
        source = parameter.grad if gradient else parameter.data
        return layout(source if rows is None else source[rows])


def attend(q, k, v, heads, mask):
    """Grouped-query attention of q [B, Tq, C] to k, v [B, Tk, Ckv]; mask is added to the scores."""
    def split(x, n):
        return x.view(x.shape[0], x.shape[1], n, -1).transpose(1, 2)
    head_dim = q.shape[-1] // heads
    kv_heads = k.shape[-1] // head_dim
    q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
    k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)
    if mask is not None:
        scores = scores + mask
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def causal_mask(T, dtype):
    return torch.full((T, T), float("-inf"), dtype=dtype).triu(1)


class Kink:
    """ReLU that also records the smallest |argument|. If an argument is 0 within rounding, the gradients of two programs may
    differ."""
    nearest = float("inf")

    @classmethod
    def relu(cls, x):
        cls.nearest = min(cls.nearest, x.detach().abs().min().item())
        return F.relu(x)


def gelu(x):  # tanh approximation, as in GPT-2
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


class Gpt(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        C = c["dim"]
        self.wte, self.wpe = nn.Embedding(c["vocab"], C), nn.Embedding(c["seq_len"], C)
        self.blocks = nn.ModuleList(nn.ModuleDict(dict(
            ln1=nn.LayerNorm(C), qkv=nn.Linear(C, 3 * C), out=nn.Linear(C, C), ln2=nn.LayerNorm(C),
            up=nn.Linear(C, 4 * C), down=nn.Linear(4 * C, C))) for _ in range(c["layers"]))
        self.ln = nn.LayerNorm(C)

    def forward(self, batch):
        ids = batch["inputs"]
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        mask = causal_mask(ids.shape[1], x.dtype)
        for b in self.blocks:
            q, k, v = b["qkv"](b["ln1"](x)).chunk(3, -1)
            x = x + b["out"](attend(q, k, v, self.c["heads"], mask))
            x = x + b["down"](gelu(b["up"](b["ln2"](x))))
        return self.ln(x) @ self.wte.weight.t()

    def espalier_parameters(self):
        names = Names()
        names.table("embedding", self.wte)
        names.table("positions", self.wpe)
        for i, b in enumerate(self.blocks):
            for name, layer in (("norm1", "ln1"), ("norm2", "ln2")):
                names.norm(f"blocks.{i}.{name}", b[layer])
            for name, layer in (("attention.qkv", "qkv"), ("attention.out", "out"), ("mlp.up", "up"),
                                ("mlp.down", "down")):
                names.linear(f"blocks.{i}.{name}", b[layer])
        names.norm("norm", self.ln)
        return names


class RmsNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotary_angles(c, T, D):
    """RoPE angles [T, D/2] and the scale of queries and keys. Sources: RoPE, Su et al. 2021; position interpolation,
    Chen et al. 2023; YaRN, Peng et al. 2023, sections 3.2 to 3.4; the published model code of Llama 3.1."""
    theta, kind, s = c.get("rope_theta", 10000.0), c.get("rope_scaling"), c.get("rope_factor", 1.0)
    position, L = torch.arange(T, dtype=torch.float64), c.get("rope_original_seq_len")
    wavelengths = [2 * math.pi * theta ** (2 * d / D) for d in range(D // 2)]  # of each rotary pair, in tokens
    scale = 1.0
    if kind == "linear":  # position interpolation
        position = position / s
    elif kind == "llama3":
        low, high = 1.0, 4.0
        for d, wavelength in enumerate(wavelengths):
            if wavelength > L / low:
                wavelengths[d] = wavelength * s
            elif wavelength > L / high:
                smooth = (L / wavelength - low) / (high - low)
                wavelengths[d] = 1 / ((1 - smooth) / (s * wavelength) + smooth / wavelength)
    elif kind == "yarn":
        # Index of the pair that makes `turns` rotations in L tokens; rounded as in the code of the paper's authors.
        pair = lambda turns: D * math.log(L / (2 * math.pi * turns)) / (2 * math.log(theta))
        begin, end = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), D - 1)
        for d, wavelength in enumerate(wavelengths):
            gamma = 1 - min(max((d - begin) / (end - begin), 0), 1)
            wavelengths[d] = 1 / ((1 - gamma) / (s * wavelength) + gamma / wavelength)
        scale = 0.1 * math.log(s) + 1
    return position[:, None] * (2 * math.pi / torch.tensor(wavelengths, dtype=torch.float64)), scale


def rotate(x, heads, c):
    """Rotates the pairs (d, d + D/2) of each head by the angle of their position."""
    B, T, C = x.shape
    D = C // heads
    angle, scale = rotary_angles(c, T, D)
    cos, sin = (scale * part.to(x.dtype)[:, None] for part in (angle.cos(), angle.sin()))
    a, b = x.view(B, T, heads, D).chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).view(B, T, C)


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        C, kv, ffn = c["dim"], c["dim"] // c["heads"] * c["kv_heads"], c["ffn"]
        self.embed, self.head = nn.Embedding(c["vocab"], C), nn.Linear(C, c["vocab"], bias=False)
        self.blocks = nn.ModuleList(nn.ModuleDict(dict(
            n1=RmsNorm(C, 1e-6), qkv=nn.Linear(C, C + 2 * kv, bias=False), out=nn.Linear(C, C, bias=False),
            n2=RmsNorm(C, 1e-6), gate_up=nn.Linear(C, 2 * ffn, bias=False), down=nn.Linear(ffn, C, bias=False)))
            for _ in range(c["layers"]))
        self.norm = RmsNorm(C, 1e-6)

    def forward(self, batch):
        c, x = self.c, self.embed(batch["inputs"])
        mask, kv = causal_mask(x.shape[1], x.dtype), c["dim"] // c["heads"] * c["kv_heads"]
        for b in self.blocks:
            q, k, v = b["qkv"](b["n1"](x)).split((c["dim"], kv, kv), -1)
            q, k = rotate(q, c["heads"], c), rotate(k, c["kv_heads"], c)
            x = x + b["out"](attend(q, k, v, c["heads"], mask))
            gate, up = b["gate_up"](b["n2"](x)).chunk(2, -1)
            x = x + b["down"](F.silu(gate) * up)
        return self.head(self.norm(x))

    def espalier_parameters(self):
        names = Names()
        names.table("embedding", self.embed)
        for i, b in enumerate(self.blocks):
            names.norm(f"blocks.{i}.norm1", b["n1"])
            names.norm(f"blocks.{i}.norm2", b["n2"])
            for name, layer in (("attention.qkv", "qkv"), ("attention.out", "out"), ("mlp.gate_up", "gate_up"),
                                ("mlp.down", "down")):
                names.linear(f"blocks.{i}.{name}", b[layer])
        names.norm("norm", self.norm)
        names.table("head", self.head)
        return names


def encoder_layer(names, prefix, layer):
    names.packed(prefix + "attention.qkv", layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias)
    names.linear(prefix + "attention.out", layer.self_attn.out_proj)
    names.norm(prefix + "norm1", layer.norm1)
    names.norm(prefix + "norm2", layer.norm3 if hasattr(layer, "norm3") else layer.norm2)
    names.linear(prefix + "mlp.up", layer.linear1)
    names.linear(prefix + "mlp.down", layer.linear2)


class Bert(nn.Module):
    """Masked language model, or classifier with or without a pooler, on torch's post-norm encoder layers."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        C = c["dim"]
        eps = c["norm_eps"]
        self.words, self.places = nn.Embedding(c["vocab"], C), nn.Embedding(c["seq_len"], C)
        self.segments = nn.Embedding(c["type_vocab"], C) if c["type_vocab"] else None
        self.embedding_norm = nn.LayerNorm(C, eps) if c["embedding_norm"] else None
        act = F.gelu if c["activation"] == "gelu_erf" else Kink.relu
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(C, c["heads"], c["ffn"], 0.0, act, eps, batch_first=True)
            for _ in range(c["layers"]))
        self.pooler = nn.Linear(C, C) if c.get("pooler") else None
        self.classifier = nn.Linear(C, c["num_classes"]) if c.get("num_classes") else None
        if not self.classifier:
            self.transform, self.transform_norm = nn.Linear(C, C), nn.LayerNorm(C, eps)
            self.bias = nn.Parameter(torch.zeros(c["vocab"]))

    def forward(self, batch):
        ids = batch["inputs"]
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        if self.segments:
            x = x + self.segments(batch["segments"])
        if self.embedding_norm:
            x = self.embedding_norm(x)
        padding = torch.arange(ids.shape[1])[None] >= batch["lengths"][:, None]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        if self.classifier:
            first = x[:, 0]
            return self.classifier(torch.tanh(self.pooler(first)) if self.pooler else first)
        return self.transform_norm(F.gelu(self.transform(x))) @ self.words.weight.t() + self.bias

    def espalier_parameters(self):
        names = Names()
        names.table("embedding", self.words)
        names.table("positions", self.places)
        if self.segments:
            names.table("segments", self.segments)
        if self.embedding_norm:
            names.norm("embedding_norm", self.embedding_norm)
        for i, layer in enumerate(self.layers):
            encoder_layer(names, f"blocks.{i}.", layer)
        if self.pooler:
            names.linear("pooler", self.pooler)
        if self.classifier:
            names.norm("classifier", self.classifier)  # both programs store it as [classes, in]
        else:
            names.linear("transform", self.transform)
            names.norm("transform_norm", self.transform_norm)
            names["head.bias"] = (self.bias, value, None)
        return names


class EncoderDecoder(nn.Module):
    """torch's pre-norm encoder and decoder layers with one shared token embedding."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        C = c["dim"]
        self.tokens = nn.Embedding(c["vocab"], C)
        self.places, self.target_places = nn.Embedding(c["seq_len"], C), nn.Embedding(c["seq_len"], C)
        smooth = c.get("activation") == "gelu_erf"
        options = dict(dropout=0.0, activation=F.gelu if smooth else Kink.relu, batch_first=True, norm_first=True)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(C, c["heads"], c["ffn"], **options)
                                     for _ in range(c["layers"]))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(C, c["heads"], c["ffn"], **options)
                                     for _ in range(c["layers"]))
        self.encoder_norm, self.norm = nn.LayerNorm(C), nn.LayerNorm(C)

    def forward(self, batch):
        source, target = batch["inputs"], batch["decoder_inputs"]
        padding = torch.arange(source.shape[1])[None] >= batch["lengths"][:, None]
        x = self.tokens(source) + self.places.weight[: source.shape[1]]
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=padding)
        memory = self.encoder_norm(x)
        y = self.tokens(target) + self.target_places.weight[: target.shape[1]]
        mask = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        for layer in self.decoder:
            y = layer(y, memory, tgt_mask=mask, memory_key_padding_mask=padding)
        return self.norm(y) @ self.tokens.weight.t()

    def espalier_parameters(self):
        names, L, C = Names(), self.c["layers"], self.c["dim"]
        names.table("embedding", self.tokens)
        names.table("positions", self.places)
        names.table("decoder_positions", self.target_places)
        names.norm("encoder_norm", self.encoder_norm)
        names.norm("norm", self.norm)
        for i, layer in enumerate(self.encoder):
            encoder_layer(names, f"blocks.{i}.", layer)
        for i, layer in enumerate(self.decoder):
            prefix = f"blocks.{L + i}."
            encoder_layer(names, prefix, layer)
            across = layer.multihead_attn
            names.packed(prefix + "cross.q", across.in_proj_weight, across.in_proj_bias, slice(0, C))
            names.packed(prefix + "cross.kv", across.in_proj_weight, across.in_proj_bias, slice(C, 3 * C))
            names.linear(prefix + "cross.out", across.out_proj)
            names.norm(prefix + "norm_cross", layer.norm2)
        return names
