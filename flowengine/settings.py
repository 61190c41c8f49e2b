"""The settings, with unit, default and environment variable."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from flowengine import retention, tenants
from flowengine.errors import InvalidSetting
from flowengine.printable import masked_url
from flowengine.retention import DEFAULT as DEFAULT_RETENTION

#: Characters of a key of messages or of secrets, at least: `openssl rand -hex 32` prints 64.
SHORTEST_KEY = 32


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings; each is read from ``FLOWENGINE_<NAME>``."""

    #: SQLAlchemy URL of the database. The default is a SQLite file in the working directory; a
    #: Celery app with a broker on a network has none.
    database_url: str = "sqlite:///flowengine.db"
    #: Schema of the tables, on PostgreSQL. Empty: the first of the user's search path.
    schema: str = ""
    #: The tenant that this app is bound to: it starts and reads no other's runs. Empty: none.
    tenant: str = ""
    #: Tokens of the pages in Flower, as tenant=token, separated by commas.
    tenant_tokens: str = field(default="", repr=False)
    #: Threads that run facets in an embedded process.
    concurrency: int = 8
    #: Maximum number of coroutines of async facets that one process runs at once.
    async_concurrency: int = 100
    #: Seconds without a turn of the event loop until the log names the facet that blocks it.
    async_blocked_seconds: float = 1.0
    #: Maximum size of the JSON of one input or one result, in bytes.
    max_value_bytes: int = 1024 * 1024
    #: Maximum size of the JSON of one value that the engine computes: a concatenation, a list, a
    #: map, the merged results of a loop, in bytes.
    max_computed_bytes: int = 16 * 1024 * 1024
    #: Maximum number of lists and maps inside each other, in a value.
    max_json_depth: int = 200
    #: Maximum size of a program as text, in bytes.
    max_program_bytes: int = 4 * 1024 * 1024
    #: Maximum number of lists and maps inside each other, in a program's JSON.
    max_program_depth: int = 400
    #: Maximum number of problems that the error of a program or a start lists.
    max_problems: int = 100
    #: Maximum number of steps, blocks and repeated tries of one run.
    max_run_steps: int = 250_000
    #: Number of new steps after which a commit leaves the rest to the next one.
    max_commit_steps: int = 10_000
    #: Maximum number of processes that evaluate long runs of one tenant at once, on PostgreSQL.
    max_tenant_evaluations: int = 1
    #: Bytes of computed values after which a commit leaves the rest to the next one.
    max_commit_bytes: int = 32 * 1024 * 1024
    #: Maximum size of all values that one run writes, in bytes.
    max_run_bytes: int = 256 * 1024 * 1024
    #: Maximum number of checks in the validation of one value against its type and schema.
    max_schema_checks: int = 1_000_000
    #: Maximum number of list entries, keys and pieces of text that the operators in the expressions
    #: of one step go through.
    max_expression_parts: int = 2_000_000
    #: Maximum number of steps inside each other, in one run.
    max_step_depth: int = 1_000
    #: Failed evaluations of a run, in one process, after which the run has an alarm.
    max_failed_evaluations: int = 3
    #: Seconds between two ticks of the watchdog.
    watchdog_interval: float = 0.5
    #: Seconds after which the in-process broker is looked at, although no message has come.
    polling_interval: float = 0.1
    #: Seconds between two heartbeats of a server.
    heartbeat_interval: float = 5.0
    #: Seconds between two heartbeats of a server that holds a session lock, on PostgreSQL. 0: it
    #: holds none, and its death is noticed after `server_timeout`.
    lock_heartbeat_interval: float = 1.0
    #: Seconds without a heartbeat until a server is declared dead.
    server_timeout: float = 30.0
    #: Seconds without the database after which a worker, of Celery or of `flowengine work`, ends
    #: with exit code 1, when what it runs has ended. 0: it waits for the database, however long.
    alone_patience: float = 0.0
    #: Seconds a worker claims tasks for one wake-up before it yields to other messages; up to ten
    #: times as long while no other task is due.
    worker_time_slice: float = 0.1
    #: Maximum number of tasks claimed at once, for facets that are measured as quick. Tasks of
    #: one chord message may exceed it. 1 disables batches.
    batch: int = 50
    #: Average seconds of a try up to which a facet counts as quick.
    quick_seconds: float = 0.002
    #: Seconds until the unstarted tasks of a batch are released.
    batch_max_wait: float = 0.05
    #: Whether a worker runs the next step after its own report without a message.
    continuation: bool = True
    #: Seconds one chord message runs tasks before it leaves the rest to other workers.
    chord_time_slice: float = 1.0
    #: Seconds until the watchdog repeats the wake-up for due tasks that nobody claimed.
    wakeup_repeat: float = 5.0
    #: Seconds in which further wake-ups for one task list are merged into one (debounce).
    wakeup_debounce: float = 0.02
    #: Maximum number of workers that one wake-up notifies.
    wakeup_fanout: int = 16
    #: Maximum number of calls of facets that call themselves, in one run.
    max_recursive_calls: int = 10_000
    #: Maximum number of child runs below one root run.
    max_child_runs: int = 10_000
    #: Maximum number of calls that one durable function makes.
    max_function_calls: int = 10_000
    #: Coroutines of durable functions that a process keeps between their activations. The others
    #: are replayed from their records.
    kept_functions: int = 256
    #: Maximum number of tries that one worker, with all its pool children, holds; 0: any number.
    max_tasks: int = 0
    #: Maximum number of runs that one worker holds tries of; 0: any number.
    max_workflows: int = 0
    #: Open runs of one workflow of a tenant, above which a start is refused; 0: any number.
    max_open_runs: int = 0
    #: Maximum number of child runs inside each other.
    max_child_depth: int = 1_000
    #: Maximum number of turns of agents inside each other.
    max_agent_depth: int = 20
    #: Seconds that a turn of an agent waits for the result of a tool that names no other time.
    agent_tool_timeout: float = 300.0
    #: Seconds that the always blocks of a cancelled run may take, before they are cancelled too.
    cleanup_timeout: float = 300.0
    #: Seconds of waiting that count as much as one point of priority.
    priority_aging: float = 60.0
    #: Seconds that a try of a cancelled step may go on, before its pool child is killed.
    cancel_grace: float = 30.0
    #: Maximum length of an error's message, and of its traceback, in characters.
    max_error_length: int = 8_000
    #: Length of a message as the enclosing steps repeat it, in characters.
    max_error_excerpt: int = 1_000
    #: Maximum length of a log line of `sys.log`, and of each value in other log lines, in
    #: characters.
    max_log_length: int = 2_000
    #: Whether lines that the code of steps prints and logs are kept: `flowengine logs`.
    log_capture: bool = True
    #: Maximum size of the first lines of a try that are kept, in bytes. Of the others, the last
    #: megabyte is kept.
    max_try_log_bytes: int = 10 * 1024 * 1024
    #: Maximum size of the lines of one process that wait on disk for the database, in bytes.
    max_log_spool_bytes: int = 256 * 1024 * 1024
    #: The log of a Celery worker: `text`, Celery's own format with the step behind the message;
    #: `json`, one object for each record; or `celery`, the format unchanged.
    log_format: str = "text"
    #: Whether a Celery worker logs the messages that wake it at INFO. At DEBUG it always does.
    log_wakeups: bool = False
    #: Maximum size of the JSON of the inputs in a `flowengine.execute` message, in bytes.
    max_execute_bytes: int = 4 * 1024 * 1024
    #: Maximum size of one message between agents as JSON, in bytes.
    max_message_bytes: int = 1024 * 1024
    #: Maximum size of the body of a request of the wire protocol, in bytes: that of a value, and
    #: 64 KiB for the rest of the request.
    max_request_bytes: int = 1024 * 1024 + 64 * 1024
    #: Maximum number of tasks that one request of the wire protocol claims.
    max_claimed_tasks: int = 50
    #: Maximum number of seconds that a claim of the wire protocol waits for a task.
    max_claim_seconds: float = 30.0
    #: Maximum number of claims that wait at once, of one token of the wire protocol.
    max_waiting_claims: int = 100
    #: Wrong tokens in a minute, after which the wire protocol refuses requests of their address.
    max_wrong_tokens: int = 20
    #: Maximum number of steps in an answer of the wire protocol.
    max_listed_steps: int = 1_000
    #: Maximum number of runs on a page of Flower.
    max_page_runs: int = 500
    #: Maximum number of lines on the page of one run in Flower.
    max_page_steps: int = 5_000
    #: Maximum size of the paths and errors on the page of one run in Flower, in bytes.
    max_page_bytes: int = 8 * 1024 * 1024
    #: Time limit of one query of a page in Flower, in seconds.
    max_page_seconds: float = 5.0
    #: Whether programs may contain script blocks: Python text that workers run.
    scripts: bool = False
    #: Whether the workers of this process run commands: the facets of flowengine.library.
    commands: bool = False
    #: Time limit of one script, in seconds.
    script_seconds: float = 10.0
    #: Limit of the CPU time of one script, in seconds.
    script_cpu_seconds: float = 10.0
    #: Memory limit of the process of one script, in bytes.
    script_bytes: int = 256 * 1024 * 1024
    #: Limit of the open files of the process of one script, its input and output among them.
    script_open_files: int = 16
    #: Redis URL for circuit breakers shared between processes. Empty: the Celery app's broker or
    #: result backend if that is Redis; else breakers are local to each process.
    breaker_redis_url: str = ""
    #: Consecutive failures that open a circuit breaker.
    breaker_failure_threshold: int = 5
    #: Seconds a circuit breaker stays open before it admits probes.
    breaker_timeout_seconds: float = 60.0
    #: Maximum number of concurrent probes of a half-open circuit breaker.
    breaker_half_open_max_calls: int = 3
    #: Tasks with a circuit breaker while its Redis is unreachable: `run` or `park`.
    breaker_without_redis: str = "run"
    #: URL to which outcomes of runs and steps are posted. Empty: there is no webhook.
    webhook_url: str = ""
    #: Keys that sign the requests of the webhook, separated by commas: each signs.
    webhook_keys: str = field(default="", repr=False)
    #: Seconds in which the receiver of the webhook must answer.
    webhook_timeout: float = 10.0
    #: Maximum number of tries of one delivery, to the webhook or to receivers of signals.
    webhook_max_tries: int = 20
    #: Whether outcomes of runs and steps are sent as Celery signals: flowengine.signals.
    outcome_signals: bool = False
    #: Outcomes that are delivered, separated by commas: run_completed, run_failed, run_cancelled,
    #: step_failed, step_completed; run_alarm when an alarm begins, schedule_stopped.
    hook_events: str = (
        "run_completed,run_failed,run_cancelled,step_failed,run_alarm,schedule_stopped"
    )
    #: Whether the feed of the events of all runs is kept, `engine.events(after=0)`; the same in
    #: every process.
    event_feed: bool = False
    #: How long ended runs are kept, by state; `never`: for ever, also a state that is not named.
    retention: str = DEFAULT_RETENTION
    #: How long ended turns of agents are kept, as 30d. Empty: for ever.
    turn_retention: str = ""
    #: How long the outcomes of ticks of schedules are kept. Empty: for ever.
    tick_retention: str = "90d"
    #: How long the lines that steps have printed and logged are kept. Empty: as long as their run.
    log_retention: str = "30d"
    #: Seconds between two purges by `retention` and `turn_retention`.
    purge_interval: float = 60.0
    #: Part of the time in which a purge of many runs works; it pauses in between. 1: no pauses.
    purge_load: float = 0.1
    #: Token that the clients of `flowengine mcp --http` need; empty: none, on loopback only.
    mcp_token: str = field(default="", repr=False)
    #: Directory of the spool: reports on disk while the database is unreachable.
    spool_directory: str = "flowengine-spool"
    #: Newest tries that Flower keeps, of each facet, outcome and pool child; 0: it is shown none.
    flower_steps: int = 20
    #: Port of /health, /status and /metrics of a Celery worker, on 127.0.0.1. If it is taken, one
    #: of the 19 ports above it. 0: a worker serves none.
    status_port: int = 0
    #: Modules with facets that `celery -A flowengine`, `flowengine work` and commands with
    #: documents import, separated by commas.
    imports: str = ""
    #: Folder of documents, workflows as YAML: workers publish their schedules. Empty: none.
    workflows: str = ""
    #: Celery queue of messages without a task list: evaluate, execute, watchdog.
    control_queue: str = "flowengine"
    #: Keys that sign and verify the engine's messages, separated by commas: the first one signs,
    #: all of them verify. Empty: messages are not signed.
    message_keys: str = field(default="", repr=False)
    #: Keys of signed links with which people answer runs, like `message_keys`; empty: no links.
    link_keys: str = field(default="", repr=False)
    #: The address of Flower, with its prefix: signed links begin with it.
    link_url: str = ""
    #: Keys that encrypt secrets before they are stored, separated by commas: the first one
    #: encrypts, all of them decrypt. Empty: secrets are refused.
    secret_keys: str = field(default="", repr=False)
    #: Class that encodes all values before they are stored, as module:Class; for AES-GCM
    #: flowengine.payload_codecs:AesGcmCodec. Empty: values are stored as JSON.
    payload_codec: str = ""
    #: Keys of the AesGcmCodec, as id=64 hexadecimal digits, separated by commas: the first one
    #: encrypts, all of them decrypt.
    payload_keys: str = field(default="", repr=False)

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        configured: Mapping[str, Any] | None = None,
    ) -> Self:
        """Read the settings from the environment, then from `configured`, else the defaults.

        `configured` is the configuration of a Celery app, with names ``flowengine_<name>``. Before
        the defaults come the values of a web framework (`set_project_settings`).
        """
        environment = os.environ if environment is None else environment
        project = _project()
        values: dict[str, Any] = {}
        for setting in fields(cls):
            name, variable = setting.name, f"FLOWENGINE_{setting.name.upper()}"
            if name in _PROTECTS and not environment.get(variable, "x").strip():
                raise InvalidSetting(variable, "", _NOT_EMPTY)
            if environment.get(variable):
                values[name] = _parse(variable, environment[variable], setting.default)
            elif configured and configured.get(f"flowengine_{name}") is not None:
                text = str(configured[f"flowengine_{name}"])
                values[name] = _parse(variable, text, setting.default)
            elif name in project:
                values[name] = _parse(variable, str(project[name]), setting.default)
            _check_number(name, variable, values.get(name))
        for name in _KEYS:
            _check_keys(f"FLOWENGINE_{name.upper()}", values.get(name, ""))
        _check_retention(values.get("retention", ""))
        _check_age("FLOWENGINE_TURN_RETENTION", values.get("turn_retention", ""))
        _check_age("FLOWENGINE_TICK_RETENTION", values.get("tick_retention", ""))
        _check_age("FLOWENGINE_LOG_RETENTION", values.get("log_retention", ""))
        _check_hooks(values)
        _check_tenancy(values.get("tenant", ""), values.get("tenant_tokens", ""))
        return cls(**values)


