"""`PROBE_CHECKS`: what is asked of a run from outside, and which silent checks that answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..errors import MillpondError
from .acting_checks import acted_with, collapsed, evaluation
from .action_label_checks import mislabelled
from .counterfactual_checks import counterfactual
from .draw_checks import draws
from .env_checks import fresh, fresh_starts, own_step, shared_chance
from .exploration_checks import explored
from .memory_checks import memory
from .multi_agent_checks import others
from .parameter_checks import dormant, moved, target_follows
from .play import Play
from .play_checks import examined
from .priority_checks import priorities
from .probe import Probe
from .reference_checks import scripted_players
from .reward_checks import ends_by_chance
from .stored_row_checks import same_world, stacks_as_acted, training_and_evaluation
from .timing_checks import timing
from .update_checks import update_audit
from .value_checks import bellman
from .verdict import Verdict, unknown, with_suspects, worst_first

Asked = Callable[[Probe], Sequence[Verdict]]
SECONDS = 120.0  # after which no further check is begun


def _worst(one: Sequence[Verdict], other: Sequence[Verdict]) -> list[Verdict]:
    """Of two lists of verdicts by name the worse of each; what is known before what is not."""
    found = {verdict.name: verdict for verdict in one}

    def rank(verdict: Verdict) -> tuple[int, bool]:
        return ("red", "yellow", "green", "unknown").index(verdict.state), not verdict.suspect

    for verdict in other:
        before = found.get(verdict.name)
        if before is None or rank(verdict) < rank(before):
            found[verdict.name] = verdict
    return list(found.values())


def _about(play: Play, lasts: bool) -> list[Verdict]:
    return [*examined(play, lasts), *timing(play)]


def _rows(probe: Probe) -> list[Verdict]:
    """What rows say by themselves: those that are stored, and those that are played now."""
    stored, found = probe.saved.play, list[Verdict]()
    lasts = ends_by_chance(probe.random.play)
    if probe.saved.params is not None:
        play, agents = probe.curious.play, probe.settings.world.num_agents
        found = _worst(_about(play, lasts), others(play, agents))
    if stored is not None:
        found = _worst(found, _about(stored, lasts))
        if probe.saved.params is not None:
            found.append(mislabelled(stored, probe.curious.play))
    return found


def _world(probe: Probe) -> list[Verdict]:
    """What the env answers when it is asked directly."""
    world, game = probe.settings.world, probe.random
    begun = fresh(world)
    found = [fresh_starts(game.play, begun), shared_chance(game.play, begun)]
    if probe.saved.play is not None:
        later = fresh_starts(probe.saved.play, begun)
        found = _worst(found, [later])
    if game.state is not None:
        found = _worst(found, counterfactual(world, game.states))
        found.append(own_step(world, game.state))
    return _worst(examined(game.play), found)


PROBE_CHECKS: tuple[Asked, ...] = (
    lambda probe: [moved(probe)],
    lambda probe: [target_follows(probe)],
    _rows,
    lambda probe: [explored(probe)],
    lambda probe: [acted_with(probe)],
    lambda probe: [stacks_as_acted(probe)],
    lambda probe: [same_world(probe)],
    draws,
    lambda probe: [priorities(probe)],
    lambda probe: [memory(probe)],
    lambda probe: [update_audit(probe)],
    lambda probe: [bellman(probe)],
    lambda probe: [dormant(probe)],
    lambda probe: [collapsed(probe)],
    lambda probe: [evaluation(probe)],
    lambda probe: [training_and_evaluation(probe)],
    _world,
    lambda probe: [scripted_players(probe)],
)

# Checks that only recorded evidence feeds, and those of a probe that say the same another way.
ANSWERED = {
    "stack-parity": ("stacks-acted-on", "replay-transitions"),
    "episode-borders": ("row-order",),
    "nstep-oracle": ("replay-transitions", "update-audit"),
    "reward-scale": ("env-rewards", "update-audit"),
    "policy-lag": ("acting-weights", "layers-move"),
    "epsilon-applied": ("exploration",),
    "replay-turnover": ("replay-draws", "update-audit"),
}


def examine_probe(probe: Probe, seconds: float = SECONDS) -> list[Verdict]:
    """What every check of a probe says, worst first; no check begins after `seconds`.

    `examine_probe(Probe.of(Run.open(path)))`.
    """
    if probe.settings.from_lake:
        return [unknown("probe", "learning from a Lake alone: nobody acts, and nothing is played")]
    began, found = time.monotonic(), list[Verdict]()
    for asked in PROBE_CHECKS:
        if time.monotonic() - began > seconds:
            found.append(
                unknown("probe", f"stopped after {seconds:.0f} s; --seconds gives it more")
            )
            break
        try:
            found = _worst(found, asked(probe))
        except MillpondError as error:
            found.append(unknown("probe", f"the env or agent refused: {error}"))
            break
    return worst_first(found)


def without_answered(verdicts: list[Verdict], probed: list[Verdict]) -> list[Verdict]:
    """Verdicts without those that know nothing, where the probe says the same another way."""
    known = {verdict.name for verdict in probed if verdict.state != "unknown"}
    return [
        verdict
        for verdict in verdicts
        if verdict.state != "unknown" or not known & set(ANSWERED.get(verdict.name, ()))
    ]


def examined_with(verdicts: list[Verdict], probe: Probe, seconds: float = SECONDS) -> list[Verdict]:
    """What recorded evidence says and what a probe of the same run says, worst first.

    `examined_with(examine(Evidence.of(run)), Probe.of(run))`.
    """
    probed = examine_probe(probe, seconds)
    found = [*without_answered(verdicts, probed), *probed]
    return worst_first(with_suspects(found))
