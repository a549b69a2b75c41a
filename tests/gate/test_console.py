"""The console in Chromium, against a daemon with a small gate: what a reviewer and an admin do there, and what the text
of an agent cannot do."""

import re
import shutil
from pathlib import Path

import pytest
from console_gate import ConsoleGate
from made_calls import rows

import gradproof.gate
from gradproof.gate import drift, trust
from gradproof.gate.founding import found
from gradproof.gate.standing import PLACES, WORDS
from gradproof.gate.store import Settings, Store

FILES = Path(gradproof.gate.__file__).with_name("console")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
if CHROMIUM is None:
    pytest.skip("Chromium is not installed", allow_module_level=True)

expect = sync_api.expect
expect.set_options(timeout=20_000)  # for machines under load: waiting ends as soon as what is expected is there


@pytest.fixture(scope="module")
def gate(tmp_path_factory, trained):
    """A daemon whose gate has three versions, each made from the one before."""
    folder = tmp_path_factory.mktemp("console") / "gate"
    store = Store.create(folder, Settings(journal_mebibytes=16, versions_mebibytes=64))
    found(store, trained.copy(), rows(40), rows(30, 100), people=False)
    for number in (1, 2):
        record = store.versions.get(number).record
        store.versions.add(store.versions.weights(number), {**record, "came_from": number, "signals": 8 * number})
    store.close()
    started = ConsoleGate(folder)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(gate, browser):
    """`visit(role, width=…)`: the page of somebody who has signed in. Whatever goes wrong in it fails the test."""
    contexts, wrong = [], []

    def opened(role="admin", *, width=1200, height=900, dark=False, at=""):
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith(gate.url) else None)
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        page.goto(f"{gate.url}#token={gate.tokens[role]}" if role else gate.url)
        if role:
            expect(page.locator(".connection.live")).to_be_visible()
        if at:
            go(page, at)
        return page

    yield opened
    for context in contexts:
        context.close()
    # Answers other than 200, and what the test of trusted types provokes, are no faults of the page.
    assert not [text for text in wrong if not text.startswith("Failed to load resource") and "TrustedHTML" not in text]


def go(page, name):
    page.evaluate("name => { location.hash = name }", name)
    expect(page.locator("nav a[aria-current]")).to_have_attribute("href", f"#{name.split('/')[0]}")


def row(page, text):
    return page.locator(".decision", has=page.locator(".row-head", has_text=text)).first


def settled(page):
    """The question that takes keys has been in view for long enough."""
    page.wait_for_timeout(700)


# signing in


def test_the_token_of_a_link_leaves_the_address_and_stays_in_the_tab(gate, visit):
    page = visit("reviewer")
    assert gate.tokens["reviewer"] not in page.url and "token" not in page.url
    kept = page.evaluate("[Object.values(sessionStorage), localStorage.length, document.cookie]")
    assert kept == [[gate.tokens["reviewer"]], 0, ""]
    expect(page.locator(".me")).to_have_text("rob · reviewer")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_focused()
    assert page.evaluate("sessionStorage.length") == 0


