"""`reprise bench replay`: drafters over answers that are known, without a model. See command.py."""
