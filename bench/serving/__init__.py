"""Load on servers: `reprise bench serve` with prompts of one length, `reprise bench peers` with workloads."""
