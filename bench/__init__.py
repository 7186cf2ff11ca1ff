"""Benchmarks: workloads, measurements, and reports about them."""
