"""Ports: the Protocols through which packages reach time, chance, devices, stores and journals."""
