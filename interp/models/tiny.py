"""Random-weight models of each family, a few thousand parameters large, for tests and dry runs.

Nothing they compute means anything; every mechanism of their family is there: grouped key/value
heads (Llama, Gemma 2), sliding windows and soft caps (Gemma 2), parallel blocks (GPT-NeoX),
post-norm (BERT), relative positions (T5), cross-attention (T5, BART).
"""

import tempfile
from typing import Any

import torch

from interp.errors import InputError
from interp.models.pretrained import PretrainedModel, float_type, from_module, torch_device
from interp.models.text import BYTE_SPECIALS, byte_tokenizer

VOCAB = len(BYTE_SPECIALS) + 256
WIDTH = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
MLP = {"intermediate_size": 64}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
IDS = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
N_CTX = {"max_position_embeddings": 128}

FAMILIES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    # name: class, kind, how the tokenizer frames a text, configuration
    "tiny_gpt2": ("GPT2LMHeadModel", "decoder", "none", WIDTH | {"n_positions": 128}),
    "tiny_llama": ("LlamaForCausalLM", "decoder", "none", WIDTH | MLP | GROUPED | N_CTX),
    "tiny_gemma2": (
        "Gemma2ForCausalLM",
        "decoder",
        "none",
        WIDTH
        | MLP
        | N_CTX
        | {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 4}
        | {"query_pre_attn_scalar": 16},
    ),
    "tiny_neox": ("GPTNeoXForCausalLM", "decoder", "none", WIDTH | MLP | N_CTX),
    "tiny_bert": ("BertForMaskedLM", "encoder", "both", WIDTH | MLP | N_CTX),
    "tiny_t5": (
        "T5ForConditionalGeneration",
        "encoder_decoder",
        "end",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_heads": 4}
        | {"decoder_start_token_id": 0},
    ),
    "tiny_bart": (
        "BartForConditionalGeneration",
        "encoder_decoder",
        "both",
        {"d_model": 32, "encoder_layers": 3, "decoder_layers": 3}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
        | {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 2}
        | N_CTX,
    ),
}


def tiny(
    name: str,
    *,
    device: str,
    dtype: str,
    prepend_bos: bool | str,
    padding_side: str,
    truncation: str,
    weights_seed: int,
) -> PretrainedModel:
    """Build a random model of a family; the same seed gives the same weights."""
    import transformers

    if name not in FAMILIES:
        raise InputError(f"model.name={name}: one of {', '.join(FAMILIES)}")
    architecture, kind, frame, settings = FAMILIES[name]
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**(IDS | settings), architectures=[architecture])
    with torch.random.fork_rng():
        torch.manual_seed(weights_seed)
        module = model_class(config)
        for parameter in module.parameters():  # biases start at 0 and would hide mistakes
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
            else:  # wider than the usual 0.02, so that attention is far from uniform
                parameter.data.normal_(std=parameter.shape[-1] ** -0.5)
        for path, buffer in module.named_buffers():
            if path == "final_logits_bias":
                buffer.normal_()
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        byte_tokenizer(frame).save_pretrained(folder)
        return from_module(
            module.to(torch_device(device), float_type(dtype)),
            transformers.AutoTokenizer.from_pretrained(folder),
            name=name,
            folder=folder,
            kind=kind,
            prepend_bos=prepend_bos,
            padding_side=padding_side,
            truncation=truncation,
            has_lm_head=True,
            record={"name": name, "weights": f"random, seed {weights_seed}"},
        )
