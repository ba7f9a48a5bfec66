"""Workers of `bench/sac.py`: each reads a number of env steps per line and prints CPU seconds."""
