"""The page in a real browser, with servers of known translations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.conftest import ServerProcess
from towernmt.serve.web.callers import add_key

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra test")
expect = playwright.expect
expect.set_options(timeout=60_000)
pytestmark = pytest.mark.processes
ENGINES = __file__.replace("test_page.py", "toy_engine.py")
TEXT = "der hund schläft. Das haus ist klein.\n\ndie katze und der hund"
FOUND = "sleeps dog the small is house the\n\ndog the und cat the"


@pytest.fixture(scope="module")
def two_languages() -> Iterator[ServerProcess]:
    """Start a server of two source languages, which detects them; to load the detection takes seconds."""
    started = ServerProcess("--model", f"de-en={ENGINES}:Toy", "--model", f"fr-en={ENGINES}:Plain")
    yield started
    started.stop()


def opened(page: Any, server: Any, text: str = "") -> Any:
    page.goto(server.url)
    page.get_by_label("From").select_option("de")
    if text:
        write(page, text)
        expect(page.locator("#status")).to_have_text("Translated.")
    return page


def write(page: Any, text: str) -> None:
    """Replace the text, and translate it without the pause after the last key."""
    source(page).fill(text)
    source(page).press("Control+Enter")


def source(page: Any) -> Any:
    return page.get_by_role("textbox", name="Text", exact=True)


def shown(page: Any) -> str:
    return "\n".join(page.locator("#target p").all_text_contents())


def word(page: Any, text: str) -> Any:
    return page.locator("#target .word").get_by_text(text, exact=True).first


def lit(page: Any) -> tuple[list[str], list[str]]:
    return page.locator("#backdrop mark").all_text_contents(), page.locator("#target .lit").all_text_contents()


def test_text_is_translated_while_one_types_with_its_paragraphs(page, toys):
    opened(page, toys)
    source(page).press_sequentially("der hund")
    expect(page.locator("#target")).to_have_text("dog the")
    source(page).press_sequentially(" schläft.")
    source(page).fill(TEXT)
    expect(page.locator("#target p")).to_have_count(3)
    expect(page.locator("#target p").nth(2)).to_have_text("dog the und cat the")
    assert shown(page) == FOUND
    expect(page.locator("#count")).to_have_text(f"{len(TEXT)} of 3,000 characters")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#target")).to_have_text("")


def test_what_is_typed_before_the_server_has_told_what_it_serves_is_translated_then(page, toys):
    held: list[Any] = []
    page.route("**/frontend/settings", lambda route: held.append(route))
    page.goto(toys.url)
    source(page).fill("der hund")
    expect(page.locator("#count")).to_have_text("8 characters")
    page.get_by_role("textbox", name="Text", exact=True).press("Control+Enter")
    held[0].continue_()
    expect(page.locator("#count")).to_have_text("8 of 3,000 characters")
    expect(page.locator("#target")).to_have_text("dog the")


def test_of_a_text_that_grows_only_new_lines_are_asked_for_and_no_old_answer_replaces_a_newer(page, toys):
    asked: list[dict[str, Any]] = []
    page.on("request", lambda request: asked.append(json.loads(request.post_data)) if request.post_data else None)
    opened(page, toys, "der hund\ndas haus")
    source(page).press("End")
    source(page).press_sequentially(" ist klein\ndie katze")
    expect(page.locator("#target p").nth(2)).to_have_text("cat the")
    assert asked[0]["text"] == ["der hund", "das haus"]
    assert all("der hund" not in one["text"] for one in asked[1:])
    assert shown(page) == "dog the\nsmall is house the\ncat the"
    assert all("?" not in one for one in page.evaluate("performance.getEntriesByType('resource').map(one => one.name)"))


def test_words_that_belong_together_are_lit_in_both_boxes(page, toys):
    opened(page, toys, TEXT)
    word(page, "house").hover()
    assert lit(page) == (["haus"], ["house"])
    word(page, "cat").focus()
    assert lit(page) == (["katze"], ["cat"])
    source(page).focus()
    source(page).evaluate("box => box.setSelectionRange(5, 5)")
    expect(page.locator("#target .lit")).to_have_text("dog")
    assert lit(page) == (["hund"], ["dog"])


@pytest.mark.parametrize("width", [pytest.param(1200, marks=pytest.mark.slow), 320])
def test_what_is_lit_lies_behind_the_very_word_though_lines_wrap(browser, toys, width):
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = opened(context.new_page(), toys, "die katze " * 40 + "hund " + "das haus " * 10)
    word(page, "dog").hover()
    field = source(page).bounding_box()
    mark = page.locator("#backdrop mark").bounding_box()
    place = page.locator("#backdrop mark").evaluate("""mark => {
      mark.scrollIntoView({block: "center"});
      const {left, top, width, height} = mark.getBoundingClientRect();
      return document.caretPositionFromPoint(left + width / 2, top + height / 2).offset;
    }""")
    assert 400 <= place <= 404 and field["y"] < mark["y"] < field["y"] + field["height"]
    assert source(page).evaluate("box => box.scrollHeight <= box.clientHeight + 1")     # the box is as high as its text
    context.close()


def test_a_word_is_changed_and_the_rest_is_new_behind_it(page, toys):
    opened(page, toys, "das haus schläft. Der hund")
    word(page, "house").click()
    menu = page.get_by_role("dialog", name="Other words")
    expect(menu.locator("#continuations button")).to_have_text(["house", "home", "hut"])
    menu.get_by_role("button", name="home").click()
    expect(page.locator("#target")).to_have_text("sleeps home the dog the")
    expect(menu).to_be_hidden()
    expect(word(page, "home")).to_be_focused()
    page.keyboard.press("Enter")
    menu.get_by_label("Write here").fill("h")
    expect(menu.locator("#continuations button")).to_have_text(["house", "home", "hut"])
    menu.get_by_label("Write here").fill("castle")
    menu.get_by_role("button", name="Use", exact=True).click()
    expect(page.locator("#target")).to_have_text("sleeps castle the dog the")


def test_a_word_that_is_used_as_soon_as_it_is_typed_is_not_lost_while_the_server_is_slow(page, toys):
    page.clock.install()
    opened(page, toys, "das haus schläft")
    word(page, "house").click()
    menu = page.get_by_role("dialog", name="Other words")
    expect(menu.locator("#continuations button")).to_have_text(["house", "home", "hut"])
    held: list[Any] = []
    page.route("**/api/v1/translate", lambda route: held.append(route))
    menu.get_by_label("Write here").fill("castle")
    with page.expect_request("**/api/v1/translate"):
        menu.get_by_role("button", name="Use", exact=True).click()
    page.clock.run_for(1000)        # longer than the pause after which the page asks for continuations of a typed word
    for route in held:
        route.continue_()
    expect(page.locator("#target")).to_have_text("sleeps castle the")


def test_the_menu_of_a_word_never_offers_the_words_of_another(page, toys):
    opened(page, toys, "Das haus ist klein. Der hund")
    held: dict[bool, Any] = {}

    def hold(route: Any) -> None:
        asked = json.loads(route.request.post_data)
        if asked["text"].startswith("Das") and not asked.get("avoid"):
            route.continue_()
        else:       # the further words of the first menu, and the words of the second one
            held[bool(asked.get("avoid"))] = route

    page.route("**/api/v1/translate", hold)
    menu = page.get_by_role("dialog", name="Other words")
    with page.expect_request(lambda request: "avoid" in (request.post_data or "")):
        word(page, "small").click()
    expect(menu.locator("#continuations button")).to_have_text(["small", "little"])
    with page.expect_request("**/api/v1/translate"):
        word(page, "dog").click()
    page.evaluate("new Promise(requestAnimationFrame)")
    assert menu.locator("#continuations button").count() == 0 and held[True] is not None
    held[False].continue_()
    expect(menu.locator("#continuations button")).to_have_text(["dog", "hound", "doggy"])
    menu.get_by_role("button", name="hound", exact=True).click()
    expect(page.locator("#target")).to_have_text("small is house the hound the")


def test_a_word_keeps_the_focus_when_the_words_are_drawn_again(page, toys):
    opened(page, toys, "das haus ist klein")
    held: list[Any] = []
    page.route("**/api/v1/translate", lambda route: (
        held.append(route) if json.loads(route.request.post_data).get("avoid") else route.continue_()))
    menu = page.get_by_role("dialog", name="Other words")
    with page.expect_request(lambda request: "avoid" in (request.post_data or "")):
        word(page, "small").click()
    expect(menu.locator("#continuations button")).to_have_text(["small", "little"])
    press_tab_until(page, "document.activeElement.textContent === 'little'")
    page.evaluate("document.activeElement.id = 'before'")
    held[0].continue_()
    expect(page.locator("#before")).to_have_count(0)        # the further words have arrived
    assert page.evaluate("document.activeElement.textContent") == "little" and menu.is_visible()
    page.keyboard.press("Enter")
    expect(page.locator("#target")).to_have_text("little is house the")


def test_keys_close_the_menu_of_a_word(page, toys):
    opened(page, toys, "das haus schläft")
    menu = page.get_by_role("dialog", name="Other words")
    for key in ("Escape", "Tab", "Shift+Tab"):
        word(page, "house").click()
        expect(menu.locator("#continuations button").first).to_be_visible()
        for _ in range(20 if key == "Tab" else 1):      # Tab passes through the menu before it leaves it
            page.keyboard.press(key)
            if menu.is_hidden():
                break
        expect(menu).to_be_hidden()
        if key == "Escape":
            expect(word(page, "house")).to_be_focused()
        else:
            assert page.evaluate("!document.getElementById('choices').contains(document.activeElement)")
    word(page, "house").click()
    expect(menu).to_be_visible()
    page.get_by_label("Confidence").focus()     # Escape closes the menu wherever the focus is
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()


def test_a_refused_word_stays_and_can_be_written_alone(page, toys):
    opened(page, toys, "das haus schläft")
    word(page, "house").click()
    menu = page.get_by_role("dialog", name="Other words")
    menu.get_by_label("Write here").fill("日本")
    menu.get_by_role("button", name="Use", exact=True).click()
    expect(menu).to_contain_text("cannot write")
    expect(menu.get_by_label("Write here")).to_have_value("日本")
    expect(source(page)).to_have_value("das haus schläft")
    assert shown(page) == "sleeps house the"
    menu.get_by_role("button", name="Change this word alone").click()
    expect(page.locator("#target")).to_have_text("sleeps 日本 the")


def test_a_server_of_one_direction_has_plain_names_and_nothing_to_choose(page, start):
    server = start("--model", f"de-en={ENGINES}:Plain")
    page.goto(server.url)
    write(page, "das haus")
    expect(page.locator("#target")).to_have_text("house the")
    assert page.locator("#from-name").text_content() == "German"
    assert page.locator("#to-name").text_content() == "English"
    for hidden in ("#from", "#to", "#swap", "#confidence-choice"):
        expect(page.locator(hidden)).to_be_hidden()
    page.get_by_role("button", name="About the model").click()
    card = page.get_by_role("dialog", name="About the model")
    expect(card).to_contain_text("not stated")


def test_a_language_whose_engine_has_no_alignments_is_detected(page, two_languages):
    page.goto(two_languages.url)
    write(page, "le temps est vraiment très beau cette semaine")
    expect(page.locator("#target")).to_have_text("semaine cette beau très vraiment est temps le")
    write(page, "das ist wirklich das haus")
    expect(page.locator("#target")).to_have_text("house the wirklich is the")


def test_the_detected_language_is_that_of_the_text_also_if_it_was_translated_before_or_is_html(page, two_languages):
    page.goto(two_languages.url)
    german, french = "das ist wirklich das haus", "le temps est vraiment très beau cette semaine"
    for text, language in ((german, "German"), (french, "French"), (german, "German")):
        write(page, text)
        expect(page.locator("#status")).to_have_text(f"Translated from {language}.")
    page.get_by_label("HTML").check()
    write(page, f"<p>{french}</p>")
    expect(page.locator("#status")).to_have_text("Translated from French.")


def test_the_menu_of_a_word_translates_from_the_language_of_its_line(page, two_languages):
    page.goto(two_languages.url)
    write(page, "das ist wirklich das haus")
    expect(page.locator("#status")).to_have_text("Translated from German.")
    write(page, "das ist wirklich das haus\nle temps est vraiment très beau cette semaine")
    expect(page.locator("#status")).to_have_text("Translated from French.")
    with page.expect_request("**/api/v1/translate") as asked:
        word(page, "house").click()
    assert json.loads(asked.value.post_data)["source"] == "de"
    menu = page.get_by_role("dialog", name="Other words")
    expect(menu.locator("#continuations button")).to_have_text(["house", "home", "hut"])
    page.keyboard.press("Escape")       # the menu may cover the next line
    word(page, "semaine").click()
    expect(menu).to_contain_text("This engine cannot continue from a word")


def test_a_control_is_there_only_while_it_does_something(page, toys):
    opened(page, toys)
    for name in ("Clear", "Copy"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_hidden()
    source(page).fill("das haus")
    for name in ("Clear", "Copy"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_visible()
    expect(page.locator("#to")).to_be_hidden()      # German is translated only to English
    expect(page.locator("#to-name")).to_have_text("English")
    page.get_by_label("From").select_option("auto")
    expect(page.locator("#to")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_role("button", name="Copy", exact=True)).to_be_hidden()
    fill = "getComputedStyle(document.getElementById('choose')).backgroundColor"
    assert page.evaluate(fill) == "rgba(0, 0, 0, 0)"        # it is not the most prominent button


def test_a_text_that_is_in_the_target_language_already_stays(page, toys):
    opened(page, toys)
    page.get_by_label("From").select_option("auto")
    page.get_by_label("To", exact=True).select_option("en")
    text = "This is a perfectly ordinary English sentence about the weather."
    write(page, text)
    expect(page.locator("#status")).to_have_text("This is English already.")
    assert shown(page) == text


def test_the_hint_is_shown_once(page, toys):
    page.goto(toys.url)
    hint = page.locator("#hint")
    expect(hint).to_be_hidden()
    opened(page, toys, "das haus")
    expect(hint).to_be_visible()
    page.get_by_role("button", name="Got it").click()
    write(page, "der hund")
    expect(page.locator("#target")).to_have_text("dog the")
    expect(hint).to_be_hidden()
    opened(page, toys, "das haus")
    expect(hint).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_icon_changes_the_colours_and_the_browser_keeps_them(browser, toys, scheme):
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(toys.url)
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    other, back = ("Light mode", "Dark mode") if scheme == "dark" else ("Dark mode", "Light mode")
    page.get_by_role("button", name=other).click()
    after = page.evaluate(ground)
    assert after != before
    page.reload()
    assert page.evaluate(ground) == after
    page.get_by_role("button", name=back).click()
    assert page.evaluate(ground) == before
    context.close()


def test_the_card_of_the_model_is_behind_the_line_at_the_foot(page, toys):
    opened(page, toys)
    page.get_by_role("button", name="About the model: Toy").click()
    card = page.get_by_role("dialog", name="About the model")
    for text in ("CC0-1.0", "It knows ten words.", "Anna, Bert", "Ten words (CC-BY-4.0), 7 sentence pairs",
                 "German to English", "3,000 characters"):
        expect(card).to_contain_text(text)
    assert "model.depth" not in card.text_content()
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()


def test_the_limit_is_that_of_a_request(page, toys):
    asked: list[dict[str, Any]] = []
    page.on("request", lambda request: asked.append(json.loads(request.post_data)) if request.post_data else None)
    opened(page, toys)
    lines = [f"hund {number} {'katze ' * 80}".strip() for number in range(12)]       # 5,800 characters
    write(page, "\n".join(lines))
    expect(page.locator("#target p")).to_have_count(12)
    expect(page.locator("#status")).to_have_text("Translated.")
    expect(page.locator("#count")).to_have_text(re.compile(r"^[\d,]+ characters$"))
    assert all(sum(map(len, one["text"])) <= 3000 for one in asked) and len(asked) < 12
    write(page, "\n".join([*lines[:2], "hund " * 700, "das haus"]))
    expect(page.get_by_role("alert")).to_contain_text("characters of text: send at most 3000 at once")
    expect(page.locator("#count.over")).to_have_text("3,500 of 3,000 characters in a line")
    expect(page.locator("#target p").nth(3)).to_have_text("house the")      # the other lines are translated


@pytest.mark.parametrize("width", [320, pytest.param(390, marks=pytest.mark.slow)])
def test_on_a_phone_the_translation_stays_in_sight(browser, toys, width):
    context = browser.new_context(viewport={"width": width, "height": 640}, has_touch=True)
    page = opened(context.new_page(), toys, "das haus ist klein. " * 60)
    page.evaluate("scrollTo(0, 0)")
    tops = [page.locator(part).bounding_box() for part in ("h1", "#open-history", "#theme")]
    assert max(box["y"] for box in tops) < min(box["y"] + box["height"] for box in tops)        # one row
    first = page.locator("#target .word").first.bounding_box()
    assert first["y"] + first["height"] < 640 * 0.75
    page.evaluate("scrollTo(0, 0)")
    source(page).press("ControlOrMeta+End")
    source(page).press_sequentially("hund")
    assert page.locator("#target").bounding_box()["y"] < 640 * 0.75
    assert page.evaluate("document.querySelector('#source-box .field').scrollTop") > 0     # scrolled to the end
    context.close()


def press_tab_until(page, condition):
    """Press Tab until a condition of the focused element holds, through the whole page at most."""
    passed = []
    while not page.evaluate(condition):
        passed.append(page.evaluate("document.activeElement.outerHTML.slice(0, 80)"))
        assert len(passed) < 60, f"{condition} never holds; the focus passed {passed}"
        page.keyboard.press("Tab")


def test_other_translations_of_a_sentence_are_chosen_by_the_keyboard_alone(page, toys):
    opened(page, toys, "ist klein. Der hund ist klein")
    source(page).focus()
    for _ in range(3):      # the language, the switch, copy
        page.keyboard.press("Tab")
    press_tab_until(page, "document.activeElement.classList.contains('word')")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".word:focus")).to_have_text("small")
    page.keyboard.press("Enter")
    menu = page.get_by_role("dialog", name="Other words")
    expect(menu.locator("#alternatives button")).to_have_text(["small is dog the", "little is dog the"])
    page.keyboard.press("Tab")
    press_tab_until(page, "document.activeElement.textContent === 'little is dog the'")
    page.keyboard.press("Enter")
    expect(page.locator("#target")).to_have_text("small is little is dog the")


def test_confidence_is_shaded_and_underlined_and_can_still_be_read(browser, toys):
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        page = opened(context.new_page(), toys, "das haus und")
        assert page.locator("#legend").is_hidden()
        page.get_by_label("Confidence").check()
        assert page.locator("#target .unsure").all_text_contents() == ["und"]
        assert page.locator("#target .doubtful").all_text_contents() == ["house"]
        for name in ("unsure", "doubtful"):
            style = page.locator(f"#target .{name}").first.evaluate(
                "one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor,"
                " getComputedStyle(one).textDecorationLine]")
            assert contrast(*style[:2]) >= 4.5 and style[2] == "underline"
        page.reload()
        expect(page.get_by_label("Confidence")).to_be_checked()     # the browser keeps it
        context.close()


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, as defined in WCAG 2.2."""
    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_languages_are_swapped_with_the_text_and_detected(page, toys):
    opened(page, toys, "das haus")
    page.get_by_role("button", name="Translate the other way").click()
    expect(page.get_by_label("From")).to_have_value("en")
    expect(source(page)).to_have_value("house the")
    expect(page.locator("#target")).to_have_text("THE HOUSE")
    page.get_by_label("From").select_option("auto")
    page.get_by_label("To", exact=True).select_option("en")
    write(page, "Der Hund schläft heute nicht, weil die Katze und das Haus so schön sind.")
    expect(page.locator("#status")).to_have_text("Translated from German.")


