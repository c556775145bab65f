"""Several learner ranks: who they are, how they meet, what they exchange."""
