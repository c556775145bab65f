"""Several learner ranks: the process group, the gradient exchange and the rendezvous of hosts."""