def test_text_is_shown_as_text_whatever_stands_in_it(page, toys):
    opened(page, toys, "<img src=x onerror=alert(1)> hör")
    assert shown(page).startswith("<b>hear</b>") and page.locator("#target b, #target img, #backdrop img").count() == 0


def test_html_keeps_its_tags(page, toys):
    opened(page, toys)
    page.get_by_label("HTML").check()
    write(page, "<p>der <b>hund</b> schläft</p>")
    expect(page.locator("#target")).to_have_text("<p>sleeps <b>dog</b> the</p>")
    assert page.locator("#target b").count() == 0


def test_files_are_dropped_or_chosen_translated_and_saved(page, toys, tmp_path):
    opened(page, toys)
    page.locator("#file").set_input_files([
        {"name": "brief.txt", "mimeType": "text/plain", "buffer": b"der hund\n\ndas haus"},
        {"name": "picture.png", "mimeType": "image/png", "buffer": b"\x89PNG"}])
    with page.expect_download() as download:
        page.get_by_role("link", name="Save brief.en.txt").click()
    assert download.value.suggested_filename == "brief.en.txt"
    download.value.save_as(tmp_path / "brief")
    assert (tmp_path / "brief").read_text() == "dog the\n\nhouse the"
    address = page.get_by_role("link", name="Save brief.en.txt").get_attribute("href")
    page.evaluate("() => { URL.revokeObjectURL = address => { window.revoked = address; }; }")
    page.get_by_role("button", name="Remove brief.txt").click()
    assert page.evaluate("window.revoked") == address      # the browser keeps the file in memory until then
    expect(page.locator("#files .failed")).to_contain_text("png")
    page.evaluate("""() => {
      const data = new DataTransfer();
      data.items.add(new File(["die katze"], "katze.txt", {type: "text/plain"}));
      document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
    }""")
    expect(page.get_by_role("link", name="Save katze.en.txt")).to_be_visible()


