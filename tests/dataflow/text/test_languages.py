"""Codes of languages in all usual spellings."""

from __future__ import annotations

import pytest

from towernmt.core.errors import SettingsError
from towernmt.dataflow.text.language_codes import (
    bcp47_code,
    check_code,
    parse_direction,
    plain_code,
    spoken,
    two_letter_code,
    written_language,
)
from towernmt.dataflow.text.pair_filters import identified_code


@pytest.mark.parametrize("language, codes", [
    ("zh", "zh ZH zh-CN zh_CN zh-Hans zh_Hans zh-Hant-TW zho cmn chi cmn-Hans-CN zho_Hans zt cn zh_CN.UTF-8 yue nan "
           "wuu lzh yue-HK"),
    ("ja", "ja JA ja-JP ja_JP jpn jp ja_JP.utf8 jpn_Jpan"), ("ko", "ko ko-KR ko_KR KO kor kor_Hang"),
    ("th", "th th-TH th_TH tha tha_Thai TH"), ("km", "km khm km-KH"), ("bo", "bo bod tib"), ("my", "my mya bur"),
    ("de", "de DE de-AT deu ger de_DE@euro"), ("pt", "pt pt-BR por pb"), ("he", "he iw heb"), ("tl", "tl fil tgl"),
    ("id", "id in ind"), ("cs", "cs cz ces cze"), ("el", "el gr ell gre")])
def test_every_spelling_of_a_code_is_the_language_that_is_written(language, codes):
    assert {code: written_language(code) for code in codes.split()} == dict.fromkeys(codes.split(), language)


@pytest.mark.parametrize("code, plain, bcp47", [
    ("EN_us", "en-us", "en-US"), ("ZH_hant_tw", "zh-hant-tw", "zh-Hant-TW"), ("es-419", "es-419", "es-419"),
    (" De ", "de", "de"), ("sr_Latn_RS", "sr-latn-rs", "sr-Latn-RS"), ("ca_ES@valencia", "ca-es", "ca-ES")])
def test_a_code_has_one_spelling_for_comparisons_and_one_of_bcp_47(code, plain, bcp47):
    assert (plain_code(code), bcp47_code(code)) == (plain, bcp47)


@pytest.mark.parametrize("text, direction", [
    ("de-en", "de en"), ("DE-EN", "de en"), ("zh_hant-en", "zh-hant en"), ("zh-Hant-en", "zh-hant en"),
    ("zh-hant-en", "zh-hant en"), ("ZH-HANT-EN", "zh-hant en"), ("de_DE-en_GB", "de-de en-gb"),
    ("de-DE-en-GB", "de-de en-gb"), ("pt-BR-en", "pt-br en"), ("en-zh-Hans-CN", "en zh-hans-cn"),
    ("en-es-419", "en es-419"), ("zho_Hans-eng_Latn", "zho-hans eng-latn"), ("hsb-de", "hsb de")])
def test_a_pair_of_codes_is_read_with_scripts_and_regions(text, direction):
    assert " ".join(parse_direction(text)) == direction


@pytest.mark.parametrize("text, wrong", [
    ("german", "is not a pair"), ("de", "is not a pair"), ("de-", "is not a pair"), ("", "is not a pair"),
    ("de-en-fr", "several ways"), ("pt-br-en", "several ways"), ("english-german", "is not a pair of languages")])
def test_a_text_that_is_not_one_pair_is_refused(text, wrong):
    with pytest.raises(SettingsError, match=f"{wrong}.*as de-en"):
        parse_direction(text)


def test_a_name_is_refused_with_the_code_of_its_language():
    with pytest.raises(SettingsError, match="--language Chinese: expected the code of a language, such as zh"):
        check_code("Chinese", "--language")


@pytest.mark.parametrize("code, known, language", [
    ("cmn-Hans-CN", ["zh"], "zh"), ("deu-DE", ["de"], "de"), ("pb", ["pt", "pt-br"], "pt-br"), ("pb", ["pt"], "pt"),
    ("zt", ["zh"], "zh"), ("JP", ["ja"], "ja"), ("ger", ["de"], "de"), ("nb", ["no"], "no"), ("xx", ["de"], None)])
def test_a_served_language_is_found_by_every_code(code, known, language):
    assert spoken(code, known) == language


@pytest.mark.parametrize("code, identified", [
    ("zh-CN", "zh"), ("zh_Hans", "zh"), ("DE", "de"), ("deu", "de"), ("nb", "no"), ("nb-NO", "no"), ("yue", "yue"),
    ("ja-JP", "ja"), ("iw", "he"), ("pt_BR", "pt")])
def test_the_filter_of_languages_knows_every_spelling(code, identified):
    pytest.importorskip("py3langid")
    assert identified_code(code) == identified


@pytest.mark.parametrize("code", ["german", "d", "de en", "12", "deutsch"])
def test_what_is_no_code_is_refused(code):
    with pytest.raises(SettingsError, match="expected the code of a language"):
        check_code(code, "--language")


def test_the_codes_of_two_letters_are_languages_themselves():
    assert two_letter_code("nn") == "nn" and two_letter_code("gsw") == "gsw"
