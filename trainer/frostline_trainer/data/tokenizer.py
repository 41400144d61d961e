"""The tokenizer: the checkpoint's, one that the job names, or one trained on the data; the same on every worker."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frostline_contract.job import Job

END_OF_TEXT = "<|endoftext|>"
PAD, UNKNOWN, CLS, SEP, MASK = WORDPIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def build_tokenizer(job: Job, texts: Sequence[str]) -> Any:
    """A fast tokenizer (transformers' PreTrainedTokenizerFast) with a padding token.

    data.tokenizer, else the checkpoint's (model.path, model.hub), else one trained on `texts`: WordPiece, or byte-level BPE
    for language modelling. Raises ValueError if a named tokenizer cannot be read.
    """
    source = job.data.tokenizer or job.model.path or job.model.hub
    if source is None:
        trained = train_byte_level_bpe if job.task.kind == "language_modeling" else train_wordpiece
        return trained(texts, job.data.vocabulary_size, job.data.sequence_length)
    return _read_tokenizer(source, None if job.data.tokenizer else job.model.revision)


def tokenizer_digest(tokenizer: Any) -> str:
    """Hex SHA-256 of everything that decides token ids."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def _read_tokenizer(source: str, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    local = Path(source).is_absolute() or Path(source).exists()
    if local and not any(
        (Path(source) / name).exists() for name in ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model")
    ):
        raise ValueError(
            f"{source}: holds no tokenizer (tokenizer.json, vocab.txt, ...); set data.tokenizer to a folder that does"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, use_fast=True, local_files_only=local)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"tokenizer {source!r} cannot be read ({reason}); set data.tokenizer to a local folder") from error
    if not tokenizer.is_fast:
        raise ValueError(f"tokenizer {source!r} has no fast form, which offsets need; save it with tokenizer.json")
    if tokenizer.pad_token is None:
        # GPT-2 and Llama have no padding token; padded positions are masked, so any id will do.
        padding = tokenizer.eos_token or tokenizer.unk_token
        if padding is None:
            raise ValueError(f"tokenizer {source!r} has no token for padding (pad, eos or unk); save it with a pad_token")
        tokenizer.pad_token = padding
    return tokenizer


def train_byte_level_bpe(texts: Sequence[str], vocabulary_size: int, sequence_length: int) -> Any:
    """A byte-level BPE as GPT-2's, of at least 257 tokens (all bytes and the end of text)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=sequence_length,
    )


def train_wordpiece(texts: Sequence[str], vocabulary_size: int, sequence_length: int) -> Any:
    """A lower-casing WordPiece as BERT's."""
    from tokenizers import Tokenizer, decoders, models, processors
    from transformers import PreTrainedTokenizerFast

    tokens = _wordpiece_tokens(texts, vocabulary_size)
    tokenizer = Tokenizer(models.WordPiece({token: number for number, token in enumerate(tokens)}, unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = _bert_pieces()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(token, tokens.index(token)) for token in (CLS, SEP)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        cls_token=CLS,
        sep_token=SEP,
        mask_token=MASK,
        model_max_length=sequence_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def _wordpiece_tokens(texts: Sequence[str], vocabulary_size: int) -> list[str]:
    """A vocabulary by id, the same in every process.

    The library numbers continuing letters ("##a") in the order of a hash table, which changes from process to process, and
    breaks ties between merges by those numbers; so two workers would train different tokenizers. Declaring these letters as
    special tokens fixes their numbers beforehand.
    """
    from tokenizers import Tokenizer, models, trainers

    letters = _letters(texts)
    fixed = [*WORDPIECE_SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=max(vocabulary_size, len(fixed)),
        special_tokens=fixed,
        limit_alphabet=0,  # no letters but those in `fixed`
        show_progress=False,
        continuing_subword_prefix="##",
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = _bert_pieces()
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


LETTERS_MAX = 500
"""Distinct characters that a trained WordPiece knows, the most frequent ones; a word with another one is unknown."""


def _letters(texts: Sequence[str]) -> list[str]:
    normalizer, _ = _bert_pieces()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    frequent = sorted(counts, key=lambda letter: (-counts[letter], letter))
    return sorted(letter for letter in frequent[:LETTERS_MAX] if not letter.isspace())


def _bert_pieces() -> tuple[Any, Any]:
    from tokenizers import normalizers, pre_tokenizers

    return normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