def test_a_file_shows_its_progress_and_can_be_cancelled(page, start):
    server = start("--model", f"de-en={ENGINES}:Toy", "--batch-sentences", "1", "--threads", "1",
                   TOY_SECONDS="0.05")
    asked: list[tuple[str, str]] = []
    page.on("request", lambda request: asked.append((request.method, request.url)))
    page.goto(server.url)
    expect(page.locator("#from-name")).to_have_text("German")
    page.locator("#file").set_input_files([
        {"name": name, "mimeType": "text/plain", "buffer": b"der hund\n" * lines}
        for name, lines in (("long.txt", 5000), ("next.txt", 2), ("last.txt", 2))])
    bar = page.get_by_role("progressbar", name="Translating long.txt")
    expect(bar).to_have_attribute("max", "5000")
    expect(page.locator("#files li").first).to_contain_text("of 5,000 sentences from German")
    expect(page.locator("#files li").nth(1)).to_contain_text("waiting")
    page.get_by_role("button", name="Cancel next.txt").click()
    page.get_by_role("button", name="Cancel long.txt").click()
    expect(page.locator("#files li").first).to_contain_text("cancelled")
    expect(page.get_by_role("link", name="Save last.en.txt")).to_be_visible()
    page.get_by_role("button", name="Remove long.txt").click()
    expect(page.locator("#files li")).to_have_count(2)
    sent = {url for method, url in asked if method == "DELETE"}
    assert len(sent) == 2 and sum(url.endswith("/documents") for _, url in asked) == 2      # next.txt was not sent
    assert all("?" not in url for _, url in asked)      # no URL contains the key of a document