def test_pasting_a_token(gate, visit):
    page = visit(role="")
    page.get_by_label("Token").fill("gp_ann_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This token is not known, or was revoked.")
    page.get_by_label("Token").fill(gate.tokens["agent"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("is an agent's")
    assert page.evaluate("sessionStorage.length") == 0
    page.get_by_label("Token").fill(f"  {gate.tokens['reviewer']} ")
    page.keyboard.press("Enter")
    expect(page.locator(".connection.live")).to_be_visible()


# decisions


def test_a_decision_arrives_with_its_reason_and_what_decided(gate, visit):
    page = visit("reviewer")
    gate.decide("rm -rf /etc/arrives.d")
    arrived = row(page, "/etc/arrives.d")
    expect(arrived).to_be_visible()
    expect(arrived.locator(".pill").first).to_have_text("Block")
    for text in ("Deletes /etc/arrives.d", "part of the system", "policy: delete in system is block", "by ci", "p 0."):
        expect(arrived).to_contain_text(re.compile(re.escape(text), re.IGNORECASE))
    arrived.locator(".row-head").click()
    expect(arrived.locator(".acts tbody tr")).to_contain_text("system")
    expect(arrived.locator(".explanation")).to_contain_text("What the model says")
    expect(arrived.locator(".bars li").first).to_contain_text(re.compile(r"[+−]\d\.\d\d"))
    assert arrived.locator(".bars .for, .bars .against").first.bounding_box()["width"] > 10


def test_a_question_is_answered_by_one_key_and_the_next_call_passes_once(gate, visit):
    page = visit("reviewer")
    asked = gate.decide("git push origin once")
    card = page.locator(".question", has_text="origin/once")
    expect(card).to_contain_text(re.compile(r"expires in 1\d:\d\d"))
    card.focus()
    page.keyboard.press("a")  # too soon to be meant for this one
    expect(card).to_be_visible()
    settled(page)
    page.keyboard.press("a")
    expect(card).to_have_count(0)
    assert gate.ask("GET", f"/v1/asks/{asked['id']}")["state"] == "allowed"
    assert [gate.decide("git push origin once")["decision"] for _ in range(2)] == ["allow", "ask"]
    expect(card).to_be_visible()
    card.focus()
    settled(page)
    page.keyboard.press("b")
    expect(card).to_have_count(0)


def test_a_correction_shows_its_reach_holds_and_is_retracted(gate, visit):
    """See a decision, correct it with its reach shown, see the next call change, retract, see it change back."""
    page = visit("reviewer")
    for name in ("one", "two", "three"):
        gate.decide(f"rm -rf /srv/reach/{name}")
    given = row(page, "/srv/reach/one")
    given.locator(".row-head").focus()
    page.keyboard.press("c")
    dialog = page.get_by_role("dialog")
    save = dialog.get_by_role("button", name="Allow from now on")
    expect(dialog.locator(".reach-box")).to_contain_text("No recorded decision would have been different")
    dialog.get_by_label("How far it reaches").select_option("pattern")
    expect(save).to_be_disabled()
    dialog.get_by_label("Pattern").fill("/srv/reach/*")
    assert save.is_disabled(), "the reach is shown before anything can be saved"
    expect(dialog.locator(".reach-sum")).to_have_text("Would also allow 2 calls of the last 7 days.")
    expect(dialog.locator(".reach li")).to_have_count(2)
    expect(dialog.locator(".reach li").first).to_contain_text("rm -rf /srv/reach/three")
    save.click()
    expect(dialog).to_have_count(0)
    expect(given).to_contain_text("allowed by a person by rob")

    gate.decide("rm -rf /srv/reach/four")
    fourth = row(page, "/srv/reach/four")
    expect(fourth.locator(".pill").first).to_have_text("Allow")
    expect(fourth).to_contain_text(re.compile(r"correction c\d+: override_allow by rob"))

    go(page, "corrections")
    card = page.locator(".card", has_text="/srv/reach/one")
    expect(card).to_contain_text("targets that match /srv/reach/*")
    card.get_by_role("button", name="Retract").click()
    expect(dialog.locator(".reach-sum")).to_contain_text("Would also ask about")
    dialog.get_by_role("button", name="Retract").click()
    expect(card).to_have_count(0)
    assert gate.decide("rm -rf /srv/reach/five")["decision"] == "ask"


def test_rolling_back(gate, visit):
    page = visit("admin", at="versions")
    expect(page.locator("tr.serving")).to_have_attribute("data-version", "3")
    page.get_by_role("button", name="Roll back to version 2").click()
    page.get_by_role("dialog").get_by_role("button", name="Serve version 2").click()
    expect(page.locator("tr.serving")).to_have_attribute("data-version", "2")
    assert gate.ask("GET", "/v1/versions")["serving"] == 2
    reviewer = visit("reviewer", at="versions")
    expect(reviewer.locator("tr.serving")).to_have_attribute("data-version", "2")
    expect(reviewer.get_by_role("button", name="Roll back")).to_have_count(0)


# what agents write

ATTACKS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "<svg onload=alert(3)><use href='http://evil.example/x#y'/></svg>",
    '"><a href="javascript:alert(4)" autofocus onfocus=alert(5)>x</a>',
    "<iframe srcdoc='<script>alert(6)</script>'></iframe><style>@import url(http://evil.example/)</style>",
    "{{constructor.constructor('alert(7)')()}}${alert(8)}<!--<base href=http://evil.example/>",
)


def test_stored_scripts_are_inert(gate, visit):
    """The fixture fails on any dialog, any request that leaves, and any report of the content security policy."""
    for attack in ATTACKS:
        gate.decide(None, tool=attack[:60], arguments={attack: attack, "path": attack}, session=attack, actor=attack)
        gate.decide(f"git push origin '{attack}'", session=attack)
    page = visit("admin")
    expect(page.locator(".question").first).to_be_visible()
    shown = page.locator(".row-head", has_text="alert(1)")
    expect(shown.first).to_be_visible()
    for i in range(shown.count()):
        shown.nth(i).click()
    expect(page.locator(".explanation[aria-busy=false]").first).to_be_visible()
    with page.expect_response(gate.url) as response:
        page.reload()
    policy = response.value.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    expect(page.locator(".row-head", has_text="<script>").first).to_be_visible()
    more = page.get_by_role("button", name="more question")
    if more.is_visible():
        more.click()
    card = page.locator(".question", has_text="onerror").first
    card.get_by_role("button", name="Allow always").click()
    expect(page.get_by_role("dialog")).to_contain_text("<img src=x onerror=alert(2)>")
    page.keyboard.press("Escape")
    planted = "script:not([src='/console/main.js']), iframe, use, base, [onerror], [onload], [onfocus], a[href^=java]"
    assert (
        page.locator(planted).count()
        == page.locator("#app style, #app img:not([src='/console/icon.svg'])").count()
        == 0
    )


def test_a_string_cannot_become_html_even_by_mistake(visit):
    """Trusted types: the browser refuses what the code never does."""
    page = visit("reviewer")
    refused = page.evaluate("(() => { try { document.body.innerHTML = '<b>x</b>' } catch (e) { return e.name } })()")
    assert refused == "TypeError"


def test_what_cannot_be_seen_is_shown_and_reorders_nothing(gate, visit):
    page = visit("reviewer")
    gate.decide("cat /home/ann/app/seen\u202etxt.exe\u2066 \x1b[31mred\u200b")
    shown = row(page, "seen")
    expect(shown.locator(".call-line")).to_contain_text("seenU+202Etxt.exeU+2066")
    for name in ("U+202E", "U+2066", "U+001B", "U+200B"):
        expect(shown.locator(".unseen", has_text=name).first).to_be_visible()
    text = page.evaluate("document.body.innerText")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\x1b]", text)
    gate.decide("cat '/home/ann/app/\u05d0\u05d1\u05d2.txt'")
    target = row(page, "\u05d0\u05d1\u05d2").locator(".reason .said")
    expect(target).to_have_css("unicode-bidi", "bidi-override")


