"""From a request to the tokens of its prompt, and the texts that drafters may copy from."""
