"""`reprise verify`: check on this machine that drafting changes no answer, and that it slows none down."""