def test_a_long_argument_is_cut_and_shown_on_demand(gate, visit):
    page = visit("reviewer")
    gate.decide(
        None,
        tool="Write",
        arguments={"file_path": "/home/ann/app/long.py", "content": "x = 1\n" * 400, "note": "y" * 900},
    )
    long = row(page, "/home/ann/app/long.py")
    long.locator(".row-head").click()
    call = long.locator(".call")
    expect(long.get_by_role("button", name="more characters")).to_be_visible()
    few = len(call.inner_text())
    long.get_by_role("button", name="more characters").click()
    assert len(call.inner_text()) > few


# policy and rules


def test_rules_are_previewed_and_a_mistake_is_shown_in_place(gate, visit):
    gate.decide("rm -rf build")
    page = visit("admin", at="rules")
    text, save = page.get_by_label("Text of the rules"), page.get_by_role("button", name="Save")
    before = text.input_value()
    text.fill('# mine\n[[deny]]\neffect = "delete\n')
    expect(page.get_by_role("alert").filter(has_text="line 3")).to_be_visible()
    expect(page.locator(".numbers .wrong")).to_have_text("3")
    expect(save).to_be_disabled()
    text.fill('[[deny]]\neffect = "delete"\nprogram = "rm"\ntarget = "/home/ann/app/build*"\n')
    expect(page.locator(".reach-sum")).to_contain_text("Would also block")
    expect(page.locator(".reach li").first).to_contain_text("rm -rf build")
    expect(page.locator(".numbers .wrong")).to_have_count(0)
    save.click()
    expect(page.locator("#toasts")).to_contain_text("the rules apply")
    assert gate.decide("rm -rf build")["decision"] == "block"

    there = gate.ask("GET", "/v1/rules")
    text.fill("# mine\n")
    expect(page.locator(".reach-sum")).to_be_visible()
    gate.ask("PUT", "/v1/rules", {"text": there["text"] + "# theirs\n", "stamp": there["stamp"]})
    save.click()
    expect(page.get_by_role("dialog")).to_contain_text("Somebody else has changed this")
    page.get_by_role("button", name="Load theirs").click()
    expect(text).to_have_value(re.compile("# theirs"))
    gate.ask("PUT", "/v1/rules", {"text": before})


