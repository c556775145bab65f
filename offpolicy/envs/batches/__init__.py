"""Adapters of simulators to the contract of `offpolicy.envs.batch`; each imports its simulator when it is used."""
