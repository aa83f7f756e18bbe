"""Scores and significance of several systems, compared with sacreBLEU's program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from towernmt.core.errors import DataError, SettingsError
from towernmt.evaluate.comparison import SignificanceSettings, System, bleu_difference, compare
from towernmt.evaluate.metrics import MetricSettings, corpus_scores, make_metrics, score_corpus, sentence_scores

DRAWS = SignificanceSettings(samples=50, trials=60, seed=7)


def sacrebleu(directory: Path, *options: str) -> list[list[tuple[float, ...]]]:
    """Return the numbers of sacreBLEU's command line for the files of `texts`, by system and metric."""
    command = [sys.executable, "-m", "sacrebleu", "ref0", "ref1", "-i", "base", "better", "same", "-m", "bleu", "chrf",
               "ter", "--force", "--format", "text", "--quiet", "--width", "8", *options]
    environment = {**os.environ, "SACREBLEU_SEED": "7", "NO_COLOR": "1"}
    output = subprocess.run(command, cwd=directory, env=environment, capture_output=True, check=True, text=True).stdout
    rows = [line.split("│")[2:5] for line in output.splitlines() if re.search(r"│.*\d\.\d", line)]
    cells = [[tuple(map(float, re.findall(r"\d+\.\d+", cell))) for cell in row] for row in rows]
    base, better, better_p, same, same_p = cells
    return [base, *([(*score, *p) for score, p in zip(scores, chances, strict=True)]
                    for scores, chances in ((better, better_p), (same, same_p)))]


@pytest.fixture
def texts(systems, references, tmp_path) -> Path:
    for name, lines in [*((s.name, s.hypotheses) for s in systems), ("ref0", references[0]), ("ref1", references[1])]:
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


@pytest.mark.parametrize(("test", "draws"), [("bs", "50"), ("ar", "60")])
def test_scores_and_chances_are_those_of_sacrebleus_program_with_the_same_seed(systems, references, texts, test, draws):
    comparison = compare(systems, references, MetricSettings(), DRAWS)
    for i, by_metric in enumerate(sacrebleu(texts, f"--paired-{test}", f"--paired-{test}-n", draws)):
        for (score, *interval), system_scores in zip(by_metric, comparison.scores.values(), strict=True):
            ours = system_scores[i]
            p = ours.bootstrap_p if test == "bs" else ours.randomization_p
            expected = [*([ours.mean, ours.interval] if test == "bs" else []), *([] if p is None else [p])]
            assert score == pytest.approx(ours.score, abs=1e-6) and interval == pytest.approx(expected, abs=1e-4)
            assert (p is None) == (i == 0)
    signatures = comparison.signatures if test == "bs" else comparison.randomization_signatures
    assert all(f"{test}:{draws}|seed:7" in signature for signature in signatures.values())


def test_the_interval_of_a_difference_of_bleu_is_that_of_texts_drawn_again(systems, references):
    base, better = systems[0].hypotheses, systems[1].hypotheses
    interval = bleu_difference(better, base, references, significance=DRAWS)
    rows = np.random.default_rng(7).integers(len(base), size=(50, len(base)))

    def bleu(lines, draw):
        sample = [[text[i] for i in draw] for text in (lines, *references)]
        return BLEU(force=True).corpus_score(sample[0], sample[1:]).score

    differences = sorted(bleu(better, draw) - bleu(base, draw) for draw in rows)
    assert differences[1] <= interval.low <= differences[2] and differences[-3] <= interval.high <= differences[-2]
    assert interval.value == pytest.approx(bleu(better, range(len(base))) - bleu(base, range(len(base))))
    assert bleu_difference(base, base, references, significance=DRAWS) == (0.0, 0.0, 0.0)
    with pytest.raises(DataError, match="second: 1 hypotheses for"):
        bleu_difference(base, base[:1], references)


def test_a_single_system_has_scores_and_intervals(systems, references):
    comparison = compare(systems[:1], references, MetricSettings(), DRAWS)
    alone = score_corpus(systems[0].hypotheses, references, MetricSettings())
    assert {name: scores[0].score for name, scores in comparison.scores.items()} == pytest.approx(
        {name: score for name, (score, _) in alone.items()})
    assert all(scores[0].interval > 0 and scores[0].bootstrap_p is None for scores in comparison.scores.values())
    assert comparison.randomization_signatures == {}


def test_a_system_equal_to_the_baseline_never_differs(systems, references):
    again = System("again", systems[0].hypotheses)
    comparison = compare([*systems[:2], again], references, MetricSettings(("bleu",)), DRAWS)
    significant = [[sure for _, _, sure in score.chances] for score in comparison.scores["BLEU"]]
    assert significant == [[], [True, True], [False, False]]


def test_a_seed_of_the_environment_is_left_as_it_was(systems, references, monkeypatch):
    for seed in ("99", None):
        if seed:
            monkeypatch.setenv("SACREBLEU_SEED", seed)
        else:
            monkeypatch.delenv("SACREBLEU_SEED")
        compare(systems[:1], references, MetricSettings(("bleu",)), DRAWS)
        assert os.environ.get("SACREBLEU_SEED") == seed


def test_ter_is_the_fewest_edits_to_any_reference_over_their_mean_length():
    # 1 edit to the first, 2 to the second; (4 + 6) / 2 words.
    (score, signature), = score_corpus(["a b x d"], [["a b c d"], ["a b x d e f"]], MetricSettings(("ter",))).values()
    assert score == pytest.approx(100 * 1 / 5) and "nrefs:2|case:lc" in signature


