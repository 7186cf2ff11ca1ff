"""The commands about models on this disk: fetch, list, delete, convert and describe them."""
