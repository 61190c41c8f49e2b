"""Values that are stored encrypted, with keys that are replaced.

    python examples/encrypted_values.py      (needs flowengine[secrets])

The keys come from the environment of each process, never from the database.
"""

import os
import sqlite3

from flowengine import default_engine, event_facet, workflow

os.environ["FLOWENGINE_PAYLOAD_CODEC"] = "flowengine.payload_codecs:AesGcmCodec"
# The first key encrypts; the other one still decrypts what an earlier process has stored.
os.environ["FLOWENGINE_PAYLOAD_KEYS"] = f"2027={'c0ffee' * 10 + '0123'},2026={'ab' * 32}"


@event_facet
def diagnose(patient: str) -> str:
    return f"{patient} has a cold"


@workflow
def visit(patient: str) -> str:
    return diagnose(patient)


if __name__ == "__main__":
    run = visit.start("Ada Lovelace")
    print(run.result(timeout=60))
    file = default_engine().database.file
    assert file is not None
    with sqlite3.connect(file) as database:
        query = "SELECT returns FROM flowengine_step WHERE facet_name LIKE '%diagnose'"
        rows = database.execute(query).fetchall()
    database.close()
    print("stored as it is:", any("cold" in row[0] for row in rows))
    print("encrypted:", all(row[0].startswith("!") for row in rows))