def test_a_file_that_has_to_wait_is_sent_again(page, toys):
    page.clock.install()
    opened(page, toys)
    page.route("**/api/v1/documents", lambda route: route.fulfill(
        status=429, headers={"Retry-After": "1"}, json={"error": "You have 10 documents here already."}))
    page.locator("#file").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"das haus"})
    expect(page.locator("#files li")).to_contain_text("You have 10 documents here already. Trying again in 1 s.")
    page.unroute("**/api/v1/documents")
    page.clock.run_for(1_000)
    expect(page.get_by_role("link", name="Save a.en.txt")).to_be_visible()


def test_a_file_survives_a_lost_connection(page, toys):
    page.clock.install()
    opened(page, toys)
    page.route("**/api/v1/documents/*", lambda route: route.fulfill(body="{"))      # half an answer
    page.locator("#file").set_input_files([
        {"name": name, "mimeType": "text/plain", "buffer": b"das haus"} for name in ("a.txt", "b.txt")])
    expect(page.locator("#files li").first).to_contain_text("The connection to the server was lost. Trying again in")
    page.unroute("**/api/v1/documents/*")
    page.clock.run_for(60_000)
    for name in ("a", "b"):
        expect(page.get_by_role("link", name=f"Save {name}.en.txt")).to_be_visible()


