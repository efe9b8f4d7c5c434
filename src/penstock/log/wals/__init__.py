"""WAL directories of agents: their names, claiming one, writing one, taking one over."""
