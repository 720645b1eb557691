"""Writes tests/data/hf_counts.json: small configurations of the model families that `plan` counts, with the number of
parameters of their `transformers` classes.

    python3 tests/convert/hf_counts.py tests/data/hf_counts.json

Needs torch and transformers 5. No weights are allocated. The first row of a family has every field that save_pretrained
writes. The other rows have only fields that differ from the defaults, like files of older releases."""
import json
import sys

import torch
import transformers

LLAMA = dict(hidden_size=48, intermediate_size=104, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             vocab_size=131, max_position_embeddings=96)
EXPERTS = dict(LLAMA, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=40)
LATENT = dict(LLAMA, num_key_value_heads=6, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=40,
              n_shared_experts=2, first_k_dense_replace=1, q_lora_rank=20, kv_lora_rank=12, qk_rope_head_dim=4,
              qk_nope_head_dim=8, v_head_dim=10, n_group=1, topk_group=1)
GPT = dict(n_embd=48, n_layer=3, n_head=4, vocab_size=131, n_positions=96)
BERT = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, vocab_size=131,
            max_position_embeddings=90)
FALCON = dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=6, vocab_size=131)
DISTILBERT = dict(dim=48, hidden_dim=100, n_layers=3, n_heads=4, vocab_size=131, max_position_embeddings=90)
T5 = dict(d_model=48, d_kv=10, d_ff=100, num_layers=3, num_heads=4, vocab_size=131)

# Per family: the model class, the sizes of the first row, and the changes of the other rows.
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", GPT, [dict(n_inner=80), dict(tie_word_embeddings=False)]),
    "llama": ("LlamaForCausalLM", LLAMA,
              [dict(attention_bias=True), dict(mlp_bias=True, tie_word_embeddings=True), dict(head_dim=12)]),
    "mistral": ("MistralForCausalLM", LLAMA, [dict(head_dim=12, tie_word_embeddings=True)]),
    "mixtral": ("MixtralForCausalLM", dict(LLAMA, num_local_experts=5, num_experts_per_tok=3), []),
    "qwen2": ("Qwen2ForCausalLM", LLAMA, [dict(tie_word_embeddings=True)]),
    "qwen2_moe": ("Qwen2MoeForCausalLM", dict(EXPERTS, shared_expert_intermediate_size=56),
                  [dict(decoder_sparse_step=2), dict(qkv_bias=False)]),
    "qwen3": ("Qwen3ForCausalLM", LLAMA, [dict(head_dim=12, attention_bias=True)]),
    "qwen3_moe": ("Qwen3MoeForCausalLM", dict(EXPERTS, head_dim=12), [dict(decoder_sparse_step=2)]),
    "deepseek_v2": ("DeepseekV2ForCausalLM", LATENT, [dict(q_lora_rank=None)]),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT, []),
    "gemma": ("GemmaForCausalLM", LLAMA, [dict(head_dim=12)]),
    "gemma2": ("Gemma2ForCausalLM", LLAMA, [dict(head_dim=12)]),
    "gemma3_text": ("Gemma3ForCausalLM", LLAMA, [dict(head_dim=12)]),
    "granite": ("GraniteForCausalLM", LLAMA, [dict(attention_bias=True, mlp_bias=True)]),
    "olmo": ("OlmoForCausalLM", LLAMA, [dict(attention_bias=True)]),
    "olmo2": ("Olmo2ForCausalLM", LLAMA, []),
    "cohere": ("CohereForCausalLM", LLAMA, [dict(attention_bias=True)]),
    "stablelm": ("StableLmForCausalLM", LLAMA, [dict(use_qkv_bias=True), dict(use_parallel_residual=True)]),
    "phi": ("PhiForCausalLM", LLAMA, [dict(num_key_value_heads=None)]),
    "phi3": ("Phi3ForCausalLM", dict(LLAMA, pad_token_id=0), [dict(tie_word_embeddings=True)]),
    "starcoder2": ("Starcoder2ForCausalLM", LLAMA, [dict(use_bias=False)]),
    "gpt_neo": ("GPTNeoForCausalLM", dict(hidden_size=48, num_layers=2, num_heads=4, vocab_size=131, intermediate_size=80,
                                          max_position_embeddings=96, attention_types=[[["global", "local"], 1]]),
                [dict(intermediate_size=None)]),
    "gpt_neox": ("GPTNeoXForCausalLM", BERT, [dict(attention_bias=False), dict(tie_word_embeddings=True)]),
    "gptj": ("GPTJForCausalLM", dict(GPT, rotary_dim=4), [dict(n_inner=80)]),
    "codegen": ("CodeGenForCausalLM", dict(GPT, rotary_dim=4), [dict(n_inner=80)]),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", GPT, [dict(multi_query=False)]),
    "opt": ("OPTForCausalLM", dict(hidden_size=48, ffn_dim=100, num_hidden_layers=3, num_attention_heads=4, vocab_size=131,
                                   max_position_embeddings=90, word_embed_proj_dim=48),
            [dict(word_embed_proj_dim=20, do_layer_norm_before=False)]),
    "bloom": ("BloomForCausalLM", dict(hidden_size=48, n_layer=3, n_head=4, vocab_size=131), []),
    "falcon": ("FalconForCausalLM", FALCON,
               [dict(multi_query=False, parallel_attn=False, bias=True, alibi=True),
                dict(new_decoder_architecture=True, num_kv_heads=2),
                dict(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, ffn_hidden_size=100)]),
    "mpt": ("MptForCausalLM", dict(d_model=48, n_layers=3, n_heads=4, vocab_size=131), []),
    "bert": ("BertForMaskedLM", BERT, [dict(type_vocab_size=3), dict(tie_word_embeddings=False)]),
    "roberta": ("RobertaForMaskedLM", BERT, [dict(type_vocab_size=1)]),
    "xlm-roberta": ("XLMRobertaForMaskedLM", BERT, [dict(type_vocab_size=1)]),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT, [dict(sinusoidal_pos_embds=True)]),
    "modernbert": ("ModernBertForMaskedLM", dict(BERT, num_attention_heads=6, pad_token_id=0), []),
    "t5": ("T5ForConditionalGeneration", T5,
           [dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False), dict(relative_attention_num_buckets=16)]),
    "mt5": ("MT5ForConditionalGeneration", T5, []),
}
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None)
OTHER_CLASSES = [("bert", "BertModel"), ("bert", "BertForSequenceClassification")]


