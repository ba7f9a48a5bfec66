"""`water(history)`: where a run's rows are, how full each place is, and what flows now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .card import phase_of
from .history import RunHistory

# The flows that move in each phase of a mixture; with transfer live all do.
_MOVES = {
    "agents": ("play", "drain"),
    "fill": ("fill",),
    "big": ("learn",),
    "clone": ("clone",),
}


def water(history: RunHistory) -> dict[str, Any]:
    """`places` from left to right, `flows` between neighbours, and `back` to the first place."""
    if history.logged:
        return _logged(history)
    return _mixture(history) if history.mixture else _single(history)


def _logged(history: RunHistory) -> dict[str, Any]:
    """For a user's own loop only the watched pond, if any, is known."""
    seen = [one for one in history.last_health.get("learners", []) if one.get("capacity")]
    if not seen:
        about = "Your own loop. run.watch(pond) shows its replay here and to the doctor."
        return {"places": [_place("Your loop", "")], "flows": [], "back": None, "about": about}
    stored, capacity = (
        sum(int(one.get(name, 0)) for one in seen) for name in ("stored", "capacity")
    )
    kind = "Pond" if seen[0].get("looked") else "HostPond"
    places = [_place("Your loop", "acts"), _place(kind, _rows(capacity), stored / capacity)]
    running = history.status["state"] == "running"
    flows = [{"name": "play", "moves": running}, {"name": "learn", "moves": running}]
    about = "Rows from your loop flow into the watched replay; samples are drawn from it."
    places.append(_place("Your loop", "learns"))
    return {"places": places, "flows": flows, "back": None, "about": about}


def _mixture(history: RunHistory) -> dict[str, Any]:
    settings, train = history.settings, history.train
    live = settings.get("transfer") == "live"
    big, lake = settings.get("big") or {}, settings.get("lake") or {}
    phase = phase_of(history.last, True) if history.status["state"] == "running" else ""
    fills = history.rare.get("fill", [])
    big_level = train.last("big_pond_fill") if live else None
    if big_level is None and fills:
        big_level = fills[-1].get("big_pond_fill")
    agents = int(settings.get("agents") or 0)
    places = [_place("Agents", f"{agents} x {_agent(settings, 'agent', 'pqn')}")]
    if not live:
        pond = int(settings.get("pond") or 0)
        places.append(_place("Ponds", _rows(pond, agents), train.last("pond_fill")))
        stored = fills[-1].get("lake_rows") if fills else None
        of = int(lake.get("capacity") or 0)
        text = f"{stored:,} of {of:,} rows" if stored is not None else _rows(of)
        places.append(_place("Lake", text, train.last("lake_fill")))
    places.append(_place("BigPond", _rows(int(big.get("capacity") or 0)), big_level))
    places.append(_place("BigAgent", _agent(settings, "big_agent", "dqn")))
    moves = ("play", "learn") if live and phase == "agents" else _MOVES.get(phase, ())
    names = ("play", "learn") if live else ("play", "drain", "fill", "learn")
    return {
        "places": places,
        "flows": [{"name": name, "moves": name in moves} for name in names],
        "back": {"name": "clone", "moves": "clone" in moves},
        "about": "The agents' rows flow into their Ponds and drain into the Lake. BigPond is "
        "filled from the Lake, the BigAgent learns from it, and the agents become its clones.",
    }


def _agent(settings: Mapping[str, Any], key: str, before: str) -> str:
    """The agent's name in capitals; `before` is for old runs whose settings lack it."""
    return str(settings.get(key, before)).upper()


def _single(history: RunHistory) -> dict[str, Any]:
    settings, running = history.settings, history.status["state"] == "running"
    actor = _place("Agent", "acts")
    if settings.get("mode") in ("processes", "lockstep"):
        number = int(settings.get("actors") or 1)
        actor = _place("Actors", f"{number} process{'es' if number > 1 else ''}")
    capacity = int(history.learns.get("capacity") or 0)
    if not capacity:
        agent = str(settings.get("agent", "")).upper()
        places = [_place("Agent", f"{agent} acts"), _place("Agent", f"{agent} learns")]
        turns = history.learns.get("turns", 0)
        return {
            "places": places,
            "flows": [{"name": f"rollouts of {turns} turns", "moves": running}],
            "back": {"name": "parameters", "moves": running},
            "about": f"{agent} learns from what it has just played; there is no replay.",
        }
    stored = _stored(history, capacity)
    level = stored / capacity if capacity else None
    offline = history.offline
    kind = {"lake": "Lake", "host": "HostPond"}.get(str(settings.get("replay")), "Pond")
    learns = running and bool(history.train.last("updates"))
    places = [] if offline else [actor]
    places += [
        _place("Lake", "given") if offline else _place(kind, _rows(capacity), level),
        _place("Learner", _agent(settings, "agent", "")),
    ]
    flows = [] if offline else [{"name": "play", "moves": running}]
    flows.append({"name": "learn", "moves": learns})
    about = "New rows flow into the replay, the oldest leave it; the learner draws from it."
    back = None if offline else {"name": "parameters", "moves": learns}
    return {"places": places, "flows": flows, "back": back, "about": about}


def _stored(history: RunHistory, capacity: int) -> float:
    stored, learners = history.health.last("stored"), history.health.last("learners")
    if stored is not None and learners:
        return stored / learners
    return min(history.train.last("steps") or 0.0, float(capacity))


def _place(name: str, text: str, level: float | None = None) -> dict[str, Any]:
    """A place; those that hold rows are drawn as tanks with a level."""
    tank = name in ("Ponds", "Pond", "HostPond", "Lake", "BigPond")
    return {"name": name, "text": text, "tank": tank, "level": level}


def _rows(rows: int, times: int = 1) -> str:
    many = f"{times} x " if times > 1 else ""
    return f"{many}{rows:,} rows"
