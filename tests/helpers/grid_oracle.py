"""The rules of the grid worlds once more, in plain Python: dicts of coordinates, no arrays.

Nothing here is shared with millpond's own arithmetic. Chance is not imitated: an oracle plays the
moves, then looks at what appeared and says whether that was allowed (`appear`, `return_prey`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

KINDS = {
    "treasure": ["empty", "wall", "agent", "gem", "food", "bone"],
    "stag": ["empty", "wall", "agent", "hare", "stag"],
}
SIGNS = {"#": "wall", "g": "gem", "f": "food", "b": "bone", "h": "hare", "s": "stag"}
ACTIONS = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}
Cell = tuple[int, int]  # row, column


def scene(text: str) -> tuple[int, list[Cell], dict[Cell, str]]:
    """Size, agents in order and things from a drawing such as `#.g01#`, one line per row."""
    lines = text.split()
    agents: dict[int, Cell] = {}
    things = {}
    for row, line in enumerate(lines):
        for column, sign in enumerate(line):
            if sign.isdigit():
                agents[int(sign)] = (row, column)
            elif sign in SIGNS and sign != "#":
                things[row, column] = SIGNS[sign]
    return len(lines), [agents[i] for i in sorted(agents)], things


@dataclass
class World:
    size: int
    agents: list[Cell]
    things: dict[Cell, str] = field(default_factory=dict)  # items, or living prey

    def is_wall(self, cell: Cell) -> bool:
        return not all(0 < x < self.size - 1 for x in cell)

    def kind(self, cell: Cell) -> str:
        if self.is_wall(cell):
            return "wall"
        return "agent" if cell in self.agents else self.things.get(cell, "empty")

    def view(self, agent: int, radius: int) -> list[list[str]]:
        row, column = self.agents[agent]
        reach = range(-radius, radius + 1)
        return [[self.kind((row + y, column + x)) for x in reach] for y in reach]


class TreasureOracle(World):
    def play(self, actions: list[int], values: dict[str, float]) -> list[float]:
        """Moves in list order; each agent's reward."""
        rewards = []
        for agent, action in enumerate(actions):
            row, column = self.agents[agent]
            target = (row + ACTIONS[action][0], column + ACTIONS[action][1])
            found = self.kind(target)
            rewards.append(values.get(found, 0.0))
            if found not in ("wall", "agent"):
                self.agents[agent] = target
                self.things.pop(target, None)
        return rewards

    def appear(self, things: dict[Cell, str], allowed: set[str]) -> int:
        """Take over what is there now; returns how many appeared."""
        for cell, kind in self.things.items():
            assert things.get(cell) == kind, f"{kind} at {cell} vanished or changed"
        new = {cell: kind for cell, kind in things.items() if cell not in self.things}
        for cell, kind in new.items():
            assert self.kind(cell) == "empty", f"{kind} appeared on {self.kind(cell)} at {cell}"
            assert kind in allowed, f"{kind} appeared but is not used"
        self.things = dict(things)
        return len(new)


@dataclass
class Prey:
    kind: str
    cell: Cell | None


class StagOracle(World):
    def __init__(self, size: int, agents: list[Cell], prey: list[Prey]):
        super().__init__(size, agents)
        self.prey = prey
        self.place()

    def place(self) -> None:
        alive = [one for one in self.prey if one.cell is not None]
        self.things = {one.cell: one.kind for one in alive}
        assert len(self.things) == len(alive), "two prey in one cell"

    def play(self, actions: list[int], values: dict[str, float], hunters: int) -> list[float]:
        """Moves in list order, then all attacks at once; each agent's reward."""
        for agent, action in enumerate(actions):
            if action == 4:
                continue
            row, column = self.agents[agent]
            target = (row + ACTIONS[action][0], column + ACTIONS[action][1])
            if self.kind(target) == "empty":
                self.agents[agent] = target
        rewards = [0.0] * len(actions)
        self.waiting = [i for i, one in enumerate(self.prey) if one.cell is None]
        for one in self.prey:
            if one.cell is None:
                continue
            row, column = one.cell
            beside = {(row + y, column + x) for y, x in ACTIONS.values()}
            by = [i for i, cell in enumerate(self.agents) if actions[i] == 4 and cell in beside]
            if len(by) >= (hunters if one.kind == "stag" else 1):
                one.cell = None
                for agent in by:
                    rewards[agent] += values[one.kind]
        self.place()
        return rewards

    def return_prey(self, cells: list[Cell | None]) -> tuple[int, int]:
        """Take over where prey is now; returns how many could come back and how many did."""
        came = 0
        for i, (one, cell) in enumerate(zip(self.prey, cells, strict=True)):
            if cell == one.cell:
                continue
            assert i in self.waiting, f"prey {i} moved from {one.cell} to {cell}"
            assert self.kind(cell) == "empty", f"prey {i} came back on {self.kind(cell)}"
            one.cell, came = cell, came + 1
            self.place()
        return len(self.waiting), came
