"""SBX's SAC on one Gymnasium env, as its own `learn` runs it."""

from __future__ import annotations

from sbx import SAC

from .task import BATCH, CAPACITY, FILL, GAMMA, RATE, TAU, WIDTH, serve


def main() -> None:
    model = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        learning_rate=RATE,
        buffer_size=CAPACITY,
        learning_starts=FILL,
        batch_size=BATCH,
        tau=TAU,
        gamma=GAMMA,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": [WIDTH, WIDTH]},
        seed=0,
    )
    serve(lambda steps: model.learn(steps, reset_num_timesteps=False) and None)


if __name__ == "__main__":
    main()
