"""The prompts of a benchmark: English words, the same for every engine, host and Python.

No two prompts share their first words, so that no prefix cache helps,
within one run and over all runs of a measurement.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from typing import Any

WARM_UP = -1
"""The repetition that is not counted."""

WORDS = """
able about above across action after again age air all almost also always animal answer any area arm around art ask
away baby back ball bank base bear beat bed before begin behind best better big bird black blood blue board boat body
book both box boy bread break bring brother brown build burn business but buy call came can car care carry case cat
catch cause cell center chair change check child city class clear close cloud coat cold color come common cook cool
corn corner cost country course cover cross cry cut dance dark day dead deal deep desk did doctor dog door down draw
dream dress drink drive drop dry early earth east easy eat edge egg eight end enough even evening every eye face fact
fall family far farm fast father fear feel feet few field fight fill final find fine fire first fish five floor flower
fly follow food foot force forest form four free fresh friend from front fruit full game garden gate gave girl give
glass goal gold good grass gray great green ground group grow guess hair half hall hand happy hard hat head hear heart
heat heavy help here high hill history hold hole home hope horse hot hour house how human ice idea inch iron island
job join jump just keep key kind king knew know lake land large last late laugh law lay lead learn leave left leg less
letter life lift light line list little live long look lost lot loud love low main make man many map mark market may
mean meat meet metal middle might mile milk mind minute miss money month moon more morning most mother mountain mouth
move much music name near neck need never new next night nine noise north nose note nothing now number ocean offer
office oil old once one only open orange order other over own page paint paper part party pass past path pay people
person picture piece place plain plan plant play point poor power press price pull push put queen
""".split()  # noqa: SIM905  (a line each would be a page)


def texts(count: int, input_tokens: int, seed: object) -> list[str]:
    """So many prompts of about so many tokens each: a common word is a token for most models.

    Args:
        count: number of prompts.
        input_tokens: words of each.
        seed: the same seed gives the same prompts.
    """
    # Of random.Random only random() is promised to stay the same over versions of Python.
    draw = random.Random(str(seed)).random  # noqa: S311  (prompts are no secret)
    return [" ".join(WORDS[int(draw() * len(WORDS))] for _ in range(input_tokens)) for _ in range(count)]


def count_of(load: Mapping[str, Any], level: int) -> int:
    """Requests of one run at a level."""
    return int(max(load["min_requests"], level * load["requests_per_stream"]))


def of_run(load: Mapping[str, Any], level: int, repetition: int) -> list[str]:
    """The prompts of one run; repetition ``WARM_UP`` is the warm-up of a level."""
    return texts(count_of(load, level), load["input_tokens"], f"{load['seed']}/{level}/{repetition}")


def digest(load: Mapping[str, Any]) -> str:
    """16 hex digits over the prompts of all runs of a measurement."""
    found = hashlib.sha256()
    for repetition in range(WARM_UP, load["repetitions"]):
        for level in load["concurrencies"]:
            found.update(json.dumps(of_run(load, level, repetition)).encode())
    return found.hexdigest()[:16]