def test_the_history_is_in_the_browser_grows_with_its_text_and_can_be_deleted(page, toys):
    opened(page, toys, "der hund")
    write(page, "der hund schläft")
    expect(page.locator("#target")).to_have_text("sleeps dog the")
    page.get_by_role("button", name="Clear").click()
    write(page, "das haus")
    expect(page.locator("#target")).to_have_text("house the")
    page.reload()
    page.get_by_role("button", name="History").click()
    entries = page.locator("#entries .entry")
    expect(entries).to_have_count(2)
    assert entries.nth(1).locator("span").all_text_contents() == ["der hund schläft", "sleeps dog the"]
    entries.nth(1).click()
    expect(source(page)).to_have_value("der hund schläft")
    expect(page.locator("#target")).to_have_text("sleeps dog the")
    page.get_by_role("button", name="History").click()
    page.locator("#entries").get_by_role("button", name="Delete “das haus”").click()
    expect(entries).to_have_count(1)
    page.get_by_label("Keep one").uncheck()
    expect(page.locator("#no-history")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    write(page, "die katze")
    expect(page.locator("#target")).to_have_text("cat the")
    assert page.evaluate("localStorage.getItem('towernmt.history')") is None


def test_without_storage_it_translates_all_the_same(page, toys):
    page.add_init_script("for (const name of ['localStorage', 'sessionStorage']) "
                         "Object.defineProperty(window, name, {get() { throw new DOMException('no', 'SecurityError'); }"
                         "})")
    opened(page, toys, "der hund")
    assert shown(page) == "dog the"


def test_a_refusal_is_a_sentence_and_what_waiting_mends_is_tried_again(page, toys):
    page.clock.install()
    opened(page, toys, "der hund")
    write(page, "hund " * 700)
    expect(page.get_by_role("alert")).to_contain_text("characters of text: send at most 3000 at once")
    page.route("**/api/v1/translate", lambda route: route.fulfill(
        status=503, headers={"Retry-After": "1"}, json={"error": "Too many sentences are waiting."}))
    write(page, "das haus")
    expect(page.get_by_role("alert")).to_have_text("Too many sentences are waiting.")
    expect(page.locator("#status")).to_contain_text("Trying again in 1 second.")
    page.unroute("**/api/v1/translate")
    page.clock.run_for(1_000)
    expect(page.locator("#target")).to_have_text("house the")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.route("**/api/v1/translate", lambda route: route.abort())
    write(page, "die katze")
    expect(page.get_by_role("alert")).to_have_text("The server does not answer.")
    page.unroute("**/api/v1/translate")
    page.clock.run_for(60_000)
    expect(page.locator("#target")).to_have_text("cat the")


def test_an_attempt_by_the_user_ends_the_wait_for_the_next_one(page, toys):
    page.clock.install()
    opened(page, toys)
    page.route("**/api/v1/translate", lambda route: route.fulfill(
        status=429, headers={"Retry-After": "60"}, json={"error": "Wait and try again."}))
    write(page, "die katze")
    expect(page.locator("#status")).to_contain_text("Trying again in")
    page.unroute("**/api/v1/translate")
    source(page).press("Control+Enter")
    expect(page.locator("#status")).to_have_text("Translated.")
    page.clock.run_for(2_000)       # the wait would be shown again each second
    assert page.locator("#status").text_content() == "Translated."


def test_a_key_is_asked_for_and_an_engine_without_prefixes_lets_a_word_be_changed(page, start, tmp_path):
    key = add_key(tmp_path / "keys.jsonl", "anna")
    server = start("--model", f"de-en={ENGINES}:Plain", "--keys", str(tmp_path / "keys.jsonl"))
    page.goto(server.url)
    expect(page.locator("#from-name")).to_have_text("German")
    page.locator("#file").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"das haus"})
    expect(page.locator("#files .failed")).to_contain_text("A key is needed")
    expect(page.get_by_label("This server needs a key:")).to_be_visible()
    source(page).fill("das haus")
    page.get_by_label("This server needs a key:").fill("wrong\N{HORIZONTAL ELLIPSIS}")
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_role("alert")).to_contain_text("Invalid API key")
    expect(page.get_by_label("This server needs a key:")).to_be_visible()
    stored = "sessionStorage.getItem('towernmt.key') + ' ' + localStorage.getItem('towernmt.key')"
    assert page.evaluate(stored) == "wrong null"
    page.get_by_label("This server needs a key:").fill(f"{key}\N{ZERO WIDTH SPACE}")
    page.get_by_label("Keep it on this device").check()
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("#target")).to_have_text("house the")
    expect(page.locator("#confidence-choice")).to_be_hidden()
    assert page.evaluate(stored) == f"null {key}"
    word(page, "house").click()
    menu = page.get_by_role("dialog", name="Other words")
    expect(menu).to_contain_text("only the word itself is changed")
    menu.get_by_label("Write here").fill("castle")
    menu.get_by_role("button", name="Use", exact=True).click()
    expect(page.locator("#target")).to_have_text("castle the")


