"""Makes a tiny Llama with random weights, for engines that are to run on a processor: `tiny_model.py FOLDER`.

What it says is noise; that it is loaded, asked and stopped is what counts. Needs `numpy`, `safetensors` and `tokenizers`,
and texts to learn a vocabulary from (this repository's documentation).
"""

import json
import pathlib
import sys

import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 2048, 256, 2, 4, 2, 64
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_SIZE,
    "vocab_size": VOCABULARY, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
    "attention_bias": False, "mlp_bias": False,
}


def tokenizer(folder):
    root = pathlib.Path(__file__).resolve().parents[2]
    texts = sorted(str(path) for path in [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("LICENSE-*")])
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    # ASCII alone: noise of half characters would be held back by an engine until they are whole, and then an answer does
    # not come as a stream. What a prompt has beside it is left out.
    plain = (pathlib.Path(text).read_text(errors="ignore").encode("ascii", "ignore").decode() for text in texts)
    alphabet = [chr(code) for code in range(33, 127)] + ["\u0120", "\u010a"]  # blank and line end, in its own spelling
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(plain, trainer)
    made.save(str(folder / "tokenizer.json"))
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "pad_token": "</s>", "model_max_length": 2048, "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE,
    }


def weights():
    draw = numpy.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN)}
    norms = ["model.norm.weight"]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "self_attn.q_proj.weight"] = (HEADS * HEAD_SIZE, HIDDEN)
        shapes[prefix + "self_attn.k_proj.weight"] = (KV_HEADS * HEAD_SIZE, HIDDEN)
        shapes[prefix + "self_attn.v_proj.weight"] = (KV_HEADS * HEAD_SIZE, HIDDEN)
        shapes[prefix + "self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_SIZE)
        shapes[prefix + "mlp.gate_proj.weight"] = (2 * HIDDEN, HIDDEN)
        shapes[prefix + "mlp.up_proj.weight"] = (2 * HIDDEN, HIDDEN)
        shapes[prefix + "mlp.down_proj.weight"] = (HIDDEN, 2 * HIDDEN)
        norms += [prefix + "input_layernorm.weight", prefix + "post_attention_layernorm.weight"]
    drawn = {name: (draw.standard_normal(shape) * 0.05).astype(numpy.float32) for name, shape in shapes.items()}
    return drawn | {name: numpy.ones(HIDDEN, numpy.float32) for name in norms}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": CONFIG, "tokenizer_config.json": tokenizer(folder),
             "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})
    print(folder)


if __name__ == "__main__":
    main()
