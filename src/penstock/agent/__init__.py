"""An agent, joined of its parts on ports: what a server, the simulation and the tests' rigs run."""
