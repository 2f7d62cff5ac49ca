"""Parts that the servers on this machine share: who may come in, how often, for how long, and the token."""