_KEYS = ("message_keys", "link_keys", "secret_keys", "webhook_keys", "mcp_token")
#: Settings that are a protection. An empty variable of theirs may be meant, or its value may have
#: been lost on the way, as by `KEY=${KEY}`: so it is refused.
_PROTECTS = frozenset({*_KEYS, "tenant", "tenant_tokens", "payload_codec", "payload_keys"})
_NOT_EMPTY = "a value: remove the variable if this protection is not wanted"


def _no_project() -> Mapping[str, Any]:
    return {}


_project: Callable[[], Mapping[str, Any]] = _no_project


def set_project_settings(source: Callable[[], Mapping[str, Any]]) -> None:
    """Take settings by name from a web framework, where neither environment nor app has them."""
    global _project
    _project = source


#: Tries or runs that the limits of a worker may allow: databases store them.
MAX_HELD = 1_000_000
#: Numbers that may be 0: then a mechanism is off, or nothing is waited for.
_MAY_BE_ZERO = frozenset(
    {
        *("lock_heartbeat_interval", "flower_steps", "quick_seconds"),
        *("worker_time_slice", "chord_time_slice", "wakeup_repeat", "wakeup_debounce"),
        *("max_open_runs", "max_tasks", "max_workflows", "status_port", "alone_patience"),
    }
)


