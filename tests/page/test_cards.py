"""Cards of every kind: forms, patterns, hidden values, deadlines, and keys that must not act."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.async_api import expect

from page.browser import open_desk, run_demo, run_desk, served, shown, upcall
from page.desk import SECRET, clerk
from upcall import Runtime
from web.serving import post


async def test_a_form_has_a_field_for_every_type_and_says_what_is_missing(tmp_path: Path) -> None:
    await run_desk(tmp_path, "clerk", "form")
    async with served(tmp_path, "desk:clerk") as server, shown(server) as page:
        card = page.get_by_role("article")
        await card.get_by_label("Name").fill("Ada")
        await card.get_by_role("button", name="Answer").click()
        await expect(card.get_by_role("alert")).to_have_text("How many is missing.")
        await card.get_by_label("How many").fill("two")
        await card.get_by_role("button", name="Answer").click()
        await expect(card.get_by_role("alert")).to_have_text("How many has to be a whole number.")
        await card.get_by_label("How many").fill("2")
        await card.get_by_label("Weight").fill("1.5")
        await card.get_by_label("It is a gift").check()
        await card.get_by_role("radio", name="large").check()
        await card.get_by_role("checkbox", name="box").check()
        await card.get_by_role("checkbox", name="ribbon").check()
        await card.get_by_label("Address").fill('{"city": "Bern"}')
        await card.get_by_role("button", name="Answer").click()
        await expect(card.get_by_text("You answered")).to_be_visible()
        await page.get_by_role("link", name="Sessions").click()
        await expect(page.get_by_role("main").get_by_text("done", exact=True)).to_be_visible()
    said = await upcall(tmp_path, "show", "clerk")
    answer = json.loads(said[said.rindex("answered {") + len("answered ") : said.rindex("}") + 1])
    assert answer == {
        "name": "Ada", "count": 2, "weight": 1.5, "gift": True, "size": "large", "extras": ["box", "ribbon"],
        "address": {"city": "Bern"}, "note": "ring twice",
    }  # fmt: skip


async def test_a_pattern_approves_the_other_calls_that_it_matches(tmp_path: Path) -> None:
    await run_desk(tmp_path, "writer", "notes")
    async with served(tmp_path, "desk:writer") as server, shown(server) as page:
        card = page.get_by_role("article")
        await card.get_by_role("button", name="Approve by pattern…").click()
        await card.get_by_role("button", name="Approve where folder is notes").click()
        await expect(card.get_by_text("You approved it for this session at")).to_be_visible()
        await page.get_by_role("link", name="Sessions").click()
        await expect(page.get_by_role("main").get_by_text("done", exact=True)).to_be_visible()
    assert (tmp_path / "written.txt").read_text() == "notes/a.txt 5\nnotes/b.txt 5\n"


async def test_an_approval_for_the_session_is_not_asked_for_again(tmp_path: Path) -> None:
    await run_desk(tmp_path, "deployer", "deploy it")
    async with served(tmp_path, "desk:deployer") as server, shown(server) as page:
        card = page.get_by_role("article")
        await card.get_by_role("button", name="Approve for this session").click()
        await expect(card.get_by_text("You approved it for this session at")).to_be_visible()
        await card.get_by_role("link", name="deploy it").click()
        await expect(page.get_by_role("main").get_by_text("done", exact=True).first).to_be_visible()


async def test_an_approval_says_why_it_came_what_is_bound_and_what_happens_next(tmp_path: Path) -> None:
    await run_desk(tmp_path, "deployer", "deploy it")
    async with served(tmp_path, "desk:deployer") as server, shown(server) as page:
        card = page.get_by_role("article")
        you = card.get_by_role("listitem").last
        await expect(you).to_have_text("You, because Deploy needs an approval")
        await expect(you).to_have_attribute("title", "the agent deployer has can_use_host_interaction: true")
        await expect(card.get_by_text("checksum of what you approve: ")).to_be_visible()
        await expect(card.get_by_text("equal calls then run without asking")).to_be_visible()
        after = "After you approve, Deploy runs with these values. If you reject, deployer is told why."
        await expect(card.get_by_text(after)).to_be_visible()
        led = page.get_by_role("group", name="What led here")
        await expect(led.get_by_text("Deploy", exact=True)).to_be_visible()
        edits = [await one.bounding_box() for one in await card.get_by_role("button", name="Edit").all()]
        assert len(edits) == 3
        assert len({box["x"] for box in edits if box}) == 1


async def test_keys_are_shown_on_the_focused_card_only(tmp_path: Path) -> None:
    await run_desk(tmp_path, "clerk", "colour")
    await run_desk(tmp_path, "deployer", "deploy it")
    async with served(tmp_path) as server, shown(server) as page:
        clerk, deployer = (page.get_by_role("article").filter(has_text=name) for name in ("colour", "Deploy"))
        await expect(deployer.get_by_role("button", name="Reject…")).to_be_visible()
        await expect(page.locator("article kbd:visible")).to_have_count(0)
        await page.keyboard.press("j")
        await expect(clerk).to_be_focused()
        await expect(clerk).to_have_css("outline-style", "solid")
        await expect(clerk.locator("kbd:visible")).to_have_text(["1", "2", "d"])
        await expect(deployer.locator("kbd:visible")).to_have_count(0)
        await page.keyboard.press("j")
        await expect(deployer.locator("kbd:visible")).to_have_text(["a", "r"])
        await expect(clerk.locator("kbd:visible")).to_have_count(0)


async def test_on_a_telephone_there_are_no_keys_and_everything_can_be_hit(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    await run_desk(tmp_path, "deployer", "deploy it")
    async with served(tmp_path) as server, shown(server, wide=360) as page:
        asks = page.get_by_role("article").filter(has_text="developer02")
        await expect(asks.get_by_text("high priority")).to_be_visible()
        await asks.focus()
        await expect(page.locator("article kbd:visible")).to_have_count(0)
        choices = [
            await asks.get_by_role("button", name=name).bounding_box() for name in ("green", "blue", "orange")
        ]
        assert len({round(box["width"]) for box in choices if box}) == 1
        names = ("Decline…", "green", "Edit count", "Show api_key", "Approve for this session", "Reject…")
        for name in names:
            box = await page.get_by_role("button", name=name).bounding_box()
            assert box is not None, name
            assert box["height"] >= 44, name
        await expect(page.get_by_text("noted in the log")).to_be_visible()


async def test_a_hidden_value_is_shown_on_request_and_hidden_again(tmp_path: Path) -> None:
    await run_desk(tmp_path, "deployer", "deploy it")
    async with served(tmp_path, "desk:deployer") as server, shown(server) as page:
        card = page.get_by_role("article")
        await expect(card.get_by_text("1 value is hidden")).to_be_visible()
        assert SECRET not in await page.content()
        show = card.get_by_role("button", name="Show api_key")
        await expect(show).to_have_attribute("title", "The log notes that you saw it.")
        await show.click()
        await expect(card.get_by_text(SECRET)).to_be_visible()
        await expect(card.get_by_text("You approve exactly what you see")).to_be_visible()
        await card.get_by_role("button", name="Hide api_key").click()
        await expect(card.get_by_text("1 value is hidden")).to_be_visible()
        assert SECRET not in await page.content()
        await card.get_by_role("button", name="Show api_key").click()
        await card.get_by_role("button", name="Edit count").click()
        await card.get_by_role("textbox", name="New value of count").fill("3")
        await card.get_by_role("button", name="Done").click()
        await card.get_by_role("button", name="Approve with 1 change").click()
        await expect(card.get_by_text("You approved it with other arguments")).to_be_visible()
        assert SECRET not in await page.content()
        await page.get_by_role("link", name="Sessions").click()
        await expect(page.get_by_role("main").get_by_text("done", exact=True)).to_be_visible()
    assert "deployed 3 to staging with the whole key" in await upcall(tmp_path, "show", "deployer")
    assert "callback_revealed" in await upcall(tmp_path, "events", "deployer", "--json")


async def test_a_long_argument_has_to_be_read_to_its_end_before_it_is_approved(tmp_path: Path) -> None:
    await run_desk(tmp_path, "writer", "long")
    async with served(tmp_path, "desk:writer") as server, shown(server) as page:
        card = page.get_by_role("article")
        await expect(card.get_by_text("214 lines")).to_be_visible()
        await card.get_by_role("button", name="See all, then approve").click()
        await page.wait_for_timeout(300)
        await expect(card.get_by_role("button", name="See all, then approve")).to_be_visible()
        await expect(card.get_by_role("button", name="Approve for this session")).to_be_disabled()
        await page.keyboard.press("End")
        await card.get_by_role("button", name="Approve", exact=False).and_(page.locator(".main")).wait_for()
        await expect(card.locator(".main")).to_have_text("Approve a")
        await card.locator(".main").click()
        await expect(card.get_by_text("You approved it at")).to_be_visible()


async def test_a_question_is_declined_with_a_reason(tmp_path: Path) -> None:
    await run_desk(tmp_path, "clerk", "colour")
    async with served(tmp_path, "desk:clerk") as server, shown(server) as page:
        card = page.get_by_role("article")
        await card.wait_for()
        await page.keyboard.press("j")
        await page.wait_for_timeout(600)
        await page.keyboard.press("d")
        await page.keyboard.type("ask the painter")
        await page.keyboard.press("Control+Enter")
        await expect(card.get_by_text("You declined it at")).to_be_visible()
        await expect(card.get_by_text("ask the painter")).to_be_visible()


async def test_a_question_that_nobody_answers_in_time_says_so(tmp_path: Path) -> None:
    open_desk(tmp_path)
    async with served(tmp_path, "desk:clerk") as server, shown(server, "inbox") as page, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "soon", "id": "soon"})
        card = page.get_by_role("article")
        await expect(card.get_by_text("expires in 0:0")).to_be_visible()
        await expect(card.get_by_text("Nobody answered in time")).to_be_visible()
        await expect(card.get_by_text("The agent was told so.")).to_be_visible()
        await expect(card.get_by_role("button", name="yes")).to_have_count(0)


async def test_a_key_answers_nothing_at_the_moment_when_a_more_urgent_question_arrives(tmp_path: Path) -> None:
    await run_desk(tmp_path, "clerk", "colour", "calm")
    async with served(tmp_path) as server, shown(server) as page:
        await page.get_by_role("heading", name="What about colour?").wait_for()
        await page.keyboard.press("j")
        await page.wait_for_timeout(600)
        await page.evaluate("""() => new MutationObserver((_, observer) => {
          if (!document.body.innerText.includes("more urgent")) return;
          observer.disconnect();
          const press = () => document.activeElement.dispatchEvent(
            new KeyboardEvent("keydown", { key: "1", bubbles: true, cancelable: true }));
          press();
          requestAnimationFrame(press);
        }).observe(document.body, { subtree: true, childList: true })""")
        await run_desk(tmp_path, "clerk", "urgent", "urgent")
        more = page.get_by_role("button", name="1 more urgent ↑")
        await expect(more).to_be_visible()
        await more.click()
        await page.keyboard.press("1")
        await page.keyboard.press("1")
        await expect(page.get_by_role("article").first.get_by_text("critical")).to_be_visible()
        assert len((await upcall(tmp_path, "inbox", "--ids")).split()) == 2
        await page.wait_for_timeout(600)
        await page.keyboard.press("1")
        await expect(page.get_by_role("article").get_by_text("You answered yes at")).to_be_visible()
        await expect(page.get_by_role("heading", name="What about colour?")).to_be_visible()
    assert len((await upcall(tmp_path, "inbox", "--ids")).split()) == 1


async def test_a_long_inbox_comes_in_pages_and_says_how_many_wait(tmp_path: Path) -> None:
    (tmp_path / ".upcall").mkdir()
    async with Runtime(tmp_path / ".upcall" / "log.db", agents=[clerk]) as runtime:
        for number in range(34):
            await (await runtime.start(clerk, f"s{number}")).prompt("colour")
        last = (await runtime.inbox())[-1]
    async with served(tmp_path) as server, shown(server) as page:
        await expect(page.get_by_role("heading", name="34 questions wait for you")).to_be_visible()
        await expect(page.get_by_role("article")).to_have_count(30)
        await expect(page.get_by_text("4 other questions wait.")).to_be_visible()
        await run_desk(tmp_path, "clerk", "urgent", "urgent")
        await expect(page.get_by_role("heading", name="35 questions wait for you")).to_be_visible()
        await expect(page.get_by_role("heading", name="What about urgent?")).to_be_visible()
        await page.get_by_role("button", name="Show more").click()
        await expect(page.get_by_role("article")).to_have_count(35)
        await expect(page.get_by_text("other question")).to_have_count(0)
        await page.goto(f"{server.url}/inbox/{last.id}")
        await page.wait_for_timeout(600)
        await page.locator(f"[data-card={last.id}]").get_by_role("button", name="green").click()
        await expect(page.locator(f"[data-card={last.id}]").get_by_text("You answered green at")).to_be_visible()
        await expect(page.get_by_role("heading", name="34 questions wait for you")).to_be_visible()


async def test_a_link_to_a_question_shows_it_open_and_settled(tmp_path: Path) -> None:
    await run_desk(tmp_path, "clerk", "name", "one")
    await run_desk(tmp_path, "clerk", "colour", "two")
    first, second = (await upcall(tmp_path, "inbox", "--ids")).split()
    await upcall(tmp_path, "answer", first, "the old one")
    async with served(tmp_path) as server, shown(server, f"inbox/{second}") as page:
        focused = page.locator("article:focus")
        await expect(focused.get_by_role("heading", name="What about colour?")).to_be_visible()
        await page.goto(f"{server.url}/inbox/{first}")
        await expect(page.get_by_role("article").first.get_by_text("answered the old one at")).to_be_visible()
