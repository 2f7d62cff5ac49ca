"""Questions answered on the page: by pointer, by keyboard, and when somebody else was faster."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import expect

from page.browser import run_demo, run_desk, served, shown, upcall

QUESTION = "Which colour should the button 'Sign in' have?"


async def test_the_demo_is_answered_on_the_page_and_finishes(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path, "shop:team") as server, shown(server) as page:
        await expect(page).to_have_title("(1) upcall")
        await expect(page.get_by_role("heading", name=QUESTION)).to_be_visible()
        await expect(page.get_by_text("passed it up: a matter of taste")).to_be_visible()
        await expect(page.get_by_text("because developer02 may ask people")).to_be_visible()
        await expect(page.get_by_text("asked while its program ran")).to_be_visible()
        led = page.get_by_role("group", name="What led here")
        await expect(led.get_by_text('for page in ["Home", "Sign in", "Help"]:')).to_be_visible()

        await page.get_by_role("button", name="green").click()

        await expect(page.get_by_role("article").get_by_text("You answered green at")).to_be_visible()
        await expect(page).to_have_title("upcall")
        await page.get_by_role("link", name="Sessions").click()
        await page.get_by_role("link", name="Build the sign-in page").click()
        await expect(page.get_by_role("treeitem", name="reviewer").first).to_be_visible()
        await expect(page.get_by_role("main").get_by_text("done").first).to_be_visible()
    assert "green" in (tmp_path / "Sign in.html").read_text()


async def test_the_demo_is_answered_by_keyboard_alone(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path, "shop:team") as server, shown(server) as page:
        await expect(page.get_by_role("button", name="blue")).to_be_visible()
        keyboard = page.keyboard
        await keyboard.press("g")
        await keyboard.press("s")
        await expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
        await page.wait_for_selector("a.title")
        await keyboard.press("j")
        await keyboard.press("Enter")
        await expect(page.get_by_role("tree")).to_be_visible()
        await keyboard.press("n")
        await expect(page.get_by_role("treeitem", name="asks you")).to_have_attribute("aria-selected", "true")
        await keyboard.press("g")
        await keyboard.press("i")
        await expect(page.get_by_role("heading", name=QUESTION)).to_be_visible()
        await keyboard.press("j")
        await page.wait_for_timeout(600)
        await keyboard.press("2")
        await expect(page.get_by_role("article").get_by_text("You answered blue at")).to_be_visible()
        await page.keyboard.press("g")
        await page.keyboard.press("s")
        await expect(page.get_by_role("main").get_by_text("done", exact=True)).to_be_visible()
    assert "blue" in (tmp_path / "Sign in.html").read_text()


async def test_a_key_does_nothing_in_the_first_half_second_and_nothing_without_focus(tmp_path: Path) -> None:
    await run_desk(tmp_path, "deployer", "deploy it")
    async with served(tmp_path) as server, shown(server) as page:
        await page.get_by_role("button", name="Approve", exact=False).first.wait_for()
        await page.keyboard.press("a")
        await page.keyboard.press("j")
        await page.keyboard.press("a")
        await expect(page.get_by_text("1 value is hidden")).to_be_visible()
    assert await upcall(tmp_path, "inbox", "--ids"), "a key that came too early has approved a call"


async def test_an_approval_edited_beside_a_hidden_value_runs_with_the_real_one(tmp_path: Path) -> None:
    await run_desk(tmp_path, "deployer", "deploy it")
    async with served(tmp_path, "desk:deployer") as server, shown(server) as page:
        card = page.get_by_role("article")
        await expect(card.get_by_role("definition").get_by_text("hidden, 50 characters")).to_be_visible()
        await card.get_by_role("button", name="Edit count").click()
        await card.get_by_role("textbox", name="New value of count").fill("1")
        await card.get_by_role("button", name="Done").click()
        await card.get_by_role("button", name="Approve with 1 change").click()
        await expect(
            page.get_by_role("article").get_by_text("You approved it with other arguments at")
        ).to_be_visible()
        await page.get_by_role("link", name="Sessions").click()
        await expect(page.get_by_role("main").get_by_text("done").first).to_be_visible()
    assert "deployed 1 to staging with the whole key" in await upcall(tmp_path, "show", "deployer")


async def test_a_rejection_says_why(tmp_path: Path) -> None:
    await run_desk(tmp_path, "deployer", "deploy it")
    async with served(tmp_path, "desk:deployer") as server, shown(server) as page:
        await page.get_by_role("article").wait_for()
        await page.keyboard.press("j")
        await page.wait_for_timeout(600)
        await page.keyboard.press("r")
        await page.keyboard.type("not on a Friday")
        await page.keyboard.press("Control+Enter")
        await expect(page.get_by_role("article").get_by_text("You rejected it at")).to_be_visible()
    assert "not on a Friday" in await upcall(tmp_path, "show", "deployer")


async def test_whoever_was_faster_is_named(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path, "shop:team") as server, shown(server) as page:
        await page.get_by_role("button", name="green").wait_for()
        await page.route("**/api/live*", lambda route: route.abort())
        question = (await upcall(tmp_path, "inbox", "--ids")).strip()
        await page.evaluate("() => window.dispatchEvent(new Event('online'))")
        await upcall(tmp_path, "answer", question, "orange")
        await page.wait_for_timeout(600)
        await page.get_by_role("button", name="green").click()
        await expect(page.get_by_role("alert").get_by_text("Yours was not used.")).to_be_visible()
        await expect(page.get_by_text("orange").first).to_be_visible()


async def test_a_question_raised_in_another_process_appears(tmp_path: Path) -> None:
    async with served(tmp_path) as server, shown(server, "inbox") as page:
        await expect(page.get_by_text("Nobody is waiting for you.")).to_be_visible()
        await run_desk(tmp_path, "clerk", "colour")
        await expect(page.get_by_role("heading", name="What about colour?")).to_be_visible()
        await expect(page).to_have_title("(1) upcall")
