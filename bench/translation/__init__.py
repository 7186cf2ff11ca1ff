"""`reprise bench translation`: measure drafts of models with other vocabularies, by translation strategy."""
