"""Playwright and Chromium: the browser works with its own sandbox off, and a page or a test gets nothing.

A test of the project is a program, so it starts the attack. A page is only followed: it leads the browser to
a private file, whose text is then in what the browser prints.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from requirements import requirement
from support.actors import Actor, make_repository
from support.cli import stockade
from tools.support import KEY, TIERS, Tool, Work, run, siege

CONFIG = "module.exports = { use: { launchOptions: { executablePath: '/usr/bin/chromium' } }, workers: 1 };\n"
SPEC = """const { test, expect } = require('@playwright/test');
const http = require('http');
test('a page of a local server', async ({ page }) => {
  require('child_process').execFileSync('sh', ['loot.sh']);
  const server = http.createServer((_, answer) => answer.end('<title>local page</title>'));
  await new Promise(ready => server.listen(0, '127.0.0.1', ready));
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  expect(await page.title()).toBe('local page');
  await page.screenshot({ path: 'shot.png' });
  server.close();
});
"""
LEADING = '<meta http-equiv="refresh" content="0;url=file://HOME/.ssh/id_ed25519"><p>start page</p>\n'
BROWSER = ["chromium", "--headless", "--virtual-time-budget=3000", "--dump-dom"]


@requirement("E.browser")
def test_playwright_tests_a_local_server_and_a_test_file_gets_nothing(
        actor: Actor, npm_tool: Callable[..., Tool], debian: Callable[..., Tool]) -> None:
    debian("chromium", "chromium")
    tool = npm_tool("@playwright/test@1.65.1")
    link = ["ln", "-sfn", f"{tool.read[0]}/node_modules", "node_modules"]
    # Root's Chromium starts without its own sandbox alone, and Playwright starts it so.
    siege(actor, Work(
        files={"playwright.config.js": CONFIG, "a.spec.js": SPEC}, commands=[link, ["playwright", "test"]], shows="1 passed",
        clean=["node_modules", "test-results", "shot.png"], tool=tool))


def test_browsers_of_playwright_are_seen_and_stay_as_they_are(actor: Actor) -> None:
    place = f"{actor.home}/.cache/ms-playwright"
    actor.put(f"{place}/chromium-1/chrome", "browser\n")
    script = "cat ~/.cache/ms-playwright/chromium-1/chrome; echo planted >> ~/.cache/ms-playwright/chromium-1/chrome"
    assert "planted" not in actor.sh("cat ~/.cache/ms-playwright/chromium-1/chrome")
    for tier in TIERS:
        done = actor.run(["sh", "-c", script], tier=tier, profile=["playwright"])
        assert done.stdout == "browser\n" and done.returncode != 0, (done.stdout, done.stderr)
        assert actor.host(f"{place}/chromium-1/chrome").read_text(encoding="utf-8") == "browser\n"
    actor.sh(script)
    assert "planted" in actor.host(f"{place}/chromium-1/chrome").read_text(encoding="utf-8")


@requirement("agents.inner_sandbox", "E.browser")
@pytest.mark.parametrize("tier", TIERS)
def test_chromium_renders_a_page_that_cannot_lead_it_to_a_private_file(
        actor: Actor, debian: Callable[..., Tool], tier: str) -> None:
    debian("chromium", "chromium")
    tree = f"{actor.home}/work/pages"
    actor.remove(tree)
    make_repository(actor, tree)
    actor.put(f"{actor.home}/.ssh/id_ed25519", f"{KEY}\n")
    leading = actor.put(f"{tree}/leading.html", LEADING.replace("HOME", actor.home), 0o644)
    plain = actor.put(f"{tree}/plain.html", "<p>plain page</p><script>document.title = 6 * 7</script>\n", 0o644)
    bare = actor.call([BROWSER[0], "--no-sandbox", *BROWSER[1:], f"file://{leading}"], cwd=tree)
    assert KEY in bare.stdout.decode(), (bare.stdout, bare.stderr)
    work = Work(files={}, commands=[], shows="", grants={"caller": "document"})
    done = run(actor, tree, work, [*BROWSER, f"file://{leading}"], tier, None)
    assert done.returncode == 0 and KEY not in done.stdout and ".ssh/id_ed25519" in done.stdout, (done.stdout, done.stderr)
    assert done.receipt["effective_tier"] == tier, done.receipt["missing"]
    done = run(actor, tree, work, [*BROWSER, f"file://{plain}"], tier, None)
    assert "plain page" in done.stdout and "<title>42</title>" in done.stdout, (done.stdout, done.stderr)


@requirement("agents.inner_sandbox")
def test_without_the_switch_chromium_says_that_it_has_no_sandbox(actor: Actor, debian: Callable[..., Tool]) -> None:
    debian("chromium", "chromium")
    # A shell of the same profile gets no switch: the browser itself is asked, and ends at its start.
    line = ["sh", "-c", "chromium --headless --dump-dom 'data:text/html,<p>page</p>'"]
    done = actor.run(line, tier="strict", profile=["chromium"])
    assert done.returncode != 0 and "<p>page</p>" not in done.stdout, (done.stdout, done.stderr)
    assert "sandbox" in done.stderr
    said = stockade(actor, "explain", "--json", "--tier", "strict", "--", "chromium", "--headless", "about:blank").json()
    assert any(note.startswith("inner sandbox off") for note in said["notes"]), said["notes"]
