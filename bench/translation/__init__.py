"""What drafts of models with other vocabularies bring, by the way in which they are translated."""