def test_the_language_chooses_the_tokeniser_and_ters_characters():
    chinese = score_corpus(["我喜欢狗"], [["我喜欢猫"]], MetricSettings(target_language="zh"))
    assert "tok:zh" in chinese["BLEU"][1] and "asian:yes" in chinese["TER"][1]
    assert chinese["TER"][0] == pytest.approx(100 * 1 / 4)
    assert "tok:13a" in score_corpus(["a"], [["a"]], MetricSettings())["BLEU"][1]
    assert "tok:char" in score_corpus(["a"], [["a"]], MetricSettings(tokenizer="char", target_language="zh"))["BLEU"][1]


@pytest.mark.parametrize("code", ["zh-CN", "zh_Hans", "ZH", "zh-Hant-TW", "cmn", "yue", "zho_Hans", " zh ", "zt"])
def test_every_code_of_chinese_has_the_tokeniser_and_the_scores_of_zh(code):
    texts = ["我喜欢狗和小猫"], [["我喜欢猫和小猫"]]
    assert score_corpus(*texts, MetricSettings(target_language=code)) == score_corpus(
        *texts, MetricSettings(target_language="zh"))


@pytest.mark.parametrize("code", ["th", "th-TH", "tha_Thai", "lo", "km", "my", "bo"])
def test_characters_are_counted_in_languages_without_spaces_that_sacrebleu_has_no_tokeniser_for(code):
    score, signature = score_corpus(["ฉันชอบสุนัข"], [["ฉันชอบแมว"]], MetricSettings(target_language=code))["BLEU"]
    assert score > 20 and "tok:char" in signature
    assert "tok:13a" in score_corpus(["a"], [["a"]], MetricSettings(tokenizer="13a", target_language=code))["BLEU"][1]


@pytest.mark.parametrize("code, language", [("ja-JP", "ja"), ("jpn", "ja"), ("ko-KR", "ko"), ("KO", "ko"), ("", ""),
                                            ("de_AT", "de"), ("ger", "de")])
def test_a_language_is_kept_by_its_code_of_two_letters(code, language):
    assert MetricSettings(target_language=code).target_language == language


def test_the_scores_of_both_metrics_are_as_computed_by_hand():
    # 1- to 4-gram precisions 5/6, 3/5, 2/4, 1/3 and no brevity penalty.
    assert corpus_scores(["a b c d x f"], ["a b c d e f"]).bleu == pytest.approx(
        100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    text = ["The cat sat on the mat.", "Good morning, everybody!"]
    scores = corpus_scores(text, text)
    assert scores.bleu == pytest.approx(100) and scores.chrf == pytest.approx(100)
    assert all(part in scores.signature for part in ("tok:13a", "case:mixed", "version:"))


def test_scoring_nothing_or_unequal_numbers_of_lines_is_refused():
    with pytest.raises(DataError, match="2 hypotheses for 1 references"):
        corpus_scores(["a", "b"], ["a"])
    with pytest.raises(DataError, match="no sentences"):
        corpus_scores([], [])


def test_the_scores_of_both_metrics_take_the_target_language():
    assert "tok:zh" in corpus_scores(["我喜欢狗"], ["我喜欢猫"], target_language="zh-Hans").signature
    assert "tok:13a" in corpus_scores(["a"], ["a"]).signature


@pytest.mark.parametrize("text", ["Chinese", "z", "zh CN", "中文"])
def test_a_target_language_that_is_no_code_is_refused(text):
    with pytest.raises(SettingsError, match=f"--target-language {text}: expected the code of a language"):
        MetricSettings(target_language=text)


def test_case_is_significant_by_default():
    for lowercase, same in ((False, False), (True, True)):
        scores = score_corpus(["A B C D"], [["a b c d"]], MetricSettings(lowercase=lowercase))
        assert (scores["BLEU"][0] > 99) is (scores["chrF2"][0] > 99) is same
        assert scores["TER"][0] == 0


def test_a_sentences_bleu_has_the_effective_order():
    assert sentence_scores("bleu", MetricSettings(), ["a b"], [["a b"]]) == pytest.approx([100])
    assert sentence_scores("chrf", MetricSettings(), ["a b", "x"], [["a b", "q"]]) == pytest.approx([100, 0])


def test_impossible_comparisons_are_refused_with_a_message(monkeypatch):
    with pytest.raises(SettingsError, match="seed=0"):
        SignificanceSettings(seed=0)
    with pytest.raises(SettingsError, match="metric 'comet': choose among bleu, chrf, ter"):
        MetricSettings(("comet",))
    with pytest.raises(SettingsError, match="tokenizer 'moses'"):
        MetricSettings(tokenizer="moses")
    with pytest.raises(DataError, match="two: 2 hypotheses for 1 references"):
        compare([System("one", ["a"]), System("two", ["a", "b"])], [["a"]], MetricSettings(), DRAWS)
    with pytest.raises(DataError, match="no sentences"):
        compare([System("one", [])], [[]], MetricSettings(), DRAWS)
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(SettingsError, match=r"sacrebleu\[ja\]"):
        make_metrics(MetricSettings(target_language="ja"))
    from sacrebleu.tokenizers import tokenizer_spm

    def unreachable(*_):
        raise URLError("no route to host")

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", "/nowhere")
    monkeypatch.setattr(tokenizer_spm, "download_file", unreachable)
    with pytest.raises(SettingsError, match="could not download the model of the tokeniser 'flores200'.*no route"):
        make_metrics(MetricSettings(tokenizer="flores200"))
