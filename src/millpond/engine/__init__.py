"""The engine: env -> rows -> replay -> agent, in one program or as actors and learners."""
