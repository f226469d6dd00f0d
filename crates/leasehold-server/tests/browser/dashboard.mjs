// Steps of the browser tests: node dashboard.mjs PART BASE. What other processes do meanwhile is asked for with a
// line on stdout ("ASK {…}"); the answer is a line of JSON on stdin. The exit code is 0 if every step was as expected.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [part, base] = process.argv.slice(2);
const require = createRequire(join(process.env.LEASEHOLD_TEST_BROWSER, "node_modules", "index.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core"), "utf8");
const shots = process.env.SCREENSHOTS;

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function ask(request) {
  process.stdout.write(`ASK ${JSON.stringify(request)}\n`);
  return JSON.parse((await answers.next()).value);
}

// Opens a tab that fails the test if a script fails, the policy is violated or a request fails.
async function open(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.problems = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) page.problems.push(message.text());
  });
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("dialog", (dialog) => page.problems.push(`a script opened a dialog: ${dialog.message()}`));
  return page;
}

function expectNoProblems(page, allowed = /^$/) {
  assert.deepEqual(page.problems.filter((problem) => !allowed.test(problem)), []);
}

const hostile = `<img src=x onerror=alert(1)>"'&שלום ${"x".repeat(215)}`;
const PHONE = { viewport: { width: 390, height: 844 } };

// Writes a picture of each page in light and dark, and as a phone shows it, if a folder for pictures is given.
async function takePictures(browser, pages, options = {}) {
  if (!shots) return;
  mkdirSync(shots, { recursive: true });
  for (const [kind, context] of [["light", { colorScheme: "light" }], ["dark", { colorScheme: "dark" }], ["phone", { ...PHONE, colorScheme: "light" }]]) {
    const page = await open(browser, { viewport: { width: 1180, height: 720 }, reducedMotion: "reduce", ...context });
    for (const [name, path] of Object.entries(pages)) {
      await page.goto(`${base}${path}`);
      // The first update of the page.
      await page.waitForTimeout(500);
      await page.screenshot({ path: join(shots, `${name}-${kind}.png`), ...options });
    }
    await page.context().close();
  }
}

