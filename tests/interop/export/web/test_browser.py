"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE

pytestmark = pytest.mark.processes
SENTENCES = ["der hund schläft", "", "die katze sieht den hund. Das haus ist klein.",
             "ein kleiner vogel singt am morgen"]
TEXT = "\n".join(SENTENCES)
WAIT = 60_000
"""Time limit in milliseconds for operations of about one second."""
UNDER_NODE = """
const {Worker} = require('worker_threads'), {readFileSync} = require('fs');
const [worker, place] = process.argv.slice(2), engine = new Worker(worker);
const call = (name, ...args) => new Promise((resolve, reject) => {
  engine.once('message', ({result, error}) => error ? reject(Error(error.message)) : resolve(result));
  engine.postMessage({id: 1, name, args});
});
const bytes = name => new Uint8Array(readFileSync(place + '/' + name)).buffer;
(async () => {
  await call('initialize', {});
  await call('loadTranslationModel', {from: 'a', to: 'b'}, {model: bytes('model.intgemm.alphas.bin'),
    vocabs: [bytes('vocab.spm')], shortlist: new ArrayBuffer(0)});
  const texts = readFileSync(0, 'utf-8').split('\\n').map(text => ({text, html: false}));
  const found = await call('translate', {models: [{from: 'a', to: 'b'}], texts});
  console.log(JSON.stringify(found.map(({target}) => target.text)));
  await engine.terminate();
})();
"""

UPDATE = """async () => {
  const registration = await navigator.serviceWorker.getRegistration();
  await registration.update();
  const found = registration.installing;
  if (found.state === "installing") await new Promise(done => found.addEventListener("statechange", done));
  return found.state;
}"""
"""Checks for a new service worker, and returns its state."""


class Site:
    """A static web server for the folder `site` of a root directory."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked = root, list[str]()
        site = self

        class Handler(SimpleHTTPRequestHandler):
            def send_head(self) -> Any:
                site.asked.append(self.path.split("?")[0])
                return super().send_head()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
        self.url = f"http://127.0.0.1:{self.server.server_port}/under/site/"
        # `stop` waits for the next poll.
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def exported(export_page: Any, engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_page(tmp_path_factory.mktemp("exported") / "site", bergamot=engine)


@pytest.fixture(scope="module")
def renamed(export_page: Any, engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same export with another name of a language."""
    return export_page(tmp_path_factory.mktemp("renamed") / "site", bergamot=engine,
                       languages=("nds:Platt", "en:English"))


@pytest.fixture
def site(exported: Path, tmp_path: Path) -> Iterator[Site]:
    shutil.copytree(exported, tmp_path / "under/site")
    site = Site(tmp_path)
    yield site
    site.stop()


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    context = browser.new_context()
    context.set_default_timeout(WAIT)
    yield context
    context.close()


@pytest.fixture
def page(context: Any) -> Iterator[Any]:
    """A page; a test fails if the console shows errors."""
    page = context.new_page()
    complaints = complaints_of(page)
    yield page
    assert complaints == []