def _check_number(name: str, variable: str, value: Any) -> None:
    """Refuse a number with which nothing would run, or a loop would never pause."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if name in _MAY_BE_ZERO and value == 0:
        return
    if not 0 < value < math.inf:
        expected = "0 or greater" if name in _MAY_BE_ZERO else "greater than 0"
        raise InvalidSetting(variable, str(value), expected)
    if name == "purge_load" and value > 1:
        raise InvalidSetting(variable, str(value), "greater than 0, at most 1")
    if name in ("max_tasks", "max_workflows") and value > MAX_HELD:
        raise InvalidSetting(variable, str(value), f"a number from 0 to {MAX_HELD:,}")


def _check_tenancy(tenant: str, tokens: str) -> None:
    if not tenants.is_tenant(tenant):
        raise InvalidSetting("FLOWENGINE_TENANT", tenant, tenants.EXPECTED)
    try:
        tenants.TenantTokens(tokens)
    except ValueError as problem:
        # Without the value: a token must not appear in an error.
        raise InvalidSetting("FLOWENGINE_TENANT_TOKENS", "***", str(problem)) from None


HOOK_EVENTS = frozenset(
    {"run_completed", "run_failed", "run_cancelled", "step_failed", "step_completed"}
    | {"run_alarm", "schedule_stopped"}
)


def _check_hooks(values: Mapping[str, Any]) -> None:
    url = values.get("webhook_url", "")
    if url and not url.startswith(("https://", "http://")):
        expected = "an address that begins with https:// or http://"
        raise InvalidSetting("FLOWENGINE_WEBHOOK_URL", masked_url(url), expected)
    if url and not values.get("webhook_keys", ""):
        expected = "at least one key (openssl rand -hex 32): requests of the webhook are signed"
        raise InvalidSetting("FLOWENGINE_WEBHOOK_KEYS", "", expected)
    for event in filter(None, values.get("hook_events", "").split(",")):
        if event not in HOOK_EVENTS:
            expected = f"a list of {', '.join(sorted(HOOK_EVENTS))}, separated by commas"
            raise InvalidSetting("FLOWENGINE_HOOK_EVENTS", event, expected)


def _check_retention(text: str) -> None:
    try:
        retention.rules_of(text)
    except ValueError as problem:
        raise InvalidSetting("FLOWENGINE_RETENTION", text, str(problem)) from None


def _check_age(variable: str, text: str) -> None:
    try:
        if text:
            retention.age_of(text)
    except ValueError as problem:
        raise InvalidSetting(variable, text, str(problem)) from None


def _check_keys(variable: str, text: str) -> None:
    """Refuse a key that can be guessed; the error does not show it."""
    keys = [key.strip() for key in text.split(",")]
    if text and not all(len(key) >= SHORTEST_KEY for key in keys):
        expected = f"a list of keys of at least {SHORTEST_KEY} characters, separated by commas"
        raise InvalidSetting(variable, "***", expected)


_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _parse(variable: str, value: str, default: Any) -> Any:
    kind = type(default)
    if kind is bool:
        if value.lower() not in _SWITCHES:
            raise InvalidSetting(variable, value, "on or off")
        return _SWITCHES[value.lower()]
    try:
        return kind(value)
    except ValueError:
        expected = {int: "a whole number", float: "a number"}.get(kind, "text")
        raise InvalidSetting(variable, value, expected) from None
