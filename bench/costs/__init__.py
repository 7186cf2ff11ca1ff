"""What single parts cost: sampling, drafters, and prefill by chunk size."""
