"""Train pico-python from scratch: corpus from the standard library, BPE tokenizer, Llama model.

python train_pico.py OUT_DIR            needs torch (CUDA) and transformers
"""

import glob
import hashlib
import math
import os
import random
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

SPLIT = r" ?[A-Za-z_]+| ?[0-9]| ?[^\sA-Za-z0-9_]+|\n[ ]*|[ ]+|\s+"


def corpus():
    """Standard-library sources, shuffled, without duplicates: (training texts, 60 held-out texts)."""
    root, seen, texts = sysconfig.get_paths()["stdlib"], set(), []
    files = glob.glob(root + "/**/*.py", recursive=True)
    files = [f for f in files if "/site-packages/" not in f and "/lib2to3/tests/data" not in f]
    random.seed(0)
    random.shuffle(files)
    for name in files:
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        digest = hashlib.md5(text.encode()).hexdigest()
        if 200 <= len(text) <= 400_000 and digest not in seen:
            seen.add(digest)
            texts.append(text)
    order = list(range(len(texts)))
    random.seed(1)
    random.shuffle(order)
    return [texts[i] for i in order[60:]], [texts[i] for i in order[:60]]


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=4096, special_tokens=special, initial_alphabet=alphabet)
    )
    return tokenizer


def encode(tokenizer, texts):
    ids = []
    for encoding in tokenizer.encode_batch(texts):
        ids += [0] + encoding.ids
    return torch.from_numpy(np.array(ids, np.int64)).cuda()


def main(out, steps=1200, batch=96, length=1024, peak=3e-3):
    os.makedirs(out, exist_ok=True)
    train_texts, heldout_texts = corpus()
    tokenizer = train_tokenizer(train_texts)
    tokenizer.save(out + "/tokenizer.json")
    train, heldout = encode(tokenizer, train_texts), encode(tokenizer, heldout_texts)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4096,
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).cuda()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=True)
    offsets = torch.arange(length, device="cuda")

    @torch.compile
    def loss_of(starts, ids):
        x, y = ids[starts[:, None] + offsets], ids[starts[:, None] + offsets + 1]
        return torch.nn.functional.cross_entropy(
            model(input_ids=x, use_cache=False).logits.float().flatten(0, 1), y.flatten()
        )

    best, best_state, began = math.inf, None, time.time()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, (step + 1) / 100) * (0.05 + 0.475 * (1 + math.cos(math.pi * step / steps)))
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(torch.randint(0, len(train) - length - 1, (batch,), device="cuda"), train)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 250 == 0 or step == steps - 1:
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                starts = torch.arange(0, len(heldout) - length - 1, length, device="cuda")
                held = sum(loss_of(part, heldout).item() * len(part) for part in starts.split(32)) / len(starts)
            print(f"step {step} {time.time() - began:.0f}s train {loss.item():.3f} held-out {held:.3f}", flush=True)
            if held < best:
                best, best_state = held, {k: v.detach().clone() for k, v in model.state_dict().items()}
    model.load_state_dict(best_state)
    model.to(torch.bfloat16).save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1])