const parts = {
  async live(browser) {
    const page = await open(browser);
    await page.goto(`${base}/locks`);
    await page.getByText("No locks here").waitFor();
    await page.evaluate(() => { window.loadedOnce = true; });
    await ask({ do: "acquire", name: "deploy/prod", holder: "ci@runner-7" });
    await page.getByRole("link", { name: "deploy/prod" }).waitFor();
    await page.getByText("ci@runner-7").first().waitFor();
    assert.equal(await page.evaluate(() => window.loadedOnce), true, "the page was not loaded again");

    // The focus and the text of a field survive an update.
    await page.keyboard.press("/");
    await page.keyboard.type("dep");
    await ask({ do: "acquire", name: "other" });
    await page.getByRole("link", { name: "other" }).waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.id), "filter");
    assert.equal(await page.inputValue("#filter"), "dep");
    await ask({ do: "wait", name: "deploy/prod", holder: "web-2" });
    await page.getByText("web-2").first().waitFor();

    // A paused page does not change; it does when it goes on.
    await page.evaluate(() => document.activeElement.blur());
    await page.getByRole("button", { name: "live" }).click();
    await page.getByRole("button", { name: "paused" }).waitFor();
    await ask({ do: "release", name: "other" });
    await page.waitForTimeout(2500);
    assert.equal(await page.getByRole("link", { name: "other" }).count(), 1);
    await page.getByRole("button", { name: "paused" }).click();
    await page.getByRole("link", { name: "other" }).waitFor({ state: "detached" });

    // The time left is that of the server, whatever date the browser has.
    const shifted = await open(browser);
    await shifted.addInitScript(() => {
      const real = Date.now.bind(Date);
      Date.now = () => real() + 3_600_000;
    });
    await shifted.goto(`${base}/locks/deploy%2Fprod`);
    await shifted.waitForTimeout(1500);
    const left = await shifted.locator(".card .left").first().innerText();
    const seconds = Number(/^(\d+)s left$/.exec(left)?.[1]);
    assert.ok(seconds >= 1 && seconds <= 30, `time left: ${left}`);
    expectNoProblems(shifted);

    // Keyboard and theme.
    await page.keyboard.press("?");
    await page.getByRole("heading", { name: "Keyboard shortcuts" }).waitFor();
    await page.keyboard.press("Escape");
    const before = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    await page.keyboard.press("t");
    assert.notEqual(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), before);
    await page.reload();
    assert.notEqual(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), before, "the theme is kept");

    // The page says that the server is away, and goes on when it is back.
    await ask({ do: "stop" });
    await page.getByText("The server does not respond").waitFor({ timeout: 20_000 });
    assert.equal(await page.getByRole("link", { name: "deploy/prod" }).count(), 1, "the page keeps what it shows");
    await ask({ do: "start" });
    await page.getByText("The server does not respond").waitFor({ state: "detached", timeout: 20_000 });
    await ask({ do: "acquire", name: "again" });
    await page.getByRole("link", { name: "again" }).waitFor({ timeout: 20_000 });
    expectNoProblems(page, /ERR_|Failed to load resource/);
  },

  async force(browser) {
    const { token } = await ask({ do: "acquire", name: "deploy/prod", holder: "ci@runner-7" });
    const page = await open(browser);
    await page.goto(`${base}/locks/deploy%2Fprod`);
    await page.getByRole("link", { name: "Force release" }).click();
    const dialog = page.locator("dialog[open]");
    await dialog.getByText("Looks alive").waitFor();

    // The browser itself refuses an empty form, the server a wrong name.
    await dialog.getByRole("button", { name: "Force release" }).click();
    assert.equal((await ask({ do: "status", name: "deploy/prod" })).isLocked, true);
    await dialog.locator("#name").fill("deploy");
    await dialog.locator("#reason").fill("the runner is gone");
    await dialog.getByRole("button", { name: "Force release" }).click();
    await dialog.getByText("the typed name is not the name of the lock").waitFor();
    assert.equal(await dialog.locator("#reason").inputValue(), "the runner is gone");

    // An update of the page leaves the dialog alone.
    await dialog.locator("#name").fill("deploy/prod");
    await ask({ do: "wait", name: "deploy/prod", holder: "web-2" });
    await page.locator("main").getByText("web-2").first().waitFor();
    assert.equal(await dialog.locator("#name").inputValue(), "deploy/prod");

    // The holder releases the lock while the dialog is open: the token that it shows has ended.
    await ask({ do: "release", name: "deploy/prod" });
    await page.locator("main .card").getByText("web-2").waitFor();
    await dialog.getByRole("button", { name: "Force release" }).click();
    await dialog.getByText("Nothing was released").waitFor();
    const after = await ask({ do: "status", name: "deploy/prod" });
    assert.ok(after.isLocked && after.token > token, "the next holder keeps the lock");

    // With the current token it is released, and the page says so without being loaded again.
    await page.keyboard.press("Escape");
    await page.evaluate(() => { window.loadedOnce = true; });
    await page.getByRole("link", { name: "Force release" }).click();
    await dialog.locator("#name").fill("deploy/prod");
    await dialog.locator("#reason").fill("really gone");
    await dialog.getByRole("button", { name: "Force release" }).click();
    await page.getByText("The lock was released by force.").waitFor();
    await page.getByText("really gone").first().waitFor();
    assert.equal(await page.evaluate(() => window.loadedOnce), true);
    assert.equal((await ask({ do: "status", name: "deploy/prod" })).isLocked, false);
    expectNoProblems(page, /Failed to load resource: the server responded with a status of (400|404)/);
  },

  async "sign-in"(browser) {
    await ask({ do: "acquire", name: "deploy/prod" });
    const page = await open(browser);
    await page.goto(`${base}/locks/deploy%2Fprod`);
    await page.getByLabel("API token").fill("lh_0123456789ab_wrong");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByText("is not known").waitFor();
    await page.getByLabel("API token").fill(process.env.TOKEN);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("heading", { name: "deploy/prod" }).waitFor();
    assert.equal(new URL(page.url()).pathname, "/locks/deploy%2Fprod");
    assert.equal(await page.getByRole("link", { name: /release/ }).count(), 0);
    assert.equal(await page.evaluate(() => document.cookie), "", "scripts cannot read the token");
    assert.ok(!page.url().includes("lh_"));
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("API token").waitFor();
    expectNoProblems(page, /status of 401/);

    // Without scripts the same pages and forms work.
    const plain = await open(browser, { javaScriptEnabled: false });
    await plain.goto(`${base}/locks`);
    await plain.getByLabel("API token").fill(process.env.TOKEN);
    await plain.getByRole("button", { name: "Sign in" }).click();
    await plain.getByRole("link", { name: "deploy/prod" }).click();
    await plain.getByRole("heading", { name: "deploy/prod" }).waitFor();
  },

  async revoked(browser) {
    await ask({ do: "acquire", name: "deploy/prod" });
    const page = await open(browser);
    await page.goto(`${base}/locks`);
    await page.getByLabel("API token").fill(process.env.TOKEN);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("link", { name: "deploy/prod" }).waitFor();
    await ask({ do: "revoke" });
    await page.getByText("Your sign-in has ended").waitFor({ timeout: 20_000 });
    await page.getByRole("button", { name: "signed out" }).waitFor();
    assert.equal(await page.getByRole("link", { name: "deploy/prod" }).count(), 1, "the page keeps what it shows");
    await page.reload();
    await page.getByLabel("API token").waitFor();
    expectNoProblems(page, /status of 401/);
  },

  async "store-away"(browser) {
    await ask({ do: "acquire", name: "deploy/prod" });
    const page = await open(browser);
    await page.goto(`${base}/locks`);
    await page.getByRole("link", { name: "deploy/prod" }).waitFor();
    await ask({ do: "stop-store" });
    await page.getByText("The store does not respond").waitFor({ timeout: 30_000 });
    await page.getByRole("button", { name: "store away" }).waitFor();
    assert.equal(await page.getByRole("link", { name: "deploy/prod" }).count(), 1, "the page keeps what it shows");
    // A page that is opened now says so at once, and offers to try again.
    const response = await page.goto(`${base}/`);
    assert.equal(response.status(), 503);
    await page.getByRole("heading", { name: "Store unavailable" }).waitFor();
    await page.getByRole("link", { name: "Try again" }).waitFor();
    expectNoProblems(page, /status of 503/);
  },

  async pages(browser) {
    const { id } = await ask({ do: "enqueue", name: "report", payload: { text: "</pre><script>alert(1)</script>" } });
    await ask({ do: "wait", name: "deploy/prod", holder: "ci@runner-8" });
    await ask({ do: "wait", name: "deploy/prod", holder: "ci@runner-5" });
    const lock = "/locks/deploy%2Fprod";
    const pages = { overview: "/", locks: "/locks", lock, queues: "/queues", tasks: "/tasks", task: `/tasks/${id}`,
      executions: "/executions", schedules: "/schedules", workers: "/workers", audit: "/audit", health: "/health",
      "force-release": `${lock}/force-release` };
    await takePictures(browser, pages);

    await ask({ do: "deadlock", locks: ["accounts/4711", "accounts/0815"], holders: ["transfer@web-1", "transfer@web-2"] });
    const ring = { deadlock: "/locks/accounts%2F4711" };
    await takePictures(browser, ring);
    await ask({ do: "deadlock", locks: ["build/cache", hostile, "a-name-that-is-longer-than-its-box/eu-central-1/production"],
      holders: ["ci@runner-2", "<b>עברית</b>", "ada.lovelace@a-host-with-a-long-name.example.com"] });
    const rings = { "deadlock-three": "/locks/build%2Fcache", "deadlock-overview": "/", "deadlock-hostile": `/locks/${encodeURIComponent(hostile)}`,
      "deadlock-locks": "/locks" };
    await takePictures(browser, rings, { fullPage: true });
    const all = { ...pages, ...ring, ...rings };
    for (const colorScheme of ["light", "dark"]) {
      // Axe is a script of the test, not of the page; only its context does without the policy.
      const page = await open(browser, { colorScheme, bypassCSP: true });
      for (const path of Object.values(all)) {
        const response = await page.goto(`${base}${path}`);
        assert.equal(response.status(), 200, path);
        await page.locator("h1").first().waitFor({ state: "attached" });
        await page.evaluate(axe);
        const { violations } = await page.evaluate(() => window.axe.run());
        const serious = violations.filter((found) => ["serious", "critical"].includes(found.impact));
        const listed = serious.map((found) => `${found.id}: ${found.nodes.map((node) => `${node.target} ${node.failureSummary}`).join(" | ")}`);
        assert.deepEqual(listed, [], `${path} in ${colorScheme}`);
      }
      expectNoProblems(page);
    }
    // With the policy: no page violates it, and none is wider than a phone.
    const phone = await open(browser, PHONE);
    for (const path of Object.values(all)) {
      await phone.goto(`${base}${path}`);
      await phone.waitForTimeout(150);
      const width = await phone.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(width <= 390, `${path} is ${width} pixels wide`);
    }
    expectNoProblems(phone);

    // The ring names all its requests and locks, and nothing in it is drawn over something else.
    for (const [options, path, entries] of [[{}, ring.deadlock, 4], [PHONE, ring.deadlock, 4], [{}, rings["deadlock-three"], 6], [PHONE, rings["deadlock-three"], 6]]) {
      const page = await open(browser, options);
      await page.goto(`${base}${path}`);
      const boxes = await page.locator(".ring > *").evaluateAll((all) => all.map((part) => {
        const { left, top, right, bottom } = part.getBoundingClientRect();
        return { isEntry: part.matches(".entry"), text: part.innerText, left, top, right, bottom, over: part.scrollWidth - part.clientWidth };
      }));
      assert.equal(boxes.filter((box) => box.isEntry).length, entries, path);
      for (const [place, one] of boxes.entries()) {
        assert.ok(one.over <= 1, `${one.text} is cut`);
        for (const other of boxes.slice(place + 1)) {
          const apart = one.right <= other.left || other.right <= one.left || one.bottom <= other.top || other.bottom <= one.top;
          assert.ok(apart, `${one.text} covers ${other.text}`);
        }
      }
      expectNoProblems(page);
    }
  },
};

const profile = mkdtempSync(join(tmpdir(), "leasehold-browser-"));
const browser = await chromium.launch({ executablePath: process.env.LEASEHOLD_TEST_CHROMIUM, args: FLAGS, env: { ...process.env, HOME: profile } });
try {
  await parts[part](browser);
} catch (error) {
  console.error(error);
  process.exitCode = 1;
} finally {
  await browser.close();
  rmSync(profile, { recursive: true, force: true });
  process.stdin.destroy();
}
