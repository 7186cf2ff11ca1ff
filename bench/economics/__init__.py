"""`reprise bench economics`: the acceptance rate at which drafts pay, and the rates that drafters reach."""
