"""A chat on the terminal. Kill it in the middle of an answer and start it again: it goes on.

    python examples/agent_chat.py                     the next line of a scripted talk
    echo "and tomorrow?" | python examples/agent_chat.py -      each line is a message
    ANTHROPIC_API_KEY=… python examples/agent_chat.py - claude-opus-4-5       a real model

The agent `chat` has one mailbox and one memory, in flowengine.db. A message has the number of the
line as its key: a second process that sends it again gets the turn of the first.
"""

import sys

from flowengine import agent, default_engine
from flowengine.agents import agents_of
from flowengine.models import Anthropic, Model, ModelRequest
from flowengine.testing import ScriptedModel

TALK = ["Good morning!", "What did I say first?", "Good bye."]


def script(request: ModelRequest) -> str:
    """Answer with the number of messages so far, and the first of them: the memory works."""
    heard = [message.text for message in request.messages if message.role == "user"]
    return f"You said {len(heard)} things, first {heard[0]!r}."


def model() -> Model:
    return Anthropic(sys.argv[2]) if len(sys.argv) > 2 else ScriptedModel(script)


@agent(model=model(), name="chat.partner")
def partner(text: str) -> str:
    """You talk with a person on a terminal. You are brief."""
    return text


def said_before() -> int:
    """Return the number of messages so far; show the answers that nobody may have seen.

    These are the open ones, and the last: a kill may have come before it was printed.
    """
    agents = agents_of(default_engine())
    turns = agents.turns("", "chat", limit=1_000)
    for turn in reversed(turns):
        if turn.finished is None or turn is turns[0]:
            print(f"… {agents.handle('', turn.id).result(timeout=300)}")
    return len(turns)


if __name__ == "__main__":
    number = said_before()
    lines = sys.stdin if sys.argv[1:] else TALK[number : number + 3]
    for line in lines:
        turn = partner.at("chat").options(key=f"line {number}").send(line.strip())
        print(f"> {line.strip()}\n{turn.result(timeout=300)}")
        number += 1
    print(f"{number} messages so far, in flowengine.db")
