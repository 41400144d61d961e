"""Augmentation: pinned by (seed, sample, variant), declared or refused."""

import numpy as np
import pytest

from frostline_trainer.data.augment import Augmentation, cache_refusal, check_augmentation
from frostline_trainer.data.load import load_data
from tests.unit.trainer.data_cases import job_of

IMAGE = np.arange(1, 65, dtype=np.float32).reshape(1, 8, 8)


def digits(**augmentation):
    return job_of("image_classification", "digits", augmentation=augmentation)


def test_content_depends_on_seed_sample_and_variant_alone() -> None:
    augmentation = Augmentation(seed=3, shift_pixels=2, horizontal_flip=True)
    once = [augmentation.apply(IMAGE, sample, variant) for sample in range(20) for variant in range(4)]
    again = [Augmentation(3, 2, True).apply(IMAGE, sample, variant) for sample in range(20) for variant in range(4)]
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert len({image.tobytes() for image in once}) > 20
    assert any(not np.array_equal(a, Augmentation(4, 2, True).apply(IMAGE, 0, v)) for v, a in enumerate(once[:4]))


def test_a_shift_moves_pixels_and_fills_with_zeros() -> None:
    augmentation = Augmentation(seed=0, shift_pixels=1, horizontal_flip=False)
    seen = set()
    for variant in range(100):
        shifted = augmentation.apply(IMAGE, 0, variant)
        moves = [
            (down, right)
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
            if np.array_equal(shifted, np.pad(IMAGE, ((0, 0), (1, 1), (1, 1)))[:, 1 - down : 9 - down, 1 - right : 9 - right])
        ]
        assert len(moves) == 1
        seen.update(moves)
    assert len(seen) == 9


def test_a_mirror_happens_about_half_of_the_time() -> None:
    augmentation = Augmentation(seed=0, shift_pixels=0, horizontal_flip=True)
    results = [augmentation.apply(IMAGE, sample, 0) for sample in range(200)]
    mirrored = sum(np.array_equal(image, IMAGE[:, :, ::-1]) for image in results)
    assert 70 < mirrored < 130
    assert mirrored + sum(np.array_equal(image, IMAGE) for image in results) == 200


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"shift_pixels": 1}, "shift_pixels 1 with mode off is undeclared randomness; set mode to k-variants"),
        ({"horizontal_flip": True}, "horizontal_flip with mode off is undeclared"),
        ({"mode": "k-variants"}, "mode k-variants with nothing to vary"),
        ({"mode": "off", "feature_noise": 0.1}, "noise belongs to mode pointwise-feature"),
        ({"mode": "pointwise-feature"}, "needs feature_noise > 0"),
    ],
)
def test_contradictions_are_refused_by_loader_and_cache(section: dict, words: str) -> None:
    job = digits(**section)
    with pytest.raises(ValueError, match=words):
        load_data(job)
    assert words in (cache_refusal(job) or "")


def test_text_has_no_shifts() -> None:
    job = job_of("language_modeling", "stdlib-text", augmentation={"mode": "k-variants", "shift_pixels": 1})
    with pytest.raises(ValueError, match=r"is for images, task\.kind is language_modeling; remove it"):
        check_augmentation(job)


def test_recompute_is_sound_but_uncacheable() -> None:
    job = digits(mode="recompute", shift_pixels=1)
    check_augmentation(job)
    assert "set mode to k-variants" in (cache_refusal(job) or "")


@pytest.mark.parametrize(
    "section",
    [{}, {"mode": "deterministic", "shift_pixels": 1}, {"mode": "k-variants", "shift_pixels": 1, "horizontal_flip": True}],
)
def test_declared_modes_are_cacheable(section: dict) -> None:
    assert cache_refusal(digits(**section)) is None
