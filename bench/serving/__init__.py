"""What servers answer: `reprise bench serve` and `embed`; and turns of a chat."""
