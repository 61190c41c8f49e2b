"""An agent in memory: rows that follow the decisions of the machine, as the store would."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flowengine.evaluator.records import CLAIMS
from flowengine.program.nodes import Json
from flowengine.turns import machine
from flowengine.turns.records import (
    AskedCall,
    Call,
    Changes,
    Delivery,
    Head,
    ModelAnswered,
    ModelFailed,
    NewCard,
    NewEvent,
    Reported,
    Rules,
    Stopped,
    Trigger,
    Turn,
)
from flowengine.turns.states import HeadState, TaskStatus, TurnState

PLAIN = Rules()


def asked(name: str = "search", **options: object) -> AskedCall:
    """A call that the model asks for, under an id that models use again and again."""
    return AskedCall(name, "call_0", {"query": "kettle"}, **options)  # type: ignore[arg-type]


def submission(*fields: tuple[str, Json], problem: str = "") -> AskedCall:
    return AskedCall("submit_result", "call_0", {}, problem, is_submit=True, fields=fields)


@dataclass
class PlayedAgent:
    """One agent, its turns in their order, and everything that was written for it."""

    rules: Rules = PLAIN
    head: Head = field(default_factory=lambda: Head("acme", "ada"))
    turns: dict[str, Turn] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    of_epoch: dict[str, int] = field(default_factory=dict)  #: the suspension of each call
    cards: dict[str, list[NewCard]] = field(default_factory=dict)  #: of each turn
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    events: list[NewEvent] = field(default_factory=list)
    model_calls: list[str] = field(default_factory=list)
    canceled: list[str] = field(default_factory=list)  #: runs that were told to end
    steps: dict[str, str] = field(default_factory=dict)  #: the status of each ended step
    now: int = 1_000

    # --- inputs ---

    def dispatch(self, name: str = "first") -> Changes:
        turn = Turn(f"{name:0>32}", "acme", "ada", TurnState.ACTIVE, depth=3)
        turn.trace_id, turn.context_box_id, turn.output_box_id = "t", "context", "output"
        self.turns[turn.id] = turn
        self.cards[turn.id], self.deliveries[turn.id] = [], []
        return self._keep(turn, machine.dispatch(self.head, turn))

    def enter(self, attempt: int = 1, claim: int = 0) -> bool:
        number = attempt * CLAIMS + claim
        after = machine.enter(self.head, self.head.run_id or "", number)
        if after is not None:
            self.head = after
        return after is not None

    def say(self, *calls: AskedCall, text: str = "", **options: object) -> Changes | None:
        run_id = str(options.pop("run_id", self.head.run_id))
        tokens = options.pop("tokens", 15)
        said = ModelAnswered(run_id, text, {"text": text}, calls, tokens, **options)  # type: ignore[arg-type]
        return self.tell(said)

    def fail(self, code: str = "model_failed", status: str = TaskStatus.FAILED) -> Changes | None:
        return self.tell(ModelFailed(self.head.run_id or "", code, "away", status))

    def report(
        self, call: Call, status: str = TaskStatus.SUCCESS, **options: object
    ) -> Changes | None:
        given = {"result": f"of {call.name}", **options}
        return self.tell(Reported(call.id, status, **given))  # type: ignore[arg-type]

    def expire(self, call: Call) -> Changes | None:
        error = {"code": "tool_timeout", "message": "late"}
        return self.tell(Reported(call.id, TaskStatus.TIMEOUT, error=error, is_timeout=True))

    def stop(self, code: str = "stopped") -> Changes | None:
        return self.tell(Stopped(code, "the customer left"))

    def tell(self, trigger: Trigger, turn: Turn | None = None) -> Changes | None:
        told = turn or self.turn
        if told is None:
            return None
        changes = machine.decide(self.head, told, self.waited_for(), trigger, self.rules, self.now)
        return changes and self._keep(told, changes)

    # --- rows ---

    @property
    def turn(self) -> Turn | None:
        """The active turn, or the last one."""
        active = self.turns.get(self.head.turn_id or "")
        return active or next(reversed(self.turns.values()), None)

    def waited_for(self) -> list[Call]:
        """The calls of the present suspension."""
        if self.head.status != HeadState.SUSPENDED:
            return []
        return [call for call in self.calls.values() if self.of_epoch[call.id] == self.head.epoch]

    def open_calls(self) -> list[Call]:
        return [call for call in self.calls.values() if call.state == "waiting"]

    def types(self, name: str = "first") -> list[str]:
        return [card.type for card in self.cards[f"{name:0>32}"]]

    def delivered(self, name: str = "first") -> tuple[Delivery, Json]:
        """The one delivery of a turn, with the content of its card."""
        (delivery,) = self.deliveries[f"{name:0>32}"]
        (card,) = [c for c in self.cards[f"{name:0>32}"] if c.id == delivery.card_id]
        return delivery, card.content

    def _keep(self, turn: Turn, changes: Changes) -> Changes:
        assert changes.before == (self.head.epoch, self.head.turn_id), "the guard would refuse it"
        self.head = replace(changes.head)
        self.cards[turn.id] += changes.cards
        self.steps |= {ended.step_id: ended.status for ended in changes.steps}
        for started in changes.started:
            self.calls[started.call.id] = replace(started.call)
            self.of_epoch[started.call.id] = changes.head.epoch
        self.calls |= {call.id: replace(call) for call in changes.ended}
        self.canceled += [call.run_id for call in changes.canceled if call.run_id]
        if changes.canceled_run:
            self.canceled.append(changes.canceled_run)
        if changes.model_call is not None:
            self.model_calls.append(changes.model_call.run_id)
        if changes.delivery is not None:
            self.deliveries[turn.id].append(changes.delivery)
            turn.state = TurnState.FINISHED
        self.events += changes.events
        return changes


def entered(rules: Rules = PLAIN, name: str = "first") -> PlayedAgent:
    """An agent whose model call has begun."""
    agent = PlayedAgent(rules)
    agent.dispatch(name)
    assert agent.enter()
    return agent


def suspended(*calls: AskedCall, rules: Rules = PLAIN) -> PlayedAgent:
    agent = entered(rules)
    assert agent.say(*(calls or (asked(),))) is not None
    return agent
