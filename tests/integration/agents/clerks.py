"""Agents for tests, whose models follow a plan, and a flow that loses or doubles wake-ups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel

from flowengine import event_facet, foreach, workflow
from flowengine.agents import Agents, Budget, TurnHandle, agent, agents_of, tool
from flowengine.authoring import Retry
from flowengine.engine.recovery import evaluate_reported_runs, fire_due_timers
from flowengine.models import Answer, ModelRequest, ScriptedModel, StopReason, ToolCall, calling
from flowengine.models.messages import Text, Usage
from flowengine.program.nodes import Json
from flowengine.settings import Settings
from flowengine.store.agent_inbox import Message
from flowengine.store.cards import Card
from flowengine.testing import Flow
from flowengine.turns.records import Call, Head

Step: TypeAlias = Answer | str | Exception
Wakeups: TypeAlias = Literal["received", "lost", "doubled", "joined"]


class Plan:
    """The answers of the model: for each instruction, one after the other.

    It reads its place from the request, so a repeated call gets the same answer. `asked` are the
    instruction and the step of each request, in their order.
    """

    def __init__(self) -> None:
        self.steps: dict[str, Sequence[Step]] = {}
        self.asked: list[tuple[str, int]] = []

    def reset(self, steps: Mapping[str, Sequence[Step]]) -> None:
        self.steps, self.asked = dict(steps), []
        model.requests.clear()

    def __call__(self, request: ModelRequest) -> Step:
        spoken = 0
        for message in reversed(request.messages):
            spoken += message.role == "assistant"
            text = "".join(p.text for p in message.content if isinstance(p, Text))
            if message.role == "user" and text in self.steps:
                self.asked.append((text, spoken))
                return self.steps[text][spoken]
        raise AssertionError(f"no plan for {request.messages}")


plan = Plan()
model = ScriptedModel(plan)


def calls(*names: str, **arguments: Json) -> Answer:
    """An answer that calls tools, each under the same id: models repeat their ids."""
    made = tuple(ToolCall("call_0", name, arguments) for name in names)
    return Answer(made, StopReason.TOOL_CALLS, Usage(10, 5), "scripted")


def submit(**fields: Json) -> Answer:
    return calling("submit_result", **fields)


class Verdict(BaseModel):
    approve: bool
    reason: str


searched: list[str] = []


@event_facet(retry=Retry(attempts=1))
def search(query: str = "kettle") -> str:
    """Search the archive."""
    searched.append(query)
    if query == "broken":
        raise RuntimeError("the archive is closed")
    return f"found {query}"


@event_facet
def measure(query: str = "kettle") -> Any:
    """Measure it; the query says what follows."""
    if query in ("terminate", "suspend", "explode"):
        return {"litres": 2, "__cg_control": {"after_execution": query}}
    return {"litres": 2}


@event_facet
def refund(query: str = "all") -> str:
    """Pay the money back."""
    return f"paid {query}"


@workflow
def search_twice(query: str = "kettle") -> str:
    """Search, and search for what was found."""
    return search(search(query))


@agent(model=model, retry=Retry(attempts=2, first_wait=1))
def translator(query: str = "hello") -> str:
    """You translate."""
    return f"translate {query}"


@agent(
    model=model,
    tools=[
        search,
        measure,
        search_twice,
        translator,
        tool(search, name="hurried", timeout=30),
        tool(refund, approval=True),
        tool(refund, name="settle", ends_turn=True),
    ],
    budget=Budget(steps=6),
    retry=Retry(attempts=2, first_wait=1),
)
def clerk(task: str) -> str:
    """You settle complaints."""
    return task


@agent(model=model, tools=[search], budget=Budget(steps=4, seconds=600))
def judge(task: str) -> Verdict:
    """You decide."""
    return task


@workflow
def ask_each(tasks: list[str]) -> list[str]:
    return foreach(tasks, lambda task: clerk(task))


@workflow
def ask_judge(task: str) -> Verdict:
    return judge(task)


@workflow
def ask_ada(task: str) -> str:
    return clerk.at("ada")(task)


class Office:
    """A flow with agents. Lost wake-ups are repaired by recovery, doubled ones change nothing.

    With lost and doubled wake-ups the ends of calls are messages. With "received" and "joined" they
    are joined to the commits of their agents; "joined" ones lose all wake-ups, too.
    """

    def __init__(self, flow: Flow, wakeups: Wakeups = "received") -> None:
        self.flow, self.engine, self.clock = flow, flow.engine, flow.clock
        self.agents: Agents = agents_of(flow.engine)
        self._recovers = False
        advance: Any = self.agents._advance

        def ring(keys: Any, continuation: Any = None) -> Any:
            if wakeups in ("lost", "joined") and not self._recovers:
                return []
            again = advance(keys, continuation) if wakeups == "doubled" else []
            return advance(keys, continuation) + again

        self.agents._advance = ring  # type: ignore[method-assign]
        if wakeups in ("lost", "doubled"):
            self.engine.committer.join_ends = None
        self.engine.recovery_jobs["agents"] = self._recover

    def _recover(self) -> None:
        self._recovers = True
        try:
            self.agents.recover()
        finally:
            self._recovers = False

    # --- time and work ---

    def tick(self, seconds: float = 6) -> None:
        """Let time pass, and run one recovery pass: the part of it that concerns agents."""
        self.clock.advance(seconds=seconds)
        if self.flow._dead:
            self.flow.watchdog()
            return
        fire_due_timers(self.engine)
        evaluate_reported_runs(self.engine)
        self._recover()

    def work(self) -> None:
        """Run everything that is due, until two recovery passes find nothing more."""
        quiet = 0
        for _ in range(100):
            done = self.flow.settle()
            self.tick()
            quiet = 0 if done or self.flow.settle() else quiet + 1
            if quiet == 2:
                return
        raise AssertionError("there is always more work")

    def until_suspended(self, turn: TurnHandle[Any]) -> list[Call]:
        """Work until the turn waits for its calls, without running them; return them."""
        for _ in range(20):
            if self.head(turn).status == "suspended":
                return self.calls(turn)
            self.run_model(turn)
            self.tick()
        raise AssertionError(f"the turn does not wait for calls: {self.head(turn)}")

    def run_model(self, turn: TurnHandle[Any]) -> None:
        """Run the model call that the turn waits for, and nothing else."""
        if self.head(turn).status == "idle":
            self.tick()
        run_id = self.head(turn).run_id
        if run_id is None:
            return
        for task in self.engine.tasks(run_id):
            if task.state == "pending" and task.due <= self.clock.now:
                worker = self.flow.worker("model")
                claimed = worker.claim(self.engine.run(run_id), "call")
                worker.work_on(claimed)

    # --- rows ---

    def head(self, turn: TurnHandle[Any] | str, project: str = "") -> Head:
        agent_id = turn if isinstance(turn, str) else turn.info().agent
        project = project if isinstance(turn, str) else turn.project
        with self.engine.database.read() as session:
            found = session.agent_heads.get(project, agent_id)
        assert found is not None
        return found

    def calls(self, turn: TurnHandle[Any]) -> list[Call]:
        with self.engine.database.read() as session:
            return session.agent_turns.all_calls(turn.project, turn.id)

    def cards(self, turn: TurnHandle[Any]) -> list[Card]:
        """The cards of a turn in its output box, in their order."""
        info = turn.info()
        with self.engine.database.read() as session:
            found = session.cards.read(turn.project, info.output_box_id)
        return [card for card in found if card.turn_id == turn.id]

    def context(self, turn: TurnHandle[Any]) -> list[Card]:
        box_id = turn.info().context_box_id
        with self.engine.database.read() as session:
            return session.cards.read(turn.project, box_id)

    def results(self, turn: TurnHandle[Any]) -> list[Json]:
        """Return the outcomes of the calls of a turn: results, and errors."""
        found = [c.content for c in self.cards(turn) if c.type == "tool.result"]
        return [c.get("result", c.get("error")) for c in found if isinstance(c, dict)]

    def add(self, message: Message) -> None:
        """Write a message as another process would, without a wake-up."""
        with self.engine.database.write() as session:
            session.agent_inbox.add(message)

    def inbox(self, turn: TurnHandle[Any]) -> list[tuple[str, str]]:
        """The type and the state of each message of a turn."""
        rows = self.rows(
            "SELECT message_type, status FROM flowengine_agent_inbox WHERE agent_turn_id = %s "
            "ORDER BY created_at, message_type",
            turn.id,
        )
        return [(kind, status) for kind, status in rows]

    def rows(self, text: str, *values: Any) -> list[Any]:
        with self.engine.database.read() as session:
            return list(session.rows(text, values))

    # --- what always holds ---

    def check(self, *turns: TurnHandle[Any]) -> None:
        """The invariants of ended turns: one deliverable, one event, nothing left open."""
        for turn in turns:
            info, cards = turn.info(), self.cards(turn)
            assert info.state == "finished"
            ends = [card.id for card in cards if card.type == "task.deliverable"]
            assert ends == [info.deliverable_card_id]
            tasks = [event for event in turn.events() if event.kind == "task"]
            assert len(tasks) == 1
            body = tasks[0].body
            assert isinstance(body, dict)
            assert body["deliverable_card_id"] == info.deliverable_card_id
            assert body["status"] == info.status
            asked = [c.tool_call_id for c in cards if c.type == "tool.call"]
            answered = [c.tool_call_id for c in cards if c.type == "tool.result"]
            assert sorted(map(str, asked)) == sorted(map(str, answered))
            assert all(call.state != "waiting" for call in self.calls(turn))
            left = [m for m in self.inbox(turn) if m[1] in ("queued", "pending", "deferred")]
            assert left == []
            head = self.head(turn)
            if head.status == "idle":
                assert (head.turn_id, head.waiting, head.resume_deadline) == (None, 0, None)
        numbers = self.rows(
            "SELECT count(*), max(number) FROM flowengine_agent_event GROUP BY project_id, agent_id"
        )
        assert all(count == last for count, last in numbers)  # no gaps
        steps = self.rows("SELECT count(*) FROM flowengine_agent_step WHERE status = 'started'")
        assert steps[0][0] == 0


@contextmanager
def office(url: str, wakeups: Wakeups = "received", **options: Any) -> Iterator[Office]:
    searched.clear()
    # A worker that is slow on a busy machine would otherwise leave the next task to others.
    options.setdefault("settings", Settings(worker_time_slice=60))
    with Flow(store_url=url, **options) as flow:
        yield Office(flow, wakeups)