def parameters(kind, config):
    """Number of parameters. Tied tables count once. An untied BERT stores its decoder bias twice; it counts once."""
    with torch.device("meta"):
        model = getattr(transformers, kind)(config)
    model.tie_weights()
    unused = {"cls.predictions.bias"} if kind == "BertForMaskedLM" and not config.tie_word_embeddings else set()
    return sum(tensor.numel() for name, tensor in model.named_parameters() if name not in unused)


def row(family, kind, sizes, saved):
    config = transformers.CONFIG_MAPPING[family](**{**NO_TOKENS, **sizes})
    fields = json.loads(config.to_json_string(use_diff=saved)) if saved else {
        key: value for key, value in json.loads(config.to_json_string(use_diff=True)).items()
        if key in sizes or value != json.loads(transformers.CONFIG_MAPPING[family]().to_json_string(use_diff=False)).get(key)}
    fields.pop("transformers_version", None)
    fields.update(model_type=family, architectures=[kind])
    return {"config": dict(sorted(fields.items())), "parameters": parameters(kind, config)}


def main(path):
    rows = []
    for family, (kind, sizes, changes) in FAMILIES.items():
        rows.append(row(family, kind, sizes, True))
        rows += [row(family, kind, {**sizes, **change}, False) for change in changes]
    rows += [row(family, kind, FAMILIES[family][1], False) for family, kind in OTHER_CLASSES]
    with open(path, "w") as file:
        file.write("[\n" + ",\n".join(" " + json.dumps(one) for one in rows) + "\n]\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
