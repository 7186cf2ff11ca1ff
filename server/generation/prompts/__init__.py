"""From a request to the tokens of its prompts: chats, texts with holes, images, and what is cut off."""