@pytest.fixture(scope="module")
def ready_page(browser: Any, exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page that several tests use one after the other, because to start its engine takes a second."""
    folder = tmp_path_factory.mktemp("ready")
    shutil.copytree(exported, folder / "under/site")
    site = Site(folder)
    context = browser.new_context()
    context.set_default_timeout(WAIT)
    page = context.new_page()
    yield opened(page, site)
    context.close()
    site.stop()


@pytest.fixture
def empty_page(ready_page: Any) -> Iterator[Any]:
    """`ready_page` without text; a test fails if the console shows errors."""
    ready_page.get_by_label("German").fill("")
    ready_page.get_by_label("HTML").uncheck()
    expect(ready_page.locator("#target p")).to_have_count(0)
    complaints = complaints_of(ready_page)
    yield ready_page
    assert complaints == []


def complaints_of(page: Any) -> list[str]:
    """Collect the errors that the console of a page shows."""
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints


def opened(page: Any, site: Site) -> Any:
    page.goto(site.url)
    page.locator("#loading").wait_for(state="hidden")
    return page


def translated(page: Any, text: str) -> list[str]:
    """Return the lines of the translation on the page."""
    page.get_by_label("German").fill(text)
    expect(page.locator("#figures")).to_contain_text("sentences in")
    return [line.replace("\u00a0", " ") for line in page.locator("#target p").all_text_contents()]


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as made

    made.set_options(timeout=WAIT)
    return made(locator)


def wait_until_kept(page: Any) -> None:
    expect(page.locator("#offline")).to_contain_text("without a connection")


def under_node(exported: Path, engine: Path, path: Path) -> list[str]:
    """The translations of `SENTENCES` by the worker of the npm package."""
    shutil.copytree(engine / "worker", path / "worker")
    (path / "worker/package.json").write_text('{"type": "commonjs"}')
    (path / "run.cjs").write_text(UNDER_NODE)
    done = subprocess.run(["node", "run.cjs", str(path / "worker/translator-worker.js"), str(exported / "model")],
                          cwd=path, input=TEXT, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_the_page_says_what_bergamot_says_under_node(page, site, exported, engine, tmp_path):
    expected = under_node(exported, engine, tmp_path)
    assert translated(opened(page, site), TEXT) == expected and any(expected)
    example = Path(__file__).parents[4] / "examples/translate_page.js"
    done = subprocess.run(["node", str(example), str(exported)], input=f"{TEXT}\n", capture_output=True, text=True,
                          timeout=PATIENCE, check=True)
    assert done.stdout.split("\n")[:-1] == expected


def test_no_other_host_is_asked_for_anything(context, page, site):
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    translated(opened(page, site), TEXT)
    wait_until_kept(page)
    assert asked and all(url.startswith(site.url) for url in asked)
    # The large files were fetched once, by the worker, and not again to keep them.
    assert sum("wasm" in path or "alphas" in path for path in site.asked) == 2


def test_after_the_first_visit_it_works_without_a_connection(page, site):
    before = translated(opened(page, site), TEXT)
    wait_until_kept(page)
    site.stop()
    page.reload()
    page.locator("#loading").wait_for(state="hidden")
    page.get_by_label("German").fill("")
    assert translated(page, TEXT) == before
    page.goto(f"{site.url}index.html")
    assert translated(page, TEXT) == before


def test_of_a_half_copied_export_nothing_is_taken(context, site, renamed):
    page = opened(context.new_page(), site)
    before = translated(page, TEXT)
    wait_until_kept(page)
    for name in ("index.html", "service-worker.js", "page.js"):
        shutil.copy(renamed / name, site.root / "under/site")
    (site.root / "under/site/manifest.webmanifest").write_text("{}")
    assert page.evaluate(UPDATE) == "redundant"
    page.reload()
    page.get_by_role("heading", name="German → English").wait_for()
    assert translated(page, TEXT) == before


def test_an_open_page_offers_a_new_export_and_keeps_the_text(page, site, renamed):
    before = translated(opened(page, site), TEXT)
    wait_until_kept(page)
    shutil.copytree(renamed, site.root / "under/site", dirs_exist_ok=True)
    site.asked.clear()
    page.reload()
    expect(page.locator("#update")).to_be_visible()
    assert page.get_by_role("heading", name="German → English").is_visible()
    assert not any("wasm" in path or "alphas" in path for path in site.asked)
    assert translated(page, TEXT) == before
    page.get_by_role("button", name="Use it now").click()
    expect(page.get_by_role("heading", name="Platt → English")).to_be_visible()
    expect(page.get_by_label("Platt")).to_have_value(TEXT)
    expect(page.locator("#figures")).to_contain_text("sentences in")
    assert page.locator("#target p").all_text_contents() == before
    assert len(page.evaluate("caches.keys()")) == 1


def test_the_keyboard_alone_is_enough(page, site):
    opened(page, site)
    expect(page.get_by_label("German")).to_be_focused()
    page.keyboard.type("der hund schläft")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#figures")).to_contain_text("1 sentence in")
    names = []
    for _ in range(4):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.id"))
    assert names[:3] == ["copy", "save", "target"]
    for _ in range(5):
        page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.id") == "clear"
    page.keyboard.press("Enter")
    expect(page.get_by_label("German")).to_have_value("")
    expect(page.get_by_label("German")).to_be_focused()
    expect(page.locator("#target p")).to_have_count(0)


def test_screen_readers_get_names_and_are_told_of_a_translation(empty_page):
    page = empty_page
    region = page.get_by_role("region", name="English")
    assert region.get_attribute("aria-live") == "polite" and region.get_attribute("lang") == "en"
    translated(page, TEXT)
    assert region.get_attribute("aria-busy") is None
    for name in ("Open …", "Clear", "Copy", "Save …"):
        assert page.get_by_role("button", name=name, exact=True).is_enabled(), name
    assert page.get_by_role("checkbox", name="HTML").is_visible()
    assert page.evaluate("document.documentElement.lang") == "en"


def test_a_phone_shows_all_of_it_and_text_can_be_read(browser, site):
    context = browser.new_context(viewport={"width": 320, "height": 640})
    try:
        page = opened(context.new_page(), site)
        translated(page, TEXT + "\nאבג דהו\n" + "donaudampfschifffahrt" * 9)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") == 320
            direction = page.locator("#target p").nth(4).evaluate("line => getComputedStyle(line).direction")
            assert direction in ("rtl", "ltr")
            colours = page.locator("#target").evaluate(
                "box => [getComputedStyle(box).color, getComputedStyle(box.parentElement).backgroundColor]")
            ink, ground = (sum(map(int, colour[4:-1].split(","))) for colour in colours)
            assert (ground - ink > 300) if scheme == "light" else (ink - ground > 300)
    finally:
        context.close()


def test_tags_are_kept_in_html_and_what_is_no_html_is_made_some(empty_page):
    page = empty_page
    for text, tags in (
            ("<p class='red'>der <b>hund</b> schläft</p>", ["<p class=\"red\">", "<b>", "</b>", "</p>"]),
            ("<p>der <b>hund</p> 1 < 2 </i>", ["<p>", "<b>", "</b>", "</p>"]),
            ("<!DOCTYPE html><title>hund</title><p>der hund<br>schläft",
             ["<!DOCTYPE html>", "<title>", "<body>", "<br>"])):
        translate_html(page, text, tags)
        assert page.locator("#target b").count() == 0
        page.get_by_label("German").fill("")
        expect(page.locator("#target p")).to_have_count(0)


def test_programs_in_html_are_text_like_any_other(context, site):
    page = opened(context.new_page(), site)
    complaints = complaints_of(page)
    page.on("dialog", lambda dialog: complaints.append("a program of the text ran"))
    text = "<img src='missing.png' onerror='alert(1)'><script>alert(2)</script>hund"
    translate_html(page, text, ["<img ", "<script>alert(2)"])
    assert page.locator("#target img").count() == 0 and "/under/site/missing.png" not in site.asked
    # Chromium reports, when it reads the text, that the page's policy would not let its handler run.
    assert [said for said in complaints if not said.endswith("The action has been blocked.")] == []


def translate_html(page: Any, text: str, tags: list[str]) -> None:
    """Translate HTML on an open page, and check the tags that it shows."""
    page.get_by_label("HTML").check()
    page.get_by_label("German").fill(text)
    expect(page.locator("#target p")).to_contain_text(tags[0])
    found = page.locator("#target").inner_text()
    assert [tag for tag in tags if tag not in found] == []


def test_after_a_text_that_the_engine_fails_on_another_is_translated(empty_page):
    page = empty_page
    before = translated(page, TEXT)
    page.evaluate("worker.postMessage({id: requestId, text: '<p>', html: true})")
    expect(page.get_by_role("alert")).to_contain_text("The engine could not translate this text")
    page.get_by_label("German").fill("")
    expect(page.get_by_role("alert")).to_be_hidden()
    assert translated(page, TEXT) == before


def test_a_text_that_was_typed_while_the_engine_failed_is_translated(empty_page):
    page = empty_page
    translated(page, TEXT)
    page.evaluate("""() => {
      worker.postMessage({id: requestId, text: '<p>', html: true});
      source.value = 'der hund schläft';
    }""")
    expect(page.locator("#figures")).to_contain_text("1 sentence in")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_click_on_a_sentence_selects_where_it_comes_from(empty_page):
    page = empty_page
    translated(page, TEXT)
    page.locator("#target span").nth(2).click()
    source = page.get_by_label("German")
    selected = source.evaluate("box => box.value.slice(box.selectionStart, box.selectionEnd)")
    assert selected == "Das haus ist klein."
    source.evaluate("box => box.setSelectionRange(20, 20)")
    expect(page.locator("#target span.here")).to_have_count(1)
    assert page.locator("#target span").nth(1).get_attribute("class") == "here"


@pytest.mark.parametrize(("change", "message"), [
    (lambda file: file.unlink(), "model/vocab.spm could not be loaded: .* answers 404"),
    (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?"), "model/vocab.spm is not the file of this export"),
    pytest.param(lambda file: file.write_bytes(file.read_bytes()[:99]),
                 "model/vocab.spm is not the file of this export", marks=pytest.mark.slow)])
def test_a_missing_or_damaged_file_is_told_by_name(context, site, change, message):
    change(site.root / "under/site/model/vocab.spm")
    page = context.new_page()
    page.goto(site.url)
    expect(page.get_by_role("alert")).to_have_text(re.compile(message))


def test_opened_as_a_file_it_says_that_it_must_be_served(context, exported):
    page = context.new_page()
    page.goto((exported / "index.html").as_uri())
    expect(page.get_by_role("alert")).to_contain_text("python -m http.server")


def test_files_are_opened_and_translations_copied_and_saved(empty_page):
    page = empty_page
    before = translated(page, TEXT)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save …").click()
    assert Path(download.value.path()).read_text(encoding="utf-8") == "\n".join(before) + "\n"
    page.get_by_role("button", name="Copy").click()
    expect(page.locator("#figures")).to_have_text("Copied.")
    file = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"\xff\xfe\x00"}
    page.locator("#file").set_input_files([file])
    expect(page.get_by_role("alert")).to_contain_text("a.txt is not text in UTF-8")
    page.locator("#file").set_input_files([{**file, "name": "a.html", "buffer": "<p>der hund schläft</p>".encode()}])
    expect(page.locator("#target")).to_contain_text("<p>")
    assert page.get_by_label("HTML").is_checked() and not page.get_by_role("alert").is_visible()


def test_from_an_address_that_browsers_keep_nothing_of_it_translates_and_says_so(page, site):
    site.url = site.url.replace("127.0.0.1", "far.example")
    assert any(translated(opened(page, site), TEXT))
    expect(page.locator("#offline")).to_contain_text("Needs a connection each time")


def test_long_text_comes_in_portions_and_a_change_stops_it(empty_page):
    page = empty_page
    source = page.get_by_label("German")
    source.evaluate("(box, text) => { box.value = text; box.dispatchEvent(new Event('input')); }",
                    "\n".join(f"der hund {number} schläft und der vogel singt am morgen" for number in range(3000)))
    expect(page.locator("#target p").nth(20)).to_be_visible()
    source.fill("der hund schläft")
    expect(page.locator("#figures")).to_contain_text("1 sentence in")
    assert page.locator("#target p").count() == 1
