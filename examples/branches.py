"""Choose a branch at run time: `when`, with any number of cases.

    python examples/branches.py

Only the steps of the chosen branch exist in the run. The conditions are part of the program, so
`flowengine show`, the database and a recovered run all have them.
"""

from flowengine import and_, concat, event_facet, is_in, when, workflow

DAILY_LIMIT = 50_000


@event_facet
def rate(customer: str) -> str:
    """Ask the rating service: 'new', 'good' or 'blocked'."""
    return {"ada": "good", "mallory": "blocked"}.get(customer, "new")


@event_facet
def approve(customer: str, cents: int) -> str:
    return f"{customer}: {cents} approved"


@event_facet(task_list="people")
def ask_a_person(customer: str, cents: int) -> str:
    return f"{customer}: {cents} is looked at by a person"


@event_facet
def notify(team: str, text: str) -> None:
    print(f"  to {team}: {text}")


@workflow
def credit(customer: str, cents: int) -> str:
    rating = rate(customer)

    # Without `otherwise` it has no value.
    when(rating == "blocked", lambda: notify("security", concat(customer, " tried again")))

    return when(
        (rating == "blocked", "refused"),  # a value needs no lambda
        (and_(rating == "new", cents > 1_000), lambda: ask_a_person(customer, cents)),
        (cents > DAILY_LIMIT, lambda: ask_a_person(customer, cents)),
        (is_in(rating, ["good", "new"]), lambda: approve(customer, cents)),
        otherwise=lambda: concat("no rule for ", rating),
    )


if __name__ == "__main__":
    for customer, cents in [("ada", 4_000), ("ada", 90_000), ("bob", 4_000), ("mallory", 1)]:
        print(credit.start(customer, cents).result(timeout=60))