def test_a_reviewer_sees_the_reach_of_a_policy_and_cannot_save_it(gate, visit):
    gate.decide("ls")
    page = visit("reviewer", at="policy")
    text = page.get_by_label("Text of the policy")
    expect(text).to_have_value(re.compile(r"\[read\]"))  # an empty policy, before it is loaded, asks about everything
    text.fill(text.input_value().replace('[read]\nallow = "project ', '[read]\nblock = "project"\nallow = "'))
    expect(page.locator(".reach-sum")).to_contain_text("Would also block")
    expect(page.get_by_role("button", name="Save")).to_be_disabled()


# the connection, widths, keys, colours


def test_a_lost_connection_is_shown_and_found_again(gate, visit):
    page = visit("reviewer")
    page.route("**/v1/changes*", lambda route: route.abort())
    gate.decide("cat lost")  # ends the request that waits
    expect(page.locator(".lost")).to_contain_text("Connection lost.")
    gate.decide("cat meanwhile")
    expect(page.get_by_role("button", name="Try now")).to_be_visible()
    page.unroute("**/v1/changes*")  # it tries again by itself
    expect(page.locator(".lost")).to_be_hidden()
    expect(row(page, "meanwhile")).to_be_visible()


def test_filters_pause_and_keys(gate, visit):
    page = visit("reviewer")
    gate.decide("cat filtered", session="f1")
    gate.decide("cat filtered", session="f2")
    page.keyboard.press("/")
    expect(page.get_by_label("Tool")).to_be_focused()
    page.get_by_label("Session").fill("f1")
    expect(page.locator(".decision")).to_have_count(1)
    page.get_by_label("Session").fill("nobody")
    expect(page.get_by_text("No decision matches these filters.")).to_be_visible()
    page.get_by_role("button", name="Clear filters").click()
    expect(row(page, "session f2")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    gate.decide("cat paused", session="f3")
    expect(page.get_by_text("there are newer decisions")).to_be_visible()
    expect(page.locator(".row-head", has_text="session f3")).to_have_count(0)
    page.keyboard.press("p")
    expect(row(page, "session f3")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("7")
    expect(page.get_by_role("heading", name="Status")).to_be_visible()


PAGES = ("decisions", "corrections", "policy", "rules", "trends", "versions", "status")

SPILLS = """() => {
  const cut = new Set(["hidden", "clip"]);
  const wide = [...document.querySelectorAll("body *")].filter((e) => {
    const style = getComputedStyle(e);
    if (e.clientWidth === 0 || cut.has(style.overflowX) || e.matches("textarea, .scrolls, input, select")) return false;
    return e.scrollWidth > e.clientWidth + 1 && style.display !== "inline";
  });
  return [document.documentElement.scrollWidth - innerWidth, ...wide.map((e) => `${e.tagName}.${e.className}`)];
}"""


def long_calls(gate):
    gate.decide("git push origin " + "averyveryverylongbranchname" * 8, session="x" * 120)
    gate.decide("rm -rf /srv/" + "deep/" * 60 + " && cat " + "a" * 300)


def test_nothing_spills_sideways_at_360_pixels(gate, visit):
    long_calls(gate)
    page = visit("admin", width=360, height=740)
    head = page.locator(".row-head", has_text="/srv/deep").first
    head.click()
    expect(page.locator(".explanation[aria-busy=false]").first).to_be_visible()
    for name in PAGES:
        go(page, name)
        expect(page.locator("main [aria-busy=true]")).to_have_count(0)
        assert page.evaluate(SPILLS) == [0], name
    go(page, "decisions")
    page.get_by_role("button", name="Correct").first.click()
    expect(page.get_by_role("dialog").locator(".reach-box [class^=reach-sum]")).to_be_visible()
    assert page.evaluate(SPILLS) == [0]


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(gate, visit, dark):
    """A contrast of at least 4.5, as WCAG's level AA wants, on every page."""
    for command in ("cat a", "git push origin contrast", "rm -rf /etc/contrast"):
        gate.decide(command)
    page = visit("admin", dark=dark)
    measure = (Path(__file__).with_name("contrast.js")).read_text()
    for name in PAGES:
        go(page, name)
        expect(page.locator("main [aria-busy=true]")).to_have_count(0)
        page.wait_for_timeout(100 if name != "decisions" else 1800)  # a new row fades in
        assert page.evaluate(measure) == [], name


@pytest.mark.slow
def test_many_decisions_are_read_page_by_page(gate, visit):
    for i in range(130):
        gate.decide(f"cat many{i}.txt", session="many")
    page = visit("reviewer")
    page.get_by_label("Session").fill("many")
    expect(page.locator(".decision")).to_have_count(50)
    for shown in (100, 130):
        page.get_by_role("button", name="Show older decisions").click()
        expect(page.locator(".decision")).to_have_count(shown)
    expect(page.get_by_role("button", name="Show older decisions")).to_be_hidden()
    commands = page.locator(".call-line").all_inner_texts()
    assert [int(re.search(r"many(\d+)", text)[1]) for text in commands] == list(range(129, -1, -1))


@pytest.mark.slow
def test_the_daemon_goes_and_comes_back(gate, visit):
    page = visit("reviewer")
    gate.stop()
    expect(page.locator(".lost")).to_be_visible(timeout=40_000)
    gate.start()
    expect(page.locator(".lost")).to_be_hidden(timeout=40_000)
    gate.decide("cat back", session="back")
    expect(row(page, "session back")).to_be_visible()


# the files


def test_no_file_makes_html_of_a_text():
    for path in FILES.iterdir():
        text = path.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|DOMParser", text
        )
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), f"{path.name} loads something from elsewhere"
        assert not re.search(r"\sstyle=|\son\w+=\"", text), (
            f"{path.name}: the policy refuses inline styles and handlers"
        )


def test_the_words_and_limits_are_those_of_the_gate():
    text = (FILES / "words.js").read_text()
    for name, table in (("WORDS", WORDS), ("PLACES", PLACES)):
        body = re.search(rf"const {name} = {{(.*?)}};", text, re.S)[1]
        assert dict(re.findall(r'"(\w+)": "(.*)"', body)) == table
    limits = dict(re.findall(r"(\w+): ([\d.]+)", re.search(r"LIMITS = {(.*?)}", (FILES / "trends.js").read_text())[1]))
    assert {name: float(value) for name, value in limits.items()} == {
        "judgements": trust.JUDGEMENTS, "blocks": trust.BLOCKS, "agreed": trust.AGREED, "shifted": drift.SHIFTED,
        "risen": drift.LAMBDA,
    }  # fmt: skip
