"""`reprise bench replay`: replay known answers through drafters, without a model."""
