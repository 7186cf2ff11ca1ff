"""The report: one HTML file with interactive plots, drawn from result documents. It fetches nothing."""

from reprise.bench.page.run_page import page, write_page

__all__ = ["page", "write_page"]