def test_long_texts_come_sentence_by_sentence(page, start, tmp_path):
    server = start("--model", f"de-en={ENGINES}:Toy", "--batch-sentences", "1", "--threads", "1",
                   TOY_GATE=str(tmp_path / "open"))
    page.goto(server.url)
    source(page).fill("Der hund schläft. " * 3 + "Warte. " + "Der hund schläft. " * 26)
    expect(page.locator("#target .sentence").nth(2)).to_be_visible()
    assert page.locator("#target .sentence").count() == 3
    (tmp_path / "open").touch()
    expect(page.locator("#target .sentence")).to_have_count(30)


def test_a_word_that_is_selected_before_its_line_is_complete_stays(page, start, tmp_path):
    server = start("--model", f"de-en={ENGINES}:Toy", "--batch-sentences", "1", "--threads", "1",
                   TOY_GATE=str(tmp_path / "open"))
    page.goto(server.url)
    source(page).fill("Das ist klein. Warte. Das haus")
    word(page, "small").click()
    page.get_by_role("dialog", name="Other words").get_by_role("button", name="little is the").click()
    expect(page.locator("#target .sentence").first).to_have_text("little is the")
    (tmp_path / "open").touch()
    expect(page.locator("#status")).to_have_text("Translated.")
    expect(page.locator("#target")).to_have_text("little is the Warte. house the")


