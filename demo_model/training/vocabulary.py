"""Train the tokenizers of demo models."""

import json
import random
from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from reprise.demo_model.training.corpus import Source, conversations
from reprise.demo_model.training.corpus.lexicon import ADJECTIVES, FIELDS, IDENTIFIER_WORDS, NAMES
from reprise.demo_model.training.corpus.polish import POLISH_ADJECTIVES, POLISH_NAMES, POLISH_NOUNS, in_polish
from reprise.demo_model.training.corpus.rendering import SPECIAL_TOKENS, render
from reprise.demo_model.training.sizes import CONFIG, POLISH_CONFIG

# Words include a leading space, numbers are split into pairs of digits, line breaks include the indentation.
SPLIT = r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# For the Polish vocabulary: single digits; line breaks include the indentation, signs a leading space.
POLISH_SPLIT = r"\n *|\p{N}| ?[^\s\p{L}\p{N}]+| ?\p{L}+|\s"


def train_tokenizer() -> Tokenizer:
    """Train a byte-level BPE on generated text. Extra text makes most words of the corpus single tokens."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    words = sorted({*IDENTIFIER_WORDS, *ADJECTIVES, *FIELDS, *NAMES})
    text = ["".join(p for p, _ in render(c)) for c in islice(conversations(Source(random.Random(0))), 3000)]
    text += ["\n".join((word, " " + word)) for word in words] * 30
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    single = sum(len(tokenizer.encode(form).ids) == 1 for w in words for form in (w, " " + w))
    print(f"tokenizer: {tokenizer.get_vocab_size()} tokens, {single} of {2 * len(words)} words are one token")
    return tokenizer


def train_polish_tokenizer() -> Tokenizer:
    """Train a BPE in SentencePiece's style, of characters with byte fallback. Half of the text is in Polish.

    Spaces become marks. Encoding adds one at the start of the text, and decoding removes it again.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    split = pre_tokenizers.Split(Regex(POLISH_SPLIT), behavior="isolated")
    spaces = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, spaces])
    parts = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    tokenizer.decoder = decoders.Sequence(parts)
    rng = random.Random(0)
    pieces = [render(c) for c in islice(conversations(Source(rng)), 3000)]
    text = ["".join(p for p, _ in (in_polish(one, rng) if at % 2 else one)) for at, one in enumerate(pieces)]
    for words in (POLISH_NOUNS, POLISH_ADJECTIVES, POLISH_NAMES):
        text += ["\n".join((word, " " + word, word.capitalize())) for word in words] * 30
    trainer = trainers.BpeTrainer(
        vocab_size=POLISH_CONFIG["vocab_size"],
        special_tokens=[*SPECIAL_TOKENS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=[chr(code) for code in range(32, 127)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    # The trainer accepts byte tokens only as special tokens, which decoding would skip.
    written = json.loads(tokenizer.to_str())
    written["added_tokens"] = [
        token for token in written["added_tokens"] if token["content"] in SPECIAL_TOKENS
    ]
    return Tokenizer.from_str(json.dumps(written))
