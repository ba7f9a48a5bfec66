"""`examine(evidence)`: every check of the catalogue, by name, worst first."""

from __future__ import annotations

from ..agents import find_agent
from .actor_checks import epsilon_applied, policy_lag
from .continuous_checks import CONTINUOUS_CHECKS
from .evidence import Evidence
from .learner_checks import learning, target_cadence, update_norm
from .process_checks import process_health
from .recorded_row_checks import episode_borders, nstep_oracle, reward_scale, stack_parity
from .replay_checks import replay_fill, replay_turnover
from .settings_checks import settings_fit
from .transport_checks import channel_integrity, shared_memory, transfer_share, weights_hash
from .verdict import Check, Verdict, unknown, worst_first

CHECKS: dict[str, Check] = {
    "process-health": process_health,
    "shared-memory": shared_memory,
    "channel-integrity": channel_integrity,
    "weights-hash": weights_hash,
    "episode-borders": episode_borders,
    "stack-parity": stack_parity,
    "nstep-oracle": nstep_oracle,
    "reward-scale": reward_scale,
    "policy-lag": policy_lag,
    "epsilon-applied": epsilon_applied,
    "replay-fill": replay_fill,
    "replay-turnover": replay_turnover,
    "target-cadence": target_cadence,
    "update-norm": update_norm,
    "settings-fit": settings_fit,
    "transfer-share": transfer_share,
    "learning": learning,
}


def examine(evidence: Evidence) -> list[Verdict]:
    """What every check says, worst first.

    `examine(Evidence.of(Run.open(path)))[0].state`.
    """
    real = find_agent(evidence.settings.agent).continuous
    checks = {**CHECKS, **CONTINUOUS_CHECKS} if real else CHECKS
    found = [check(evidence) for check in checks.values()]
    return worst_first(found)


def folded(verdicts: list[Verdict]) -> list[Verdict]:
    """The same with each reason for `unknown` that several checks share given once, at the end.

    `folded(examine(evidence))[-1].evidence["checks"]` names these checks.
    """
    shared: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.state == "unknown" and not verdict.evidence:
            shared.setdefault(verdict.message, []).append(verdict.name)
    most = sorted(shared.items(), key=lambda one: -len(one[1]))
    shared = {why: names for why, names in most if len(names) > 1}
    if not shared:
        return verdicts
    checks = [name for names in shared.values() for name in names]
    told = ". ".join(f"{len(names)} checks: {why}" for why, names in shared.items())
    apart = [verdict for verdict in verdicts if verdict.name not in checks]
    return [*apart, unknown("others", told, checks=checks)]