def test_a_word_of_a_repeated_line_changes_in_each_copy_of_the_line(page, toys):
    opened(page, toys, "das haus\nder hund\ndas haus")
    page.locator("#target p").nth(2).get_by_text("house", exact=True).click()
    menu = page.get_by_role("dialog", name="Other words")
    menu.get_by_role("button", name="home", exact=True).click()
    expect(page.locator("#target p").nth(2)).to_have_text("home the")
    assert shown(page) == "home the\ndog the\nhome the"
    assert page.evaluate("document.activeElement.closest('p') === document.querySelectorAll('#target p')[2]")


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_a_phone_shows_all_of_it_and_everything_has_a_name(browser, toys, scheme):
    context = browser.new_context(viewport={"width": 320, "height": 640}, color_scheme=scheme, has_touch=True)
    page = opened(context.new_page(), toys, TEXT + "\n" + "donaudampfschifffahrt" * 9)
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    word(page, "house").tap()
    menu = page.get_by_role("dialog", name="Other words").bounding_box()
    assert menu["x"] >= 0 and menu["x"] + menu["width"] <= 320
    small = page.evaluate("""() => [...document.querySelectorAll('button, select')].filter(one => one.offsetParent)
        .filter(one => one.getBoundingClientRect().height < 44).map(one => one.id || one.textContent)""")
    assert small == []
    nameless = page.evaluate("""() => [...document.querySelectorAll('button, select, input:not([hidden]), textarea')]
        .filter(one => !(one.labels?.length || one.textContent.trim() || one.getAttribute('aria-label')))
        .map(one => one.id)""")
    assert nameless == []
    ink, ground = page.evaluate("[getComputedStyle(document.body)].flatMap(one => [one.color, one.backgroundColor])")
    assert contrast(ink, ground) > 7
    page.get_by_role("button", name="Light mode" if scheme == "dark" else "Dark mode").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
    context.close()


