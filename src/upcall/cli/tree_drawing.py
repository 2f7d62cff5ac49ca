"""A drawing of a run tree from its nodes: who worked for whom, who asked what, and who answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from upcall.cli.output import STYLES
from upcall.hosts.terminal.layout import Piece
from upcall.observe.node_table import Node
from upcall.observe.plain import one_line

_FEWEST_COLUMNS = 12
"""The fewest columns for a text at the end of a row; with less room it is left out."""

_FEWEST_COLUMNS_OF_A_QUESTION = 20
_DEEPEST = 12
"""Levels that are indented; what is deeper stands below them."""

_PERSON = "A person"
"""The label of the hop that asks a person; no agent has a name with a blank."""


class _Drawn(NamedTuple):
    """What is drawn of a session: its node, its questions with their hops and answers, and its children."""

    node: Node
    questions: list[Node]
    children: list[_Drawn]
    below: dict[str, list[Node]]


def draw_tree(nodes: Sequence[Node], width: int = 80) -> list[list[Piece]]:
    """Draw the sessions and questions of a run tree as rows of at most `width` columns."""
    return [row for root in _gather(nodes) for row in _rows(root, _Place(width=width))]


def _gather(nodes: Iterable[Node]) -> list[_Drawn]:
    """Arrange sessions below the sessions that started them, and questions below those that asked."""
    owner: dict[str, str] = {}  # by a node's id, the session that is drawn and that it belongs to
    hidden: set[str] = set()  # what belongs to side turns
    drawn: dict[str, _Drawn] = {}
    below: dict[str, list[Node]] = {}
    roots: list[_Drawn] = []
    for node in nodes:
        parent = node.parent or ""
        if node.kind == "side_turn" or parent in hidden:
            hidden.add(node.id)
        elif node.kind == "session":
            made = drawn[node.id] = _Drawn(node, [], [], below)
            above = drawn.get(owner.get(parent, ""))
            (roots if above is None else above.children).append(made)
            owner[node.id] = node.id
        else:
            owner[node.id] = owner.get(parent, "")
            if node.kind == "callback" and (asker := drawn.get(owner[node.id])) is not None:
                asker.questions.append(node)
            elif node.kind in ("hop", "answer"):
                below.setdefault(parent, []).append(node)
    return roots


class _Place(NamedTuple):
    """Where a session is drawn: what stands before its first row and before all others, and what is above it."""

    width: int
    first: str = ""
    bar: str = ""
    depth: int = 0
    about: str = ""

    def below(self, about: str, *, last: bool) -> _Place:
        """Return the place of a child."""
        branch, more = ("└─ ", "   ") if last else ("├─ ", "│  ")
        deeper = "" if self.depth >= _DEEPEST else more
        return _Place(self.width, self.bar + branch, self.bar + deeper, self.depth + 1, about)


def _rows(drawn: _Drawn, place: _Place) -> Iterator[list[Piece]]:
    node = drawn.node
    head = [Piece(place.first, "dim"), Piece(node.label, "bold"), Piece(" · ", "dim")]
    head.append(Piece(node.status, STYLES.get(node.status, "")))
    room = place.width - sum(len(piece.text) for piece in head) - 3
    tells = node.about and node.about != place.about and not node.about.endswith(":")  # it only introduces a list
    if tells and room >= _FEWEST_COLUMNS:
        head.append(Piece(f" · {one_line(node.about, room)}", "dim"))
    yield head
    for question in drawn.questions:
        pipe = f"{place.bar}{'│  ' if drawn.children else '   '}"
        yield from _question_rows(question, drawn.below.get(question.id, []), pipe, place.width)
    for child in drawn.children:
        yield from _rows(child, place.below(node.about, last=child is drawn.children[-1]))


def _question_rows(question: Node, below: Sequence[Node], bar: str, width: int) -> Iterator[list[Piece]]:
    """Draw a question, each agent that passed it up, and the answer or what it waits for."""
    room = max(width - len(bar) - 2, _FEWEST_COLUMNS_OF_A_QUESTION)
    yield [Piece(bar, "dim"), Piece("? ", "yellow"), Piece(one_line(_asked(question), room))]
    for step, style in _steps(question, below):
        yield [Piece(f"{bar}  ", "dim"), Piece("↳ ", "yellow"), Piece(one_line(step, max(room - 2, 18)), style)]


def _asked(question: Node) -> str:
    """Return what was asked; a settled question's own line has the answer in it."""
    about: str = question.history[0][2]["about"]
    return f"{question.label}: {about}" if question.label == "Approval" else about


def _steps(question: Node, below: Sequence[Node]) -> Iterator[tuple[str, str]]:
    """Return what happened to a question, each with its style."""
    hops = [node for node in below if node.kind == "hop"]
    for hop in hops:
        if hop.status == "passed":
            yield f"{hop.label} {hop.about or 'passed it up'}", "dim"
    answers = [node for node in below if node.kind == "answer"]
    for answer in answers:
        who = "person" if hops and hops[-1].label == _PERSON else "agent"
        is_told = question.label == "Approval" or answer.status == "declined"
        yield f"{answer.label} ({who}) {'' if is_told else 'answered: '}{answer.about}", ""
    if answers:
        return
    if question.status != "open":
        yield question.status, "yellow"
    elif hops:
        yield f"waiting for {'a person' if hops[-1].label == _PERSON else hops[-1].label}", "magenta"