def test_no_better_translation_is_suggested_for_a_text_that_is_in_the_target_language_already(page, start, tmp_path):
    server = start("--model", f"de-en={ENGINES}:Toy", "--model", f"en-de={ENGINES}:Back", "--suggestions",
                   str(tmp_path / "suggestions.tsv"))
    page.goto(server.url)
    page.get_by_label("From").select_option("auto")
    page.get_by_label("To", exact=True).select_option("en")
    source(page).fill("Das ist ein ganz gewöhnlicher deutscher Satz über das Wetter.")
    expect(page.get_by_role("button", name="Suggest")).to_be_visible()
    source(page).fill("This is a perfectly ordinary English sentence about the weather.")
    expect(page.locator("#status")).to_have_text("This is English already.")
    expect(page.get_by_role("button", name="Suggest")).to_be_hidden()


def test_a_better_translation_is_suggested_where_the_server_accepts_it(page, toys, start, tmp_path):
    opened(page, toys, "der hund")
    expect(page.get_by_role("button", name="Copy")).to_be_visible()
    expect(page.get_by_role("button", name="Suggest")).to_be_hidden()
    file = tmp_path / "suggestions.tsv"
    server = start("--model", f"de-en={ENGINES}:Toy", "--suggestions", str(file))
    page.goto(server.url)
    write(page, "der hund")
    page.get_by_role("button", name="Suggest").click()
    better = page.get_by_role("textbox", name="Better translation")
    expect(better).to_have_value("dog the")
    better.fill("the dog")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#status")).to_have_text("Thank you. The suggestion is stored.")
    assert file.read_text().split("\t")[2:] == ["der hund", "dog the", "the dog\n"]
    word(page, "dog").click()
    page.get_by_role("dialog", name="Other words").get_by_role("button", name="hound", exact=True).click()
    expect(page.locator("#target")).to_have_text("hound the")
    page.get_by_role("button", name="Suggest").click()
    expect(better).to_have_value("hound the")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("dialog", name="Suggest a better translation")).to_be_hidden()
    assert file.read_text().splitlines()[1].split("\t")[2:] == ["der hund", "dog the", "hound the"]
